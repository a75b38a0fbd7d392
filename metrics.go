package pleg

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Buckets that reach past the health threshold, so that a relist on the way to
// it can be seen. Up to ten seconds they are the kubelet's.
var relistBuckets = append(append([]float64{.001, .0025}, prometheus.DefBuckets...), 30, 60, 120, 180, 240, 300)

// gauges are what the metrics show that are not counted as they happen: a report, and what it
// does not have.
type gauges struct {
	HealthReport
	tally               tally
	relistRunning       time.Duration
	inspectionsInFlight int
}

// metrics are the generator's metrics. Counters and histograms are updated as things
// happen; gauges are read when they are collected.
type metrics struct {
	// readGauges returns the present gauges.
	readGauges func() gauges

	relistDuration    prometheus.Histogram
	relistInterval    prometheus.Histogram
	podRelistDuration prometheus.Histogram
	discardEvents     prometheus.Counter
	streamErrors      prometheus.Counter
	streamConnections prometheus.Counter
	streamLatency     prometheus.Histogram
	inspectionRetries prometheus.Counter
	transitions       *prometheus.CounterVec
	exits             *prometheus.CounterVec
	exitsByReason     map[string]prometheus.Counter // those of the runtimes' words
	bad               *prometheus.CounterVec

	// reported are the causes of bad data that were logged, guarded by mu.
	mu       sync.Mutex
	reported map[badReason]bool
}

var (
	lastSeenDesc = prometheus.NewDesc("kubelet_pleg_last_seen_seconds",
		"Timestamp in seconds when PLEG was last seen active.", nil, nil)
	runningPodsDesc = prometheus.NewDesc("kubelet_running_pods",
		"Number of pods that have a running pod sandbox", nil, nil)
	runningContainersDesc = prometheus.NewDesc("kubelet_running_containers",
		"Number of containers currently running", []string{"container_state"}, nil)
	relistRunningDesc = prometheus.NewDesc("pleg_relist_in_progress_seconds",
		"How long the full relist in progress has been running, 0 when there is none.", nil, nil)
	inFlightDesc = prometheus.NewDesc("pleg_inspections_in_flight",
		"Number of inspections that the runtime has not answered.", nil, nil)
	hungDesc = prometheus.NewDesc("pleg_inspections_hung",
		"Number of pods whose inspection the runtime has not answered for longer than a relist period.", nil, nil)
	failingDesc = prometheus.NewDesc("pleg_inspections_failing",
		"Number of pods whose last inspection failed.", nil, nil)
	subscribersDesc = prometheus.NewDesc("pleg_subscribers",
		"Number of subscriptions.", nil, nil)
	backlogDesc = prometheus.NewDesc("pleg_subscriber_backlog_pods",
		"Number of pods with updates that do not fit into a subscriber's channel, summed over the subscribers.", nil, nil)
	namedBacklogDesc = prometheus.NewDesc("pleg_named_subscriber_backlog_pods",
		"Number of pods with updates that do not fit into the channel of a subscriber with this name.",
		[]string{"subscriber"}, nil)
	blockedDesc = prometheus.NewDesc("pleg_blocked_readers",
		"Number of readers that wait for the cache to become new enough.", nil, nil)
	healthyDesc = prometheus.NewDesc("pleg_healthy",
		"Whether the generator is healthy (1) or not (0).", nil, nil)
	unconfirmedDesc = prometheus.NewDesc("pleg_exits_unconfirmed",
		"Number of containers that have exited by an exit event and that the runtime shows running a relist period later.",
		nil, nil)
	streamUpDesc = prometheus.NewDesc("pleg_event_stream_connected",
		"1 while the runtime's event stream is connected, else 0.", nil, nil)
)

// The native buckets of the histograms, beside the classic ones: each a tenth wider than
// the one before, and so many that durations from a millisecond to five minutes fit;
// beyond that the resolution is halved.
const (
	nativeBucketFactor = 1.1
	nativeBuckets      = 160
)

