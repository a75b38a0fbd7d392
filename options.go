package pleg

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
)

// Defaults of the options.
const (
	// DefaultInspectionWorkers is the number of inspections that run at once.
	DefaultInspectionWorkers = 8
	// DefaultInspectionTimeout is the deadline of a list and of an inspection: the
	// default of the kubelet's --runtime-request-timeout.
	DefaultInspectionTimeout = 2 * time.Minute
)

// Option is an option of NewGenericPLEG. A nil Option is ignored.
type Option func(*options)

type options struct {
	logger            klog.Logger
	registerer        prometheus.Registerer
	relistThreshold   time.Duration
	inspectionWorkers int
	inspectionTimeout time.Duration
	connectedPeriod   time.Duration
	pollingOnly       bool
	nodeName          string
	noKubeletMetrics  bool
}

func defaultOptions() options {
	return options{
		logger:            klog.Background().WithName("pleg"),
		relistThreshold:   DefaultRelistThreshold,
		inspectionWorkers: DefaultInspectionWorkers,
		inspectionTimeout: DefaultInspectionTimeout,
	}
}

// WithLogger sets the logger. The default is klog's background logger with the name
// "pleg". Verbosity follows the kubelet: 2 logs containers that finished, slow inspections
// and the event stream's breaks, 4 every transition and status, 5 every relist.
//
// The logger is called with no lock held, in the generator's loop among others: one that
// hangs stops the loop, but no method that does not wait for it. It must not call Start,
// Stop or Relist.
func WithLogger(logger klog.Logger) Option {
	return func(o *options) { o.logger = logger }
}

// WithRegisterer registers the generator's metrics, and those of a Runtime that
// implements prometheus.Collector. By default nothing is registered. A registration
// that fails is logged. For two generators on one registry, wrap it with
// prometheus.WrapRegistererWith, so that a label tells them apart.
func WithRegisterer(registerer prometheus.Registerer) Option {
	return func(o *options) { o.registerer = registerer }
}

// WithNodeName exports kubelet_node_name, a gauge that is always 1, with the name in its
// label node. The rules of kubernetes-mixin join with it to name the node of an alert,
// KubeletPlegDurationHigh among them. The name should be the Node's in Kubernetes. Without
// this option, or with an empty name, the metric is not exported. What is not UTF-8 in the
// name is replaced. It has no effect without WithRegisterer.
func WithNodeName(name string) Option {
	return func(o *options) { o.nodeName = strings.ToValidUTF8(name, "\uFFFD") }
}

// WithoutKubeletMetrics leaves the metrics whose names begin with kubelet_ to a host that
// has its own, such as a kubelet, whose registry does not take a name twice: none of them
// is registered, those of a Runtime that implements prometheus.Collector and that of
// WithNodeName included. The others are. By default all are.
func WithoutKubeletMetrics() Option {
	return func(o *options) { o.noKubeletMetrics = true }
}

// WithRelistThreshold sets the age of the last successful relist, and of inspections
// that hang, above which Healthy reports false. A zero or negative value selects
// DefaultRelistThreshold, the default.
func WithRelistThreshold(threshold time.Duration) Option {
	return func(o *options) {
		if threshold > 0 {
			o.relistThreshold = threshold
		}
	}
}

// WithInspectionWorkers sets how many inspections run at once, not counting up to 64 slow
// ones, which have run for longer than a relist period. A zero or negative value selects
// DefaultInspectionWorkers, the default.
func WithInspectionWorkers(workers int) Option {
	return func(o *options) {
		if workers > 0 {
			o.inspectionWorkers = workers
		}
	}
}

// WithInspectionTimeout sets the deadline of an inspection and of a list. After it the
// call has failed: it is cancelled, and its late answer is discarded. A zero or negative
// value selects DefaultInspectionTimeout, the default.
func WithInspectionTimeout(timeout time.Duration) Option {
	return func(o *options) {
		if timeout > 0 {
			o.inspectionTimeout = timeout
		}
	}
}

// WithConnectedRelistPeriod sets the period of full relists while the runtime's event
// stream is connected. It is the caller's choice to rely on the stream: a change without
// an event is found by the next full relist, and so that much later.
//
// The next full relist begins within the ordinary period after the stream ends, after a
// full relist fails or answers an event, after a single-pod relist fails or is slow, and
// while a reader waits on the cache. Because containerd announces no start that fails, and
// CRI-O no removal of a sandbox, it does so too while a pod has a sandbox that is not ready
// or a container that is created and not started, for up to five minutes after the last
// change of such a pod; and while the stream is silent, see StreamSilent. What remains is
// found by the next full relist only: on CRI-O the removal of a sandbox that has been dead
// for longer, with the containers in it, and the end of a container whose sandbox or conmon
// was killed.
//
// The period is limited to half of the relist threshold. A value that is not longer than the
// ordinary period selects the ordinary period, the default, and so does a Cache that is
// not a PodCache.
func WithConnectedRelistPeriod(period time.Duration) Option {
	return func(o *options) { o.connectedPeriod = period }
}

// WithPollingOnly limits the generator to full relists: every period, on Relist and on
// RequestRelist. It opens no event stream and makes no single-pod relist, and blocked
// readers wait for the next full relist.
func WithPollingOnly() Option {
	return func(o *options) { o.pollingOnly = true }
}
