package agent

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
	// The back-off of sandboxes; of containers that crash and of images that cannot be pulled. It begins anew after twice
	// the longest without a failure.
	firstSandbox, firstBackoff, longestBackoff = time.Second, 10 * time.Second, 5 * time.Minute
)

// errLives says that what was ended is still seen to run.
var errLives = errors.New("what was ended still runs")

// stage is how far a pod is: syncing until it has ended by itself or is no longer wanted, terminating until nothing of
// it runs, terminated; once it is no longer wanted, purging until nothing of it is left, and gone.
type stage int

const (
	syncing stage = iota
	terminating
	terminated
	purging
	gone
)

// worker makes a pod what it should be, in a goroutine. It looks at the pod, does one thing, and looks again: what it
// has seen is forgotten with whatever it does, and what it publishes is what the library's cache has at that moment.
// The cache never goes back, so no status does.
type worker struct {
	*Agent
	life   context.Context // ends when the agent does
	wanted context.Context // ends when the pod is no longer wanted
	unwant context.CancelFunc
	uid    types.UID
	orphan bool                   // there is no manifest, only something left in the runtime
	pod    atomic.Pointer[v1.Pod] // the newest specification
	wake   chan struct{}          // capacity 1: there is something to do

	// Owned by run.
	stage   stage
	acted   time.Time // when it did something last: nothing that was seen before is believed
	retry   time.Duration
	reasons map[string]v1.ContainerStateWaiting // why containers do not run
	ended   map[string]bool                     // the IDs of what it has ended: it has not crashed
	refused map[string]string                   // the IDs of what the runtime has refused to start, by name
	// The back-off of containers by name and hash, of images, and of the sandbox. One that was made and is not as it
	// should be is replaced no sooner than one that could not be made.
	crashes, pulls, sandboxes *flowcontrol.Backoff
	made                      time.Time
}

// beginLocked begins a worker and wakes it.
func (a *Agent) beginLocked(ctx context.Context, pod *v1.Pod, orphan bool) *worker {
	before := a.status.get(pod.UID)
	w := &worker{
		Agent: a, life: ctx, uid: pod.UID, orphan: orphan, wake: make(chan struct{}, 1),
		reasons: map[string]v1.ContainerStateWaiting{}, ended: map[string]bool{},
		refused:   plan.Ends(&before),
		crashes:   flowcontrol.NewBackOff(firstBackoff, longestBackoff),
		pulls:     flowcontrol.NewBackOff(firstBackoff, longestBackoff),
		sandboxes: flowcontrol.NewBackOff(firstSandbox, longestRetry),
	}
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
		pod := w.pod.Load()
		err := w.sync(pod)
		switch {
		case w.stage == gone || w.life.Err() != nil:
			return
		case errors.Is(err, context.Canceled):
			w.again(time.Now()) // no longer wanted
		case err != nil:
			w.retry = min(max(2*w.retry, firstRetry), longestRetry)
			w.again(time.Now().Add(w.retry))
			if !errors.Is(err, errLives) || w.retry == longestRetry {
				w.Logger.Error(err, "A pod could not be synced", "pod", klog.KObj(pod), "retry", w.retry)
			}
		}
		w.again(time.Now().Add(resyncPeriod))
	}
}

// again asks for a sync at a time. Of several times the first counts.
func (w *worker) again(at time.Time) { w.queue.AddAfter(w.uid, time.Until(at)) }

// sync looks at the pod and does one thing, at the most. An end of the wish for the pod ends a sync under way; the next
// one ends the pod.
func (w *worker) sync(pod *v1.Pod) (err error) {
	ctx, unwanted := w.wanted, w.wanted.Err() != nil
	if unwanted {
		ctx = w.life
	}
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Canceled // whatever the call under way made of it
		}
	}()
	view, err := w.look(ctx, pod)
	if err != nil {
		return err
	}
	switch {
	case w.stage == syncing:
		w.probes.Add(w.life, pod)
	case w.stage == terminated && unwanted:
		w.stage = purging
	}
	if w.stage != purging {
		if phase := w.publish(pod); w.stage == syncing && (unwanted || status.Ended(phase)) {
			w.stage = terminating
			clear(w.reasons)
			w.probes.Remove(w.uid, plan.Liveness, plan.Startup) // those that could kill a container
		}
	}
	var did bool
	switch w.stage {
	case syncing:
		did, err = w.act(ctx, view, plan.Make(view, w.probes))
		w.publish(pod) // with the reasons
	case terminating:
		if did, err = w.killPod(ctx, pod, view.Seen); did || err != nil {
			break
		}
		w.publish(pod) // without the reasons
		w.probes.Remove(w.uid, plan.ProbeKinds...)
		w.stage, did = terminated, unwanted
		w.Logger.V(1).Info("A pod is terminated", "pod", klog.KObj(pod))
	case purging:
		did, err = w.purge(ctx, pod, view.Seen)
	case terminated, gone:
	}
	switch {
	case did && err == nil:
		w.again(time.Now())
	case err == nil:
		w.retry = 0
	}
	return err
}

// look returns the pod as it was seen after the worker did something last. The library lists the pod for it, at once.
func (w *worker) look(ctx context.Context, pod *v1.Pod) (plan.View, error) {
	seen, _, err := w.cache.LookupNewerThan(ctx, w.uid, w.acted)
	if err != nil {
		return plan.View{}, fmt.Errorf("inspecting the pod: %w", err)
	}
	return w.view(pod, seen), nil
}

func (w *worker) view(pod *v1.Pod, seen *pleg.PodStatus) plan.View {
	return plan.View{Pod: pod, Seen: seen, Refused: w.refused, SandboxHash: runtime.SandboxHash(pod),
		Hash: func(c *v1.Container) uint64 { return runtime.ContainerHash(pod, c) }}
}

// did notes that the worker has done something, or has tried to.
func (w *worker) did() { w.acted = w.Clock.Now() }

// publish sets the pod's status to what the cache has now, and returns its phase.
func (w *worker) publish(pod *v1.Pod) (phase v1.PodPhase) {
	if w.orphan {
		return v1.PodUnknown
	}
	w.status.update(pod, func(before v1.PodStatus) v1.PodStatus {
		seen, _, _ := w.cache.Lookup(w.uid) // of a pod that cannot be inspected, the last
		next := status.Generate(w.view(pod, seen), before, w.reasons, w.probes, w.NodeIP)
		phase = next.Phase
		return next
	})
	return phase
}

// purge removes what is left of a pod that is no longer wanted.
func (w *worker) purge(ctx context.Context, pod *v1.Pod, seen *pleg.PodStatus) (did bool, err error) {
	if err := w.status.remove(pod); err != nil {
		return false, err
	}
	if len(seen.ContainerStatuses)+len(seen.SandboxStatuses) > 0 {
		defer w.did()
		for _, s := range seen.ContainerStatuses {
			err = errors.Join(err, w.Runtime.RemoveContainer(ctx, s.ID.ID))
		}
		for _, s := range seen.SandboxStatuses {
			err = errors.Join(err, w.Runtime.RemovePodSandbox(ctx, s.GetId()))
		}
		return true, err
	}
	if err := w.Runtime.RemoveDirs(pod); err != nil {
		return false, err
	}
	w.stage = gone
	w.Logger.V(1).Info("A pod is gone", "pod", klog.KObj(pod))
	return false, nil
}