// The values of the label reason of pleg_container_exits_total: the words of CRI runtimes,
// which are containerd's, "seccomp killed" of CRI-O and ContainerCannotRun of cri-dockerd,
// and two of our own.
var exitReasons = [...]string{
	exitCompleted, "ContainerCannotRun", exitError, "OOMKilled", "StartError", "Unknown", "seccomp killed",
}

const (
	exitCompleted = "Completed"
	exitError     = "Error"
	exitOther     = "other"  // another reason, or none
	exitUnseen    = "unseen" // the container was gone before an inspection saw its end
)

func newMetrics(readGauges func() gauges) *metrics {
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor: nativeBucketFactor, NativeHistogramMaxBucketNumber: nativeBuckets,
		})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		readGauges: readGauges,
		relistDuration: histogram("kubelet_pleg_relist_duration_seconds",
			"Duration in seconds for relisting pods in PLEG.", relistBuckets),
		relistInterval: histogram("kubelet_pleg_relist_interval_seconds",
			"Interval in seconds between relisting in PLEG.", relistBuckets),
		podRelistDuration: histogram("kubelet_pleg_pod_relist_duration_seconds",
			"Duration in seconds for relisting a single pod in PLEG.", relistBuckets),
		discardEvents: counter("kubelet_pleg_discard_events",
			"The number of discard events in PLEG."),
		streamErrors: counter("kubelet_evented_pleg_connection_error_count",
			"The number of errors encountered during the establishment of streaming connection with the CRI runtime."),
		streamConnections: counter("kubelet_evented_pleg_connection_success_count",
			"The number of times a streaming client was obtained to receive CRI Events."),
		streamLatency: histogram("kubelet_evented_pleg_connection_latency_seconds",
			"The latency of streaming connection with the CRI runtime, measured in seconds.", relistBuckets),
		inspectionRetries: counter("pleg_inspection_retries_total",
			"Number of inspections of pods whose inspection had failed before."),
		transitions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pleg_transitions_total",
			Help: "Number of transitions of containers and sandboxes, by the cause of the list that found them: hint and " +
				"exit for events of the runtime, period for those that no event told.",
		}, []string{"cause"}),
		exits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pleg_container_exits_total",
			Help: "Number of containers that died since the first full list, by the reason that was seen first.",
		}, []string{"reason"}),
		bad: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pleg_bad_data_total",
			Help: "Number of items that were skipped or read as something else, by reason.",
		}, []string{"reason"}),
		exitsByReason: make(map[string]prometheus.Counter), reported: make(map[badReason]bool),
	}
	for _, reason := range badReasons {
		m.bad.WithLabelValues(string(reason)) // so that it is 0 and not missing
	}
	for _, cause := range [...]Cause{CausePeriod, CauseHint, CauseExit, CauseDemand} {
		m.transitions.WithLabelValues(string(cause))
	}
	for _, reason := range [...]string{exitOther, exitUnseen} {
		m.exits.WithLabelValues(reason)
	}
	for _, reason := range exitReasons {
		m.exitsByReason[reason] = m.exits.WithLabelValues(reason)
	}
	return m
}

// kubeletMetrics is the collector of the metrics that have a kubelet's name.
type kubeletMetrics struct{ *metrics }

// ownMetrics is the collector of all others.
type ownMetrics struct{ *metrics }

func (m kubeletMetrics) counted() []prometheus.Collector {
	return []prometheus.Collector{
		m.relistDuration, m.relistInterval, m.podRelistDuration, m.discardEvents,
		m.streamErrors, m.streamConnections, m.streamLatency,
	}
}

func (m ownMetrics) counted() []prometheus.Collector {
	return []prometheus.Collector{m.inspectionRetries, m.transitions, m.exits, m.bad}
}

