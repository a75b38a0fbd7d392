package contract_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 4: a subscriber does not read while 500 containers die and are removed, and others start.
// When it reads again, its events lead exactly to the present state.
func TestRule4StalledSubscriberLearnsThePresent(t *testing.T) {
	for _, capacity := range []int{-1, 1, 7} {
		t.Run(fmt.Sprint(capacity), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(pods(510)...)
				sub := n.g.Subscribe(t.Context(), pleg.WithCapacity(capacity))
				n.start()
				r := newReplay(t)
				for range 13 {
					r.take(<-sub)
				}
				for i := range 500 {
					uid := types.UID(fmt.Sprintf("pod-%05d", i))
					n.ExitContainer(uid, string(uid)+"-a", i, "Error")
					if i%100 == 0 {
						time.Sleep(time.Second)
					}
				}
				time.Sleep(2 * time.Second)
				for i := range 500 {
					n.RemovePod(types.UID(fmt.Sprintf("pod-%05d", i)))
				}
				n.SetPod(bare("late", plegtest.Running("late-1"), plegtest.Exited("late-2")))
				time.Sleep(2 * time.Second)
				for range 3500 {
					synctest.Wait()
					select {
					case e := <-sub:
						r.take(e)
					default:
					}
				}
				r.equals(n.present())
				if got := n.g.HealthReport().Backlog; got != 0 {
					t.Errorf("a backlog of %d pods is left", got)
				}
			})
		})
	}
}

// Rule 4: the backlog of a subscriber that never reads is bounded by the existing pods, and does
// not grow with time.
func TestRule4StalledSubscriberIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.g.Subscribe(t.Context(), pleg.WithCapacity(1))
		n.start()
		most := 0
		for i := range 2000 {
			n.SetPods(bare(types.UID(fmt.Sprintf("pod-%05d", i)), plegtest.Running(fmt.Sprint(i))))
			time.Sleep(time.Second)
			most = max(most, n.g.HealthReport().Backlog)
		}
		// The backlog contains at most the pod that is being delivered, the next pod, and the
		// existing pod.
		if most > 3 {
			t.Errorf("a backlog of %d pods for a node of one", most)
		}
	})
}

// Rule 4: every subscriber is first sent the existing state, at its own pace.
func TestRule4SubscribersStartFromThePresent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(
			bare("b", plegtest.Running("b1"), plegtest.Exited("b2"), plegtest.Created("b3")), bare("a", plegtest.Running("a1")))
		early := n.g.Subscribe(t.Context(), pleg.WithCapacity(100))
		n.start()
		n.RemovePod("a")
		time.Sleep(1500 * time.Millisecond)
		late := n.g.Subscribe(t.Context(), pleg.WithCapacity(100))
		watch := n.g.Watch()
		synctest.Wait()
		want(t, "early", read(early), "a Started a1", "a Died a1", "a Removed a1", "b Started b1", "b Died b2")
		want(t, "late", read(late), "b Started b1", "b Died b2")
		want(t, "watch", read(watch), "b Started b1", "b Died b2")
		if n.g.Watch() != watch {
			t.Error("Watch returns another channel the second time")
		}
	})
}

// Rule 4: the discard counter counts only coalesced transitions.
func TestRule4DiscardedTransitionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("first", plegtest.Running("first-1")))
		sub := n.g.Subscribe(t.Context(), pleg.WithCapacity(1))
		n.relist() // fills the channel
		n.SetPod(bare("a", plegtest.Running("a1")))
		n.relist()
		wantMetric(t, reg, "kubelet_pleg_discard_events", 0)
		n.ExitContainer("a", "a1", 0, "Completed")
		n.relist()
		wantMetric(t, reg, "kubelet_pleg_discard_events", 1) // Started, superseded by Died
		n.RemovePod("a")
		n.relist()
		wantMetric(t, reg, "kubelet_pleg_discard_events", 3) // Died and Removed, undelivered
		n.RemovePod("first")
		n.relist()
		want(t, "first", read(sub), "first Started first-1")
		for _, next := range []string{"first Died first-1", "first Removed first-1"} {
			n.relist()
			want(t, "without Start, Relist fills", read(sub), next)
		}
		n.relist()
		want(t, "in the end", read(sub))
		wantMetric(t, reg, "kubelet_pleg_discard_events", 3)
	})
}

