package calls_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

type key struct{}

// When a call returns, its context ends. So everything that waits for the context is released, even
// if the runtime never cancels a derived context.
func TestContextEndsWithTheCall(t *testing.T) {
	for name, keep := range map[string]func(ctx context.Context) <-chan struct{}{
		"the context itself": context.Context.Done,
		"the context, asked later": func(ctx context.Context) <-chan struct{} {
			ended := make(chan struct{})
			time.AfterFunc(time.Second, func() {
				if ctx.Err() != nil {
					close(ended)
				}
			})
			return ended
		},
		"a value": func(ctx context.Context) <-chan struct{} {
			return context.WithValue(ctx, key{}, 1).Done()
		},
		"a derived context": func(ctx context.Context) <-chan struct{} {
			derived, cancel := context.WithCancel(ctx)
			_ = cancel // the runtime forgets to call it
			return derived.Done()
		},
		"a function": func(ctx context.Context) <-chan struct{} {
			ended := make(chan struct{})
			context.AfterFunc(ctx, func() { close(ended) })
			return ended
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOwner()
				var ended <-chan struct{}
				o.call("a", func(ctx context.Context) error { ended = keep(ctx); return nil })
				o.only(t)
				time.Sleep(time.Second)
				synctest.Wait()
				select {
				case <-ended:
				default:
					t.Error("it waits on")
				}
				o.call("b", func(ctx context.Context) error { return ctx.Err() })
				if got := o.only(t); got.err != nil {
					t.Errorf("the next call: %v", got.err)
				}
			})
		})
	}
}

// If a call is cancelled, the contexts that the runtime derived from the call's context end with
// the same cause.
func TestDerivedContextIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		var cause error
		o.call("a", func(ctx context.Context) error {
			derived, cancel := context.WithCancel(ctx)
			defer cancel()
			<-derived.Done()
			cause = context.Cause(derived)
			return derived.Err()
		})
		synctest.Wait()
		o.Cancel("a", errDeadline)
		if got := o.only(t); got.err == nil || !errors.Is(cause, errDeadline) {
			t.Errorf("got %v, cause %v", got.err, cause)
		}
	})
}

// A call that is cancelled without a cause ends with context.Canceled.
func TestCancelWithoutACause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		o.call("a", honours)
		o.Cancel("a", nil)
		if got := o.only(t); got.err == nil || got.err.Error() != context.Canceled.Error() {
			t.Errorf("got %v", got.err)
		}
	})
}
