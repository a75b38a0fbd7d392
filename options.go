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
	provenPeriod      time.Duration
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

// WithProvenRelistPeriod sets the period of full relists for as long as the
// runtime's event stream is proven live: it has been connected for
// ProvingTime, and in that time no full relist found a change that no event had
// announced. Such a change is counted in pleg_unannounced_changes_total and
// brings the ordinary period back until the stream has proven itself anew; so
// do, for once, a list or a look that fails, a reader that waits for a time to
// come, and any that blocks where the runtime is no PodGetter. It is half of the
// relist threshold at most. By default, and for a period that is not longer than
// the ordinary one, the ordinary one stays.
func WithProvenRelistPeriod(period time.Duration) Option {
	return func(o *options) { o.provenPeriod = period }
}

// WithPollingOnly makes the generator list the runtime once a period, on Relist and
// on RequestRelist, and always the whole node: no event stream is opened, and
// readers that block wait for the next relist.
func WithPollingOnly() Option {
	return func(o *options) { o.pollingOnly = true }
}
