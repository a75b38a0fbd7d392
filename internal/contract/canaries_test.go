package contract_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 13: while something hangs, the healthy pods are inspected in turn; once nothing
// hangs, they are not.
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
			heal := n.HangIgnoringCancel(plegtest.GetPodStatus, "pod-00001")
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
	t.Run("not when the pod that hung is gone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNodeOf(t, polling)
			n.SetPods(pods(2)...)
			defer n.HangIgnoringCancel(plegtest.GetPodStatus, "pod-00000")()
			n.start()
			time.Sleep(10 * time.Minute)
			n.RemovePod("pod-00000")
			time.Sleep(2 * time.Second)
			if got := canaries(n, "pod-00001", time.Hour); got != 0 {
				t.Errorf("%d canaries while nothing hangs", got)
			}
		})
	})
	t.Run("not when the pod that hung fails", func(t *testing.T) {
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
			defer n.HangIgnoringCancel(plegtest.GetPodStatus, "pod-00000")()
			n.start()
			if got := canaries(n, "pod-00001", time.Minute); got < 50 || got > 60 {
				t.Errorf("%d canaries in a minute", got)
			}
		})
	})
}

// Rule 13: a node on which one pod can be inspected is healthy, however many others
// hang, and however that came about.
func TestRule13OneGoodPodIsEnough(t *testing.T) {
	t.Run("all but one", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNodeOf(t, polling)
			n.SetPods(pods(20)...)
			n.start()
			for i := range 19 {
				uid := types.UID(fmt.Sprintf("pod-%05d", i))
				defer n.HangIgnoringCancel(plegtest.GetPodStatus, uid)()
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
				defer n.HangIgnoringCancel(plegtest.GetPodStatus, uid)()
				n.ExitContainer(uid, string(uid)+"-a", 1, "")
				time.Sleep(20 * time.Second)
				healthy(t, n.g)
			}
		})
	})
}

// Rule 13: an inspection that Stop has cancelled has not hung until Start.
func TestRule13StopEndsAHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(5)...)
		n.start()
		time.Sleep(2500 * time.Millisecond)
		n.Delay(plegtest.GetPodStatus, plegtest.AnyPod, 1500*time.Millisecond)
		n.g.RequestReinspect("pod-00000")
		n.g.RequestReinspect("pod-00001")
		time.Sleep(1100 * time.Millisecond)
		if got := len(n.g.HealthReport().FailingPods); got != 2 {
			t.Errorf("%d pods are reported as hanging", got)
		}
		n.g.Stop()
		time.Sleep(time.Hour)
		n.g.Start(t.Context())
		time.Sleep(1200 * time.Millisecond)
		if ok, err := n.g.Healthy(); !ok {
			t.Error(err)
		}
	})
}
