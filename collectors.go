package pleg

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// gauge is a metric. Its value is read from the health when the metric is collected.
type gauge struct {
	desc *prometheus.Desc
	// The function read passes each value to set, with the label's value if the gauge has a label.
	read func(h *health, set setGauge)
}

type setGauge func(value float64, label ...string)

func newGauge(name, help string, value func(h *health) float64) gauge {
	return newGauges(name, help, func(h *health, set setGauge) { set(value(h)) })
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
	newGauge("pleg_inspections_stuck",
		"Number of pods whose inspection has been unanswered for longer than a relist period.",
		func(h *health) float64 { return h.countFailing(FailingPod.isStuck) }),
	newGauge("pleg_inspections_failing", "Number of pods whose last inspection failed.",
		func(h *health) float64 { return h.countFailing(func(p FailingPod) bool { return p.Failures > 0 }) }),
	newGauge("pleg_subscribers", "Number of subscriptions.", func(h *health) float64 { return float64(h.Subscribers) }),
	newGauge("pleg_subscriber_backlog_pods",
		"Number of pods with updates that do not fit into a subscriber's channel, summed over the subscribers.",
		func(h *health) float64 { return float64(h.Backlog) }),
	newGauge("pleg_blocked_readers", "Number of readers that wait for a newer status in the cache.",
		func(h *health) float64 { return float64(h.BlockedReaders) }),
	newGauge("pleg_exits_unconfirmed",
		"Number of containers whose exit event the runtime has not confirmed for more than a relist period.",
		func(h *health) float64 { return float64(len(h.UnconfirmedExits)) }),
	newGauge("pleg_event_stream_connected", "1 while the runtime's event stream is connected, else 0.",
		func(h *health) float64 { return oneIf[float64](h.Stream.State == StreamConnected) }),
}

type collector struct {
	counters []prometheus.Collector
	gauges   []gauge
	health   func() *health
}

// Collectors returns the collectors of the generator's metrics, and the runtime if it is a
// prometheus.Collector. Metrics with names of the kubelet come first. WithRegisterer registers all.
func (g *GenericPLEG) Collectors() []prometheus.Collector {
	m := g.metrics
	kubelets := []prometheus.Collector{m.relistDuration, m.relistInterval, m.podRelistDuration, m.discardEvents,
		m.streamErrors, m.streamConnections, m.streamLatency}
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

// countFailing counts the failing pods p for which meant(p) is true.
func (h *health) countFailing(meant func(FailingPod) bool) (n float64) {
	for _, p := range h.FailingPods {
		n += oneIf[float64](meant(p))
	}
	return n
}

// newGauges makes a gauge that may report no value, or several values with different labels.
func newGauges(name, help string, read func(h *health, set setGauge), label ...string) gauge {
	return gauge{prometheus.NewDesc(name, help, label, nil), read}
}
