package contract_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// polling returns a runtime without optional interfaces: its only calls are full lists and
// inspections.
func polling(rt *plegtest.Runtime) pleg.Runtime { return rt.Plain() }

// scripted is a runtime whose answers the test chooses. They may be bad data.
type scripted struct {
	pods   func() ([]*pleg.Pod, error)
	status func(pod *pleg.Pod) (*pleg.PodStatus, error)
	pod    func(uid types.UID) (*pleg.Pod, error)
}

func (s *scripted) GetPods(context.Context, bool) ([]*pleg.Pod, error) { return s.pods() }

func (s *scripted) GetPodStatus(_ context.Context, p *pleg.Pod) (*pleg.PodStatus, error) {
	return s.status(p)
}

func (s *scripted) GetPod(_ context.Context, uid types.UID) (*pleg.Pod, error) { return s.pod(uid) }

// The method instead can be the argument wrap of newNodeOf: it replaces the node's runtime by s.
func (s *scripted) instead(*plegtest.Runtime) pleg.Runtime { return s }

// late is a runtime whose inspections wait until the test sends to answer. These inspections wait
// even after their context has ended.
type late struct {
	pleg.Runtime
	answer chan struct{}
}

func (l late) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	<-l.answer
	return l.Runtime.GetPodStatus(context.WithoutCancel(ctx), pod)
}

// churning is a runtime with pods that come and go, with an event for each change. It keeps nothing
// of removed pods, so only the generator can make the heap grow.
type churning struct {
	listsFail atomic.Bool
	observe   atomic.Pointer[func(pleg.ContainerEvent)]

	mu   sync.Mutex
	pods map[types.UID]*pleg.Pod
	// broken returns true for pods without a working pod list.
	broken func(types.UID) bool
}

func newChurning(pods ...*pleg.Pod) *churning {
	c := &churning{pods: make(map[types.UID]*pleg.Pod), broken: func(types.UID) bool { return false }}
	ignore := func(pleg.ContainerEvent) {}
	c.observe.Store(&ignore)
	for _, p := range pods {
		c.pods[p.ID] = p
	}
	return c
}

// set adds or changes a pod, or removes it if pod is nil, and sends an event.
func (c *churning) set(uid types.UID, pod *pleg.Pod) {
	c.mu.Lock()
	if pod == nil {
		delete(c.pods, uid)
	} else {
		c.pods[uid] = pod
	}
	c.mu.Unlock()
	c.hint(uid)
}

func (c *churning) hint(uid types.UID) {
	(*c.observe.Load())(pleg.ContainerEvent{PodUID: uid, ContainerID: "container of " + string(uid)})
}

func (c *churning) GetPods(context.Context, bool) ([]*pleg.Pod, error) {
	if c.listsFail.Load() {
		return nil, errors.New("too large")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []*pleg.Pod
	for _, p := range c.pods {
		list = append(list, p)
	}
	return list, nil
}

func (c *churning) GetPod(_ context.Context, uid types.UID) (*pleg.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch p := c.pods[uid]; {
	case c.broken(uid):
		return nil, errors.New("cannot be listed")
	case p == nil:
		return nil, pleg.ErrPodNotFound
	default:
		return p, nil
	}
}

func (c *churning) GetPodStatus(_ context.Context, p *pleg.Pod) (*pleg.PodStatus, error) {
	return statusOf(p), nil
}

func (c *churning) WatchContainerEvents(
	ctx context.Context, connected func(), observe func(pleg.ContainerEvent),
) error {
	c.observe.Store(&observe)
	connected()
	<-ctx.Done()
	return ctx.Err()
}

// passing is a runtime that stores only its present pods.
type passing struct{ pods []*pleg.Pod }

func (p *passing) GetPods(context.Context, bool) ([]*pleg.Pod, error) { return p.pods, nil }

func (p *passing) GetPod(_ context.Context, uid types.UID) (*pleg.Pod, error) {
	for _, pod := range p.pods {
		if pod.ID == uid {
			return pod, nil
		}
	}
	return nil, pleg.ErrPodNotFound
}

func (p *passing) GetPodStatus(_ context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	return &pleg.PodStatus{ID: pod.ID}, nil
}

// measured is a runtime that is also a collector of metrics.
type measured struct {
	*plegtest.Runtime
	prometheus.Counter
}
