package contract_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// The kubelet's metrics have the kubelet's names, types and help texts, so that existing rules and
// dashboards work.
func TestKubeletMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(
			plegtest.NewPod("a", plegtest.Running("a1"), plegtest.Exited("a2")), plegtest.NewPod("b", plegtest.Created("b1")))
		n.SetSandbox("b", "b-sandbox", pleg.ContainerStateExited)
		n.relist()
		if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP kubelet_pleg_discard_events The number of discard events in PLEG.
# TYPE kubelet_pleg_discard_events counter
kubelet_pleg_discard_events 0
# HELP kubelet_pleg_last_seen_seconds Timestamp in seconds when PLEG was last seen active.
# TYPE kubelet_pleg_last_seen_seconds gauge
kubelet_pleg_last_seen_seconds 9.466848e+08
# HELP kubelet_running_containers Number of containers currently running
# TYPE kubelet_running_containers gauge
kubelet_running_containers{container_state="created"} 1
kubelet_running_containers{container_state="exited"} 1
kubelet_running_containers{container_state="running"} 1
kubelet_running_containers{container_state="unknown"} 0
# HELP kubelet_running_pods Number of pods that have a running pod sandbox
# TYPE kubelet_running_pods gauge
kubelet_running_pods 1
# HELP kubelet_evented_pleg_connection_error_count The number of errors `+
			`encountered during the establishment of streaming connection with the CRI runtime.
# TYPE kubelet_evented_pleg_connection_error_count counter
kubelet_evented_pleg_connection_error_count 0
# HELP kubelet_evented_pleg_connection_success_count The number of times `+
			`a streaming client was obtained to receive CRI Events.
# TYPE kubelet_evented_pleg_connection_success_count counter
kubelet_evented_pleg_connection_success_count 0
`),
			"kubelet_pleg_discard_events", "kubelet_pleg_last_seen_seconds",
			"kubelet_running_containers", "kubelet_running_pods",
			"kubelet_evented_pleg_connection_error_count", "kubelet_evented_pleg_connection_success_count"); err != nil {
			t.Error(err)
		}
		// The gauges do not keep the values of removed pods.
		n.SetPods()
		n.relist()
		wantMetric(t, reg, "kubelet_running_pods", 0)
		wantMetric(t, reg, "kubelet_running_containers", 0, "container_state", "exited")
	})
}

// While a relist is stuck, metrics show that it is stuck. When the relist has completed, the
// histogram counts its duration.
func TestRelistInProgressIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t, pleg.WithPollingOnly(), pleg.WithRuntimeRequestTimeout(time.Hour))
		n.SetPods(pods(1)...)
		heal := n.Block(plegtest.GetPods, plegtest.AnyPod)
		n.start()
		time.Sleep(200 * time.Second)
		wantMetric(t, reg, "pleg_relist_in_progress_seconds", 200)
		wantMetric(t, reg, "kubelet_pleg_relist_duration_seconds", 0)
		heal()
		synctest.Wait()
		wantMetric(t, reg, "pleg_relist_in_progress_seconds", 0)
		wantMetric(t, reg, "kubelet_pleg_relist_duration_seconds", 1)
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "kubelet_pleg_relist_duration_seconds" {
				continue
			}
			for _, b := range f.GetMetric()[0].GetHistogram().GetBucket() {
				if b.GetUpperBound() == 240 && b.GetCumulativeCount() != 1 {
					t.Error("a relist of 200 s is in no bucket up to 240 s")
				}
			}
		}
	})
}

func TestInspectionMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(pods(5)...)
		wantMetric(t, reg, "pleg_healthy", 0)
		heal := n.BlockIgnoringCancel(plegtest.GetPodStatus, "pod-00001")
		n.Fail(plegtest.GetPodStatus, "pod-00002", errors.New("broken"))
		n.start()
		time.Sleep(8500 * time.Millisecond)
		wantMetric(t, reg, "pleg_healthy", 1)
		wantMetric(t, reg, "pleg_inspections_in_flight", 1)
		wantMetric(t, reg, "pleg_inspections_stuck", 1)
		wantMetric(t, reg, "pleg_inspections_failing", 1)
		wantMetric(t, reg, "pleg_inspection_retries_total", 3) // retries after 1, 3 and 7 s
		if got := metric(t, reg, "kubelet_pleg_relist_interval_seconds"); got < 8 || got > 9 {
			t.Errorf("%v intervals between relists in 8.5 s", got)
		}
		go func() { _, _, _ = n.cache.LookupNewerThan(t.Context(), "pod-00001", time.Now()) }()
		time.Sleep(time.Millisecond)
		wantMetric(t, reg, "pleg_blocked_readers", 1)
		wantMetric(t, reg, "pleg_event_stream_connected", 1)
		heal()
		synctest.Wait()
		wantMetric(t, reg, "pleg_inspections_stuck", 0)
		// The only pod list was for the reader. The retries used full lists.
		wantMetric(t, reg, "kubelet_pleg_pod_relist_duration_seconds", 1)
	})
}

// Two generators in one process work with two registries, and with one registry and different
// labels. With one registry without labels, the second generator works without metrics.
func TestTwoGenerators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		a := newNode(t, pleg.WithRegisterer(prometheus.WrapRegistererWith(prometheus.Labels{"node": "a"}, reg)))
		b := newNode(t, pleg.WithRegisterer(prometheus.WrapRegistererWith(prometheus.Labels{"node": "b"}, reg)))
		c := newNode(t, pleg.WithRegisterer(prometheus.WrapRegistererWith(prometheus.Labels{"node": "b"}, reg)))
		for i, n := range []*node{a, b, c} {
			n.SetPods(pods(i + 1)...)
			n.relist()
			if got := len(n.cache.GetAll()); got != i+1 {
				t.Errorf("%d pods", got)
			}
		}
		wantMetric(t, reg, "kubelet_running_pods", 1, "node", "a")
		wantMetric(t, reg, "kubelet_running_pods", 2, "node", "b")
	})
}

