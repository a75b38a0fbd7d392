package calls

import (
	"context"
	"sync/atomic"
)

// callContext is a context that notices whether anything may wait for its end: a
// goroutine, or a context derived from it. If nothing does it need not be ended when
// its call has returned, and serves the next, which saves three allocations a call
// (BenchmarkGo).
type callContext struct {
	context.Context
	cancel  context.CancelCauseFunc
	watched atomic.Bool
}

func newCallContext() *callContext {
	c := &callContext{}
	c.Context, c.cancel = context.WithCancelCause(context.Background()) //nolint:forbidigo // its call ends it, or Cancel
	return c
}

// Done is also how the context package attaches what is derived from a context.
func (c *callContext) Done() <-chan struct{} {
	if !c.watched.Load() {
		c.watched.Store(true)
	}
	return c.Context.Done()
}
