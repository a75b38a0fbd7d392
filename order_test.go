package pleg_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 2: the events of other pods do not wait for a pod that hangs.
func TestRule2HungPodDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(2)...)
		n.start()
		events := n.g.Watch()
		defer n.HangIgnoringCancel(plegtest.GetPodStatus, "pod-00000")()
		n.ExitContainer("pod-00000", "pod-00000-a", 1, "")
		n.g.RequestRelist("pod-00000")
		time.Sleep(1500 * time.Millisecond)
		read(events)
		n.SetContainer("pod-00000", "x", pleg.ContainerStateRunning)
		n.ExitContainer("pod-00001", "pod-00001-a", 1, "")
		if !atOnce(n.g.Relist) {
			t.Error("Relist waits")
		}
		want(t, "at once", read(events), "pod-00001 Died pod-00001-a")
	})
}

// Rule 2: the events of one full list are held back until all its changed pods are
// inspected, or a twentieth of a period has passed. Those of a slow pod come later.
func TestRule2FlushTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(4)...)
		n.Delay(plegtest.GetPodStatus, "pod-00001", 500*time.Millisecond)
		events := n.g.Watch()
		n.start()
		time.Sleep(49 * time.Millisecond)
		want(t, "after 49 ms", onlyPods(read(events)))
		time.Sleep(time.Millisecond)
		synctest.Wait()
		want(t, "after 50 ms", onlyPods(read(events)), "pod-00000", "pod-00002", "pod-00003")
		time.Sleep(450 * time.Millisecond)
		synctest.Wait()
		want(t, "in the end", onlyPods(read(events)), "pod-00001")
		n.Delay(plegtest.GetPodStatus, "pod-00000", 20*time.Millisecond)
		for _, p := range pods(4) {
			n.ExitContainer(p.ID, string(p.ID)+"-a", 0, "")
		}
		n.Heal()
		n.Delay(plegtest.GetPodStatus, "pod-00000", 20*time.Millisecond)
		go n.g.Relist()
		time.Sleep(19 * time.Millisecond)
		want(t, "after 19 ms", onlyPods(read(events)))
		time.Sleep(time.Millisecond)
		synctest.Wait()
		want(t, "after 20 ms", onlyPods(read(events)), "pod-00000", "pod-00001", "pod-00002", "pod-00003")
	})
}

// onlyPods returns the pods of events, each once, in order.
func onlyPods(lines []string) []string {
	for i, l := range lines {
		lines[i], _, _ = strings.Cut(l, " ")
	}
	return slices.Compact(lines)
}

// Rule 2: the flush timeout is counted from the completion of the list, once, whatever
// completes meanwhile, and each list has its own: the next one that finds a change ends
// the last.
func TestRule2EachListHasItsFlushTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")), bare("c", plegtest.Running("c1")))
		n.Delay(plegtest.GetPodStatus, "a", 40*time.Millisecond)
		n.Delay(plegtest.GetPodStatus, "b", 80*time.Millisecond)
		events := n.g.Watch()
		n.start()
		time.Sleep(51 * time.Millisecond)
		want(t, "one relist", read(events), "a Started a1", "c Started c1")
		time.Sleep(30 * time.Millisecond)
		want(t, "what is late", read(events), "b Started b1")
	})
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
			defer n.HangIgnoringCancel(plegtest.GetPodStatus, "a")()
			events := n.g.Watch()
			n.start()
			time.Sleep(30 * time.Millisecond)
			if hangs {
				defer n.HangIgnoringCancel(plegtest.GetPodStatus, "c")()
			} else {
				n.Delay(plegtest.GetPodStatus, "c", 40*time.Millisecond)
			}
			n.SetPod(bare("c", plegtest.Running("c1")))
			n.SetPod(bare("d", plegtest.Running("d1")))
			go n.g.Relist()
			synctest.Wait()
			want(t, "the first relist", read(events), "b Started b1")
			time.Sleep(39 * time.Millisecond) // 69 ms
			want(t, "the second relist, early", read(events))
			time.Sleep(2 * time.Millisecond) // 71 ms
			if hangs {
				want(t, "the second relist, behind c", read(events))
				time.Sleep(10 * time.Millisecond) // 81 ms
				want(t, "the second relist", read(events), "d Started d1")
			} else {
				want(t, "the second relist", read(events), "c Started c1", "d Started d1")
			}
			time.Sleep(time.Second)
		})
	}
}

