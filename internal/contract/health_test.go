package contract_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 13 (a): before the first successful list, with the reason for it.
func TestRule13aYetToBeSuccessful(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		unhealthy(t, n.g, "pleg has yet to be successful: ", "the generator is not running")
		time.Sleep(time.Hour)
		unhealthy(t, n.g, "pleg has yet to be successful: the generator is not running")
		heal := n.Fail(plegtest.GetPods, plegtest.AnyPod, errors.New("connection refused"))
		n.start()
		time.Sleep(1500 * time.Millisecond)
		unhealthy(t, n.g, "pleg has yet to be successful: ", "the last list failed 500ms ago: connection refused")
		heal()
		hang := n.Hang(plegtest.GetPods, plegtest.AnyPod)
		time.Sleep(5 * time.Second)
		unhealthy(t, n.g, "pleg has yet to be successful: ", "GetPods has been running for 4.5s")
		hang()
		synctest.Wait()
		healthy(t, n.g)
	})
}

func TestThresholdOption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling, pleg.WithRelistThreshold(10*time.Second))
		n.start()
		defer n.HangIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)()
		time.Sleep(11 * time.Second)
		unhealthy(t, n.g, "pleg was last seen active 11s ago; threshold is 10s: ")
	})
}

// Rule 13 (c): when no pod of several can be inspected, with the call that hangs;
// and healthy again with the first success.
func TestRule13cNoPodCanBeInspected(t *testing.T) {
	for _, ignoresCancel := range []bool{false, true} {
		t.Run(fmt.Sprintf("ignoresCancel=%v", ignoresCancel), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNodeOf(t, polling)
				n.SetPods(pods(5)...)
				n.start()
				heal := n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Hang: true, IgnoreCancel: ignoresCancel})
				n.ExitContainer("pod-00002", "pod-00002-a", 1, "Error")
				// One pod hangs; the canaries among the others hang with it.
				time.Sleep(3 * time.Minute)
				healthy(t, n.g)
				time.Sleep(2 * time.Minute)
				unhealthy(t, n.g, "pleg cannot inspect any pod: ",
					"GetPodStatus of pod default/pod-00002 (pod-00002) has been unanswered for 4m59s")
				heal()
				time.Sleep(time.Minute)
				healthy(t, n.g)
			})
		})
	}
}

// Rule 13: one bad pod alone never makes a node unhealthy: with others, because
// they are inspected as canaries; without, because there is no second witness.
func TestRule13OneBadPodAlone(t *testing.T) {
	for _, others := range []int{0, 1, 9} {
		for _, ignoresCancel := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				n := newNodeOf(t, polling)
				n.SetPods(pods(1 + others)...)
				heal := n.Inject(plegtest.Fault{
					Method: plegtest.GetPodStatus, PodUID: "pod-00000", Hang: true, IgnoreCancel: ignoresCancel,
				})
				n.start()
				for range 600 {
					time.Sleep(10 * time.Second)
					healthy(t, n.g)
				}
				canaries := 0
				for i := range others {
					canaries += n.PodCalls(plegtest.GetPodStatus, types.UID(fmt.Sprintf("pod-%05d", i+1)))
				}
				// Six times in the threshold, round robin; not much more.
				if want := 100 * 60 / 30; others > 0 && (canaries < want/2 || canaries > want+10) {
					t.Errorf("%d canaries in 100 minutes", canaries)
				}
				heal()
			})
		}
	}
}

// Rule 13: Healthy has no side effects and never blocks, whatever hangs.
func TestRule13HasNoSideEffects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(pods(3)...)
		healStatus := n.HangIgnoringCancel(plegtest.GetPodStatus, plegtest.AnyPod)
		n.start()
		time.Sleep(1500 * time.Millisecond)
		healList := n.HangIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)
		time.Sleep(10 * time.Minute)
		_, first := n.g.Healthy()
		report := n.g.HealthReport()
		before := time.Now()
		for range 100 {
			if _, err := n.g.Healthy(); err.Error() != first.Error() {
				t.Fatalf("%q became %q", first, err)
			}
			if again := n.g.HealthReport(); !reflect.DeepEqual(again, report) {
				t.Fatalf("%v became %v", report, again)
			}
		}
		if !time.Now().Equal(before) {
			t.Error("it takes time")
		}
		healList()
		healStatus()
	})
}

