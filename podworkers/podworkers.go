// Package podworkers brings pods to a desired state, with a worker for each pod. A worker is a
// goroutine: it looks at its pod, does one thing, and looks again, until nothing is left to do. Then
// it waits for an event.
//
// Agents that restart or recreate containers, and kubelets, have such workers. This package solves
// the hard parts:
//
//   - A worker never acts on a status older than its last action. It looks with
//     PodCache.LookupNewerThan, which lists the pod at once.
//   - A worker misses no event and polls nothing. Events that come while it is busy are combined.
//   - A failure is retried, after a wait that doubles.
//   - A pod that is stuck in the runtime delays only its own worker.
//   - A worker ends with its pod.
//
// This is the life of a worker:
//
//	look ──▶ Sync ──▶ Acted: look again, at what was observed since
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

// Result is what a successful Sync did, and what it needs next. The zero Result means that it did
// nothing, and that the worker waits for an event. The Result of a Sync that fails is ignored.
type Result struct {
	// Acted is true if Sync did something. Sync is then called again at once, with a status that
	// was observed after it returned. The other fields are then ignored.
	Acted bool
	// After is how long, in real time, the worker waits for an event before it calls Sync again;
	// zero or less means no limit. If After is positive, the worker waits even if its pod is gone.
	After time.Duration
	// Done is true if the worker is to end although its pod exists. After is then ignored. If an
	// event or Wake came since the worker looked, Sync is called again instead. With Run, the pod's
	// next container event or PodSync starts another worker.
	Done bool
}

// SyncFunc brings a pod closer to its desired state. A call does at most one thing, because its
// status does not show the effect; with Result.Acted, SyncFunc is called again. If the pod is gone,
// exists is false and status has only the ID; there may be several such calls. The status is shared
// and must not be modified.
//
// After an error, it is called again with a back-off, and with a status that was observed after it
// failed. A panic is not recovered.
//
// Calls for one pod never overlap; calls for different pods do. ctx is the context of the Run or
// Add that started the worker. A Sync that may block for long must return when ctx ends. It may call
// Add and Wake: for its own pod, SyncFunc is then called once more. It must not call Wait or Run.
type SyncFunc func(ctx context.Context, status *pleg.PodStatus, exists bool) (Result, error)

// Options configure Workers. Sync is required; the rest has defaults.
type Options struct {
	// Sync is called by the workers. It must not be nil.
	Sync SyncFunc
	// FirstRetry is the wait after the first failure of a pod. It doubles with each further
	// failure, up to LongestRetry, and is reset when Sync has nothing left to do. Waits are in real
	// time. Zero or less selects the default: 100 ms and 10 s.
	FirstRetry, LongestRetry time.Duration
	// OnError is called in the worker's goroutine for each failure of Sync or of the pod's
	// inspection, with the wait that follows. If it is nil, failures are not reported.
	OnError func(pod types.UID, err error, retry time.Duration)
}

// Workers has the workers of an agent, at most one per pod. Its methods are safe for concurrent
// use.
type Workers struct {
	// Set once by New.
	generator *pleg.GenericPLEG
	options   Options
	retry     backoff.Policy

	mu    sync.Mutex
	wakes map[types.UID]chan struct{} // of the workers, with capacity 1; guarded by mu

	joined sync.WaitGroup
}

// New returns Workers without any worker. The generator must run, or workers do not see the effect
// of their actions. New panics if generator or options.Sync is nil.
func New(generator *pleg.GenericPLEG, options Options) *Workers {
	if generator == nil || options.Sync == nil {
		panic("podworkers: New needs a generator and a Sync") //nolint:forbidigo // a mistake in the program
	}
	w := &Workers{generator: generator, options: options, wakes: make(map[types.UID]chan struct{}),
		retry: backoff.Policy{First: options.FirstRetry, Longest: options.LongestRetry}}
	if w.retry.First <= 0 {
		w.retry.First = 100 * time.Millisecond
	}
	if w.retry.Longest <= 0 {
		w.retry.Longest = 10 * time.Second
	}
	return w
}

// Run adds a worker for each present and future pod of the runtime that want accepts, and wakes it
// at each event of the pod. want is called like Handler.Want; nil accepts all pods.
//
// When ctx ends, Run returns the cause of ctx, once all workers have ended. It also waits for workers
// of other calls of Run and Add. When the generator stops, Run returns nil at once. Its workers go
// on: another Run uses them, and they end with ctx.
//
// An agent that learns of its pods elsewhere does not need Run: it calls Add for them, and Wake at
// the events of its own Handler.
func (w *Workers) Run(ctx context.Context, want func(*pleg.Pod) bool, opts ...pleg.SubscribeOption) error {
	changed := func(e *pleg.PodLifecycleEvent) {
		if _, exists, _ := w.generator.Cache().Lookup(e.ID); exists {
			w.Add(ctx, e.ID)
		}
	}
	err := w.generator.Handle(ctx, pleg.Handler{
		Want:               want,
		OnPodAdded:         func(pod *pleg.Pod, _ bool) { w.Add(ctx, pod.ID) },
		OnPodChanged:       func(pod *pleg.Pod) { w.Wake(pod.ID) },
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

// Add starts the worker of a pod, or wakes the worker that the pod has. A worker that Add has started
// ends when ctx does. The pod need not exist yet. If ctx has ended, Add starts no worker. It never
// blocks.
func (w *Workers) Add(ctx context.Context, pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wakeLocked(pod) || ctx.Err() != nil {
		return
	}
	wake := make(chan struct{}, 1)
	w.wakes[pod] = wake
	w.joined.Go(func() { w.work(ctx, pod, wake) })
}

// Wake makes the pod's worker call Sync, and reports whether the pod has a worker. If Sync is
// running, it is called once more afterwards. Wake never blocks.
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

// Wait returns when all workers have ended. It must only be called when the context of every Add has
// ended, or no further Add begins.
func (w *Workers) Wait() {
	w.mu.Lock()   // an Add that checked its context in time has started its worker by now
	w.mu.Unlock() //nolint:staticcheck // nothing is done under it
	w.joined.Wait()
}

// work is a worker.
func (w *Workers) work(ctx context.Context, pod types.UID, wake <-chan struct{}) {
	acted, failures := time.Time{}, 0
	for {
		select {
		case <-wake: // the lookup below sees the change
		default:
		}
		result, exists, err := w.sync(ctx, pod, &acted)
		after := result.After
		switch {
		case ctx.Err() != nil:
			w.end(pod, nil)
			return
		case err != nil:
			failures++
			after = w.retry.Wait(failures)
			if w.options.OnError != nil {
				w.options.OnError(pod, err, after)
			}
			await(ctx, wake, after)
		case result.Acted: // keep failures: this may be a step of a retry
		case (result.Done || !exists && after <= 0) && w.end(pod, wake):
			return
		default:
			failures = 0
			await(ctx, wake, after)
		}
	}
}

// sync looks up the pod as it was after acted, and calls Sync. If Sync may have done something,
// acted is set to now.
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

// await waits until the worker is woken, ctx ends or, if after is positive, that time has passed.
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

// end removes a worker, unless it has been woken since its last look. It reports whether it did.
func (w *Workers) end(pod types.UID, wake <-chan struct{}) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(wake) > 0 {
		return false
	}
	delete(w.wakes, pod)
	return true
}