// Describe implements prometheus.Collector.
func (m kubeletMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.counted() {
		c.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{lastSeenDesc, runningPodsDesc, runningContainersDesc} {
		ch <- d
	}
}

// Describe implements prometheus.Collector.
func (m ownMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.counted() {
		c.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{
		healthyDesc, relistRunningDesc, inFlightDesc, hungDesc, failingDesc, subscribersDesc, backlogDesc,
		namedBacklogDesc, blockedDesc, unconfirmedDesc, streamUpDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m kubeletMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.counted() {
		c.Collect(ch)
	}
	now := m.readGauges()
	if !now.LastRelist.IsZero() {
		collectGauge(ch, lastSeenDesc, float64(now.LastRelist.UnixNano())/float64(time.Second))
	}
	// A state without containers is reported as zero, not left at its last value.
	collectGauge(ch, runningPodsDesc, float64(now.tally.runningPods))
	collectGauge(ch, runningContainersDesc, float64(now.tally.created), string(ContainerStateCreated))
	collectGauge(ch, runningContainersDesc, float64(now.tally.running), string(ContainerStateRunning))
	collectGauge(ch, runningContainersDesc, float64(now.tally.exited), string(ContainerStateExited))
	collectGauge(ch, runningContainersDesc, float64(now.tally.unknown), string(ContainerStateUnknown))
}

// Collect implements prometheus.Collector.
func (m ownMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.counted() {
		c.Collect(ch)
	}
	now := m.readGauges()
	collectGauge(ch, healthyDesc, oneIf(now.Healthy))
	collectGauge(ch, relistRunningDesc, now.relistRunning.Seconds())
	collectGauge(ch, inFlightDesc, float64(now.inspectionsInFlight))
	var hung, failing float64
	for _, p := range now.FailingPods {
		hung += oneIf(!p.HangingSince.IsZero())
		failing += oneIf(p.Failures > 0)
	}
	collectGauge(ch, hungDesc, hung)
	collectGauge(ch, failingDesc, failing)
	collectGauge(ch, subscribersDesc, float64(now.Subscribers))
	collectGauge(ch, backlogDesc, float64(now.Backlog))
	for _, s := range now.NamedSubscribers {
		collectGauge(ch, namedBacklogDesc, float64(s.Backlog), s.Name)
	}
	collectGauge(ch, blockedDesc, float64(now.BlockedReaders))
	collectGauge(ch, unconfirmedDesc, float64(len(now.UnconfirmedExits)))
	collectGauge(ch, streamUpDesc, oneIf(now.Stream.State == StreamConnected))
}

func collectGauge(ch chan<- prometheus.Metric, d *prometheus.Desc, value float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

// oneIf returns 1 for true and 0 for false.
func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// countDiscarded counts the transitions that coalescing discards.
func (m *metrics) countDiscarded(n int) { m.discardEvents.Add(float64(n)) }

// countTransitions counts those that a list or an exit event has told.
func (m *metrics) countTransitions(n int, cause Cause) {
	m.transitions.WithLabelValues(string(cause)).Add(float64(n))
}

// countExit counts the death of a container by its last status, nil if its end was not seen.
func (m *metrics) countExit(end *Status) {
	if !hasExited(end) {
		m.exits.WithLabelValues(exitUnseen).Inc()
	} else if c := m.exitsByReason[end.Reason]; c != nil {
		c.Inc()
	} else {
		m.exits.WithLabelValues(exitOther).Inc()
	}
}

// badData counts bad data, and calls log with the first of each kind.
func (m *metrics) badData(log func(message string, keysAndValues ...any), reason badReason, object string) {
	m.bad.WithLabelValues(string(reason)).Inc()
	m.mu.Lock()
	first := !m.reported[reason]
	m.reported[reason] = true
	m.mu.Unlock()
	if first {
		log("Bad data; more of this kind is counted in pleg_bad_data_total and not logged",
			"reason", string(reason), "object", object)
	}
}

// tally counts what exists.
type tally struct {
	pods int
	// runningPods are the pods that have a running sandbox.
	runningPods int
	// The containers by state, sandboxes not among them.
	created, running, exited, unknown int
}

// count adds a pod to the tally.
func (t *tally) count(pod *Pod) {
	t.pods++
	for _, c := range pod.Containers {
		switch c.State {
		case ContainerStateCreated:
			t.created++
		case ContainerStateRunning:
			t.running++
		case ContainerStateExited:
			t.exited++
		case ContainerStateUnknown:
			t.unknown++
		}
	}
	if slices.ContainsFunc(pod.Sandboxes, func(s *Container) bool { return s.State == ContainerStateRunning }) {
		t.runningPods++
	}
}
