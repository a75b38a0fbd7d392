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
	"errors"
	"fmt"
	"maps"
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

// Group is a set of calls, each with a key by which its owner knows it. Its methods may be called
// from any goroutine, and from done, except that Stop must not be called from done.
type Group[K comparable] struct {
	mu    sync.Mutex
	calls map[*call[K]]struct{} // whose done has not returned; guarded by mu
}

// call is a call in flight.
type call[K comparable] struct {
	key     K
	info    Info
	cancel  context.CancelCauseFunc
	ended   chan struct{} // closed when done has returned
	stopped bool          // Stop was called; guarded by the group's mu
}

// NewGroup returns a group without calls.
func NewGroup[K comparable]() *Group[K] {
	return &Group[K]{calls: make(map[*call[K]]struct{})}
}

// Go runs method in a goroutine and returns at once. When method returns, panics or ends its
// goroutine, the call's context ends, and done is called once, in that goroutine. When done
// returns, the call leaves the calls in flight.
//
// err is what method returned, or an error that Panicked reports. stopped is true if err is not
// nil and Stop was called while the call was in flight, so that the failure says nothing about the
// runtime.
//
// No two calls in flight should have the same key: Cancel would cancel both.
func (g *Group[K]) Go(key K, info Info, method func(ctx context.Context) error, done func(err error, stopped bool)) {
	ctx, cancel := context.WithCancelCause(context.Background()) //nolint:forbidigo // its call ends it, or Cancel
	c := &call[K]{key: key, info: info, cancel: cancel, ended: make(chan struct{})}
	g.mu.Lock()
	g.calls[c] = struct{}{}
	g.mu.Unlock()
	go func() {
		// Deferred, because the runtime may panic or end the goroutine.
		err := error(panicError(info.Method + " panicked: the runtime ended the goroutine"))
		defer g.leave(c)
		defer func() { done(err, err != nil && g.wasStopped(c)) }()
		defer cancel(nil)
		defer func() {
			if value := recover(); value != nil {
				err = panicError(fmt.Sprintf("%s panicked: %v", info.Method, value))
			}
		}()
		returned := method(ctx)
		if returned != nil {
			_ = returned.Error() // a nil pointer in the error panics here, and not in the generator
		}
		err = returned
	}()
}

// panicError reports that the runtime panicked in a call, or ended its goroutine.
type panicError string

func (e panicError) Error() string { return string(e) }

// Panicked reports whether an error that came from done reports that the runtime panicked.
func Panicked(err error) bool {
	var panicked panicError
	return errors.As(err, &panicked)
}

func (g *Group[K]) wasStopped(c *call[K]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return c.stopped
}

func (g *Group[K]) leave(c *call[K]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.calls, c)
	close(c.ended)
}

// Cancel cancels the context of the call with this key. It does nothing if the call is not in
// flight, or was cancelled before.
func (g *Group[K]) Cancel(key K, cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.calls {
		if c.key == key {
			c.cancel(cause)
		}
	}
}

// Stop cancels the context of every call in flight, and returns when they have left or timeout
// fires. It neither cancels nor awaits calls that begin later. It returns the calls that have not
// left, oldest first.
func (g *Group[K]) Stop(cause error, timeout <-chan time.Time) (left []Info) {
	g.mu.Lock()
	calls := slices.Collect(maps.Keys(g.calls))
	for _, c := range calls {
		c.stopped = true
		c.cancel(cause)
	}
	g.mu.Unlock()
	for _, c := range calls {
		select {
		case <-c.ended:
		case <-timeout:
			return g.infos(func(c *call[K]) bool { return c.stopped })
		}
	}
	return nil
}

// InFlight returns the calls of these methods that are in flight, of all if none is given: oldest
// first, then by pod and method.
func (g *Group[K]) InFlight(methods ...string) []Info {
	return g.infos(func(c *call[K]) bool { return len(methods) == 0 || slices.Contains(methods, c.info.Method) })
}

// infos describes the calls in flight that are wanted, in the order of InFlight.
func (g *Group[K]) infos(wanted func(*call[K]) bool) (infos []Info) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.calls {
		if wanted(c) {
			infos = append(infos, c.info)
		}
	}
	slices.SortFunc(infos, func(a, b Info) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.Method, b.Method))
	})
	return infos
}
