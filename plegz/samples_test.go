package plegz_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubepleg/pleg/plegtest"
)

// measured is a runtime that also exports metrics.
type measured struct {
	*plegtest.Runtime
	prometheus.Collector
}

// newMeasuredNode starts a generator on a runtime that exports the given metrics.
func newMeasuredNode(t *testing.T, metrics prometheus.Collector) *node {
	t.Helper()
	runtime := plegtest.NewRuntime()
	n := newIdleNode(t, measured{runtime, metrics}, runtime)
	n.g.Start(t.Context())
	synctest.Wait()
	return n
}

// Each sample contains the mean durations of relists and inspections since the previous sample,
// even if the metrics are not registered anywhere.
func TestDurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Name: "kubelet_runtime_operations_duration_seconds", Help: "Calls."},
			[]string{"operation_type"})
		calls.WithLabelValues("container_status").Observe(100) // before the recording, so not counted
		n := newMeasuredNode(t, calls)
		n.pass(500 * time.Millisecond) // so that samples and lists do not coincide
		n.get("/")
		synctest.Wait()
		n.Delay(plegtest.GetPods, plegtest.AnyPod, 50*time.Millisecond)
		calls.WithLabelValues("container_status").Observe(5)
		calls.WithLabelValues("podsandbox_status").Observe(7)
		calls.WithLabelValues("list_containers").Observe(1000)
		n.pass(1100 * time.Millisecond)
		n.Block(plegtest.GetPods, plegtest.AnyPod)
		n.pass(time.Second)
		s := n.state().Samples
		if len(s) != 2 || s[0].Relist == nil || *s[0].Relist != 0.05 || *s[0].Inspection != 6 || s[0].RelistAge == nil ||
			s[1].Relist != nil || s[1].Inspection != nil {
			t.Errorf("%+v", s)
		}
		// JSON cannot express infinity.
		calls.WithLabelValues("container_status").Observe(math.Inf(1))
		n.pass(time.Second)
		if s := n.state().Samples; len(s) != 3 || s[2].RelistAge == nil || s[2].Inspection != nil {
			t.Errorf("%+v", s)
		}
	})
}

// The answer contains the witnesses of exits, with the values of the metrics of package cri.
func TestWitnesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		by, help := []string{"witness"}, "As in package cri."
		gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pleg_cri_exit_witness", Help: help}, by)
		exits := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pleg_cri_exits_total", Help: help}, by)
		refusals := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pleg_cri_exit_refusals_total", Help: help}, by)
		registry.MustRegister(gauge, exits, refusals)
		gauge.WithLabelValues("events").Set(1)
		gauge.WithLabelValues("shim").Set(0)
		exits.WithLabelValues("events").Add(3)
		refusals.WithLabelValues("shim").Add(2)
		n := newMeasuredNode(t, registry)
		n.get("/")
		n.pass(1500 * time.Millisecond)
		w := n.state().Witnesses
		if len(w) != 2 || w[0].Witness != "events" || !w[0].Active || w[0].Exits != 3 || w[0].Refusals != 0 ||
			w[1].Witness != "shim" || w[1].Active || w[1].Exits != 0 || w[1].Refusals != 2 {
			t.Errorf("%+v", w)
		}
	})
}
