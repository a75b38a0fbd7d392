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
	// begin says that there is a call to make, or that there will be none. It has
	// room for one: the worker is told once each time it waits.
	begin chan bool
	// run is the method of this name, kept because go allocates one otherwise.
	run func()

	// Written by Go before the call begins, read by the goroutine until the call
	// leaves the calls in flight. Who else reads them holds the group's lock.

	call call[K]
	ctx  *callContext

	// Guarded by the group's lock.

	index int // among the calls in flight
	// cancelled says that the context has ended, stopped that CancelAll was called.
	cancelled, stopped bool

	// err is what the call came to; owned by the goroutine.
	err error
}

func newWorker[K comparable](g *Group[K]) *worker[K] {
	w := &worker[K]{group: g, begin: make(chan bool, 1)}
	w.run = w.makeCalls
	return w
}

func (w *worker[K]) makeCalls() {
	defer w.group.retire(w) // also when the runtime ends the goroutine
	for {
		w.makeCall()
		if !w.group.await(w) || !<-w.begin {
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
		w.err = &PanicError{w.call.info.Method + " panicked: the runtime ended the goroutine"}
		if value := recover(); value != nil {
			w.err = &PanicError{w.call.info.Method + " panicked: " + panicText(value)}
		}
	}()
	err := w.call.method(w.ctx)
	if err != nil {
		err = read(err, w.group.known)
	}
	w.err, returned = err, true
}

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
