// Package calls runs calls to a container runtime in goroutines of their own, so
// that nothing a runtime does reaches its caller: a call that hangs holds up
// nobody, a panic is an error, and so is the end of the goroutine.
//
// A group knows its calls in flight, and cancels one of them or all. It knows no
// clock: whoever begins a call says when that was.
//
// # Goroutines
//
// A goroutine whose call has returned makes the next, and waits for one if there is
// none. A goroutine that takes a call while there are more brings another one, so that
// calls which take their time are soon all under way, and those that return at once
// cost no switch each (BenchmarkGo). [Group.Rest] ends the goroutines that wait. One
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
	// Since is when the call began, by its owner.
	Since time.Time
}

// compareInfo puts the oldest first.
func compareInfo(a, b Info) int {
	return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.Method, b.Method))
}

// maxIdle bounds the goroutines that wait for a call, so that those of a thousand calls
// that hung at once do not stay when they have returned.
const maxIdle = 64

// Group is a set of calls, each under a key by which its owner knows it. Its
// methods may be called from any goroutine, and from done; none but Wait blocks.
type Group[K comparable] struct {
	// Set once by NewGroup.

	known []error
	// wake wakes a goroutine that waits for a call. It has room for all of them.
	wake chan struct{}
	// work is the method of this name, kept because go allocates one otherwise.
	work func()

	mu sync.Mutex

	// Guarded by mu.

	// inFlight are the calls that have not returned, each at its index; queue those of
	// them that no goroutine makes yet, from head on.
	inFlight, queue []*call[K]
	head            int
	free            []*call[K] // calls that have returned, whose memory is used again
	// coming: a goroutine is on its way to the queue. There is one whenever the queue
	// is not empty.
	coming bool
	// idle counts the goroutines that wait for a call, leaving those that have been
	// woken to end.
	idle, leaving int
	// resting is true from Rest to the next Go: no goroutine begins to wait.
	resting bool
	// stopped counts the calls in flight that CancelAll has cancelled; returned is
	// closed when there is none left, nil if nobody waits for that.
	stopped  int
	returned chan struct{}
}

// NewGroup returns a group without calls. [Is] finds the known errors in those of
// the group's calls.
func NewGroup[K comparable](known ...error) *Group[K] {
	g := &Group[K]{known: slices.Clone(known), wake: make(chan struct{}, 2*maxIdle)}
	g.work = g.makeCalls
	return g
}

// Go runs method in a goroutine and returns at once. When method returns, panics or
// ends its goroutine, the call leaves the calls in flight and then done is called,
// once, in that goroutine. done must not wait for another call of the group.
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
	defer g.mu.Unlock()
	g.resting = false
	c := pop(&g.free)
	if c == nil {
		c = &call[K]{group: g}
	}
	if c.ctx == nil {
		c.ctx = newCallContext()
	}
	c.key, c.info, c.method, c.done = key, info, method, done
	c.index = len(g.inFlight)
	g.inFlight = append(g.inFlight, c)
	g.queue = append(g.queue, c)
	g.bringLocked()
}

// bringLocked has a goroutine come to the queue if it is not empty and none is on its
// way.
func (g *Group[K]) bringLocked() {
	if g.coming || g.head == len(g.queue) {
		return
	}
	g.coming = true
	switch {
	case g.leaving > 0: // it has been woken already
		g.leaving--
	case g.idle > 0:
		g.idle--
		g.wake <- struct{}{}
	default:
		go g.work()
	}
}

// pop takes the last call of a list, whose memory was used last; nil if there is none.
func pop[K comparable](list *[]*call[K]) *call[K] {
	last := len(*list) - 1
	if last < 0 {
		return nil
	}
	c := (*list)[last]
	(*list)[last] = nil
	*list = (*list)[:last]
	return c
}

// Cancel cancels the context of the call with this key. It does nothing if the call
// is not in flight, or was cancelled before.
func (g *Group[K]) Cancel(key K, cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.inFlight {
		if c.key == key {
			c.cancelLocked(cause)
		}
	}
}

// CancelAll cancels the context of every call in flight. Calls that begin later are
// not cancelled.
func (g *Group[K]) CancelAll(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.inFlight {
		c.cancelLocked(cause)
		if !c.stopped {
			c.stopped = true
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
	return g.list(func(c *call[K]) bool { return c.stopped })
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
	return g.list(func(c *call[K]) bool {
		return len(methods) == 0 || slices.Contains(methods, c.info.Method)
	})
}

func (g *Group[K]) list(wanted func(*call[K]) bool) []Info {
	g.mu.Lock()
	defer g.mu.Unlock()
	var list []Info
	for _, c := range g.inFlight {
		if wanted(c) {
			list = append(list, c.info)
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
	for ; g.idle > 0; g.idle-- {
		g.leaving++
		g.wake <- struct{}{}
	}
}

// makeCalls makes calls, one after another, in a goroutine of its own.
func (g *Group[K]) makeCalls() {
	for {
		c, waits := g.next()
		switch {
		case c != nil:
			c.make()
		case waits:
			<-g.wake
		default:
			return
		}
	}
}

// next returns the call that a goroutine which has come makes now. If there is none it
// reports whether the goroutine waits for one.
func (g *Group[K]) next() (c *call[K], waits bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.head < len(g.queue) {
		g.coming = false
		c, g.queue[g.head] = g.queue[g.head], nil
		g.head++
		if g.head == len(g.queue) {
			g.queue, g.head = g.queue[:0], 0
		}
		g.bringLocked()
		return c, false
	}
	if g.leaving > 0 {
		g.leaving--
		return nil, false
	}
	g.coming = false
	if g.resting || g.idle == maxIdle {
		return nil, false
	}
	g.idle++
	return nil, true
}

// leave takes a call out of the calls in flight and takes its memory back. It returns the
// call, and its context if that is not to be used again. The call's goroutine comes to the
// queue next, so that the owner which is told of the outcome finds it on its way.
func (g *Group[K]) leave(c *call[K]) (left call[K], ended *callContext) {
	g.mu.Lock()
	defer g.mu.Unlock()
	moved := pop(&g.inFlight)
	if moved != c {
		g.inFlight[c.index], moved.index = moved, c.index
	}
	if c.stopped {
		g.stopped--
		if g.stopped == 0 && g.returned != nil {
			close(g.returned)
			g.returned = nil
		}
	}
	if !c.ends {
		g.coming = true
	}
	left = *c
	if c.cancelled || c.ctx.watched.Load() {
		ended, c.ctx = c.ctx, nil
	}
	*c = call[K]{group: g, ctx: c.ctx}
	if len(g.free) < maxIdle {
		g.free = append(g.free, c)
	}
	return left, ended
}
