package calls_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/kubepleg/pleg/internal/core/calls"
)

// badError is an error of a faulty runtime: its method Error calls the function do.
type badError struct{ do func() }

func (e badError) Error() string { e.do(); return "bad" }

// nilPanics is an error type. Its method Error panics on a nil pointer.
type nilPanics struct{ text string }

func (e *nilPanics) Error() string { return e.text }

func TestPanicsAreErrors(t *testing.T) {
	for name, c := range map[string]struct {
		method func(ctx context.Context) error
		want   string
	}{
		"panic": {
			func(context.Context) error { panic("boom") },
			"GetPods panicked: boom",
		},
		"panic with an error": {
			func(context.Context) error { panic(errNotFound) },
			"GetPods panicked: not found",
		},
		"panic with nil": {
			func(context.Context) error { panic(nil) },
			"GetPods panicked: " + new(runtime.PanicNilError).Error(),
		},
		"Goexit": {
			func(context.Context) error { runtime.Goexit(); return nil },
			"GetPods panicked: the runtime ended the goroutine",
		},
		"Goexit while it panics": {
			func(context.Context) error { defer runtime.Goexit(); panic("boom") },
			"GetPods panicked: the runtime ended the goroutine",
		},
		"no method": {
			nil,
			"GetPods panicked: runtime error: invalid memory address or nil pointer dereference",
		},
		"a value that panics when printed": {
			func(context.Context) error { panic(badError{func() { panic("again") }}) },
			"GetPods panicked: %!v(PANIC=Error method: again)",
		},
		"an error that panics": {
			func(context.Context) error { return badError{func() { panic("no text") }} },
			"GetPods panicked: no text",
		},
		"an error that ends the goroutine": {
			func(context.Context) error { return badError{runtime.Goexit} },
			"GetPods panicked: the runtime ended the goroutine",
		},
		"a nil pointer as an error": {
			func(context.Context) error { return (*nilPanics)(nil) },
			"GetPods panicked: runtime error: invalid memory address or nil pointer dereference",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOwner()
				for range 2 {
					o.call("a", c.method)
					got := o.only(t)
					if got.err == nil || got.err.Error() != c.want || !calls.Panicked(got.err) {
						t.Errorf("got %v, want %s", got.err, c.want)
					}
					if got := o.InFlight(); got != nil {
						t.Errorf("in flight: %v", got)
					}
					o.call("b", returnsNil)
					if got := o.only(t); got.err != nil {
						t.Errorf("the next call: %v", got.err)
					}
				}
			})
		})
	}
}

// The function done is called with the same error that the method returned.
func TestErrorsAreNotChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		o.call("a", func(context.Context) error { return errNotFound })
		if got := o.only(t).err; !errors.Is(got, errNotFound) || calls.Panicked(got) {
			t.Errorf("got %v", got)
		}
	})
}
