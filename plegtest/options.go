package plegtest

import "k8s.io/utils/clock"

// Option is an option of NewRuntime. A nil Option is ignored.
type Option func(*options)

type options struct{ clock clock.Clock }

// WithClock sets the clock for timestamps and delays. The default is the real clock.
func WithClock(c clock.Clock) Option {
	return func(o *options) { o.clock = c }
}
