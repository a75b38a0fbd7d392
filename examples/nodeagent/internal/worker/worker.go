package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/deletor"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/runtime"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/status"
)

const (
	// resyncPeriod is how often a pod is synced without a reason.
	resyncPeriod = time.Minute
	// The wait after a sync that failed.
	firstRetry, longestRetry = time.Second, 10 * time.Second
)

// stage is how far a pod is.
type stage int

const (
	syncing stage = iota
	terminating
	terminated
)

// worker is the goroutine of a pod.
type worker struct {
	*Pool
	life   context.Context // ends when the agent does
	wanted context.Context // ends when the pod is no longer wanted
	unwant context.CancelFunc
	uid    types.UID
	orphan bool          // there is no manifest, only something left in the runtime
	wake   chan struct{} // capacity 1: there is something to do

	mu  sync.Mutex
	pod *v1.Pod // guarded by mu

	// Owned by run.
	stage   stage
	synced  time.Time // when the last sync ended
	retry   time.Duration
	reasons map[string]v1.ContainerStateWaiting // why containers do not run
	failed  map[string]time.Time                // when a pull failed, by image; "" for a sandbox
}

func (w *worker) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// set gives the worker a specification, if it is another, unless it is too late.
func (w *worker) set(pod *v1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wanted.Err() == nil && w.pod != pod {
		w.pod = pod
		w.signal()
	}
}

// remove ends the sync under way; the next one ends the pod.
func (w *worker) remove() {
	w.unwant()
	w.signal()
}

func (w *worker) spec() *v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

// run syncs the pod whenever it is woken, until it is removed or its life ends.
func (w *worker) run() {
	defer w.finished(w)
	for {
		select {
		case <-w.life.Done():
			return
		case <-w.wake:
		}
		again, gone, err := w.once()
		switch {
		case gone || w.life.Err() != nil:
			return
		case errors.Is(err, context.Canceled):
			again = time.Now() // no longer wanted
		case err != nil:
			w.retry = min(max(2*w.retry, firstRetry), longestRetry)
			again = earlier(again, time.Now().Add(w.retry))
			w.Logger.Error(err, "A pod could not be synced", "pod", podName(w.spec()), "retry", w.retry)
		default:
			w.retry = 0
		}
		w.SyncAt(w.uid, earlier(again, time.Now().Add(resyncPeriod)))
	}
}

// once syncs the pod and returns when it is to be synced again; gone means that there is nothing left of it.
func (w *worker) once() (again time.Time, gone bool, err error) {
	pod, unwanted, ctx := w.spec(), w.wanted.Err() != nil, w.life
	if !unwanted {
		ctx = w.wanted
	}
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Canceled // whatever the call under way made of it
		}
		w.synced = time.Now()
	}()
	seen, err := w.Cache.GetNewerThanContext(ctx, w.uid, w.synced)
	if err != nil {
		return again, false, fmt.Errorf("inspecting the pod: %w", err)
	}
	switch {
	case unwanted && w.stage == syncing:
		w.stage = terminating
	case !unwanted && w.stage == terminated:
		w.publish(pod, seen) // containerd shows a sandbox ready for a moment after it was stopped
		return again, false, nil
	}
	if w.stage == syncing {
		again, err = w.sync(ctx, pod, seen)
	}
	if w.stage == terminating && err == nil {
		err = w.terminate(ctx, pod, seen)
	}
	if w.stage == terminated && unwanted && err == nil {
		gone, err = w.purge(ctx, pod)
	}
	return again, gone, err
}

// publish sets the pod's status and returns its phase.
func (w *worker) publish(pod *v1.Pod, seen *pleg.PodStatus) (phase v1.PodPhase) {
	if w.orphan {
		return v1.PodUnknown
	}
	w.Status.Update(pod, func(before v1.PodStatus) v1.PodStatus {
		next := status.Generate(pod, seen, before, w.reasons, w.Probes, w.NodeIP)
		phase = next.Phase
		return next
	})
	return phase
}

// sync brings the pod nearer to what it should be, and returns when to go on.
func (w *worker) sync(ctx context.Context, pod *v1.Pod, seen *pleg.PodStatus) (again time.Time, err error) {
	w.Probes.Add(w.life, pod)
	if phase := w.publish(pod, seen); phase == v1.PodSucceeded || phase == v1.PodFailed {
		w.stage = terminating
		return again, nil
	}
	actions := plan.Make(pod, plan.Hashes{Sandbox: runtime.SandboxHash(pod), Container: runtime.ContainerHash}, seen,
		w.Probes)
	again, err = w.act(ctx, pod, seen, actions)
	w.publish(pod, seen) // with the reasons
	if err := deletor.Tidy(ctx, w.Runtime, w.Listed(w.uid), seen); err != nil {
		w.Logger.V(1).Info("Something that is dead could not be removed", "pod", podName(pod), "err", err)
	}
	return again, err
}

