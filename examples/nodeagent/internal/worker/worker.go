package worker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

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
	// The back-off of containers that crash and of images that cannot be pulled. It begins anew after twice the
	// longest without a failure.
	firstBackoff, longestBackoff = 10 * time.Second, 5 * time.Minute
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
	orphan bool                   // there is no manifest, only something left in the runtime
	pod    atomic.Pointer[v1.Pod] // the newest specification
	wake   chan struct{}          // capacity 1: there is something to do

	// Owned by run.
	stage   stage
	synced  time.Time // when the last sync ended
	retry   time.Duration
	reasons map[string]v1.ContainerStateWaiting // why containers do not run
	// The back-off of containers by name and hash, of images by name, and of the sandbox. tried is when one of the latter
	// two failed last, or a sandbox was made: one that is not as it should be is replaced no sooner than one that failed.
	crashes, pulls, sandboxes *flowcontrol.Backoff
	tried                     map[string]time.Time
}

// beginLocked begins a worker and wakes it.
func (p *Pool) beginLocked(ctx context.Context, pod *v1.Pod, orphan bool) *worker {
	w := &worker{
		Pool: p, life: ctx, uid: pod.UID, orphan: orphan, wake: make(chan struct{}, 1),
		reasons: map[string]v1.ContainerStateWaiting{}, tried: map[string]time.Time{},
		crashes:   flowcontrol.NewBackOff(firstBackoff, longestBackoff),
		pulls:     flowcontrol.NewBackOff(firstBackoff, longestBackoff),
		sandboxes: flowcontrol.NewBackOff(firstRetry, longestRetry),
	}
	w.wanted, w.unwant = context.WithCancel(ctx)
	w.pod.Store(pod)
	p.workers[pod.UID] = w
	p.joined.Go(w.run)
	w.signal()
	return w
}

func (w *worker) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
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
		pod := w.pod.Load()
		again, gone, err := w.once(pod)
		switch {
		case gone || w.life.Err() != nil:
			return
		case errors.Is(err, context.Canceled):
			again = time.Now() // no longer wanted
		case err != nil:
			w.retry = min(max(2*w.retry, firstRetry), longestRetry)
			again = earlier(again, time.Now().Add(w.retry))
			w.Logger.Error(err, "A pod could not be synced", "pod", klog.KObj(pod), "retry", w.retry)
		default:
			w.retry = 0
		}
		w.SyncAt(w.uid, earlier(again, time.Now().Add(resyncPeriod)))
	}
}

// once brings the pod one stage further, at the most, and returns when it is to be synced again; gone means that
// there is nothing left of it. An end of the wish for the pod ends a sync under way; the next one ends the pod.
func (w *worker) once(pod *v1.Pod) (again time.Time, gone bool, err error) {
	ctx, unwanted := w.wanted, w.wanted.Err() != nil
	if unwanted {
		ctx = w.life
	}
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Canceled // whatever the call under way made of it
		}
		w.synced = time.Now()
	}()
	seen, err := w.newer(ctx, w.synced)
	if err != nil {
		return again, false, err
	}
	if unwanted && w.stage == syncing {
		w.stage = terminating
	}
	switch {
	case w.stage == syncing:
		again, err = w.sync(ctx, pod, seen)
	case w.stage == terminating:
		if err = w.terminate(ctx, pod, seen); err == nil {
			again = time.Now()
		}
	case unwanted:
		gone, err = w.purge(ctx, pod, seen)
	default:
		w.publish(pod, seen) // containerd shows a sandbox ready for a moment after it was stopped
	}
	return again, gone, err
}

