package contract_test

import (
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

// Rule 13 (a): before the first successful list, the generator is unhealthy, and the error contains
// the reason.
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
		hang := n.Block(plegtest.GetPods, plegtest.AnyPod)
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
		defer n.BlockIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)()
		time.Sleep(11 * time.Second)
		unhealthy(t, n.g, "pleg was last seen active 11s ago; threshold is 10s: ")
	})
}

// Rule 13: if there are several pods and none can be inspected, the generator is unhealthy, and the
// error names the stuck call. The first success makes the generator healthy again.
func TestRule13cNoPodCanBeInspected(t *testing.T) {
	for _, ignoresCancel := range []bool{false, true} {
		t.Run(fmt.Sprintf("ignoresCancel=%v", ignoresCancel), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNodeOf(t, polling)
				n.SetPods(pods(5)...)
				n.start()
				heal := n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Block: true, IgnoreCancel: ignoresCancel})
				n.ExitContainer("pod-00002", "pod-00002-a", 1, "Error")
				// One pod is stuck. The inspections of the canaries then become stuck too.
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

// Rule 13: one bad pod never makes a node unhealthy. While one pod is stuck, the other pods are
// inspected as canaries. Without other pods, one pod is not enough evidence.
func TestRule13OneBadPodAlone(t *testing.T) {
	for _, others := range []int{0, 1, 9} {
		for _, ignoresCancel := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				n := newNodeOf(t, polling)
				n.SetPods(pods(1 + others)...)
				heal := n.Inject(plegtest.Fault{
					Method: plegtest.GetPodStatus, PodUID: "pod-00000", Block: true, IgnoreCancel: ignoresCancel,
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
				// Canaries are inspected six times within the threshold, in turn, and not much more often.
				if want := 100 * 60 / 30; others > 0 && (canaries < want/2 || canaries > want+10) {
					t.Errorf("%d canaries in 100 minutes", canaries)
				}
				n.g.Stop()
				if p := n.g.HealthReport().FailingPods; len(p) != 1 || p[0].StuckSince.IsZero() {
					t.Errorf("after Stop: %+v", p)
				}
				heal()
			})
		}
	}
}

// Rule 13: Healthy has no side effects and never blocks, even while every call is stuck.
func TestRule13HasNoSideEffects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(pods(3)...)
		healStatus := n.BlockIgnoringCancel(plegtest.GetPodStatus, plegtest.AnyPod)
		n.start()
		time.Sleep(1500 * time.Millisecond)
		healList := n.BlockIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)
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

// If the runtime reports its calls in flight, the error names the runtime's call, not the
// generator's.
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
		heal := n.BlockIgnoringCancel(plegtest.GetPodStatus, plegtest.AnyPod)
		time.Sleep(5 * time.Minute)
		unhealthy(t, n.g, "pleg cannot inspect any pod",
			"ContainerStatus of container app (3f2a) of pod default/pod-00001 (pod-00001)")
		r := n.g.HealthReport()
		if r.Healthy || r.Reason == "" || r.Runtime != "fake 1.0" ||
			len(r.CallsInFlight) != 2 || r.Pods != 4 || r.LastRelist.IsZero() {
			t.Errorf("the report is %+v", r)
		}
		defer n.BlockIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)()
		time.Sleep(5 * time.Minute)
		unhealthy(t, n.g, "pleg was last seen active", "ListContainers has been running for 10m0s")
		heal()
	})
}

type reporting struct {
	pleg.Runtime
	calls []pleg.RuntimeCall
}

func (r reporting) CallsInFlight() ([]pleg.RuntimeCall, time.Time) { return r.calls, time.Time{} }

func (r reporting) DescribeRuntime() string { return "fake 1.0" }

// Rule 13 (c) needs two pods that are stuck for longer than the threshold. Pods with failing
// inspections are not stuck.
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
		defer n.BlockIgnoringCancel(plegtest.GetPodStatus, plegtest.AnyPod)()
		n.ExitContainer("pod-00000", "pod-00000-a", 1, "")
		n.ExitContainer("pod-00001", "pod-00001-a", 1, "")
		time.Sleep(2 * time.Minute)
		healthy(t, n.g)
		time.Sleep(2 * time.Minute)
		unhealthy(t, n.g, "pleg cannot inspect any pod: the inspections of 2 pods have been unanswered for longer than 3m0s")
	})
}

// If several calls for a pod are in flight, the error names the oldest call. The report also
// contains the pod's last error, even if that error came before the stuck call.
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
		defer n.BlockIgnoringCancel(plegtest.GetPodStatus, plegtest.AnyPod)()
		heal()
		time.Sleep(2500 * time.Millisecond)
		if got := n.g.HealthReport().FailingPods; len(got) != 2 || got[0].Error != "broken" || got[0].StuckSince.IsZero() {
			t.Errorf("reported: %+v", got)
		}
		time.Sleep(5 * time.Minute)
		unhealthy(t, n.g, "pleg cannot inspect any pod",
			"PodSandboxStatus of sandbox (s) of pod default/pod-00000",
			"; the last error: GetPodStatus has not returned within")
	})
}

