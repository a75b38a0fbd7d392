package pleg

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
)

// Defaults of the options.
const (
	// DefaultInspectionWorkers is how many inspections run at once.
	DefaultInspectionWorkers = 8
	// DefaultInspectionTimeout is the deadline of a call to the runtime: the
	// kubelet's --runtime-request-timeout.
	DefaultInspectionTimeout = 2 * time.Minute
)

// Option changes a default of NewGenericPLEG; a nil one changes nothing.
type Option func(*options)

type options struct {
	logger            klog.Logger
	registerer        prometheus.Registerer
	relistThreshold   time.Duration
	inspectionWorkers int
	inspectionTimeout time.Duration
	connectedPeriod   time.Duration
	pollingOnly       bool
}

func defaultOptions() options {
	return options{
		logger:            klog.Background().WithName("pleg"),
		relistThreshold:   DefaultRelistThreshold,
		inspectionWorkers: DefaultInspectionWorkers,
		inspectionTimeout: DefaultInspectionTimeout,
	}
}

// WithLogger sets the logger; the default is klog's, named "pleg". Verbosity is
// the kubelet's: 2 tells of containers that finished, 4 of every transition and
// status, 5 of every relist.
func WithLogger(logger klog.Logger) Option {
	return func(o *options) { o.logger = logger }
}

// WithRegisterer registers the generator's metrics, and those of a Runtime that
// is a prometheus.Collector. Without it nothing is registered anywhere, and a
// registration that fails is logged. For two generators on one registry, wrap it
// with prometheus.WrapRegistererWith, so that a label tells them apart.
func WithRegisterer(registerer prometheus.Registerer) Option {
	return func(o *options) { o.registerer = registerer }
}

// WithRelistThreshold sets how long ago the last successful relist may have
// begun, and how long every inspection may hang, before Healthy says that the
// generator is not. The default is DefaultRelistThreshold, which also stands for
// zero and less.
func WithRelistThreshold(threshold time.Duration) Option {
	return func(o *options) {
		if threshold > 0 {
			o.relistThreshold = threshold
		}
	}
}

// WithInspectionWorkers sets how many inspections run at once, not counting
// those that have taken longer than a relist period. The default is
// DefaultInspectionWorkers, which also stands for zero and less.
func WithInspectionWorkers(workers int) Option {
	return func(o *options) {
		if workers > 0 {
			o.inspectionWorkers = workers
		}
	}
}

// WithInspectionTimeout sets the deadline of an inspection, and of a listing. The
// default is DefaultInspectionTimeout, which also stands for zero and less.
func WithInspectionTimeout(timeout time.Duration) Option {
	return func(o *options) {
		if timeout > 0 {
			o.inspectionTimeout = timeout
		}
	}
}

// WithConnectedRelistPeriod sets the period of full relists while the runtime's event
// stream is connected. It is the caller's choice to rely on the stream: a change that
// no event announces is found by a full relist, and so that much later. A list that
// fails, the end of the stream, and a reader of the cache that waits for a time to come
// have the next relist within the ordinary period. It is half of the relist threshold
// at most. By default, and for a period that is not longer than the ordinary one, the
// ordinary one stays.
func WithConnectedRelistPeriod(period time.Duration) Option {
	return func(o *options) { o.connectedPeriod = period }
}

// WithPollingOnly makes the generator list the runtime once a period, on Relist and
// on RequestRelist, and always the whole node: no event stream is opened, and
// readers that block wait for the next relist.
func WithPollingOnly() Option {
	return func(o *options) { o.pollingOnly = true }
}
