package contract_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// A host that has the kubelet's metrics itself keeps their names: its registry takes the generator's
// others, and all those of the runtime.
func TestWithoutKubeletMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		reg.MustRegister(prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubelet_running_pods", Help: "The host's."}, []string{"other"}))
		calls := prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_runtime_calls_total", Help: "Calls."})
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return measured{rt, calls} },
			pleg.WithRegisterer(reg), pleg.WithoutKubeletMetrics())
		n.SetPods(pods(1)...)
		n.relist()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		names := make(map[string]int)
		for _, f := range families {
			names[f.GetName()] = len(f.GetMetric())
			if strings.HasPrefix(f.GetName(), "kubelet_") && f.GetName() != "kubelet_runtime_calls_total" {
				t.Errorf("%s is taken from the host", f.GetName())
			}
		}
		if names["pleg_subscribers"] != 1 || names["kubelet_runtime_calls_total"] != 1 || names["pleg_bad_data_total"] != 6 {
			t.Errorf("the others are missing: %v", names)
		}
	})
}

// Histograms have native buckets beside the classic ones.
func TestNativeHistograms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(pods(1)...)
		n.Delay(plegtest.GetPods, plegtest.AnyPod, 30*time.Millisecond)
		n.relist()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		histograms := 0
		for _, f := range families {
			h := f.GetMetric()[0].GetHistogram()
			if h == nil {
				continue
			}
			histograms++
			if len(h.GetBucket()) == 0 || h.Schema == nil {
				t.Errorf("%s has %d classic buckets and the schema %d", f.GetName(), len(h.GetBucket()), h.GetSchema())
			}
			if f.GetName() == "kubelet_pleg_relist_duration_seconds" && len(h.GetPositiveSpan()) != 1 {
				t.Errorf("a relist of 30 ms is in no native bucket: %v", h)
			}
		}
		if histograms != 4 {
			t.Errorf("%d histograms", histograms)
		}
	})
}

// What a runtime replays of the time before the connection says nothing of the stream's
// latency; it is a hint all the same.
func TestReplayedEventsAreNoLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const latency = "kubelet_evented_pleg_connection_latency_seconds"
		n, reg := newNodeWithMetrics(t)
		n.SetPods(pods(2)...)
		n.start()
		connected := time.Now()
		time.Sleep(100 * time.Millisecond)
		lists := n.Calls(plegtest.GetPod)
		n.Emit(pleg.ContainerEvent{PodUID: "pod-00000", CreatedAt: connected.Add(-5 * time.Minute)})
		n.Emit(pleg.ContainerEvent{PodUID: "pod-00001", CreatedAt: connected.Add(-time.Nanosecond)})
		synctest.Wait()
		wantMetric(t, reg, latency, 0)
		if got := n.Calls(plegtest.GetPod); got != lists+2 {
			t.Errorf("the two hints led to %d lists", got-lists)
		}
		n.Emit(pleg.ContainerEvent{PodUID: "pod-00000", CreatedAt: connected})
		n.Emit(pleg.ContainerEvent{PodUID: "pod-00000", CreatedAt: time.Now()})
		n.Emit(pleg.ContainerEvent{PodUID: "pod-00000"})
		synctest.Wait()
		wantMetric(t, reg, latency, 2)
		// After another connection, what was created before it is old again.
		beforeBreak := time.Now()
		n.BreakStreams(errors.New("reset"))
		time.Sleep(2 * time.Second)
		n.Emit(pleg.ContainerEvent{PodUID: "pod-00000", CreatedAt: beforeBreak})
		synctest.Wait()
		wantMetric(t, reg, latency, 2)
	})
}
