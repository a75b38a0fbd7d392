package kubelet

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
)

// plegSide is the library's generator and cache on a node.
type plegSide struct {
	generator *pleg.GenericPLEG
	cache     *pleg.PodCache
}

func newPLEGSide(n *node, capacity int) *plegSide {
	return newPLEGSideOf(&plegRuntime{node: n}, capacity)
}

func newPLEGSideOf(runtime pleg.Runtime, capacity int) *plegSide {
	s := &plegSide{cache: pleg.NewCache()}
	s.generator = newPLEG(runtime, capacity, s.cache)
	s.generator.Watch() // deliver events from the beginning, as the kubelet does
	return s
}

func newPLEG(runtime pleg.Runtime, capacity int, cache *pleg.PodCache) *pleg.GenericPLEG {
	return pleg.NewGenericPLEG(runtime, capacity, pleg.DefaultRelistPeriod, cache, clock.RealClock{},
		pleg.WithLogger(logr.Discard()))
}

func (s *plegSide) events() []event { return taken(s.generator.Watch()) }

// sorted sorts events by pod, because the library keeps no order between pods.
func sorted(events []event) []event {
	slices.SortStableFunc(events, func(a, b event) int { return strings.Compare(string(a.UID), string(b.UID)) })
	return events
}

// taken reads the events that are in the channel.
func taken(ch <-chan *pleg.PodLifecycleEvent) []event {
	var events []event
	for {
		select {
		case e, open := <-ch:
			if !open {
				return events
			}
			events = append(events, event{e.ID, string(e.Type), idOf(e.Data)})
		default:
			return events
		}
	}
}

func (s *plegSide) get(uid types.UID) (content, error) {
	status, err := s.cache.Get(uid)
	return plegContent(status), err
}

// read starts a read from the cache, and returns a channel for the answer.
func (s *plegSide) read(ctx context.Context, uid types.UID, minTime time.Time) <-chan answer {
	ch := make(chan answer, 1)
	go func() {
		status, _, err := s.cache.LookupNewerThan(ctx, uid, minTime)
		if status != nil {
			ch <- answer{plegContent(status), err}
		}
	}()
	return ch
}

// plegRuntime presents a node to the library.
type plegRuntime struct{ node *node }

func (r *plegRuntime) GetPods(ctx context.Context, _ bool) ([]*pleg.Pod, error) {
	n := r.node
	if n.listIsStuck != nil {
		select {
		case <-n.listIsStuck:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if n.listErr != nil {
		return nil, n.listErr
	}
	pods := make([]*pleg.Pod, 0, len(n.pods))
	for _, p := range n.pods {
		pods = append(pods, p.forPLEG())
	}
	return pods, nil
}

func (r *plegRuntime) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	if hang := r.node.hangs[pod.ID]; hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err := r.node.inspectErr[pod.ID]; err != nil {
		return nil, err
	}
	p := r.node.pod(pod.ID)
	if p == nil {
		return &pleg.PodStatus{ID: pod.ID, Name: pod.Name, Namespace: pod.Namespace}, nil
	}
	return p.statusForPLEG(), nil
}

// getterRuntime is a plegRuntime that can also list one pod.
type getterRuntime struct{ plegRuntime }

func (r *getterRuntime) GetPod(_ context.Context, uid types.UID) (*pleg.Pod, error) {
	if p := r.node.pod(uid); p != nil {
		return p.forPLEG(), nil
	}
	return nil, pleg.ErrPodNotFound
}

// eventRuntime is a getterRuntime with an event stream.
type eventRuntime struct {
	getterRuntime
	events chan pleg.ContainerEvent
	ends   chan struct{} // each value ends a stream
}

func newEventRuntime(n *node) *eventRuntime {
	return &eventRuntime{getterRuntime{plegRuntime{n}}, make(chan pleg.ContainerEvent), make(chan struct{})}
}

func (r *eventRuntime) WatchContainerEvents(ctx context.Context, connected func(),
	observe func(pleg.ContainerEvent)) error {
	connected()
	for {
		select {
		case e := <-r.events:
			observe(e)
		case <-r.ends:
			return io.EOF
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *modelPod) forPLEG() *pleg.Pod {
	if p == nil {
		return nil
	}
	convert := func(list []modelContainer) []*pleg.Container {
		var converted []*pleg.Container
		for _, c := range list {
			converted = append(converted, &pleg.Container{
				ID: pleg.ContainerID{Type: "fake", ID: c.id}, Name: c.id, State: pleg.State(c.state),
			})
		}
		return converted
	}
	return &pleg.Pod{
		ID: p.uid, Name: string(p.uid), Namespace: "default",
		Containers: convert(p.containers), Sandboxes: convert(p.sandboxes),
	}
}

func (p *modelPod) statusForPLEG() *pleg.PodStatus {
	status := &pleg.PodStatus{
		ID: p.uid, Name: string(p.uid), Namespace: "default", IPs: p.liveIPs(), SandboxStatuses: p.sandboxStatuses(),
	}
	for _, c := range p.containers {
		status.ContainerStatuses = append(status.ContainerStatuses, &pleg.Status{
			ID: pleg.ContainerID{Type: "fake", ID: c.id}, Name: c.id,
			State: pleg.State(c.state), ExitCode: exitCode(c),
			Reason: "Completed", // any other reason causes one more inspection (rule 22)
		})
	}
	status.ActiveContainerStatuses = status.ContainerStatuses
	return status
}

func plegContent(status *pleg.PodStatus) content {
	if status == nil {
		return content{None: true}
	}
	c := content{ID: status.ID, Name: status.Name, Namespace: status.Namespace, IPs: status.IPs}
	for _, s := range status.ContainerStatuses {
		c.Containers = append(c.Containers, fmt.Sprintf("%s %s %s %d", s.ID, s.Name, s.State, s.ExitCode))
	}
	for _, s := range status.SandboxStatuses {
		c.Sandboxes = append(c.Sandboxes, s.Id+" "+s.State.String())
	}
	return c
}
