package agent

import (
	"context"
	"errors"
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
	"github.com/kubepleg/pleg/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/nodeagent/internal/runtime"
	"github.com/kubepleg/pleg/nodeagent/internal/status"
	"github.com/kubepleg/pleg/podworkers"
)

const (
	// resyncPeriod is how often an unchanged pod is synced. unsettledPeriod is how often a pod is
	// inspected while an exit code is unsettled.
	resyncPeriod, unsettledPeriod = time.Minute, time.Second
	// The first and the longest back-off of sandboxes.
	firstSandbox, longestSandbox = time.Second, 10 * time.Second
	// The first and the longest back-off of containers that crash and of images that cannot be
	// pulled.
	firstBackoff, longestBackoff = 10 * time.Second, 5 * time.Minute
)

// errLives means that a container or sandbox that the worker has stopped still seems to run.
var errLives = errors.New("what was ended still runs")

// podWorker brings a pod to its wanted state, in a goroutine of package podworkers. After each
// action, it reads the pod's status again. The status that it publishes comes from the library's
// cache. The cache never replaces a status by an older one, so no published status is older than the
// previous one.
type podWorker struct {
	agent  *Agent
	life   context.Context // ends when the agent ends
	wanted context.Context // ends when the pod is no longer wanted
	unwant context.CancelFunc
	uid    types.UID
	pod    atomic.Pointer[v1.Pod] // the newest specification

	// Only syncPod and the methods that it calls use these fields.
	gone      bool      // true if nothing is left of the pod
	requeueAt time.Time // the latest time of the pod's next sync
	// reinspectAt is the earliest time of the next request to inspect a pod with an unsettled exit
	// code.
	reinspectAt time.Time
	// ended contains the IDs of containers and sandboxes that the worker has stopped. Their ends
	// are not crashes.
	ended sets.Set[string]
	// The back-offs of containers (by name and hash), of images, and of the sandbox. The back-off
	// of the sandbox also delays the replacement of an unsuitable sandbox.
	crashes, pulls, sandboxes *flowcontrol.Backoff

	// The mutex publishing guards the fields below. Goroutines of probes also publish the status.
	publishing sync.Mutex
	// hidden is true if the status must not be published: the pod has no manifest or is being
	// removed.
	hidden  bool
	reasons map[string]v1.ContainerStateWaiting // why containers do not run, by name
	// interrupted maps the name of a container to the ID of the last instance that the agent
	// interrupted. A later agent reads this map from the stored pod.
	interrupted map[string]string
}

// addWorkerLocked starts the worker of a pod. If hidden is true, the worker does not publish the
// pod's status.
func (a *Agent) addWorkerLocked(ctx context.Context, pod *v1.Pod, hidden bool) *podWorker {
	backoff := func(first, longest time.Duration) *flowcontrol.Backoff {
		b := flowcontrol.NewBackOff(first, longest)
		b.Clock = a.Clock
		return b
	}
	w := &podWorker{
		agent: a, life: ctx, uid: pod.UID, ended: sets.New[string](),
		pulls: backoff(firstBackoff, longestBackoff), crashes: backoff(firstBackoff, longestBackoff),
		sandboxes: backoff(firstSandbox, longestSandbox), hidden: hidden,
		reasons: map[string]v1.ContainerStateWaiting{}, interrupted: a.statusManager.Interrupted(pod.UID),
	}
	w.wanted, w.unwant = context.WithCancel(ctx)
	w.pod.Store(pod)
	a.workers[pod.UID] = w
	a.podWorkers.Add(ctx, pod.UID)
	return w
}

// worker returns the worker of a pod, or nil.
func (a *Agent) worker(uid types.UID) *podWorker {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.workers[uid]
}

// wakeWorkers makes all workers sync their pods.
func (a *Agent) wakeWorkers() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid := range a.workers {
		a.podWorkers.Wake(uid)
	}
}