// The report names the runtime's own call when the runtime reports it.
func TestReportNamesTheRuntimesCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		since := time.Now()
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime {
			return reporting{rt.Plain(), []pleg.RuntimeCall{
				{Method: "ContainerStatus", PodUID: "pod-00001", Object: "container app (3f2a)", Since: since},
				{Method: "ListContainers", Since: since},
			}}
		})
		n.SetPods(pods(4)...)
		n.start()
		n.ExitContainer("pod-00001", "pod-00001-a", 1, "")
		n.ExitContainer("pod-00002", "pod-00002-a", 1, "")
		heal := n.HangIgnoringCancel(plegtest.GetPodStatus, plegtest.AnyPod)
		time.Sleep(5 * time.Minute)
		unhealthy(t, n.g, "pleg cannot inspect any pod",
			"ContainerStatus of container app (3f2a) of pod default/pod-00001 (pod-00001)")
		r := n.g.HealthReport()
		if r.Healthy || r.Reason == "" || r.Runtime != "fake 1.0" ||
			len(r.CallsInFlight) != 2 || r.Pods != 4 || r.LastRelist.IsZero() {
			t.Errorf("the report is %+v", r)
		}
		defer n.HangIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)()
		time.Sleep(5 * time.Minute)
		unhealthy(t, n.g, "pleg was last seen active", "ListContainers has been running for 10m0s")
		heal()
	})
}

type reporting struct {
	pleg.Runtime
	calls []pleg.RuntimeCall
}

func (r reporting) CallsInFlight() []pleg.RuntimeCall { return r.calls }

func (r reporting) DescribeRuntime() string { return "fake 1.0" }

// The report is fit for a health endpoint.
func TestReportAsJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(2)...)
		heal := n.HangIgnoringCancel(plegtest.GetPodStatus, "pod-00001")
		n.start()
		time.Sleep(2500 * time.Millisecond)
		b, err := json.Marshal(n.g.HealthReport())
		if err != nil {
			t.Fatal(err)
		}
		want(t, "report", []string{string(b)}, `{"healthy":true,"lastRelist":"2000-01-01T00:00:02Z","pods":2,`+
			`"callsInFlight":[{"method":"GetPodStatus","podUID":"pod-00001",`+
			`"object":"pod default/pod-00001 (pod-00001)","since":"2000-01-01T00:00:00Z"}],`+
			`"failingPods":[{"podUID":"pod-00001","namespace":"default","name":"pod-00001",`+
			`"hangingSince":"2000-01-01T00:00:00Z"}],`+
			`"stream":{"state":"connected","since":"2000-01-01T00:00:00Z"},`+
			`"exitStream":{"state":"connected","since":"2000-01-01T00:00:00Z"},`+
			`"blockedReaders":0,"subscribers":0,"backlog":0}`)
		heal()
	})
}

// Rule 15: a list that failed removes nothing, whatever came with the error.
func TestRule15PartialListRemovesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t, pleg.WithPollingOnly())
		n.SetPods(pods(10)...)
		events := n.g.Watch()
		n.start()
		read(events)
		heal := n.Inject(plegtest.Fault{Method: plegtest.GetPods, Err: errors.New("cut off"), Partial: 3})
		time.Sleep(time.Minute)
		want(t, "events", read(events))
		if got := len(n.cache.GetAll()); got != 10 {
			t.Errorf("%d pods left in the cache", got)
		}
		wantMetric(t, reg, "kubelet_running_pods", 10)
		if got := n.g.HealthReport().RelistError; got != "cut off" {
			t.Errorf("the report has %q", got)
		}
		heal()
		time.Sleep(1500 * time.Millisecond)
		if got := n.g.HealthReport().RelistError; got != "" {
			t.Errorf("the report still has %q", got)
		}
	})
}

func TestListErrorsAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logLines{}
		n := newNodeOf(t, polling, pleg.WithLogger(log.logger(0)))
		heal := n.Fail(plegtest.GetPods, plegtest.AnyPod, errors.New("connection refused"))
		n.start()
		time.Sleep(time.Minute)
		heal()
		time.Sleep(time.Minute)
		if got := log.matching("Cannot list pods"); len(got) != 1 {
			t.Errorf("logged %q", got)
		}
		if got := log.matching("Relist succeeded again"); len(got) != 1 {
			t.Errorf("logged %q", got)
		}
	})
}

