package prober

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/handler"
)

// metrics are the kubelet's of the same names.
type metrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	m := &metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prober_probe_total",
			Help: "Cumulative number of a liveness, readiness or startup probe for a container by result.",
		}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prober_probe_duration_seconds",
			Help: "Duration in seconds for a probe response.",
		}, []string{"probe_type", "container", "pod", "namespace"}),
	}
	registerer.MustRegister(m.total, m.duration)
	return m
}

// kinds are the values of the label probe_type.
var kinds = map[Kind]string{Liveness: "Liveness", Readiness: "Readiness", Startup: "Startup"}

func (m *metrics) observe(w *worker, err error, took time.Duration) {
	result := "successful"
	switch {
	case errors.Is(err, handler.ErrFailed):
		result = "failed"
	case err != nil:
		result = "unknown"
	}
	m.total.WithLabelValues(kinds[w.key.kind], result, w.key.container, w.pod.Name, w.pod.Namespace,
		string(w.pod.UID)).Inc()
	m.duration.WithLabelValues(kinds[w.key.kind], w.key.container, w.pod.Name, w.pod.Namespace).Observe(took.Seconds())
}

// forget drops the series of a probe that has ended.
func (m *metrics) forget(w *worker) {
	labels := prometheus.Labels{"probe_type": kinds[w.key.kind], "container": w.key.container,
		"pod": w.pod.Name, "namespace": w.pod.Namespace}
	m.total.DeletePartialMatch(labels)
	m.duration.DeletePartialMatch(labels)
}
