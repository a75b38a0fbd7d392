package calls

import "context"

// call is what Go was asked to do.
type call[K comparable] struct {
	group *Group[K]
	// Written by Go before the call begins, read by the goroutine that makes it until it
	// leaves the calls in flight. Who else reads them holds the group's lock.

	key    K
	info   Info
	method func(ctx context.Context) error
	done   func(key K, err error, stopped bool)
	ctx    *callContext

	// Guarded by the group's lock.

	index int // among the calls in flight
	// cancelled says that the context has ended, stopped that CancelAll was called.
	cancelled, stopped bool

	// Owned by the goroutine that makes the call.

	err  error // what it came to
	ends bool  // the runtime has ended the goroutine
}

// make makes the call. What has to happen when it returns is deferred, for the runtime
// may end the goroutine; it is not guarded, for a panic in done is none of the runtime's.
func (c *call[K]) make() {
	defer c.finish()
	c.guard()
}

// guard calls the method and reads its error, neither of which can do worse than
// not to return, or to end the goroutine.
func (c *call[K]) guard() {
	returned := false
	defer func() {
		if returned {
			return
		}
		// First, for printing the value may end the goroutine too.
		c.err, c.ends = &PanicError{c.info.Method + " panicked: the runtime ended the goroutine"}, true
		if value := recover(); value != nil {
			c.err = &PanicError{c.info.Method + " panicked: " + PanicText(value)}
			c.ends = false
		}
	}()
	err := c.method(c.ctx)
	if err != nil {
		err = read(err, c.group.known)
	}
	c.err, returned = err, true
}

// finish says what the call came to.
func (c *call[K]) finish() {
	left, ended := c.group.leave(c)
	if ended != nil {
		ended.cancel(nil)
	}
	left.done(left.key, left.err, left.stopped && left.err != nil)
}

func (c *call[K]) cancelLocked(cause error) {
	c.cancelled = true
	c.ctx.cancel(cause)
}