// syncPod takes at most one action for a pod, based on a status that is newer than the last action.
// While there are runtime errors, it takes none, and the syncLoop wakes the worker afterwards.
func (a *Agent) syncPod(_ context.Context, seen *pleg.PodStatus, _ bool) (podworkers.Result, error) {
	w := a.worker(seen.ID)
	switch {
	case w == nil:
		return podworkers.Result{Done: true}, nil
	case a.runtimeState.runtimeErrors() != nil:
		a.skipped.Store(true)
		return podworkers.Result{After: resyncPeriod}, nil
	}
	ctx, unwanted := w.wanted, w.unwanted()
	if unwanted {
		ctx = w.life
	}
	w.requeueAt = a.Clock.Now().Add(resyncPeriod)
	w.publish() // w.view uses the published phase
	did, err := w.act(ctx, w.view(seen))
	w.publish() // publishes the new reasons
	switch {
	case w.gone:
		a.mu.Lock()
		delete(a.workers, w.uid)
		a.mu.Unlock()
		a.requestHandlePods() // a new pod may have waited for this removal
		return podworkers.Result{Done: true}, nil
	case unwanted != w.unwanted():
		return podworkers.Result{Acted: true}, nil // the pod became unwanted: sync it at once
	}
	after := max(w.requeueAt.Sub(a.Clock.Now()), time.Millisecond) // 0 would mean to wait for an event
	return podworkers.Result{Acted: did, After: after}, err
}

// syncFailed logs that a pod could not be synced.
func (a *Agent) syncFailed(uid types.UID, err error, retry time.Duration) {
	if w := a.worker(uid); w != nil {
		a.Logger.Error(err, "A pod could not be synced", "pod", klog.KObj(w.pod.Load()), "retry", retry)
	}
}

// requeue requests a sync at the given time. The earliest of several requested times is used.
func (w *podWorker) requeue(at time.Time) {
	if at.Before(w.requeueAt) {
		w.requeueAt = at
	}
}

// unwanted reports whether the pod is no longer wanted. When the agent ends, its pods are still
// wanted.
func (w *podWorker) unwanted() bool { return w.wanted.Err() != nil && w.life.Err() == nil }

func (w *podWorker) view(seen *pleg.PodStatus) plan.View {
	pod, before, unwanted := w.pod.Load(), w.agent.statusManager.GetPod(w.uid).Status, w.unwanted()
	return plan.View{
		Pod: pod, Seen: seen, Now: w.agent.Clock.Now(), Before: before,
		Over: unwanted || status.Ended(before.Phase), Unwanted: unwanted,
		SandboxHash: runtime.SandboxHash(pod),
		Hash:        func(c *v1.Container) uint64 { return runtime.ContainerHash(pod, c) },
		Probed:      w.agent.probeManager.Result, Interrupted: w.interrupted,
	}
}

// publish publishes the pod's status from the cache, and sets the probes that this status requires.
func (w *podWorker) publish() {
	w.publishing.Lock()
	defer w.publishing.Unlock()
	if w.hidden {
		return
	}
	seen, _, _ := w.agent.cache.Lookup(w.uid) // the last good status, even if the last inspection failed
	view := w.view(seen)
	next := status.Generate(view, w.reasons, w.agent.NodeIP)
	w.agent.statusManager.SetPodStatus(view.Pod, next, w.interrupted)
	var probes []plan.ProbeKind
	switch {
	case !view.Over:
		probes = plan.ProbeKinds
	case slices.ContainsFunc(seen.ContainerStatuses, plan.Lives):
		probes = []plan.ProbeKind{plan.Readiness} // other probes could end a container
	}
	w.agent.probeManager.UpdatePod(w.life, view.Pod, &next, probes...)
}

// locked holds the mutex publishing while it calls change. The function change sets fields that the
// method publish reads.
func (w *podWorker) locked(change func()) {
	w.publishing.Lock()
	defer w.publishing.Unlock()
	change()
}