// If the runtime is a prometheus.Collector, the generator registers the runtime with its own
// metrics.
func TestRuntimeMetricsAreRegistered(t *testing.T) {
	reg := prometheus.NewRegistry()
	calls := prometheus.NewCounter(prometheus.CounterOpts{Name: "runtime_calls_total", Help: "Calls."})
	rt := measured{plegtest.NewRuntime(), calls}
	rt.Inc()
	pleg.NewGenericPLEG(rt, 1, time.Second, pleg.NewCache(), clock.RealClock{}, pleg.WithRegisterer(reg))
	wantMetric(t, reg, "runtime_calls_total", 1)
}

// The linter of Prometheus reports no problems, except for the kubelet's names.
func TestMetricNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.relist()
		problems, err := testutil.GatherAndLint(reg)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			if !strings.HasPrefix(p.Metric, "kubelet_") {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
	})
}

// The gauges also follow changes between created and unknown, which events do not distinguish.
func TestGaugesFollowEveryState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Created("a1")))
		n.relist()
		n.SetContainer("a", "a1", pleg.ContainerStateUnknown)
		n.relist()
		wantMetric(t, reg, "kubelet_running_containers", 0, "container_state", "created")
		wantMetric(t, reg, "kubelet_running_containers", 1, "container_state", "unknown")
		n.SetPods()
		n.relist()
		wantMetric(t, reg, "kubelet_running_containers", 0, "container_state", "created")
		wantMetric(t, reg, "kubelet_running_containers", 0, "container_state", "unknown")
	})
}

// Every reason for bad data is reported as 0 before it first occurs, so that rates can be queried
// from the start.
func TestEveryReasonIsThere(t *testing.T) {
	reg := prometheus.NewRegistry()
	pleg.NewGenericPLEG(plegtest.NewRuntime(), 0, 0, pleg.NewCache(), clock.RealClock{}, pleg.WithRegisterer(reg))
	if got, err := testutil.GatherAndCount(reg, "pleg_bad_data_total"); err != nil || got != 6 {
		t.Errorf("%d reasons, %v", got, err)
	}
}

// The interval metric counts only intervals between consecutive full lists. It does not count the
// time between Stop and Start, when no list is made.
func TestRelistIntervalWithoutStoppedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetricsOf(t, polling)
		sum := func() float64 { return sumOf(t, reg, "kubelet_pleg_relist_interval_seconds") }
		for _, relist := range []bool{false, true} {
			n.g.Start(t.Context())
			time.Sleep(3500 * time.Millisecond)
			n.g.Stop()
			if relist { // this relist completes at once
				n.relist()
			}
			time.Sleep(time.Hour)
		}
		n.start()
		time.Sleep(3500 * time.Millisecond)
		if got := metric(t, reg, "kubelet_pleg_relist_interval_seconds"); got < 9 || got > 12 {
			t.Errorf("%v intervals", got)
		}
		if got := sum(); got < 9 || got > 12 {
			t.Errorf("the intervals are %v s in sum", got)
		}
	})
}

// A pod with several running sandboxes is counted as one running pod.
func TestPodWithTwoSandboxesIsCountedOnce(t *testing.T) {
	n, reg := newNodeWithMetricsOf(t, polling)
	states := func(first, second pleg.State) {
		n.SetPods(plegtest.NewPod("b"), &pleg.Pod{ID: "a", Name: "a", Namespace: "default", Sandboxes: []*pleg.Container{
			plegtest.NewSandbox("a-1", first), plegtest.NewSandbox("a-2", second),
		}})
		n.relist()
	}
	running, exited := pleg.ContainerStateRunning, pleg.ContainerStateExited
	states(running, running)
	wantMetric(t, reg, "kubelet_running_pods", 2)
	states(exited, running)
	wantMetric(t, reg, "kubelet_running_pods", 2)
	states(running, exited)
	wantMetric(t, reg, "kubelet_running_pods", 2)
	states(exited, exited)
	wantMetric(t, reg, "kubelet_running_pods", 1)
	n.SetPods()
	n.relist()
	wantMetric(t, reg, "kubelet_running_pods", 0)
}

// sumOf returns the sum of a histogram's values.
func sumOf(t *testing.T, reg prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetHistogram().GetSampleSum()
		}
	}
	return 0
}

// If the status of one pod never agrees with its list, every relist still completes and is
// measured.
func TestMetricsOfRelistsBesideAMismatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t, pleg.WithPollingOnly())
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.SetStatus("a", &pleg.PodStatus{ID: "a"})
		n.start()
		time.Sleep(10*time.Minute + 500*time.Millisecond)
		wantMetric(t, reg, "kubelet_pleg_relist_duration_seconds", 601)
	})
}

// With WithoutKubeletMetrics, a program may register metrics with the kubelet's names itself. The
// same registry accepts the generator's other metrics and all metrics of the runtime.
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

// Histograms have native and classic buckets.
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

// If the runtime replays an event from before the connection, the event is still a hint. Its age is
// not counted as latency of the stream.
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
		// The age of an event from before a reconnection is not counted either.
		beforeBreak := time.Now()
		n.BreakEventStreams(errors.New("reset"))
		time.Sleep(2 * time.Second)
		n.Emit(pleg.ContainerEvent{PodUID: "pod-00000", CreatedAt: beforeBreak})
		synctest.Wait()
		wantMetric(t, reg, latency, 2)
	})
}
