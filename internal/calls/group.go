// Package calls runs calls to a container runtime in goroutines of their own, so
// that nothing a runtime does reaches its caller: a call that hangs holds up
// nobody, a panic is an error, and so is the end of the goroutine.
//
// A group knows its calls in flight, and cancels one of them or all. It knows no
// clock: whoever begins a call says when that was.
//
// # Goroutines
//
// A goroutine whose call has returned waits for another, because handing it over
// costs less than a new goroutine. [Group.Rest] ends those that wait. A goroutine
// whose call does not return stays until it does; nothing can end it.
//
// # Contexts
//
// A call's context ends when the call is cancelled, and at the latest when the call
// has returned if anything waits for it: what a runtime derives from the context and
// forgets is released then. A context for whose end nobody asked is used for the
// next call of the goroutine.
package calls

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Info describes a call in flight.
type Info struct {
	// Method is the method of the runtime.
	Method string
	// PodUID is the pod that the call is about; empty if it is about all.
	PodUID types.UID
	// Object names the pod for people; nil if there is none.
	Object fmt.Stringer
	// Since is when the call began.
	Since time.Time
}

// compareInfo puts the oldest first.
func compareInfo(a, b Info) int {
	return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.Method, b.Method))
}

// maxWaiting bounds the goroutines that wait for a call, so that those of a thousand
// calls that hung at once do not stay when they have returned.
const maxWaiting = 64

// Group is a set of calls, each under a key by which its owner knows it. Its
// methods may be called from any goroutine, and from done; none but Wait blocks.
type Group[K comparable] struct {
	// known is set once by NewGroup.
	known []error

	mu sync.Mutex

	// Guarded by mu.

	// inFlight are the workers whose call has not returned, each at its index.
	inFlight []*worker[K]
	// waiting are the workers whose goroutine waits for a call, spare those that
	// have no goroutine any more.
	waiting, spare []*worker[K]
	// leaving are the workers that Rest has told to end and whose goroutine may not have
	// noticed yet.
	leaving []*worker[K]
	// resting is true from Rest to the next Go: no worker begins to wait.
	resting bool
	// stopped counts the calls in flight that CancelAll has cancelled; returned is
	// closed when there is none left, nil if nobody waits for that.
	stopped  int
	returned chan struct{}
}

// NewGroup returns a group without calls. [Is] finds the known errors in those of
// the group's calls.
func NewGroup[K comparable](known ...error) *Group[K] {
	return &Group[K]{known: slices.Clone(known)}
}

// Go runs method in a goroutine and returns at once. When method returns, panics or
// ends its goroutine, the call leaves the calls in flight and then done is called,
// once, in that goroutine.
//
// err is nil, a *[PanicError], or an error whose text has been read already and which
// wraps what method returned. It is read in the call's goroutine: where an Error
// method panics the call has panicked, and where one hangs the call hangs. stopped
// reports whether err is not nil and CancelAll was called while the call was in
// flight, so that the failure says nothing about the runtime.
//
// No two calls in flight should have the same key: Cancel would cancel both.
func (g *Group[K]) Go(
	key K, info Info, method func(ctx context.Context) error, done func(key K, err error, stopped bool),
) {
	g.mu.Lock()
	g.resting = false
	w, bare := g.workerLocked()
	w.call = call[K]{key, info, method, done}
	if w.ctx == nil {
		w.ctx = newCallContext()
	}
	w.index = len(g.inFlight)
	g.inFlight = append(g.inFlight, w)
	g.mu.Unlock()
	if bare {
		go w.run()
	}
}

// workerLocked returns a worker for a call, and whether it needs a goroutine.
func (g *Group[K]) workerLocked() (w *worker[K], bare bool) {
	if w := pop(&g.waiting); w != nil {
		w.wake <- struct{}{}
		return w, false
	}
	if w := pop(&g.leaving); w != nil {
		w.leaving = false
		return w, false
	}
	if w := pop(&g.spare); w != nil {
		return w, true
	}
	return newWorker(g), true
}

