package cri

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// metrics are a Runtime's metrics. If the kubelet exports the same metric, the name, labels, help
// text and buckets are the kubelet's, so that rules and dashboards for the kubelet work.
type metrics struct {
	operations *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	errors     *prometheus.CounterVec
	badItems   *prometheus.CounterVec
	items      *prometheus.CounterVec
	witnesses  *prometheus.GaugeVec
	exitsBy    *prometheus.CounterVec
	refusedBy  *prometheus.CounterVec
	ooms       prometheus.Counter
	noKubelet  bool // true with WithoutKubeletMetrics

	// The children of the vectors above, looked up once.
	perRPC  [rpcCount]operationMetrics
	perBad  [badCount]prometheus.Counter
	skipped prometheus.Counter
	decoded prometheus.Counter

	exits, refusals [witnesses]prometheus.Counter
}

type operationMetrics struct {
	total    prometheus.Counter
	duration prometheus.Observer
	errors   prometheus.Counter
}

func newMetrics(o *options) *metrics {
	byOperation := []string{"operation_type"}
	m := &metrics{
		noKubelet: o.noKubeletMetrics,
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_total",
			Help: "Cumulative number of runtime operations by operation type.",
		}, byOperation),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_runtime_operations_duration_seconds",
			Help: "Duration in seconds of runtime operations. Broken down by operation type.",
			// 5 ms to 12 minutes.
			Buckets: prometheus.ExponentialBuckets(.005, 2.5, 14),
			// Native histogram buckets too, as in package pleg.
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
		}, byOperation),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_errors_total",
			Help: "Cumulative number of runtime operation errors by operation type.",
		}, byOperation),
		badItems: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pleg_cri_bad_items_total",
			Help: "Number of invalid items in the runtime's answers by reason, counted each time they are listed.",
		}, []string{"reason"}),
		items: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pleg_cri_listed_items_total",
			Help: "Number of containers and sandboxes listed: decoded if they had changed, else skipped.",
		}, []string{"decoding"}),
		witnesses: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "pleg_cri_exit_witness",
			Help: "1 while the witness of exits is active (its stream is open, or it can be asked), else 0.",
		}, []string{"witness"}),
		exitsBy: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pleg_cri_exits_total",
			Help: "Number of exits of containers and sandboxes, by the first witness that reported them.",
		}, []string{"witness"}),
		refusedBy: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pleg_cri_exit_refusals_total",
			Help: "Number of failed attempts to watch a container for its exit, by witness.",
		}, []string{"witness"}),
		ooms: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pleg_cri_oom_events_total",
			Help: "Number of containerd's events about processes killed for lack of memory, also children of a container's own.",
		}),
	}
	if !o.noExitEvents {
		for by, name := range witnessNames {
			m.exits[by] = m.exitsBy.WithLabelValues(name)
		}
		m.refusals[shims] = m.refusedBy.WithLabelValues(witnessNames[shims])
	}
	for i, name := range rpcs {
		if o.noExitEvents && (rpc(i) == rpcSubscribe || rpc(i) == rpcStatus) {
			continue // without exit events, this call is never made
		}
		m.perRPC[i] = operationMetrics{
			total:    m.operations.WithLabelValues(name.operation),
			duration: m.durations.WithLabelValues(name.operation),
			errors:   m.errors.WithLabelValues(name.operation),
		}
	}
	for reason, name := range badNames {
		m.perBad[reason] = m.badItems.WithLabelValues(name)
	}
	m.skipped = m.items.WithLabelValues("skipped")
	m.decoded = m.items.WithLabelValues("decoded")
	return m
}

// observe counts a call. A call that the caller cancelled does not count as an error of the
// runtime, unless a deadline has passed. When a generator stops, every call in flight is cancelled.
func (m *metrics) observe(made rpc, took time.Duration, err error) {
	m.perRPC[made].total.Inc()
	m.perRPC[made].duration.Observe(took.Seconds())
	m.countError(made, err)
}

func (m *metrics) countError(made rpc, err error) {
	if err != nil && (status.Code(err) != codes.Canceled || errors.Is(err, context.DeadlineExceeded)) {
		m.perRPC[made].errors.Inc()
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	own := []prometheus.Collector{m.badItems, m.items, m.witnesses, m.exitsBy, m.refusedBy, m.ooms}
	if m.noKubelet {
		return own
	}
	return append(own, m.operations, m.durations, m.errors)
}

// runtimeInfo describes the metric that contains the runtime's last answer to Version in its
// labels.
var runtimeInfo = prometheus.NewDesc("pleg_cri_runtime_info",
	"The runtime, from its last answer. The value is always 1.", []string{"name", "version"}, nil)

var _ prometheus.Collector = (*Runtime)(nil)

// Describe describes the metrics. The kubelet's metrics are kubelet_runtime_operations_total,
// kubelet_runtime_operations_errors_total and kubelet_runtime_operations_duration_seconds, by
// operation_type; WithoutKubeletMetrics leaves them out. The package's own metrics are
// pleg_cri_runtime_info, by name and version; pleg_cri_oom_events_total; pleg_cri_bad_items_total,
// by reason; pleg_cri_listed_items_total, by decoding ("skipped" or "decoded"); and
// pleg_cri_exit_witness, pleg_cri_exits_total and pleg_cri_exit_refusals_total, by witness
// ("events", "exit_files", "shim").
func (r *Runtime) Describe(ch chan<- *prometheus.Desc) {
	ch <- runtimeInfo
	for _, c := range r.metrics.collectors() {
		c.Describe(ch)
	}
}

// Collect collects the metrics.
func (r *Runtime) Collect(ch chan<- prometheus.Metric) {
	if v := r.version.Load(); v != nil {
		ch <- prometheus.MustNewConstMetric(runtimeInfo, prometheus.GaugeValue, 1, v.name, v.version)
	}
	for by, name := range witnessNames {
		if r.opts.noExitEvents {
			break
		}
		active := 0.0
		if r.exits.state(witness(by)).active {
			active = 1
		}
		r.metrics.witnesses.WithLabelValues(name).Set(active)
	}
	for _, c := range r.metrics.collectors() {
		c.Collect(ch)
	}
}
