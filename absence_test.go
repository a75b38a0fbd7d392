package pleg_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg/plegtest"
)

// Rule 9: a pod that a single-pod relist finds gone is removed once, and not inspected
// again.
func TestRule9GoneOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.start()
		time.Sleep(500 * time.Millisecond)
		n.RemovePod("a")
		n.g.RequestRelist("a")
		synctest.Wait()
		inspections := n.Calls(plegtest.GetPodStatus)
		n.g.RequestReinspect("a")
		for range 3 {
			synctest.Wait()
			if got := n.g.HealthReport().Pods; got != 1 {
				t.Errorf("%d pods", got)
			}
			time.Sleep(time.Second)
		}
		if got := n.Calls(plegtest.GetPodStatus) - inspections; got != 0 {
			t.Errorf("%d inspections", got)
		}
	})
}
