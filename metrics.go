package pleg

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// exitReasons are values of the label reason of pleg_container_exits_total, with exitOther and
// exitUnseen. Most are containerd's; "seccomp killed" is CRI-O's, ContainerCannotRun cri-dockerd's.
var exitReasons = [...]string{
	exitCompleted, "ContainerCannotRun", exitError, "OOMKilled", "StartError", "Unknown", "seccomp killed",
}

const (
	exitCompleted = "Completed"
	exitError     = "Error"
	exitOther     = "other"  // any other reason, or none
	exitUnseen    = "unseen" // the container was gone before an inspection showed its end
)

type metrics struct {
	relistDuration, relistInterval, podRelistDuration, streamLatency  prometheus.Histogram
	discardEvents, streamErrors, streamConnections, inspectionRetries prometheus.Counter
	transitions, exits, bad                                           *prometheus.CounterVec

	// reported has the reasons of the bad data that was logged.
	reported sync.Map
}

func newMetrics() *metrics {
	return &metrics{
		relistDuration: newHistogram("kubelet_pleg_relist_duration_seconds",
			"Duration in seconds for relisting pods in PLEG."),
		relistInterval: newHistogram("kubelet_pleg_relist_interval_seconds",
			"Interval in seconds between relisting in PLEG."),
		podRelistDuration: newHistogram("kubelet_pleg_pod_relist_duration_seconds",
			"Duration in seconds for relisting a single pod in PLEG."),
		streamLatency: newHistogram("kubelet_evented_pleg_connection_latency_seconds",
			"The latency of streaming connection with the CRI runtime, measured in seconds."),
		discardEvents: newCounter("kubelet_pleg_discard_events", "The number of discard events in PLEG."),
		streamErrors: newCounter("kubelet_evented_pleg_connection_error_count",
			"The number of errors encountered during the establishment of streaming connection with the CRI runtime."),
		streamConnections: newCounter("kubelet_evented_pleg_connection_success_count",
			"The number of times a streaming client was obtained to receive CRI Events."),
		inspectionRetries: newCounter("pleg_inspection_retries_total",
			"Number of inspections that were repeated after a failure."),
		transitions: newCounterVec("pleg_transitions_total",
			"Number of transitions of containers and sandboxes by cause: hint and exit for events of the runtime, "+
				"demand for a caller, period for a periodic list alone.",
			"cause", CausePeriod, CauseHint, CauseExit, CauseDemand),
		exits: newCounterVec("pleg_container_exits_total",
			"Number of containers that died since the first full list, by reason.",
			"reason", append(exitReasons[:], exitOther, exitUnseen)...),
		bad: newCounterVec("pleg_bad_data_total",
			"Number of invalid items in the runtime's answers, by reason.",
			"reason", badNil, badNoID, badDuplicate, badUID, badState, badPanic),
	}
}

// newHistogram makes a histogram with the kubelet's buckets up to ten seconds, and more up to five minutes,
// past the health threshold. Its native buckets grow by a tenth, from a millisecond to five minutes.
func newHistogram(name, help string) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: name, Help: help, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
		Buckets: append(append([]float64{.001, .0025}, prometheus.DefBuckets...), 30, 60, 120, 180, 240, 300),
	})
}

func newCounter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// newCounterVec makes counters that are 0 from the start, not missing, for these values of the label.
func newCounterVec[T ~string](name, help, label string, values ...T) *prometheus.CounterVec {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	for _, value := range values {
		vec.WithLabelValues(string(value))
	}
	return vec
}

// gauge is a metric that is read from the health when it is collected.
type gauge struct {
	desc *prometheus.Desc
	// read calls set with each value, and the label's value if there is a label.
	read func(h *health, set setGauge)
}

type setGauge func(value float64, label ...string)

func newGauge(name, help string, value func(h *health) float64) gauge {
	return newGauges(name, help, func(h *health, set setGauge) { set(value(h)) })
}

// newGauges makes a gauge that may be absent, or has a label.
func newGauges(name, help string, read func(h *health, set setGauge), label ...string) gauge {
	return gauge{prometheus.NewDesc(name, help, label, nil), read}
}

var kubeletGauges = []gauge{
	newGauges("kubelet_pleg_last_seen_seconds", "Timestamp in seconds when PLEG was last seen active.",
		func(h *health, set setGauge) {
			if !h.LastRelist.IsZero() {
				set(float64(h.LastRelist.UnixNano()) / float64(time.Second))
			}
		}),
	newGauge("kubelet_running_pods", "Number of pods that have a running pod sandbox",
		func(h *health) float64 { return float64(h.runningPods) }),
	newGauges("kubelet_running_containers", "Number of containers currently running", func(h *health, set setGauge) {
		for _, state := range allStates { // a state without containers is reported as zero
			set(float64(h.containers[state]), string(state))
		}
	}, "container_state"),
}