// Rule 2: the updates of a pod that is gone and comes back, while they wait for those of
// others, keep their order.
func TestRule2PodComesBackWhileItsUpdatesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		defer n.HangIgnoringCancel(plegtest.GetPodStatus, "b")()
		events := n.g.Watch()
		n.start()
		n.RemovePod("a")
		n.g.RequestRelist("a")
		synctest.Wait()
		n.SetPod(bare("a", plegtest.Running("a2")))
		n.g.RequestRelist("a")
		synctest.Wait()
		time.Sleep(60 * time.Millisecond)
		want(t, "events", read(events), "a Started a1", "a Died a1", "a Removed a1", "a Started a2")
	})
}

// Rule 2: updates of a pod that wait for those of others keep their order, and none is
// lost.
func TestRule2WaitingUpdatesKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		defer n.HangIgnoringCancel(plegtest.GetPodStatus, "a")()
		events := n.g.Watch()
		n.start()
		n.g.RequestReinspect("b")
		synctest.Wait()
		n.SetPod(bare("b", plegtest.Exited("b1")))
		n.SetPod(bare("c", plegtest.Running("c1")))
		for _, uid := range []types.UID{"b", "c"} {
			n.g.RequestRelist(uid)
		}
		synctest.Wait()
		want(t, "what waits for nobody", read(events), "c Started c1")
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		want(t, "after the flush timeout", read(events), "b Started b1", "b PodSync", "b Died b1")
		time.Sleep(time.Second)
		want(t, "later", read(events))
	})
}

// Rule 2: the events of other pods wait no longer for a pod that has become slow, or is
// gone.
func TestRule2WhatIsGivenUpHoldsBackNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")), bare("c", plegtest.Running("c1")))
		n.Delay(plegtest.GetPodStatus, "a", 970*time.Millisecond)
		heal := n.HangIgnoringCancel(plegtest.GetPodStatus, "b")
		n.Delay(plegtest.GetPodStatus, "c", 975*time.Millisecond)
		events := n.g.Watch()
		n.g.Relist()
		want(t, "when b is slow", read(events), "a Started a1", "c Started c1")
		n.Heal()
		heal()
		synctest.Wait()
		n.g.Relist()
		want(t, "then", read(events), "b Started b1")

		defer n.Hang(plegtest.GetPodStatus, "a")()
		n.ExitContainer("a", "a1", 1, "")
		n.ExitContainer("b", "b1", 1, "")
		n.start()
		want(t, "behind a", read(events))
		n.RemovePod("a")
		n.g.RequestRelist("a")
		synctest.Wait()
		want(t, "when a is gone", read(events), "a Died a1", "a Removed a1", "b Died b1")
	})
}

// Rule 2: a pod that became slow while a later relist waited for it is delivered when
// its inspection completes.
func TestRule2HungPodIsDeliveredAfterItsRelist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.g.Relist()
		events := n.g.Watch()
		read(events)
		heal := n.HangIgnoringCancel(plegtest.GetPodStatus, "a")
		n.ExitContainer("a", "a1", 1, "")
		go n.g.Relist()
		time.Sleep(970 * time.Millisecond)
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		n.ExitContainer("b", "b1", 1, "")
		n.g.Relist()
		want(t, "while it hangs", read(events), "b Died b1")
		heal()
		synctest.Wait()
		n.g.Relist()
		want(t, "then", read(events), "a Died a1", "a Started a2")
	})
}

// Rule 2: the same as TestStopBetweenTwoRelists, with a pod that is gone.
func TestRule2PodIsGoneBetweenTwoRelists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(2)...)
		n.g.Relist()
		events := n.g.Watch()
		read(events)
		heal := n.HangIgnoringCancel(plegtest.GetPodStatus, "pod-00000")
		n.ExitContainer("pod-00000", "pod-00000-a", 1, "")
		n.start()
		time.Sleep(500 * time.Millisecond)
		n.SetContainer("pod-00000", "x", pleg.ContainerStateRunning)
		n.ExitContainer("pod-00001", "pod-00001-a", 1, "")
		go n.g.Relist()
		synctest.Wait()
		want(t, "behind the pod that hangs", read(events))
		n.RemovePod("pod-00000")
		n.g.RequestRelist("pod-00000")
		synctest.Wait()
		if got := read(events); !slices.Contains(got, "pod-00001 Died pod-00001-a") {
			t.Errorf("got %v", got)
		}
		heal()
	})
}