// pop takes the last worker of a list, whose memory was used last; nil if there is
// none.
func pop[K comparable](list *[]*worker[K]) *worker[K] {
	last := len(*list) - 1
	if last < 0 {
		return nil
	}
	w := (*list)[last]
	(*list)[last] = nil
	*list = (*list)[:last]
	return w
}

// Cancel cancels the context of the call with this key. It does nothing if the call
// is not in flight, or was cancelled before.
func (g *Group[K]) Cancel(key K, cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.inFlight {
		if w.call.key == key {
			w.cancelLocked(cause)
		}
	}
}

// CancelAll cancels the context of every call in flight. Calls that begin later are
// not cancelled.
func (g *Group[K]) CancelAll(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.inFlight {
		w.cancelLocked(cause)
		if !w.stopped {
			w.stopped = true
			g.stopped++
		}
	}
}

// Wait returns when every call has returned that was in flight at the last CancelAll,
// or when timeout fires. It does not wait for calls that began later. It returns
// those that have not returned, oldest first.
func (g *Group[K]) Wait(timeout <-chan time.Time) []Info {
	if returned := g.stoppedReturned(); returned != nil {
		select {
		case <-returned:
		case <-timeout:
		}
	}
	return g.list(func(w *worker[K]) bool { return w.stopped })
}

// stoppedReturned returns a channel that is closed when every call has returned that
// CancelAll cancelled; nil if there is none.
func (g *Group[K]) stoppedReturned() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped > 0 && g.returned == nil {
		g.returned = make(chan struct{})
	}
	return g.returned
}

// InFlight returns the calls of these methods that have not returned, of all if none
// is given: oldest first, then by pod and method.
func (g *Group[K]) InFlight(methods ...string) []Info {
	return g.list(func(w *worker[K]) bool {
		return len(methods) == 0 || slices.Contains(methods, w.call.info.Method)
	})
}

func (g *Group[K]) list(wanted func(*worker[K]) bool) []Info {
	g.mu.Lock()
	defer g.mu.Unlock()
	var list []Info
	for _, w := range g.inFlight {
		if wanted(w) {
			list = append(list, w.call.info)
		}
	}
	slices.SortFunc(list, compareInfo)
	return list
}

// Rest ends the goroutines that wait for a call. Those whose call is in flight end
// when it has returned, unless another Go has come by then.
func (g *Group[K]) Rest() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.resting = true
	for w := pop(&g.waiting); w != nil; w = pop(&g.waiting) {
		w.leaving = true
		w.wake <- struct{}{}
		g.leaving = append(g.leaving, w)
	}
}

// leave takes a worker's call out of the calls in flight, and has the worker wait for
// another. It returns the call, whether CancelAll cancelled it, and its context if that is
// not to be used again.
func (g *Group[K]) leave(w *worker[K]) (c call[K], stopped bool, ended *callContext) {
	g.mu.Lock()
	defer g.mu.Unlock()
	moved := pop(&g.inFlight)
	if moved != w {
		g.inFlight[w.index], moved.index = moved, w.index
	}
	if w.stopped {
		g.stopped--
		if g.stopped == 0 && g.returned != nil {
			close(g.returned)
			g.returned = nil
		}
	}
	if w.cancelled || w.ctx.watched.Load() {
		ended, w.ctx = w.ctx, nil
	}
	c, stopped = w.call, w.stopped
	w.call, w.cancelled, w.stopped = call[K]{}, false, false
	w.waits = !w.ends && !g.resting && len(g.waiting) < maxWaiting
	if w.waits {
		g.waiting = append(g.waiting, w)
	}
	return c, stopped, ended
}

// resume reports whether a worker that has woken has a call to make.
func (g *Group[K]) resume(w *worker[K]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.leaving {
		w.leaving = false
		i := slices.Index(g.leaving, w)
		g.leaving = slices.Delete(g.leaving, i, i+1)
		return false
	}
	return true
}

// retire keeps a worker whose goroutine ends for a goroutine to come, which saves an
// owner that rests after every few calls from allocating it each time.
func (g *Group[K]) retire(w *worker[K]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.spare) < maxWaiting {
		g.spare = append(g.spare, w)
	}
}
