package prober

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/handler"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
)

// newTotal returns the kubelet's counter of probes.
func newTotal(registerer prometheus.Registerer) *prometheus.CounterVec {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "prober_probe_total",
		Help: "Cumulative number of a liveness, readiness or startup probe for a container by result.",
	}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"})
	registerer.MustRegister(total)
	return total
}

// labels returns the labels of a probe, but for the result.
func (w *worker) labels() prometheus.Labels {
	kind := map[plan.ProbeKind]string{plan.Liveness: "Liveness", plan.Readiness: "Readiness", plan.Startup: "Startup"}
	return prometheus.Labels{
		"probe_type": kind[w.key.kind], "container": w.key.container,
		"pod": w.pod.Name, "namespace": w.pod.Namespace, "pod_uid": string(w.key.uid),
	}
}

// countProbe counts a probe.
func (w *worker) countProbe(err error) {
	labels := w.labels()
	switch {
	case err == nil:
		labels["result"] = "successful"
	case errors.Is(err, handler.ErrFailed):
		labels["result"] = "failed"
	default:
		labels["result"] = "unknown"
	}
	w.manager.total.With(labels).Inc()
}
