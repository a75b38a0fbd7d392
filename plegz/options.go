package plegz

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// DefaultHistory is the number of containers and pods that are gone, and of events, that are
// remembered.
const DefaultHistory = 1000

// Option is an option of Handler. A nil Option is ignored.
type Option func(*options)

type options struct {
	nodeName string
	labels   bool
	remote   bool
	hosts    []string
	history  int
	gatherer prometheus.Gatherer
	clock    clock.PassiveClock
}

func newOptions(opts []Option) options {
	o := options{history: DefaultHistory, clock: clock.RealClock{}}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return o
}

// WithNodeName sets the name that the node has in the page's title. The default is none.
func WithNodeName(name string) Option { return func(o *options) { o.nodeName = name } }

// WithLabels shows the labels and annotations of pods, which may hold what not everyone
// should see. By default they are not shown.
func WithLabels() Option { return func(o *options) { o.labels = true } }

// WithRemoteAccess answers requests of other machines too. The Host header must then be
// one of hosts, without a port, or loopback; with no hosts it may be anything, which lets
// any web page that a viewer visits reach the handler by a name of its own that resolves to
// this address. By default only requests of this machine are answered. There is no
// authentication: that is for a handler around this one.
func WithRemoteAccess(hosts ...string) Option {
	return func(o *options) { o.remote, o.hosts = true, hosts }
}

// WithHistory sets how many containers and pods that are gone are remembered, and how many
// events. A zero or negative number selects DefaultHistory, the default. A thousand take
// about two megabytes.
func WithHistory(entries int) Option {
	return func(o *options) {
		o.history = DefaultHistory
		if entries > 0 {
			o.history = entries
		}
	}
}

// WithGatherer has the page draw how long relists and inspections take, from the metrics
// that the generator and package cri have registered: kubelet_pleg_relist_duration_seconds
// and kubelet_runtime_operations_duration_seconds. While somebody looks, it is gathered once
// a second. The default is none; the page then draws the age of the last relist and of the
// oldest call in flight only. A nil gatherer is none. Nothing else is recorded while it
// gathers: a collector that hangs holds up what is shown.
func WithGatherer(gatherer prometheus.Gatherer) Option {
	return func(o *options) { o.gatherer = gatherer }
}

// WithClock sets the generator's clock, which the times in its reports are compared with. The
// default is the real clock; a nil clock is that too.
func WithClock(c clock.PassiveClock) Option {
	return func(o *options) {
		if c != nil {
			o.clock = c
		}
	}
}
