package contract_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 2: if the inspection of one pod is stuck, the events of other pods are not delayed.
func TestRule2StuckPodDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(2)...)
		n.start()
		events := n.g.Watch()
		defer n.BlockIgnoringCancel(plegtest.GetPodStatus, "pod-00000")()
		n.ExitContainer("pod-00000", "pod-00000-a", 1, "")
		n.g.RequestRelist("pod-00000")
		time.Sleep(1500 * time.Millisecond)
		read(events)
		n.SetContainer("pod-00000", "x", pleg.ContainerStateRunning)
		n.ExitContainer("pod-00001", "pod-00001-a", 1, "")
		if !atOnce(n.relist) {
			t.Error("Relist waits")
		}
		want(t, "at once", read(events), "pod-00001 Died pod-00001-a")
	})
}

// Rule 2: the events of a pod are delivered when the pod is inspected, even if other pods in the
// same list are still being inspected.
func TestRule2EventsOfAPodWaitForNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.Delay(plegtest.GetPodStatus, "a", 20*time.Millisecond)
		events := n.g.Watch()
		n.start()
		want(t, "at once", read(events), "b Started b1")
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		want(t, "later", read(events), "a Started a1")
	})
}

// Rules 2 and 27: Relist waits for the events of all pods that are not stuck. The inspection of pod
// a becomes slow while a later Relist waits for it. When that inspection completes, the events of
// pod a are delivered.
func TestRule2StuckPodIsDeliveredAfterItsRelist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.relist()
		events := n.g.Watch()
		read(events)
		heal := n.BlockIgnoringCancel(plegtest.GetPodStatus, "a")
		n.ExitContainer("a", "a1", 1, "")
		go n.relist()
		time.Sleep(970 * time.Millisecond)
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		n.ExitContainer("b", "b1", 1, "")
		n.relist()
		want(t, "while it hangs", read(events), "b Died b1")
		heal()
		synctest.Wait()
		n.relist()
		want(t, "then", read(events), "a Died a1", "a Started a2")
	})
}
