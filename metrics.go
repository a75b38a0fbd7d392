package pleg

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// exitReasons, exitOther and exitUnseen are the values of the label reason of pleg_container_exits_total.
// Most come from containerd, "seccomp killed" from CRI-O, ContainerCannotRun from cri-dockerd. If a list
// without an error omits a container, and a later list shows it, its death is counted again.
var exitReasons = [...]string{exitCompleted, "ContainerCannotRun", exitError, "OOMKilled", "StartError", "Unknown",
	"seccomp killed"}

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

	// reported contains the reasons for which bad data was logged.
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

// newHistogram makes a histogram with the kubelet's buckets up to ten seconds, and more buckets up to five
// minutes, beyond the health threshold. Native buckets grow by a tenth, from a millisecond to five minutes.
func newHistogram(name, help string) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: name, Help: help, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
		Buckets: append(append([]float64{.001, .0025}, prometheus.DefBuckets...), 30, 60, 120, 180, 240, 300),
	})
}

func newCounter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// newCounterVec makes one counter for each of these values of the label. Each reports 0 from the start.
func newCounterVec[T ~string](name, help, label string, values ...T) *prometheus.CounterVec {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	for _, value := range values {
		vec.WithLabelValues(string(value))
	}
	return vec
}

// countTransitions counts transitions with this cause.
func (m *metrics) countTransitions(n int, cause Cause) {
	m.transitions.WithLabelValues(string(cause)).Add(float64(n))
}

// countExit counts the death of a container. end is the container's last status, or nil.
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
