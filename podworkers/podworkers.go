// Package podworkers brings pods to a desired state, with a worker for each pod. A worker is a
// goroutine. It reads its pod's status, takes one action, and reads the status again, until nothing
// is left to do. Then it waits for an event.
//
// Agents that restart or recreate containers need such workers. Kubelets need them too. This
// package solves the hard parts:
//
//   - A worker never acts on a status older than its last action, or older than New. It reads the
//     status with PodCache.LookupNewerThan, which lists the pod at once.
//   - A worker misses no event and does not poll. If several events come while the worker is busy,
//     they cause only one more call of Sync.
//   - A failure is retried, after a wait that doubles.
//   - A pod that is stuck in the runtime delays only its own worker. That worker still sees exits
//     from exit events, which are Unconfirmed, and may take one action. Then it waits for the runtime.
//   - A worker ends when its pod is gone.
//
// This is the life of a worker:
//
//	read ──▶ Sync ──▶ Acted: read again, a status that was observed since
//	 ▲        ├─────▶ an error: wait for the back-off, an event, or Wake
//	 │        ├─────▶ nothing done: wait for After, an event, or Wake
//	 └────────┘       Done, or the pod is gone and nothing was done: the worker ends
//
// The example PodWorkers of package pleg is an agent that restarts containers.
package podworkers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/core/backoff"
)

// Result reports what a successful Sync did, and when the worker calls Sync again. The zero Result
// means that Sync did nothing and that the worker waits for an event. If Sync returns an error, the
// worker ignores the Result.
type Result struct {
	// Acted is true if Sync did something. The worker then ignores the other fields. It calls Sync
	// again at once, with a status that was observed after Sync returned.
	Acted bool
	// After is the longest time that the worker waits for an event before it calls Sync again. The
	// time is real time. Zero or less means no limit. If After is positive, the worker waits even if
	// its pod is gone. If the runtime was away in between, the status may be the same as before. For
	// a back-off per container, After is what is left of the wait since the container's FinishedAt or,
	// if that is unknown, since the last attempt. client-go's flowcontrol.Backoff computes such waits;
	// the key is the pod's UID and the container's name.
	After time.Duration
	// Done is true if the worker must end although its pod exists. After is then ignored. If an
	// event or Wake came after the worker had read the status, the worker calls Sync again instead.
	// With Run, the pod's next event starts another worker.
	Done bool
}

// SyncFunc brings a pod closer to its desired state. A call should take at most one action, because
// the argument status does not show the effect of an action. After an action, the call returns
// Result.Acted, and SyncFunc is called again. If several containers need an action, SyncFunc should take
// them in turn, so that a container that always fails does not hold up the others. The status is shared
// and must not be modified. SyncFunc may act on an exit that is Unconfirmed, because that exit has
// happened.
//
// If the pod is gone, exists is false and status contains only the ID. The agent then frees what it
// keeps for the pod. SyncFunc may be called several times for a pod that is gone, but not after it
// has returned Done.
//
// After an error, SyncFunc is called again with a back-off, and with a status that was observed
// after the failure. A panic is not recovered. If SyncFunc calls runtime.Goexit, its worker ends.
//
// Calls for one pod never overlap; calls for different pods do. ctx is the context of the call of
// Run or Add that started the worker. If SyncFunc may block for long, it must return when ctx ends.
// SyncFunc may call Add and Wake. If it calls them for its own pod, it is called once more. It must
// not call Wait or Run.
type SyncFunc func(ctx context.Context, status *pleg.PodStatus, exists bool) (Result, error)

// Options configure Workers. Sync is required; the other fields are optional.
type Options struct {
	// Sync is called by the workers. It must not be nil.
	Sync SyncFunc
	// FirstRetry is the wait after the first failure of a pod. The wait doubles with each further
	// failure, up to LongestRetry. When Sync has nothing left to do, the wait is FirstRetry again.
	// Waits are in real time. Zero or less selects the default: 100 ms for FirstRetry, 10 s for
	// LongestRetry.
	FirstRetry, LongestRetry time.Duration
	// OnError is called in the worker's goroutine for each failure of Sync or of the pod's
	// inspection. retry is the wait that follows. If OnError is nil, failures are not reported.
	OnError func(pod types.UID, err error, retry time.Duration)
}

// Workers runs the workers of an agent, at most one per pod. Its methods are safe for concurrent
// use.
type Workers struct {
	// Set once by New.
	generator *pleg.GenericPLEG
	options   Options
	retry     backoff.Policy

	mu    sync.Mutex
	wakes map[types.UID]chan struct{} // a channel of capacity 1 per worker; guarded by mu
	// acted is the time of New or, if later, of the newest action of a removed worker; guarded by mu.
	acted time.Time

	joined sync.WaitGroup
}

// New returns Workers without any worker. The generator must run. Otherwise, workers do not see the
// effect of their actions. Earlier Workers of the generator may have acted on its pods, so the
// first status of each pod is newer than New. New panics if generator or options.Sync is nil.
func New(generator *pleg.GenericPLEG, options Options) *Workers {
	if generator == nil || options.Sync == nil {
		panic("podworkers: New needs a generator and a Sync") //nolint:forbidigo // a mistake in the program
	}
	w := &Workers{generator: generator, options: options, wakes: make(map[types.UID]chan struct{}),
		acted: generator.Clock().Now(), retry: backoff.Policy{First: options.FirstRetry, Longest: options.LongestRetry}}
	if w.retry.First <= 0 {
		w.retry.First = 100 * time.Millisecond
	}
	if w.retry.Longest <= 0 {
		w.retry.Longest = 10 * time.Second
	}
	return w
}

