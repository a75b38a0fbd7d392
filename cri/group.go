package cri

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/status"
)

// errGoroutineEnded is the error of a call if the client ended the call's goroutine.
var errGoroutineEnded = errors.New("the goroutine was ended (runtime.Goexit)")

// attempt runs f and then always calls done with the error of f, shortened if it is long. f calls
// code of the client or of the caller. If f panics or ends the goroutine, done is called with an
// error that reports it.
func attempt(f func() error, done func(error)) {
	err := errGoroutineEnded
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %s", panicText(p))
		}
		done(err)
	}()
	returned := f()
	if returned != nil {
		// Calling a method of an error may panic, for example if the error is a nil pointer in an
		// interface. So these methods are called here first, where attempt recovers a panic.
		_, _, _ = returned.Error(), status.Code(returned), errors.Is(returned, errNoStreamingLists)
		returned = cut(returned)
	}
	err = returned
}

// panicText returns the value of a panic as text. If printing the value panics too, it returns only
// the value's type.
func panicText(value any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("a %T that cannot be printed", value)
		}
	}()
	return cutText(fmt.Sprint(value))
}

// guarded runs f and returns its error. If f panics, guarded returns the panic as an error.
func guarded(f func() error) (err error) {
	attempt(f, func(failure error) { err = failure })
	return err
}

// callGroup makes calls to the runtime in parallel, each in its own goroutine. wait returns the error
// of the first call that fails.
type callGroup struct {
	runtime *Runtime
	ctx     context.Context
	cancel  context.CancelCauseFunc
	// tolerated reports whether an error counts as a success; may be nil.
	tolerated func(error) bool
	// independent is true if a failed call does not cancel the other calls.
	independent bool

	// goroutines bounds and joins the goroutines. It does not collect their errors: if the client
	// ends a goroutine, that goroutine returns no error.
	goroutines errgroup.Group

	once sync.Once
	err  error // set in once; read when the goroutines have ended
}

// newCallGroup returns a group that makes at most limit calls at once. The caller must call wait.
func (r *Runtime) newCallGroup(ctx context.Context, limit int) *callGroup {
	g := &callGroup{runtime: r}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	g.goroutines.SetLimit(limit)
	return g
}

// start runs f in a new goroutine. f calls the client once, with the group's context. While the
// group is at its limit, start blocks.
func (g *callGroup) start(made rpc, of target, f func(ctx context.Context) error) {
	g.goroutines.Go(func() error {
		c := g.runtime.begin(made, of)
		attempt(
			func() error { return f(g.ctx) },
			func(err error) { g.finish(g.runtime.end(g.ctx, c, err)) },
		)
		return nil
	})
}

// finish records the outcome of a call.
func (g *callGroup) finish(err error) {
	if err == nil || g.tolerated != nil && g.tolerated(err) {
		return
	}
	g.once.Do(func() {
		g.err = err
		if !g.independent {
			g.cancel(err)
		}
	})
}

// wait returns when every call has returned. It returns the error of the first call that failed.
func (g *callGroup) wait() error {
	_ = g.goroutines.Wait() // always nil
	g.cancel(nil)
	return g.err
}
