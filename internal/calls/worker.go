package calls

import "context"

// call is what Go was asked to do.
type call[K comparable] struct {
	key    K
	info   Info
	method func(ctx context.Context) error
	done   func(key K, err error, stopped bool)
}

// worker makes one call after another in a goroutine.
type worker[K comparable] struct {
	// Set once by newWorker.

	group *Group[K]
	// wake ends the waiting. It has room for one: the worker is woken once each time it
	// waits, to make a call or to end.
	wake chan struct{}
	// run is the method of this name, kept because go allocates one otherwise.
	run func()

	// Written by Go before the call begins, read by the goroutine until the call
	// leaves the calls in flight. Who else reads them holds the group's lock.

	call call[K]
	ctx  *callContext

	// Guarded by the group's lock.

	index   int  // among the calls in flight
	leaving bool // it is to end, unless a call comes before it wakes
	// cancelled says that the context has ended, stopped that CancelAll was called.
	cancelled, stopped bool

	// Owned by the goroutine.

	err error // what the call came to
	// ends says that the runtime has ended the goroutine, waits that it gets another
	// call, or is told that there will be none.
	ends, waits bool
}

func newWorker[K comparable](g *Group[K]) *worker[K] {
	w := &worker[K]{group: g, wake: make(chan struct{}, 1)}
	w.run = w.makeCalls
	return w
}

func (w *worker[K]) makeCalls() {
	w.ends = false
	defer w.group.retire(w) // also when the runtime ends the goroutine
	for {
		w.makeCall()
		if !w.waits {
			return
		}
		<-w.wake
		if !w.group.resume(w) {
			return
		}
	}
}

// makeCall makes one call. What has to happen when it returns is deferred, for the
// runtime may end the goroutine; it is not guarded, for a panic in done is none of
// the runtime's.
func (w *worker[K]) makeCall() {
	defer w.finish()
	w.guard()
}

// guard calls the method and reads its error, neither of which can do worse than
// not to return, or to end the goroutine.
func (w *worker[K]) guard() {
	returned := false
	defer func() {
		if returned {
			return
		}
		// First, for printing the value may end the goroutine too.
		w.err, w.ends = &PanicError{w.call.info.Method + " panicked: the runtime ended the goroutine"}, true
		if value := recover(); value != nil {
			w.err = &PanicError{w.call.info.Method + " panicked: " + panicText(value)}
			w.ends = false
		}
	}()
	err := w.call.method(w.ctx)
	if err != nil {
		err = read(err, w.group.known)
	}
	w.err, returned = err, true
}

// finish says what the call came to. The worker waits for another from before that on, so
// that the owner finds it when it is told of the outcome.
func (w *worker[K]) finish() {
	err := w.err
	w.err = nil
	c, stopped, ended := w.group.leave(w)
	if ended != nil {
		ended.cancel(nil)
	}
	c.done(c.key, err, stopped && err != nil)
}

func (w *worker[K]) cancelLocked(cause error) {
	w.cancelled = true
	w.ctx.cancel(cause)
}