// Run adds a worker for each present and future pod that want accepts, and wakes the worker at each
// event of the pod. want is called like Handler.Want. If want is nil, Run accepts all pods.
//
// When ctx ends, Run waits until all workers have ended, including workers of other calls of Run
// and Add. Then it returns the cause of ctx. When the generator stops, Run returns nil at once. The
// workers continue until ctx ends, and another call of Run uses these workers.
//
// If an agent learns of its pods from another source, it does not need Run. It calls Add for these
// pods, and calls Wake at the events of its own Handler. If it uses Run for the events instead, want must
// accept these pods when they are first listed.
func (w *Workers) Run(ctx context.Context, want func(*pleg.Pod) bool, opts ...pleg.SubscribeOption) error {
	// If a pod is removed and comes back while this handler is behind, OnPodAdded is not called again.
	podChanged := func(pod types.UID) {
		if _, exists, _ := w.generator.Cache().Lookup(pod); exists {
			w.Add(ctx, pod)
		}
	}
	changed := func(e *pleg.PodLifecycleEvent) { podChanged(e.ID) }
	err := w.generator.Handle(ctx, pleg.Handler{
		Want:               want,
		OnPodAdded:         func(pod *pleg.Pod, _ bool) { w.Add(ctx, pod.ID) },
		OnPodChanged:       func(pod *pleg.Pod) { podChanged(pod.ID) },
		OnPodRemoved:       func(pod *pleg.Pod) { w.Wake(pod.ID) },
		OnContainerCreated: changed,
		OnContainerStarted: changed,
		OnContainerDied:    changed,
		OnContainerRemoved: changed,
		OnPodSync:          changed,
	}, opts...)
	if err != nil {
		w.Wait()
	}
	return err
}

// Add starts a worker for a pod. If there is already a worker for the pod, Add wakes that worker. A
// worker that Add has started ends when ctx ends. The pod need not exist yet. If ctx has ended, Add
// starts no worker. Add never blocks.
func (w *Workers) Add(ctx context.Context, pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wakeLocked(pod) || ctx.Err() != nil {
		return
	}
	wake := make(chan struct{}, 1)
	w.wakes[pod] = wake
	acted := w.acted // a worker of this pod may have ended right after an action
	w.joined.Go(func() { w.work(ctx, pod, wake, acted) })
}

// Wake makes the pod's worker call Sync, and reports whether there is a worker for the pod. If Sync
// is running, the worker calls Sync once more afterwards. Wake never blocks.
func (w *Workers) Wake(pod types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wakeLocked(pod)
}

func (w *Workers) wakeLocked(pod types.UID) bool {
	wake, found := w.wakes[pod]
	if found {
		select {
		case wake <- struct{}{}:
		default: // a wake-up is already pending
		}
	}
	return found
}

// Wait returns when all workers have ended. Wait must be called only when the contexts of all calls
// of Add have ended, or when no further call of Add can begin.
func (w *Workers) Wait() {
	w.mu.Lock()   // waits for each Add in progress, which may still start a worker
	w.mu.Unlock() //nolint:staticcheck // nothing is done under it
	w.joined.Wait()
}

// work runs the worker of a pod until the worker ends. acted is the time of the newest action.
func (w *Workers) work(ctx context.Context, pod types.UID, wake chan struct{}, acted time.Time) {
	defer func() { w.remove(pod, wake, acted) }()
	failures := 0
	for {
		select {
		case <-wake: // w.sync below will see the change
		default:
		}
		result, exists, err := w.sync(ctx, pod, &acted)
		after := result.After
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failures++
			after = w.retry.Wait(failures)
			if w.options.OnError != nil {
				w.options.OnError(pod, err, after)
			}
			await(ctx, wake, after)
		case result.Acted: // the variable failures keeps its value: this action may be a step of a retry
		case (result.Done || !exists && after <= 0) && w.end(pod, wake):
			return
		default:
			failures = 0
			await(ctx, wake, after)
		}
	}
}

// sync calls options.Sync with a status that was observed after the time acted. If options.Sync may
// have done something, sync sets acted to the present time.
func (w *Workers) sync(ctx context.Context, pod types.UID, acted *time.Time) (result Result, exists bool, err error) {
	status, exists, err := w.generator.Cache().LookupNewerThan(ctx, pod, *acted)
	if err != nil {
		return Result{}, exists, fmt.Errorf("inspecting the pod: %w", err)
	}
	result, err = w.options.Sync(ctx, status, exists)
	if result.Acted || err != nil {
		*acted = w.generator.Clock().Now()
	}
	return result, exists, err
}

// await waits until the worker is woken or ctx ends. If after is positive, it also limits the wait.
func await(ctx context.Context, wake <-chan struct{}, after time.Duration) {
	var passed <-chan time.Time
	if after > 0 {
		timer := time.NewTimer(after)
		defer timer.Stop()
		passed = timer.C
	}
	select {
	case <-ctx.Done():
	case <-wake:
	case <-passed:
	}
}

// end removes a worker and returns true. If the worker was woken since it last read the status, end
// does nothing and returns false.
func (w *Workers) end(pod types.UID, wake chan struct{}) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(wake) > 0 {
		return false
	}
	delete(w.wakes, pod)
	return true
}

// remove removes a worker that ends without the method end. acted is the time of its newest action.
func (w *Workers) remove(pod types.UID, wake chan struct{}, acted time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wakes[pod] != wake {
		return
	}
	delete(w.wakes, pod)
	if acted.After(w.acted) { // nobody may have seen the effect yet
		w.acted = acted
	}
}