// If the runtime reports a call without an object, the reason names no object. Durations are
// rounded to a tenth of a second.
func TestReasonIsFitToRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime {
			return reporting{rt.Plain(), []pleg.RuntimeCall{{Method: "ListContainers", PodUID: "pod-00000", Since: time.Now()}}}
		})
		n.SetPods(pods(2)...)
		defer n.BlockIgnoringCancel(plegtest.GetPodStatus, plegtest.AnyPod)()
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

// Rule 13: while a pod is stuck, healthy pods are inspected in turn. While no pod is stuck,
// unchanged pods are not inspected.
func TestRule13Canaries(t *testing.T) {
	canaries := func(n *node, uid types.UID, d time.Duration) int {
		before := n.PodCalls(plegtest.GetPodStatus, uid)
		time.Sleep(d)
		return n.PodCalls(plegtest.GetPodStatus, uid) - before
	}
	t.Run("in turn", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNodeOf(t, polling)
			n.SetPods(pods(4)...)
			heal := n.BlockIgnoringCancel(plegtest.GetPodStatus, "pod-00001")
			n.start()
			canaries(n, "pod-00000", time.Hour)
			for _, uid := range []types.UID{"pod-00000", "pod-00002", "pod-00003"} {
				if got := n.PodCalls(plegtest.GetPodStatus, uid) - 1; got < 39 || got > 41 {
					t.Errorf("%d canaries of %s in an hour", got, uid)
				}
			}
			heal()
			time.Sleep(2 * time.Minute)
			if got := canaries(n, "pod-00000", time.Hour); got != 0 {
				t.Errorf("%d canaries while nothing hangs", got)
			}
		})
	})
	t.Run("not when the pod that stuck is gone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNodeOf(t, polling)
			n.SetPods(pods(2)...)
			defer n.BlockIgnoringCancel(plegtest.GetPodStatus, "pod-00000")()
			n.start()
			time.Sleep(10 * time.Minute)
			n.RemovePod("pod-00000")
			time.Sleep(2 * time.Second)
			if got := canaries(n, "pod-00001", time.Hour); got != 0 {
				t.Errorf("%d canaries while nothing hangs", got)
			}
		})
	})
	t.Run("not when the pod that stuck fails", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNodeOf(t, polling)
			n.SetPods(pods(2)...)
			n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, PodUID: "pod-00000", Times: 1, Delay: 5 * time.Second})
			n.Fail(plegtest.GetPodStatus, "pod-00000", errors.New("broken"))
			n.start()
			time.Sleep(time.Minute)
			if got := canaries(n, "pod-00001", time.Hour); got != 0 {
				t.Errorf("%d canaries while nothing hangs", got)
			}
		})
	})
	t.Run("no more than one a period", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNodeOf(t, polling, pleg.WithRelistThreshold(3*time.Second))
			n.SetPods(pods(2)...)
			defer n.BlockIgnoringCancel(plegtest.GetPodStatus, "pod-00000")()
			n.start()
			if got := canaries(n, "pod-00001", time.Minute); got < 50 || got > 60 {
				t.Errorf("%d canaries in a minute", got)
			}
		})
	})
}

// Rule 13: a node is healthy if at least one pod can be inspected, however many other pods are
// stuck.
func TestRule13OneGoodPodIsEnough(t *testing.T) {
	t.Run("all but one", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNodeOf(t, polling)
			n.SetPods(pods(20)...)
			n.start()
			for i := range 19 {
				uid := types.UID(fmt.Sprintf("pod-%05d", i))
				defer n.BlockIgnoringCancel(plegtest.GetPodStatus, uid)()
				n.ExitContainer(uid, string(uid)+"-a", 1, "")
			}
			for range 360 {
				time.Sleep(10 * time.Second)
				healthy(t, n.g)
			}
		})
	})
	t.Run("one more every 20 s", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNodeOf(t, polling)
			n.SetPods(pods(40)...)
			n.start()
			for i := range 30 {
				uid := types.UID(fmt.Sprintf("pod-%05d", i))
				defer n.BlockIgnoringCancel(plegtest.GetPodStatus, uid)()
				n.ExitContainer(uid, string(uid)+"-a", 1, "")
				time.Sleep(20 * time.Second)
				healthy(t, n.g)
			}
		})
	})
}

// Rule 13: a stuck list fails at its deadline, whatever happens meanwhile.
func TestRule13FailureHasItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		defer n.BlockIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)()
		n.start()
		time.Sleep(2*time.Minute + 30*time.Second)
		n.g.RequestRelist("a")
		time.Sleep(30 * time.Second)
		unhealthy(t, n.g, "pleg has yet to be successful: GetPods has been running for 3m0s", "the last list failed 1m0s ago")
	})
}