var ownGauges = []gauge{
	newGauge("pleg_healthy", "Whether the generator is healthy (1) or not (0).",
		func(h *health) float64 { return oneIf[float64](h.unhealthy() == nil) }),
	newGauge("pleg_relist_in_progress_seconds",
		"Seconds since the full relist in progress began, 0 when there is none.",
		func(h *health) float64 {
			for _, list := range h.callsOf(methodGetPods) {
				return max(0, h.since(list.Since)).Seconds()
			}
			return 0
		}),
	newGauge("pleg_inspections_in_flight", "Number of inspections that the runtime has not answered yet.",
		func(h *health) float64 { return float64(len(h.callsOf(methodGetPodStatus))) }),
	newGauge("pleg_inspections_hung",
		"Number of pods whose inspection has been unanswered for longer than a relist period.",
		func(h *health) float64 { return h.countFailing(FailingPod.hangs) }),
	newGauge("pleg_inspections_failing", "Number of pods whose last inspection failed.",
		func(h *health) float64 { return h.countFailing(func(p FailingPod) bool { return p.Failures > 0 }) }),
	newGauge("pleg_subscribers", "Number of subscriptions.", func(h *health) float64 { return float64(h.Subscribers) }),
	newGauge("pleg_subscriber_backlog_pods",
		"Number of pods with updates that do not fit into a subscriber's channel, summed over the subscribers.",
		func(h *health) float64 { return float64(h.Backlog) }),
	newGauge("pleg_blocked_readers", "Number of readers that wait for a newer status in the cache.",
		func(h *health) float64 { return float64(h.BlockedReaders) }),
	newGauge("pleg_exits_unconfirmed",
		"Number of containers that the runtime shows as running more than a relist period after their exit event.",
		func(h *health) float64 { return float64(len(h.UnconfirmedExits)) }),
	newGauge("pleg_event_stream_connected", "1 while the runtime's event stream is connected, else 0.",
		func(h *health) float64 { return oneIf[float64](h.Stream.State == StreamConnected) }),
}

type collector struct {
	counters []prometheus.Collector
	gauges   []gauge
	health   func() *health
}

// Collectors returns the collectors of the generator's metrics, those with a kubelet's name first,
// and the runtime if it is a prometheus.Collector. WithRegisterer registers them.
func (g *GenericPLEG) Collectors() []prometheus.Collector {
	m := g.metrics
	kubelets := []prometheus.Collector{
		m.relistDuration, m.relistInterval, m.podRelistDuration, m.discardEvents,
		m.streamErrors, m.streamConnections, m.streamLatency,
	}
	own := []prometheus.Collector{m.inspectionRetries, m.transitions, m.exits, m.bad}
	all := []prometheus.Collector{&collector{kubelets, kubeletGauges, g.health}, &collector{own, ownGauges, g.health}}
	if c, ok := g.runtime.(prometheus.Collector); ok {
		all = append(all, c)
	}
	return all
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, counter := range c.counters {
		counter.Describe(ch)
	}
	for _, gauge := range c.gauges {
		ch <- gauge.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, counter := range c.counters {
		counter.Collect(ch)
	}
	h := c.health()
	for _, gauge := range c.gauges {
		gauge.read(h, func(value float64, label ...string) {
			ch <- prometheus.MustNewConstMetric(gauge.desc, prometheus.GaugeValue, value, label...)
		})
	}
}

// countFailing returns how many failing pods match.
func (h *health) countFailing(meant func(FailingPod) bool) (n float64) {
	for _, p := range h.FailingPods {
		n += oneIf[float64](meant(p))
	}
	return n
}

// countDiscarded counts transitions that coalescing has discarded.
func (m *metrics) countDiscarded(n int) { m.discardEvents.Add(float64(n)) }

// countTransitions counts transitions with this cause.
func (m *metrics) countTransitions(n int, cause Cause) {
	m.transitions.WithLabelValues(string(cause)).Add(float64(n))
}

// countExit counts the death of a container. end is its last status; nil if no inspection showed it.
func (m *metrics) countExit(end *Status) {
	reason := exitUnseen
	if hasExited(end) {
		reason = exitOther
		if slices.Contains(exitReasons[:], end.Reason) {
			reason = end.Reason
		}
	}
	m.exits.WithLabelValues(reason).Inc()
}

// badData counts bad data. It logs only the first of each kind.
func (m *metrics) badData(log func(message string, keysAndValues ...any), reason badReason, object string) {
	m.bad.WithLabelValues(string(reason)).Inc()
	if _, before := m.reported.LoadOrStore(reason, true); !before {
		log("Bad data; more of this kind is counted in pleg_bad_data_total and not logged",
			"reason", string(reason), "object", object)
	}
}
