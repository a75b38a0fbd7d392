package kubelet

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	kubepleg "k8s.io/kubernetes/pkg/kubelet/pleg"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
)

// kubeletPLEG contains all methods of the kubelet's generator. The interface that its constructor
// returns contains only some of them.
type kubeletPLEG interface {
	kubepleg.PodLifecycleEventGenerator
	Stop()
	Relist(ctx context.Context)
}

// kubeletSide is the kubelet's generator and cache on a node.
type kubeletSide struct {
	generator kubeletPLEG
	cache     kubecontainer.Cache
}

func newKubeletSide(n *node, capacity int) *kubeletSide {
	s := &kubeletSide{cache: kubecontainer.NewCache()}
	s.generator = newKubeletPLEG(&kubeletRuntime{node: n}, capacity, s.cache)
	return s
}

// newKubeletPLEG returns the kubelet's generator with the kubelet's own period and threshold.
func newKubeletPLEG(runtime kubecontainer.Runtime, capacity int, cache kubecontainer.Cache) kubeletPLEG {
	g := kubepleg.NewGenericPLEG(runtime, make(chan *kubepleg.PodLifecycleEvent, capacity),
		&kubepleg.RelistDuration{RelistPeriod: pleg.DefaultRelistPeriod, RelistThreshold: pleg.DefaultRelistThreshold},
		cache, clock.RealClock{})
	return g.(kubeletPLEG)
}

// events reads the events that are in the channel.
func (s *kubeletSide) events() []event {
	var events []event
	for {
		select {
		case e := <-s.generator.Watch():
			events = append(events, event{e.ID, string(e.Type), idOf(e.Data)})
		default:
			return events
		}
	}
}

func (s *kubeletSide) get(uid types.UID) (content, error) {
	status, err := s.cache.Get(uid)
	return kubeletContent(status), err
}

// read starts a read from the cache, and returns a channel for the answer.
func (s *kubeletSide) read(uid types.UID, minTime time.Time) <-chan answer {
	ch := make(chan answer, 1)
	go func() {
		status, err := s.cache.GetNewerThan(uid, minTime)
		ch <- answer{kubeletContent(status), err}
	}()
	return ch
}

// release makes the cache answer all blocked readers, because the kubelet's readers cannot be
// cancelled.
func (s *kubeletSide) release() {
	s.cache.UpdateTime(time.Now().Add(time.Hour * 24 * 365))
}

// kubeletRuntime presents a node to the kubelet. The generator calls only the three methods below.
type kubeletRuntime struct {
	kubecontainer.Runtime
	node *node
}

func (r *kubeletRuntime) GetPods(ctx context.Context, _ bool) ([]*kubecontainer.Pod, error) {
	n := r.node
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	stamp := time.Now()
	if n.listIsStuck != nil {
		<-n.listIsStuck
	}
	if n.listErr != nil {
		return nil, n.listErr
	}
	pods := make([]*kubecontainer.Pod, 0, len(n.pods))
	for _, p := range n.pods {
		pods = append(pods, p.forKubelet(stamp))
	}
	return pods, nil
}

func (r *kubeletRuntime) GetPod(_ context.Context, uid types.UID) (*kubecontainer.Pod, error) {
	if p := r.node.pod(uid); p != nil {
		return p.forKubelet(time.Now()), nil
	}
	return nil, kubecontainer.ErrPodNotFound
}

func (r *kubeletRuntime) GetPodStatus(_ context.Context, pod *kubecontainer.Pod) (*kubecontainer.PodStatus, error) {
	if hang := r.node.hangs[pod.ID]; hang != nil {
		<-hang
	}
	if err := r.node.inspectErr[pod.ID]; err != nil {
		return nil, err
	}
	p := r.node.pod(pod.ID)
	if p == nil {
		return &kubecontainer.PodStatus{ID: pod.ID, Name: pod.Name, Namespace: pod.Namespace}, nil
	}
	return p.statusForKubelet(), nil
}

func (p *modelPod) statusForKubelet() *kubecontainer.PodStatus {
	status := &kubecontainer.PodStatus{
		ID: p.uid, Name: string(p.uid), Namespace: "default", IPs: p.liveIPs(), SandboxStatuses: p.sandboxStatuses(),
	}
	for _, c := range p.containers {
		status.ContainerStatuses = append(status.ContainerStatuses, &kubecontainer.Status{
			ID: kubecontainer.ContainerID{Type: "fake", ID: c.id}, Name: c.id,
			State: kubecontainer.State(c.state), ExitCode: exitCode(c),
		})
	}
	status.ActiveContainerStatuses = status.ContainerStatuses
	return status
}

func (p *modelPod) forKubelet(stamp time.Time) *kubecontainer.Pod {
	if p == nil {
		return nil
	}
	convert := func(list []modelContainer) []*kubecontainer.Container {
		var converted []*kubecontainer.Container
		for _, c := range list {
			converted = append(converted, &kubecontainer.Container{
				ID: kubecontainer.ContainerID{Type: "fake", ID: c.id}, Name: c.id, State: kubecontainer.State(c.state),
			})
		}
		return converted
	}
	return &kubecontainer.Pod{
		ID: p.uid, Name: string(p.uid), Namespace: "default", Timestamp: stamp,
		Containers: convert(p.containers), Sandboxes: convert(p.sandboxes),
	}
}

func (p *modelPod) sandboxStatuses() []*runtimeapi.PodSandboxStatus {
	var statuses []*runtimeapi.PodSandboxStatus
	for _, s := range p.sandboxes {
		state := runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		if s.state == running {
			state = runtimeapi.PodSandboxState_SANDBOX_READY
		}
		statuses = append(statuses, &runtimeapi.PodSandboxStatus{Id: s.id, State: state})
	}
	return statuses
}

// exitCode returns the exit code that both generators see: 0 unless the container has exited.
func exitCode(c modelContainer) int {
	if c.state == exited {
		return len(c.id)
	}
	return 0
}

func kubeletContent(status *kubecontainer.PodStatus) content {
	if status == nil {
		return content{None: true}
	}
	c := content{ID: status.ID, Name: status.Name, Namespace: status.Namespace, IPs: status.IPs}
	for _, s := range status.ContainerStatuses {
		c.Containers = append(c.Containers, fmt.Sprintf("%s %s %s %d", s.ID.String(), s.Name, s.State, s.ExitCode))
	}
	for _, s := range status.SandboxStatuses {
		c.Sandboxes = append(c.Sandboxes, s.Id+" "+s.State.String())
	}
	return c
}
