// Package calls runs each call to a container runtime in its own goroutine. A call that blocks
// delays no other call. A panic or runtime.Goexit becomes an error. The goroutine of a call that never
// returns cannot be ended.
//
// A group tracks its calls in flight, and can cancel one call or all. It has no clock: callers pass the time.
package calls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Info describes a call in flight.
type Info struct {
	// Method is the name of the runtime's method.
	Method string
	// PodUID is the pod of the call; empty for a call about all pods.
	PodUID types.UID
	// Object describes the pod in messages; empty for none.
	Object string
	// Since is when the call began.
	Since time.Time
}

// Group is a set of calls with keys, safe for concurrent use. The function done must not call Stop.
type Group[K comparable] struct {
	mu    sync.Mutex
	calls map[K]*call // each call, until its function done has returned; guarded by mu
}

type call struct {
	info    Info
	cancel  context.CancelCauseFunc
	ended   chan struct{} // closed after the function done has returned
	stopped atomic.Bool   // true once Stop has cancelled the call
}

// NewGroup returns a group without calls.
func NewGroup[K comparable]() *Group[K] { return &Group[K]{calls: make(map[K]*call)} }

// Go runs method in a goroutine and returns at once. When method has ended, its context is
// cancelled, and done is called in the same goroutine. The call is in flight until done returns.
//
// err is the error of method, or an error for which Panicked is true. stopped is true if err is not
// nil and Stop cancelled the call. The error then says nothing about the runtime.
//
// Calls in flight must have different keys.
func (g *Group[K]) Go(key K, info Info, method func(ctx context.Context) error, done func(err error, stopped bool)) {
	ctx, cancel := context.WithCancelCause(context.Background()) //nolint:forbidigo // its call ends it, or Cancel
	c := &call{info: info, cancel: cancel, ended: make(chan struct{})}
	g.mu.Lock()
	g.calls[key] = c
	g.mu.Unlock()
	go func() {
		// These functions are deferred, because the runtime may panic or call Goexit.
		err := error(panicError(info.Method + " panicked: the runtime ended the goroutine"))
		defer g.leave(key)
		defer func() { done(err, err != nil && c.stopped.Load()) }()
		defer cancel(nil)
		defer func() {
			if value := recover(); value != nil {
				err = panicError(fmt.Sprintf("%s panicked: %v", info.Method, value))
			}
		}()
		returned := method(ctx)
		if returned != nil {
			_ = returned.Error() // panics here, not in the reconciler, if the error is or wraps a nil pointer
			_ = Panicked(returned)
		}
		err = returned
	}()
}

// panicError is the error of a call that panicked or called runtime.Goexit.
type panicError string

func (e panicError) Error() string { return string(e) }

// Panicked reports whether err, as passed to done, comes from a call that panicked or called runtime.Goexit.
func Panicked(err error) bool {
	var panicked panicError
	return errors.As(err, &panicked)
}

func (g *Group[K]) leave(key K) {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.calls[key].ended)
	delete(g.calls, key)
}

// Cancel cancels the call with this key if it is in flight. A call keeps the cause of its first cancellation.
func (g *Group[K]) Cancel(key K, cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.calls[key]; c != nil {
		c.cancel(cause)
	}
}

// Stop cancels every call in flight, and waits until all have ended or timeout fires. It ignores
// calls that begin later. It returns the calls that have not ended, oldest first.
func (g *Group[K]) Stop(cause error, timeout <-chan time.Time) (left []Info) {
	g.mu.Lock()
	calls := slices.Collect(maps.Values(g.calls))
	for _, c := range calls {
		c.stopped.Store(true)
		c.cancel(cause)
	}
	g.mu.Unlock()
	for _, c := range calls {
		select {
		case <-c.ended:
		case <-timeout:
			return g.infos(func(c *call) bool { return c.stopped.Load() })
		}
	}
	return nil
}

// InFlight returns the calls in flight of the given methods; without arguments, of all methods.
// They are sorted by age, oldest first, then by pod and method.
func (g *Group[K]) InFlight(methods ...string) []Info {
	return g.infos(func(c *call) bool { return len(methods) == 0 || slices.Contains(methods, c.info.Method) })
}

// infos returns the calls in flight for which wanted returns true, in the order of InFlight.
func (g *Group[K]) infos(wanted func(*call) bool) (infos []Info) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.calls {
		if wanted(c) {
			infos = append(infos, c.info)
		}
	}
	slices.SortFunc(infos, func(a, b Info) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.Method, b.Method))
	})
	return infos
}