// newer returns a status of the pod that was observed after a time. The library lists the pod for it, at once.
func (w *worker) newer(ctx context.Context, than time.Time) (*pleg.PodStatus, error) {
	seen, _, err := w.Cache.LookupNewerThan(ctx, w.uid, than)
	if err != nil {
		return nil, fmt.Errorf("inspecting the pod: %w", err)
	}
	return seen, nil
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
		return time.Now(), nil
	}
	hash := func(c *v1.Container) uint64 { return runtime.ContainerHash(pod, c) }
	again, err = w.act(ctx, pod, seen, plan.Make(pod, runtime.SandboxHash(pod), hash, seen, w.Probes))
	w.publish(pod, seen) // with the reasons
	if err := deletor.Tidy(ctx, w.Runtime, w.Generator.Pods().FindPodByID(w.uid), seen); err != nil {
		w.Logger.V(1).Info("Something that is dead could not be removed", "pod", klog.KObj(pod), "err", err)
	}
	return again, err
}

func (w *worker) act(ctx context.Context, pod *v1.Pod, seen *pleg.PodStatus, a plan.Actions) (again time.Time,
	err error) {
	if a.KillPod {
		if err := w.killPod(ctx, pod, seen); err != nil {
			return again, err
		}
	}
	err = each(a.Kill, func(k plan.Kill) error {
		w.Logger.Info("A container is ended", "pod", klog.KObj(pod), "container", k.Container.Name, "why", k.Why)
		return w.killContainer(ctx, pod, k.Status, graceOf(pod, k.Container, k.Probe))
	})
	if err != nil {
		return again, err
	}
	sandboxID, attempt := "", a.Attempt
	switch {
	case a.CreateSandbox:
		if w.sandboxes.IsInBackOffSince("", w.tried[""]) {
			// The events of one that failed, or is not as it should be, are no reason to try again.
			return w.tried[""].Add(w.sandboxes.Get("")), nil
		}
		sandboxID, err = w.Runtime.RunPodSandbox(ctx, pod, attempt)
		w.tried[""] = time.Now()
		w.sandboxes.Next("", time.Now())
		if err != nil {
			return again, err
		}
	case len(a.Start) > 0:
		newest := seen.SandboxStatuses[0]
		sandboxID, attempt = newest.GetId(), newest.GetMetadata().GetAttempt()
	}
	var errs []error
	for _, c := range a.Start {
		over, err := w.prepare(ctx, pod, seen, c)
		if err == nil && over.IsZero() {
			err = w.start(ctx, pod, seen, c, sandboxID, attempt)
		}
		again, errs = earlier(again, over), append(errs, err)
	}
	return again, errors.Join(errs...)
}

// terminate ends everything in the pod, and has the pod terminated once a newer status confirms that nothing of it
// runs.
func (w *worker) terminate(ctx context.Context, pod *v1.Pod, seen *pleg.PodStatus) error {
	w.Probes.Remove(w.uid, plan.Liveness, plan.Startup) // those that could kill a container
	if err := w.killPod(ctx, pod, seen); err != nil {
		return err
	}
	seen, err := w.newer(ctx, time.Now())
	if err != nil {
		return err
	}
	if running := seen.GetRunningContainerStatuses(); len(running) > 0 {
		return fmt.Errorf("%d containers still run", len(running))
	}
	w.publish(pod, seen)
	w.Probes.Remove(w.uid, plan.ProbeKinds...)
	w.stage = terminated
	w.Logger.V(1).Info("A pod is terminated", "pod", klog.KObj(pod))
	return nil
}

// purge removes what is left of a pod that is no longer wanted, and reports whether all of it is gone.
func (w *worker) purge(ctx context.Context, pod *v1.Pod, seen *pleg.PodStatus) (gone bool, err error) {
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
		_, err = w.newer(ctx, time.Now()) // if anything is left, it has no worker, and housekeeping finds it
	}
	if err == nil {
		err = w.Runtime.RemoveDirs(pod)
	}
	if err != nil {
		return false, err
	}
	w.Status.Delete(w.uid)
	w.Logger.V(1).Info("A pod is gone", "pod", klog.KObj(pod))
	return true, nil
}

// earlier returns the earlier of two times of which zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// each calls f for every item at once, and returns when all calls have.
func each[T any](items []T, f func(T) error) error {
	var calls errgroup.Group
	for _, item := range items {
		calls.Go(func() error { return f(item) })
	}
	return calls.Wait()
}