// Rule 13 (c) needs two pods that hang, each for longer than the threshold: pods
// that fail do not hang.
func TestRule13cTwoPodsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(pods(2)...)
		heal := n.Fail(plegtest.GetPodStatus, plegtest.AnyPod, errors.New("broken"))
		n.start()
		time.Sleep(10 * time.Minute)
		healthy(t, n.g)
		heal()
		time.Sleep(time.Hour)
		defer n.HangIgnoringCancel(plegtest.GetPodStatus, plegtest.AnyPod)()
		n.ExitContainer("pod-00000", "pod-00000-a", 1, "")
		n.ExitContainer("pod-00001", "pod-00001-a", 1, "")
		time.Sleep(2 * time.Minute)
		healthy(t, n.g)
		time.Sleep(2 * time.Minute)
		unhealthy(t, n.g, "pleg cannot inspect any pod: the inspections of 2 pods have been unanswered for longer than 3m0s")
	})
}

// The report names the oldest of several calls for a pod, and the error from
// before it hung.
func TestReportNamesTheOldestCallAndTheError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		since := time.Now()
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime {
			return reporting{rt.Plain(), []pleg.RuntimeCall{
				{Method: "PodSandboxStatus", PodUID: "pod-00000", Object: "sandbox (s)", Since: since},
				{Method: "ContainerStatus", PodUID: "pod-00000", Object: "container (c)", Since: since.Add(time.Second)},
			}}
		})
		n.SetPods(pods(2)...)
		heal := n.Fail(plegtest.GetPodStatus, plegtest.AnyPod, errors.New("broken"))
		n.start()
		defer n.HangIgnoringCancel(plegtest.GetPodStatus, plegtest.AnyPod)()
		heal()
		time.Sleep(2500 * time.Millisecond)
		if got := n.g.HealthReport().FailingPods; len(got) != 2 || got[0].Error != "broken" || got[0].HangingSince.IsZero() {
			t.Errorf("reported: %+v", got)
		}
		time.Sleep(5 * time.Minute)
		unhealthy(t, n.g, "pleg cannot inspect any pod",
			"PodSandboxStatus of sandbox (s) of pod default/pod-00000",
			"; the last error: GetPodStatus has not returned within")
	})
}

// A call that the runtime reports without an object is named without one, and durations are
// rounded to a tenth of a second.
func TestReasonIsFitToRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime {
			return reporting{rt.Plain(), []pleg.RuntimeCall{{Method: "ListContainers", PodUID: "pod-00000", Since: time.Now()}}}
		})
		n.SetPods(pods(2)...)
		defer n.HangIgnoringCancel(plegtest.GetPodStatus, plegtest.AnyPod)()
		n.start()
		time.Sleep(4*time.Minute + 123456789*time.Nanosecond)
		_, err := n.g.Healthy()
		const want = "pleg cannot inspect any pod: the inspections of 2 pods have been unanswered for longer than 3m0s, " +
			"and no inspection has succeeded for 4m0.1s: " +
			"ListContainers of pod default/pod-00000 (pod-00000) has been unanswered for 4m0.1s; " +
			"the last error: GetPodStatus has not returned within 2m0s: context deadline exceeded"
		if err == nil || err.Error() != want {
			t.Errorf("the reason is\n%v, want\n%s", err, want)
		}
	})
}

// panicking is a runtime whose optional methods panic.
type panicking struct{ pleg.Runtime }

func (panicking) CallsInFlight() []pleg.RuntimeCall { panic("calls") }

func (panicking) DescribeRuntime() string { panic("description") }

// Rule 14: what the runtime says of itself does no harm either.
func TestRule14ReportersPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetricsOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return panicking{rt.Plain()} })
		n.relist()
		if r := n.g.HealthReport(); !r.Healthy || r.Runtime != "" || len(r.CallsInFlight) != 0 {
			t.Errorf("the report is %+v", r)
		}
		wantMetric(t, reg, "pleg_bad_data_total", 2, "reason", "panic")
	})
}
