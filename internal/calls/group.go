// Package calls runs calls to a container runtime in goroutines of their own, so
// that nothing a runtime does reaches its caller: a call that hangs holds up
// nobody, a panic is an error, and so is the end of the goroutine.
//
// A group knows its calls in flight, and cancels one of them or all. It knows no
// clock: whoever begins a call says when that was. The goroutine of a call that does
// not return stays until it does; nothing can end it.
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

// Group is a set of calls, each under a key by which its owner knows it. Its
// methods may be called from any goroutine, and from done; none but Wait blocks.
type Group[K comparable] struct {
	mu    sync.Mutex
	calls map[*call[K]]struct{} // whose done has not returned; guarded by mu
}

// call is what Go was asked to do.
type call[K comparable] struct {
	key    K
	info   Info
	cancel context.CancelCauseFunc
	err    error // what it came to; owned by its goroutine

	// Guarded by the group's lock.

	returned bool          // it is no longer in flight
	stopped  chan struct{} // made by CancelAll, and closed when done has returned; nil before
}

// NewGroup returns a group without calls.
func NewGroup[K comparable]() *Group[K] {
	return &Group[K]{calls: make(map[*call[K]]struct{})}
}

// Go runs method in a goroutine and returns at once. When method returns, panics or
// ends its goroutine, the call's context ends, the call leaves the calls in flight, and
// then done is called, once, in that goroutine. done must not wait for another call of
// the group.
//
// err is a *[PanicError], or what method returned. stopped reports whether err is not nil
// and CancelAll was called while the call was in flight, so that the failure says nothing
// about the runtime.
//
// No two calls in flight should have the same key: Cancel would cancel both.
func (g *Group[K]) Go(key K, info Info, method func(ctx context.Context) error, done func(err error, stopped bool)) {
	ctx, cancel := context.WithCancelCause(context.Background()) //nolint:forbidigo // its call ends it, or Cancel
	c := &call[K]{key: key, info: info, cancel: cancel}
	g.mu.Lock()
	g.calls[c] = struct{}{}
	g.mu.Unlock()
	go func() {
		// Deferred, for the runtime may end the goroutine.
		defer g.forget(c)
		defer func() { done(c.err, g.leave(c) && c.err != nil) }()
		defer cancel(nil)
		c.make(ctx, method)
	}()
}

// make calls the method. If the method panics or ends the goroutine, the call has failed.
func (c *call[K]) make(ctx context.Context, method func(ctx context.Context) error) {
	returned := false
	defer func() {
		if value := recover(); value != nil {
			c.err = &PanicError{fmt.Sprintf("%s panicked: %v", c.info.Method, value)}
		} else if !returned {
			c.err = &PanicError{c.info.Method + " panicked: the runtime ended the goroutine"}
		}
	}()
	c.err = method(ctx)
	if c.err != nil {
		_ = c.err.Error() // a nil pointer in the error panics here, and not in the generator
	}
	returned = true
}

// leave takes a call out of the calls in flight, and reports whether CancelAll was called
// before.
func (g *Group[K]) leave(c *call[K]) (stopped bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.returned = true
	return c.stopped != nil
}

func (g *Group[K]) forget(c *call[K]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.calls, c)
	if c.stopped != nil {
		close(c.stopped)
	}
}

// Cancel cancels the context of the call with this key. It does nothing if the call
// is not in flight, or was cancelled before.
func (g *Group[K]) Cancel(key K, cause error) {
	for _, c := range g.list(func(c *call[K]) bool { return c.key == key }) {
		c.cancel(cause)
	}
}

// CancelAll cancels the context of every call in flight. Calls that begin later are
// not cancelled.
func (g *Group[K]) CancelAll(cause error) {
	all := func(c *call[K]) bool {
		if c.stopped == nil {
			c.stopped = make(chan struct{})
		}
		return true
	}
	for _, c := range g.list(all) {
		c.cancel(cause)
	}
}

// Wait returns when the calls that were in flight at the last CancelAll have returned, and
// done with them, or when timeout fires. It does not wait for calls that began later. It
// returns those that have not returned, oldest first.
func (g *Group[K]) Wait(timeout <-chan time.Time) []Info {
	for _, c := range g.list(func(c *call[K]) bool { return c.stopped != nil }) {
		select {
		case <-c.stopped:
			continue
		case <-timeout:
		}
		break
	}
	return infos(g.list(func(c *call[K]) bool { return c.stopped != nil && !c.returned }))
}

// InFlight returns the calls of these methods that have not returned, of all if none
// is given: oldest first, then by pod and method.
func (g *Group[K]) InFlight(methods ...string) []Info {
	return infos(g.list(func(c *call[K]) bool {
		return !c.returned && (len(methods) == 0 || slices.Contains(methods, c.info.Method))
	}))
}

// list returns the calls that are wanted, in no order.
func (g *Group[K]) list(wanted func(*call[K]) bool) (list []*call[K]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.calls {
		if wanted(c) {
			list = append(list, c)
		}
	}
	return list
}

func infos[K comparable](calls []*call[K]) (list []Info) {
	for _, c := range calls {
		list = append(list, c.info)
	}
	slices.SortFunc(list, compareInfo)
	return list
}