// act carries actions out.
func (w *worker) act(ctx context.Context, pod *v1.Pod, seen *pleg.PodStatus, a plan.Actions) (again time.Time,
	err error) {
	if a.KillPod {
		if err := w.killPod(ctx, pod, seen); err != nil {
			return again, err
		}
	}
	err = each(a.Kill, func(k plan.Kill) error {
		w.Logger.Info("A container is ended", "pod", podName(pod), "container", k.Container.Name, "why", k.Why)
		return w.killContainer(ctx, pod, k.Status, graceOf(pod, k.Container, k.Probe))
	})
	if err != nil {
		return again, err
	}
	sandboxID, attempt := "", a.Attempt
	switch {
	case a.CreateSandbox:
		if wait, over := w.sandboxes.Wait(string(w.uid), w.failed[""]); wait > 0 {
			return over, nil // the events of one that failed are no reason to try again
		}
		if sandboxID, err = w.Runtime.RunPodSandbox(ctx, pod, attempt); err != nil {
			w.failed[""] = time.Now()
			w.sandboxes.Next(string(w.uid), time.Now())
			return again, err
		}
	case len(a.Start) > 0:
		newest := seen.SandboxStatuses[0]
		sandboxID, attempt = newest.GetId(), newest.GetMetadata().GetAttempt()
	}
	var ready []*v1.Container
	var errs []error
	for _, c := range a.Start {
		wait, err := w.prepare(ctx, pod, seen, c)
		switch {
		case err != nil:
			errs = append(errs, err)
		case !wait.IsZero():
			again = earlier(again, wait)
		default:
			ready = append(ready, c)
		}
	}
	for _, c := range ready {
		errs = append(errs, w.start(ctx, pod, seen, c, sandboxID, attempt))
	}
	return again, errors.Join(errs...)
}

// terminate ends everything in the pod, and has the pod terminated once a newer status confirms that nothing of it
// runs.
func (w *worker) terminate(ctx context.Context, pod *v1.Pod, seen *pleg.PodStatus) error {
	w.Probes.Quiet(w.uid)
	if err := w.killPod(ctx, pod, seen); err != nil {
		return err
	}
	seen, err := w.Cache.GetNewerThanContext(ctx, w.uid, time.Now())
	if err != nil {
		return fmt.Errorf("inspecting the pod after its end: %w", err)
	}
	if running := seen.GetRunningContainerStatuses(); len(running) > 0 {
		return fmt.Errorf("%d containers still run", len(running))
	}
	w.publish(pod, seen)
	w.Probes.Remove(w.uid)
	w.stage = terminated
	w.Logger.V(1).Info("A pod is terminated", "pod", podName(pod))
	return nil
}

// purge removes what is left of a pod that is no longer wanted, and reports whether all of it is gone.
func (w *worker) purge(ctx context.Context, pod *v1.Pod) (gone bool, err error) {
	seen, err := w.Cache.GetNewerThanContext(ctx, w.uid, time.Now())
	if err != nil {
		return false, fmt.Errorf("inspecting the pod before it is removed: %w", err)
	}
	if err := w.Status.Drop(ctx, pod); err != nil {
		return false, err
	}
	for _, s := range seen.ContainerStatuses {
		err = errors.Join(err, w.Runtime.RemoveContainer(ctx, s.ID.ID))
	}
	for _, s := range seen.SandboxStatuses {
		err = errors.Join(err, w.Runtime.RemovePodSandbox(ctx, s.GetId()))
	}
	if err == nil {
		seen, err = w.Cache.GetNewerThanContext(ctx, w.uid, time.Now())
	}
	if err != nil {
		return false, err
	}
	if left := len(seen.ContainerStatuses) + len(seen.SandboxStatuses); left > 0 {
		return false, fmt.Errorf("%d sandboxes and containers were removed and are still there", left)
	}
	if err := w.Runtime.RemoveDirs(pod); err != nil {
		return false, err
	}
	w.Status.Delete(w.uid)
	w.crashes.Forget(string(w.uid))
	w.pulls.Forget(string(w.uid))
	w.sandboxes.Forget(string(w.uid))
	w.Logger.V(1).Info("A pod is gone", "pod", podName(pod))
	return true, nil
}

// earlier returns the earlier of two times of which zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func podName(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name }

// each calls f for every item at once, and returns when all calls have.
func each[T any](items []T, f func(T) error) error {
	errs := make([]error, len(items))
	var joined sync.WaitGroup
	for i, item := range items {
		joined.Go(func() { errs[i] = f(item) })
	}
	joined.Wait()
	return errors.Join(errs...)
}
