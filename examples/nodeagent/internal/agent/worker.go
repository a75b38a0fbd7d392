package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/runtime"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/status"
)

const (
	// resyncPeriod is how often a pod is synced without a reason.
	resyncPeriod = time.Minute
	// The wait after a sync that failed.
	firstRetry, longestRetry = 100 * time.Millisecond, 10 * time.Second
	// The back-off of sandboxes; of containers that crash and of images that cannot be pulled.
	firstSandbox, firstBackoff, longestBackoff = time.Second, 10 * time.Second, 5 * time.Minute
)

// errLives says that what was ended is still seen to run.
var errLives = errors.New("what was ended still runs")

// worker makes a pod what it should be, in a goroutine. It looks at the pod, does one thing, and looks again: what it
// has seen is forgotten with whatever it does, and what it publishes is what the library's cache has at that moment.
// The cache never goes back, so no status does.
type worker struct {
	*Agent
	life   context.Context // ends when the agent does
	wanted context.Context // ends when the pod is no longer wanted
	unwant context.CancelFunc
	uid    types.UID
	pod    atomic.Pointer[v1.Pod] // the newest specification
	wake   chan struct{}          // capacity 1: there is something to do

	// Owned by run.
	gone  bool      // nothing is left of the pod
	acted time.Time // when it did something last: nothing that was seen before is believed
	retry time.Duration
	ended sets.Set[string] // the IDs of what it has ended: it has not crashed
	// The back-off of containers by name and hash, of images, and of the sandbox. One that was made and is not as it
	// should be is replaced no sooner than one that could not be made.
	crashes, pulls, sandboxes *flowcontrol.Backoff

	publishing sync.Mutex                          // what follows is guarded by it: a result of a probe is published too
	hidden     bool                                // nothing is published: it has no manifest, or is being removed
	reasons    map[string]v1.ContainerStateWaiting // why containers do not run
	// What it has ended last although it was to run on: IDs by name. An agent after this one has them from the status.
	interrupted map[string]string
}

// beginLocked begins a worker and wakes it. Of a pod that is hidden nothing is published.
func (a *Agent) beginLocked(ctx context.Context, pod *v1.Pod, hidden bool) *worker {
	w := &worker{
		Agent: a, life: ctx, uid: pod.UID, wake: make(chan struct{}, 1), ended: sets.New[string](),
		pulls:     flowcontrol.NewBackOff(firstBackoff, longestBackoff),
		crashes:   flowcontrol.NewBackOff(firstBackoff, longestBackoff),
		sandboxes: flowcontrol.NewBackOff(firstSandbox, longestRetry),
		hidden:    hidden, reasons: map[string]v1.ContainerStateWaiting{}, interrupted: map[string]string{},
	}
	_ = json.Unmarshal([]byte(a.status.get(pod.UID).Annotations[interruptedAnnotation]), &w.interrupted) // if there is one
	w.wanted, w.unwant = context.WithCancel(ctx)
	w.pod.Store(pod)
	a.workers[pod.UID] = w
	a.joined.Go(w.run)
	w.signal()
	return w
}

func (w *worker) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run syncs the pod whenever it is woken, until it is gone or its life ends.
func (w *worker) run() {
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.workers, w.uid)
		w.queue.Add(allPods) // one may have waited for it to be gone
	}()
	for {
		select {
		case <-w.life.Done():
			return
		case <-w.wake:
		}
		unwanted := w.unwanted()
		did, err := w.sync(unwanted)
		switch {
		case w.gone || w.life.Err() != nil:
			return
		case err == nil && did, unwanted != w.unwanted():
			w.again(time.Now())
		case err == nil:
			w.retry = 0
		default:
			w.retry = min(max(2*w.retry, firstRetry), longestRetry)
			w.again(time.Now().Add(w.retry))
			w.Logger.Error(err, "A pod could not be synced", "pod", klog.KObj(w.pod.Load()), "retry", w.retry)
		}
		w.again(time.Now().Add(resyncPeriod))
	}
}

// again asks for a sync at a time. Of several times the first counts.
func (w *worker) again(at time.Time) { w.queue.AddAfter(w.uid, time.Until(at)) }

// unwanted reports whether the pod is no longer wanted. The end of the agent says nothing of that.
func (w *worker) unwanted() bool { return w.wanted.Err() != nil && w.life.Err() == nil }

// sync looks at the pod and does one thing, at the most. If the pod is no longer wanted, the next sync ends it.
func (w *worker) sync(unwanted bool) (did bool, err error) {
	ctx := w.wanted
	if unwanted {
		ctx = w.life
	}
	seen, err := w.look(ctx)
	if err != nil {
		return false, err
	}
	w.publish() // it may be over by that
	did, err = w.act(ctx, w.view(seen))
	w.publish() // with the reasons
	return did, err
}

// look returns the pod as it was seen after the worker did something last. The library lists the pod for it, at once.
func (w *worker) look(ctx context.Context) (*pleg.PodStatus, error) {
	seen, _, err := w.cache.LookupNewerThan(ctx, w.uid, w.acted)
	if err != nil {
		err = fmt.Errorf("inspecting the pod: %w", err)
	}
	return seen, err
}

func (w *worker) view(seen *pleg.PodStatus) plan.View {
	pod, before, unwanted := w.pod.Load(), w.status.get(w.uid).Status, w.unwanted()
	return plan.View{
		Pod: pod, Seen: seen, Before: before,
		Over: unwanted || status.Ended(before.Phase), Unwanted: unwanted,
		SandboxHash: runtime.SandboxHash(pod),
		Hash:        func(c *v1.Container) uint64 { return runtime.ContainerHash(pod, c) },
		Probed:      w.probes.Outcome, Interrupted: w.interrupted,
	}
}

// did notes that the worker has done something, or has tried to.
func (w *worker) did() { w.acted = w.Clock.Now() }

// publish sets the pod's status to what the cache has now, and has probed what is to be probed by it.
func (w *worker) publish() {
	w.publishing.Lock()
	defer w.publishing.Unlock()
	if w.hidden {
		return
	}
	seen, _, _ := w.cache.Lookup(w.uid) // of a pod that cannot be inspected, the last
	view := w.view(seen)
	next := status.Generate(view, w.reasons, w.NodeIP)
	w.status.set(view.Pod, next, w.interrupted)
	var probes []plan.ProbeKind
	switch {
	case !view.Over:
		probes = plan.ProbeKinds
	case slices.ContainsFunc(seen.ContainerStatuses, plan.Lives):
		probes = []plan.ProbeKind{plan.Readiness} // the others could end it
	}
	w.probes.Set(w.life, view.Pod, &next, probes...)
}

// note changes what is published beside what the cache has.
func (w *worker) note(change func()) {
	w.publishing.Lock()
	defer w.publishing.Unlock()
	change()
}
