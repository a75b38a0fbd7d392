package calls_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/kubepleg/pleg/internal/calls"
)

// badError does in Error what a runtime may do there.
type badError struct{ do func() }

func (e badError) Error() string { e.do(); return "bad" }

// badIs panics when it is compared.
type badIs struct{}

func (badIs) Error() string   { return "bad" }
func (badIs) Is(error) bool   { panic("cannot compare") }
func (badIs) Unwrap() []error { panic("cannot unwrap") }

// nilPanics is an error whose nil pointer does not print.
type nilPanics struct{ text string }

func (e *nilPanics) Error() string { return e.text }

// nested panics when it is printed, and so does what it panics with.
type nested struct{}

func (nested) String() string { panic(nested{}) }

// ends ends the goroutine when it is printed.
type ends struct{}

func (ends) String() string { runtime.Goexit(); return "" }

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
		"a value that panics with a value that panics": {
			func(context.Context) error { panic(nested{}) },
			"GetPods panicked: a calls_test.nested that cannot be printed",
		},
		"a value that ends the goroutine when printed": {
			func(context.Context) error { panic(ends{}) },
			"GetPods panicked: the runtime ended the goroutine",
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
		"an error that cannot be compared": {
			func(context.Context) error { return badIs{} },
			"GetPods panicked: cannot compare",
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
					if calls.Is(got.err, errNotFound) {
						t.Error("it is a known error")
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

// An error that hangs while it is read is a call that hangs.
func TestErrorThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		release := make(chan struct{})
		o.call("a", func(context.Context) error { return badError{func() { <-release }} })
		o.call("b", returnsNil)
		if got := o.only(t); got.key != "b" {
			t.Errorf("got %v", got)
		}
		if got := o.InFlight(); len(got) != 1 {
			t.Errorf("in flight: %v", got)
		}
		close(release)
		if got := o.only(t); got.key != "a" || got.err.Error() != "bad" || calls.Panicked(got.err) {
			t.Errorf("got %v", got)
		}
	})
}

// shy is an error of a runtime that counts what it is asked.
type shy struct{ asked *int }

func (e shy) Error() string        { *e.asked++; return "pod a: not found" }
func (e shy) Is(target error) bool { *e.asked++; return target == errNotFound }

// An error is read in its call, and asked nothing afterwards; whoever wants the
// runtime's own can have it.
func TestErrorsAreReadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		asked := 0
		o.call("a", func(context.Context) error { return shy{&asked} })
		err := o.only(t).err
		asked = 0
		if !calls.Is(err, errNotFound) || calls.Is(err, errUnsupported) || calls.Panicked(err) {
			t.Error("it is not the known error that it is")
		}
		if got := fmt.Sprint(err); got != "pod a: not found" {
			t.Errorf("its text is %q", got)
		}
		if asked != 0 {
			t.Errorf("the runtime was asked %d times", asked)
		}
		var own shy
		if !errors.Is(err, errNotFound) || !errors.As(err, &own) {
			t.Error("it does not wrap the runtime's error")
		}
	})
}

func TestIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		other := errors.New("other")
		for name, c := range map[string]struct {
			err                   error
			notFound, unsupported bool
		}{
			"itself":  {errNotFound, true, false},
			"wrapped": {fmt.Errorf("pod a: %w", errUnsupported), false, true},
			"both":    {errors.Join(errUnsupported, errNotFound), true, true},
			"other":   {other, false, false},
			"none":    {nil, false, false},
		} {
			o.call(name, func(context.Context) error { return c.err })
			err := o.only(t).err
			if got := calls.Is(err, errNotFound); got != c.notFound {
				t.Errorf("%s: Is(errNotFound) is %v", name, got)
			}
			if got := calls.Is(err, errUnsupported); got != c.unsupported {
				t.Errorf("%s: Is(errUnsupported) is %v", name, got)
			}
			if calls.Is(err, other) {
				t.Errorf("%s: it is an error that the group does not know", name)
			}
		}
		if !calls.Is(errNotFound, errNotFound) || calls.Is(other, errNotFound) || calls.Panicked(other) {
			t.Error("the owner's own errors are not told apart")
		}
	})
}
