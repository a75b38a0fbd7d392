// Package deletor removes what pods leave behind in the runtime while they go on: of each
// container the newest dead instance is kept, for its exit code and its restart count, and
// older ones are removed; so are dead sandboxes that have no container any more.
package deletor

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg"
)

// Runtime removes containers and sandboxes.
type Runtime interface {
	RemoveContainer(ctx context.Context, id string) error
	RemovePodSandbox(ctx context.Context, id string) error
}

// Deletor removes in a goroutine of its own, so that a runtime that is slow to remove holds
// back nobody. Its methods are safe for concurrent use.
type Deletor struct {
	cache   pleg.ROCache
	pods    func(types.UID) *pleg.Pod
	runtime Runtime
	logger  klog.Logger

	mu   sync.Mutex
	todo map[types.UID]bool // guarded by mu
	wake chan struct{}      // capacity 1
}

// New returns a deletor. pods returns a pod as it was listed last, nil if it was not.
func New(cache pleg.ROCache, pods func(types.UID) *pleg.Pod, runtime Runtime, logger klog.Logger) *Deletor {
	return &Deletor{cache: cache, pods: pods, runtime: runtime, logger: logger, todo: map[types.UID]bool{},
		wake: make(chan struct{}, 1)}
}

// Tidy asks for a pod to be tidied, and returns at once.
func (d *Deletor) Tidy(uid types.UID) {
	d.mu.Lock()
	d.todo[uid] = true
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run tidies pods until ctx ends.
func (d *Deletor) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		}
		d.mu.Lock()
		todo := d.todo
		d.todo = map[types.UID]bool{}
		d.mu.Unlock()
		var joined sync.WaitGroup
		for uid := range todo {
			joined.Go(func() { d.tidy(ctx, uid) }) // each waits for its own pod's shim alone
		}
		joined.Wait()
	}
}

// tidy removes what a pod has too much. A failure is tried again at the next housekeeping.
func (d *Deletor) tidy(ctx context.Context, uid types.UID) {
	status, err := d.cache.Get(uid)
	if err != nil {
		return
	}
	kept := map[string]bool{}
	for _, s := range status.ContainerStatuses { // newest first
		if s.State != pleg.ContainerStateExited {
			continue
		}
		if kept[s.Name] {
			d.log(d.runtime.RemoveContainer(ctx, s.ID.ID))
		}
		kept[s.Name] = true
	}
	pod := d.pods(uid)
	for i, s := range status.SandboxStatuses {
		if i > 0 && s.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY && pod != nil && isEmpty(pod, s.GetId()) {
			d.log(d.runtime.RemovePodSandbox(ctx, s.GetId()))
		}
	}
}

func isEmpty(pod *pleg.Pod, sandboxID string) bool {
	for _, c := range pod.Containers {
		if c.PodSandboxID == sandboxID {
			return false
		}
	}
	return true
}

func (d *Deletor) log(err error) {
	if err != nil {
		d.logger.V(1).Info("Something that is dead could not be removed", "err", err)
	}
}
