package plegtest

import "k8s.io/utils/clock"

// Option is an option of NewRuntime and of StartCRIServer.
type Option interface {
	RuntimeOption
	CRIOption
}

// WithClock sets the clock for times and delays. The default is the real clock.
func WithClock(c clock.Clock) Option {
	return clockOption{c}
}

type clockOption struct{ clock clock.Clock }

func (o clockOption) applyToRuntime(r *Runtime)  { r.clock = o.clock }
func (o clockOption) applyToServer(c *criConfig) { c.clock = o.clock }
