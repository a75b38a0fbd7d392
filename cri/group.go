package cri

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/status"
)

// errGoroutineEnded is the error of a call whose client ended the goroutine.
var errGoroutineEnded = errors.New("the goroutine was ended (runtime.Goexit)")

// attempt runs f, which calls code of the client or of the caller, and hands the
// outcome to done in every case: the error that f returned or, if f panicked or
// ended the goroutine, an error that says so.
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
		// An error may panic when it is read, such as a nil pointer in an interface.
		// It is read here first, where a panic is recovered.
		_, _, _ = returned.Error(), status.Code(returned), errors.Is(returned, errNoStreamingLists)
	}
	err = returned
}

// panicText returns the value of a panic as text, as far as it can be printed
// without another panic.
func panicText(value any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("a %T that cannot be printed", value)
		}
	}()
	return fmt.Sprint(value)
}

// guarded runs f and returns its error; a panic of f is an error.
func guarded(f func() error) (err error) {
	attempt(f, func(failure error) { err = failure })
	return err
}

// callGroup makes calls to the runtime at once, each in a goroutine of its own. The
// first that fails cancels the others, and its error is what wait returns.
type callGroup struct {
	runtime *Runtime
	ctx     context.Context
	cancel  context.CancelCauseFunc
	// tolerated reports whether an error is no failure; nil tolerates none.
	tolerated func(error) bool

	// goroutines bounds the goroutines and joins them. It gets no errors from them:
	// a goroutine that the client ended could not return any.
	goroutines errgroup.Group

	once sync.Once
	err  error // set in once; read after wait
}

// newCallGroup returns a group of which at most limit calls are in flight. The
// caller ends it with wait.
func (r *Runtime) newCallGroup(ctx context.Context, limit int) *callGroup {
	g := &callGroup{runtime: r}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	g.goroutines.SetLimit(limit)
	return g
}

// start makes a call: f calls the client with the context of the group. It blocks
// while the group is at its limit.
func (g *callGroup) start(made rpc, of target, f func(ctx context.Context) error) {
	g.goroutines.Go(func() error {
		c := g.runtime.begin(made, of)
		attempt(
			func() error { return f(g.ctx) },
			func(err error) { g.finish(g.runtime.end(c, err)) },
		)
		return nil
	})
}

// finish notes the outcome of a call.
func (g *callGroup) finish(err error) {
	if err == nil || g.tolerated != nil && g.tolerated(err) {
		return
	}
	g.once.Do(func() {
		g.err = err
		g.cancel(err)
	})
}

// wait returns when every call has returned, with the error of the first that
// failed.
func (g *callGroup) wait() error {
	_ = g.goroutines.Wait() // it gets no errors
	g.cancel(nil)
	return g.err
}