// The first events of a subscription are sorted by UID. They contain no PodSync from before the
// subscription. The channel has the requested capacity.
func TestRule4StartOfASubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		list := pods(30)
		for _, p := range list {
			p.Sandboxes = nil
		}
		slices.Reverse(list)
		n.SetPods(list...)
		n.start()
		n.g.RequestReinspect("pod-00003")
		heal := n.Fail(plegtest.GetPodStatus, "pod-00004", errors.New("once"))
		n.g.RequestReinspect("pod-00004")
		synctest.Wait()
		heal()
		n.ExitContainer("pod-00004", "pod-00004-a", 1, "Error") // sent with a PodSync
		n.g.RequestRelist("pod-00004")
		synctest.Wait()
		got := read(n.g.Subscribe(t.Context(), pleg.WithCapacity(100)))
		if len(got) != 30 || !slices.IsSorted(got) {
			t.Errorf("got %v", got)
		}
		for capacity, want := range map[int]int{-1: 0, 0: pleg.DefaultChannelCapacity, 3: 3} {
			if got := cap(n.g.Subscribe(t.Context(), pleg.WithCapacity(capacity))); got != want {
				t.Errorf("the capacity is %d, not %d", got, want)
			}
			g := pleg.NewGenericPLEG(n.Runtime, capacity, 0, pleg.NewCache(), clock.RealClock{})
			if got := cap(g.Watch()); got != want {
				t.Errorf("the capacity of Watch is %d, not %d", got, want)
			}
		}
		if got := cap(n.g.Subscribe(t.Context())); got != pleg.DefaultChannelCapacity {
			t.Errorf("without the option, the capacity is %d", got)
		}
	})
}

// Rule 4: a stalled subscriber that reads again is sent the coalesced updates, even if pods came
// back or PodSyncs were requested.
func TestRule4UpdatesAreCoalesced(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(n *node)
		events    []string
	}{
		"a pod goes and comes back with another container": {func(n *node) {
			n.SetPods(bare("b", plegtest.Running("b2")))
		}, []string{"a Died a1", "a Removed a1", "b Died b1", "b Removed b1", "b Started b2"}},
		"a pod comes, goes and comes": {func(n *node) {
			n.SetPod(bare("c", plegtest.Running("c1")))
			n.relist()
			n.RemovePod("c")
			n.relist()
			n.SetPod(bare("c", plegtest.Running("c2")))
		}, []string{"c Started c2"}},
		"a PodSync and then a change": {func(n *node) {
			n.g.RequestReinspect("a")
			n.relist()
			n.ExitContainer("a", "a1", 1, "")
		}, []string{"a Died a1", "a PodSync"}},
		"a PodSync of a pod that is gone": {func(n *node) {
			n.g.RequestReinspect("a")
			n.relist()
			n.RemovePod("a")
		}, []string{"a Died a1", "a Removed a1"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
				sub := n.g.Subscribe(t.Context(), pleg.WithCapacity(2))
				n.relist() // fills the channel
				c.meanwhile(n)
				n.relist()
				want(t, "before", read(sub), "a Started a1", "b Started b1")
				n.start()
				var got []string
				for {
					lines := read(sub)
					if len(lines) == 0 {
						break
					}
					got = append(got, lines...)
					synctest.Wait()
				}
				want(t, "then", got, c.events...)
			})
		})
	}
}

// Rule 4: if a pod comes back after its removal was delivered, it is delivered as a new pod.
func TestRule4PodComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		events := n.g.Watch()
		for _, step := range []struct {
			pods   []*pleg.Pod
			events []string
		}{
			{[]*pleg.Pod{bare("a", plegtest.Running("a1"))}, []string{"a Started a1"}},
			{nil, []string{"a Died a1", "a Removed a1"}},
			{[]*pleg.Pod{bare("a", plegtest.Running("a2"))}, []string{"a Started a2"}},
		} {
			n.SetPods(step.pods...)
			n.relist()
			want(t, "events", read(events), step.events...)
			if got := n.g.HealthReport().Pods; got != len(step.pods) {
				t.Errorf("the report has %d pods", got)
			}
		}
	})
}

// Rule 4: a transition that is added to a pending update and replaces nothing is not counted as
// discarded.
func TestRule4WhatIsOnlyAddedIsNotDiscarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.g.Subscribe(t.Context(), pleg.WithCapacity(1))
		n.relist() // the events of a fill the channel; those of b wait
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		n.SetContainer("b", "b2", pleg.ContainerStateRunning)
		n.relist()
		wantMetric(t, reg, "kubelet_pleg_discard_events", 0)
		n.ExitContainer("a", "a2", 1, "")
		n.relist()
		wantMetric(t, reg, "kubelet_pleg_discard_events", 1)
	})
}
