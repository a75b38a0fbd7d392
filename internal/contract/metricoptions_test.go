package contract_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// With a node's name the rules of kubernetes-mixin, which join with kubelet_node_name,
// match; without one it is not there.
func TestNodeName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, reg := newNodeWithMetrics(t, pleg.WithNodeName("worker-1"))
		if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP kubelet_node_name The node's name. The count is always 1.
# TYPE kubelet_node_name gauge
kubelet_node_name{node="worker-1"} 1
`), "kubelet_node_name"); err != nil {
			t.Error(err)
		}
		_, reg = newNodeWithMetrics(t, pleg.WithNodeName("worker-\xff"))
		if n, err := testutil.GatherAndCount(reg, "kubelet_node_name"); n != 1 || err != nil {
			t.Errorf("a name that is not UTF-8: %d, %v", n, err)
		}
		for _, opts := range [][]pleg.Option{nil, {pleg.WithNodeName("")}} {
			_, reg := newNodeWithMetrics(t, opts...)
			if n, err := testutil.GatherAndCount(reg, "kubelet_node_name"); n != 0 || err != nil {
				t.Errorf("%d without a name, %v", n, err)
			}
		}
	})
}

// A host that has the kubelet's metrics itself keeps their names: its registry takes the
// generator's others, those of the runtime included.
func TestWithoutKubeletMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		hosts := prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubelet_running_pods", Help: "The host's."}, []string{"other"})
		reg.MustRegister(hosts)
		counter := func(name string) prometheus.Counter {
			return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: "Calls."})
		}
		for i, name := range []string{"kubelet_runtime_operations_total", "runtime_calls_total"} {
			n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return measured{rt, counter(name)} },
				pleg.WithRegisterer(prometheus.WrapRegistererWith(prometheus.Labels{"generator": string(rune('a' + i))}, reg)),
				pleg.WithoutKubeletMetrics(), pleg.WithNodeName("worker-1"))
			n.SetPods(pods(1)...)
			n.relist()
		}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		names := make(map[string]int)
		for _, f := range families {
			names[f.GetName()] = len(f.GetMetric())
			if strings.HasPrefix(f.GetName(), "kubelet_") {
				t.Errorf("%s is taken from the host", f.GetName())
			}
		}
		if names["pleg_subscribers"] != 2 || names["runtime_calls_total"] != 1 || names["pleg_bad_data_total"] != 26 {
			t.Errorf("the others are missing: %v", names)
		}
	})
}

// A runtime whose collector panics spoils a collection, and no more.
func TestCollectorThatPanics(t *testing.T) {
	for _, opts := range [][]pleg.Option{nil, {pleg.WithoutKubeletMetrics()}} {
		synctest.Test(t, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			calls := prometheus.NewCounter(prometheus.CounterOpts{Name: "runtime_calls_total", Help: "Calls."})
			newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return measured{rt, brokenCounter{calls}} },
				append(opts, pleg.WithRegisterer(reg))...)
			families, err := reg.Gather()
			if err == nil || len(families) == 0 || families[0].GetName() == "runtime_calls_total" {
				t.Errorf("%d families, %v", len(families), err)
			}
		})
	}
}

// brokenCounter panics when it is collected.
type brokenCounter struct{ prometheus.Counter }

func (brokenCounter) Collect(chan<- prometheus.Metric) { panic("broken") }

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
