package pleg

import (
	"fmt"
	"slices"
	"strings"
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

// metrics is the generator's collector. Counters and histograms are updated as things
// happen; gauges are read when they are collected.
type metrics struct {
	// nodeName is the node's name, set before the first collection; "" is not exported.
	nodeName string
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
	nodeNameDesc = prometheus.NewDesc("kubelet_node_name",
		"The node's name. The count is always 1.", []string{"node"}, nil)
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

func (m *metrics) counted() []prometheus.Collector {
	return []prometheus.Collector{
		m.relistDuration, m.relistInterval, m.podRelistDuration, m.discardEvents,
		m.streamErrors, m.streamConnections, m.streamLatency,
		m.inspectionRetries, m.transitions, m.exits, m.bad,
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.counted() {
		c.Describe(ch)
	}
	if m.nodeName != "" {
		ch <- nodeNameDesc
	}
	for _, d := range []*prometheus.Desc{
		healthyDesc, lastSeenDesc, runningPodsDesc, runningContainersDesc, relistRunningDesc, inFlightDesc, hungDesc,
		failingDesc, subscribersDesc, backlogDesc, namedBacklogDesc, blockedDesc,
		unconfirmedDesc, streamUpDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.counted() {
		c.Collect(ch)
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	// A state without containers is reported as zero, not left at its last value. No lock
	// is held while a collector may be slow.
	now := m.readGauges()
	if m.nodeName != "" {
		gauge(nodeNameDesc, 1, m.nodeName)
	}
	if !now.LastRelist.IsZero() {
		gauge(lastSeenDesc, float64(now.LastRelist.UnixNano())/float64(time.Second))
	}
	gauge(runningPodsDesc, float64(now.tally.runningPods))
	gauge(runningContainersDesc, float64(now.tally.created), string(ContainerStateCreated))
	gauge(runningContainersDesc, float64(now.tally.running), string(ContainerStateRunning))
	gauge(runningContainersDesc, float64(now.tally.exited), string(ContainerStateExited))
	gauge(runningContainersDesc, float64(now.tally.unknown), string(ContainerStateUnknown))
	gauge(relistRunningDesc, now.relistRunning.Seconds())
	gauge(inFlightDesc, float64(now.inspectionsInFlight))
	var hung, failing float64
	for _, p := range now.FailingPods {
		hung += oneIf(!p.HangingSince.IsZero())
		failing += oneIf(p.Failures > 0)
	}
	gauge(hungDesc, hung)
	gauge(failingDesc, failing)
	gauge(subscribersDesc, float64(now.Subscribers))
	gauge(backlogDesc, float64(now.Backlog))
	for _, s := range now.NamedSubscribers {
		gauge(namedBacklogDesc, float64(s.Backlog), s.Name)
	}
	if now.BlockedReaders >= 0 {
		gauge(blockedDesc, float64(now.BlockedReaders))
	}
	gauge(unconfirmedDesc, float64(len(now.UnconfirmedExits)))
	gauge(healthyDesc, oneIf(now.Healthy))
	gauge(streamUpDesc, oneIf(now.Stream.State == StreamConnected || now.Stream.State == StreamSilent))
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
	if end == nil {
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

// guardedCollector is a collector whose panic spoils a collection, and no more: a registry
// recovers a panic since client_golang 1.24 only.
type guardedCollector struct{ prometheus.Collector }

// Collect implements prometheus.Collector.
func (g guardedCollector) Collect(ch chan<- prometheus.Metric) {
	defer func() {
		if p := recover(); p != nil {
			err := fmt.Errorf("the collector panicked: %v", p)
			ch <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		}
	}()
	g.Collector.Collect(ch)
}

// withoutKubelet is a collector without the metrics that have a kubelet's name.
type withoutKubelet struct{ prometheus.Collector }

// Describe implements prometheus.Collector.
func (w withoutKubelet) Describe(ch chan<- *prometheus.Desc) {
	filter(ch, w.Collector.Describe, func(d *prometheus.Desc) bool { return !hasKubeletName(d) })
}

// Collect implements prometheus.Collector.
func (w withoutKubelet) Collect(ch chan<- prometheus.Metric) {
	filter(ch, w.Collector.Collect, func(m prometheus.Metric) bool { return !hasKubeletName(m.Desc()) })
}

// hasKubeletName reports whether a metric has a name that a kubelet's registry may have
// too. Only the printed form of a Desc has its name.
func hasKubeletName(d *prometheus.Desc) bool {
	return strings.HasPrefix(d.String(), `Desc{fqName: "kubelet_`)
}

// filter passes on what send sends and keep wants.
func filter[T any](ch chan<- T, send func(chan<- T), keep func(T) bool) {
	all, sent := make(chan T), []T(nil)
	var receiving sync.WaitGroup
	receiving.Go(func() {
		for v := range all {
			sent = append(sent, v)
		}
	})
	func() {
		defer receiving.Wait()
		defer close(all)
		send(all)
	}()
	for _, v := range sent {
		if keep(v) {
			ch <- v
		}
	}
}

// tally counts what runs.
type tally struct {
	// runningPods are the pods that have a running sandbox.
	runningPods int
	// containers are the containers by state, sandboxes not among them.
	created, running, exited, unknown int
	// unsettledPods are those of which isUnsettled.
	unsettledPods int
}

// count adds a pod to the tally n times.
func (t *tally) count(pod *Pod, n int) {
	if pod == nil {
		return
	}
	for _, c := range pod.Containers {
		switch c.State {
		case ContainerStateCreated:
			t.created += n
		case ContainerStateRunning:
			t.running += n
		case ContainerStateExited:
			t.exited += n
		case ContainerStateUnknown:
			t.unknown += n
		}
	}
	if slices.ContainsFunc(pod.Sandboxes, func(s *Container) bool { return s.State == ContainerStateRunning }) {
		t.runningPods += n
	}
	if isUnsettled(pod) {
		t.unsettledPods += n
	}
}

// isUnsettled reports whether a pod has a sandbox that is not ready, or a container that is created
// and not started: of such pods runtimes do not announce every change. containerd says nothing of
// a start that fails, and CRI-O nothing of the removal of a sandbox.
func isUnsettled(pod *Pod) bool {
	return slices.ContainsFunc(pod.Containers, func(c *Container) bool { return c.State == ContainerStateCreated }) ||
		slices.ContainsFunc(pod.Sandboxes, func(s *Container) bool { return s.State != ContainerStateRunning })
}
