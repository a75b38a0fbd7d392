package plegtest

import "k8s.io/utils/clock"

// RuntimeOption is an option of NewRuntime.
type RuntimeOption interface {
	applyToRuntime(r *Runtime)
}

// WithClock sets the clock for times and delays. The default is the real clock.
func WithClock(c clock.Clock) RuntimeOption {
	return clockOption{c}
}

type clockOption struct{ clock clock.Clock }

func (o clockOption) applyToRuntime(r *Runtime) { r.clock = o.clock }
