// Package podworkers keeps pods as they should be, with a goroutine for each pod: a worker. A worker
// looks at its pod, does one thing, and looks again, until there is nothing left to do. Then it waits
// for an event.
//
// An agent that restarts containers, a daemon that recreates them, or a kubelet has such workers. The
// hard parts are here:
//
//   - A worker never decides by what was there before its last action. It looks with
//     PodCache.LookupNewerThan, which has the pod listed at once.
//   - A worker misses no event and polls nothing. Events that come while it is busy are one.
//   - What fails is tried again, with a wait that doubles.
//   - A pod that hangs in the runtime holds up its own worker alone.
//   - A worker ends with its pod.
//
// This is the life of a worker:
//
//	look ──▶ Sync ──▶ Acted: look again, at what was observed since
//	 ▲        ├─────▶ an error: wait for the back-off, an event, or Wake
//	 │        ├─────▶ nothing done: wait for After, an event, or Wake
//	 └────────┘       Done, or the pod is gone and nothing was done: the worker ends
package podworkers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/backoff"
)

// Result is what a Sync without an error did, and what it needs next. The zero Result means that it
// did nothing, and waits for an event.
type Result struct {
	// Acted is true if Sync did something. The pod is synced again at once, by a status that was
	// observed after Sync returned.
	Acted bool
	// After is when the pod is synced again if no event comes before; zero or less for never.
	After time.Duration
	// Done is true if the worker is to end although its pod exists.
	Done bool
}

// SyncFunc brings a pod closer to what it should be. It does one thing at most, because status does
// not show what it has done; Result.Acted has it called again. If the pod is gone, exists is false and
// status has nothing but its ID; there may be several such calls. The status is shared and must not be
// modified.
//
// An error has the pod synced again with a back-off. It does not matter whether Sync did something
// before it failed.
//
// Calls for one pod never overlap; those for several pods do. ctx is that of New.
type SyncFunc func(ctx context.Context, status *pleg.PodStatus, exists bool) (Result, error)

// Options are what Workers are made with. Sync is needed, the rest has defaults.
type Options struct {
	// Sync is called by the workers.
	Sync SyncFunc
	// FirstRetry is the wait after the first failure of a pod. It doubles with every further one, up
	// to LongestRetry, and begins anew when Sync finds nothing left to do. The defaults are 100 ms and
	// 10 s.
	FirstRetry, LongestRetry time.Duration
	// OnError is called with each failure, of Sync or of the pod's inspection, and with the wait
	// that follows. It is called in the goroutine of the pod's worker. Nil drops the failures.
	OnError func(pod types.UID, err error, retry time.Duration)
}

// Workers are the workers of an agent, one per pod at most. Its methods are safe for concurrent use.
type Workers struct {
	// Set once by New.
	ctx       context.Context
	generator *pleg.GenericPLEG
	options   Options
	retry     backoff.Policy

	mu    sync.Mutex
	wakes map[types.UID]chan struct{} // of the workers, with capacity 1; guarded by mu

	joined sync.WaitGroup
}

// New returns Workers without a worker. They live until ctx ends: then no Sync begins any more, and
// Wait returns when those that run have returned. A call of Sync that may block for long must end with
// ctx. The generator has to run for the workers to see what they have done.
func New(ctx context.Context, generator *pleg.GenericPLEG, options Options) *Workers {
	w := &Workers{ctx: ctx, generator: generator, options: options, wakes: make(map[types.UID]chan struct{}),
		retry: backoff.Policy{First: options.FirstRetry, Longest: options.LongestRetry}}
	if w.retry.First <= 0 {
		w.retry.First = 100 * time.Millisecond
	}
	if w.retry.Longest <= 0 {
		w.retry.Longest = 10 * time.Second
	}
	return w
}

// Run gives a worker to each pod in the runtime that want accepts, now and later, and wakes it with
// each event of its pod. A nil want accepts all; it is called as Handler.Want is. Run returns when ctx
// has ended and all workers have, with the cause of ctx; or when the generator stops, with nil.
//
// An agent whose pods come from elsewhere needs no Run: it calls Add for them, and Wake with the
// events of its own Handler.
func (w *Workers) Run(want func(*pleg.Pod) bool, opts ...pleg.SubscribeOption) error {
	changed := func(e *pleg.PodLifecycleEvent) {
		if _, exists, _ := w.generator.Cache().Lookup(e.ID); exists {
			w.Add(e.ID)
		}
	}
	err := w.generator.Handle(w.ctx, pleg.Handler{
		Want:               want,
		OnPodAdded:         func(pod *pleg.Pod, _ bool) { w.Add(pod.ID) },
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

// Add has a pod synced: it begins the pod's worker, or wakes it. The pod need not exist yet. If ctx has
// ended, Add does nothing. It never blocks.
func (w *Workers) Add(pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wakeLocked(pod) || w.ctx.Err() != nil {
		return
	}
	wake := make(chan struct{}, 1)
	w.wakes[pod] = wake
	w.joined.Go(func() { w.work(pod, wake) })
}

// Wake has a pod synced again if it has a worker, and reports whether it has. A Sync that runs when Wake
// is called is followed by another. Wake never blocks.
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
		default: // it is to be woken already
		}
	}
	return found
}

// Wait returns when ctx has ended and all workers have.
func (w *Workers) Wait() {
	<-w.ctx.Done()
	w.mu.Lock()   // an Add that saw ctx before its end has begun its worker now
	w.mu.Unlock() //nolint:staticcheck // nothing is done under it
	w.joined.Wait()
}

// work is a worker.
func (w *Workers) work(pod types.UID, wake <-chan struct{}) {
	acted, failures := time.Time{}, 0
	for {
		select {
		case <-wake: // the look that follows sees what it is about
		default:
		}
		result, exists, err := w.sync(pod, &acted)
		after := result.After
		switch {
		case w.ctx.Err() != nil:
			w.end(pod, nil)
			return
		case err != nil:
			failures++
			after = w.retry.Wait(failures)
			if w.options.OnError != nil {
				w.options.OnError(pod, err, after)
			}
			w.await(wake, after)
		case result.Acted: // it may be one of the things that are tried again
		case (result.Done || !exists && after <= 0) && w.end(pod, wake):
			return
		default:
			failures = 0
			w.await(wake, after)
		}
	}
}

// sync looks at a pod as it was after acted, and calls Sync. If that may have done something, acted is
// set to the present.
func (w *Workers) sync(pod types.UID, acted *time.Time) (result Result, exists bool, err error) {
	status, exists, err := w.generator.Cache().LookupNewerThan(w.ctx, pod, *acted)
	if err != nil {
		return Result{}, exists, fmt.Errorf("inspecting the pod: %w", err)
	}
	result, err = w.options.Sync(w.ctx, status, exists)
	if result.Acted || err != nil {
		*acted = w.generator.Clock().Now()
	}
	return result, exists, err
}

// await waits until the worker is woken, ctx ends, or some time has passed, if that is more than zero.
func (w *Workers) await(wake <-chan struct{}, after time.Duration) {
	var passed <-chan time.Time
	if after > 0 {
		timer := time.NewTimer(after)
		defer timer.Stop()
		passed = timer.C
	}
	select {
	case <-w.ctx.Done():
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
