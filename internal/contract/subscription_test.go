package contract_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 4: a subscriber that stalls while 500 containers die and are removed, and others come, gets
// exactly the present when it reads on.
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

// Rule 4: what is held for a subscriber that never reads is bounded by what
// exists, not by how long it does not read.
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
		// The one that was delivered, the one that is next, and the one that exists.
		if most > 3 {
			t.Errorf("a backlog of %d pods for a node of one", most)
		}
	})
}

// Rule 4: every subscriber begins with what exists, at its own pace.
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

// Rule 4: the discard counter counts coalesced transitions, and nothing else.
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
		wantMetric(t, reg, "kubelet_pleg_discard_events", 3) // Died and Removed of what was never delivered
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

func TestSubscriptionEndsWithItsContext(t *testing.T) {
	for _, started := range []bool{false, true} {
		for _, capacity := range []int{-1, 0, 1, 100} {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(pods(10)...)
				if started {
					n.start()
				}
				ctx, cancel := context.WithCancel(t.Context())
				sub := n.g.Subscribe(ctx, pleg.WithCapacity(capacity))
				n.relist()
				synctest.Wait()
				cancel()
				synctest.Wait()
				lines := read(sub)
				if len(lines) == 0 || lines[len(lines)-1] != "closed" {
					t.Errorf("started=%v capacity=%d: not closed", started, capacity)
				}
				if got := n.g.HealthReport().Subscribers; got != 0 {
					t.Errorf("%d subscriptions left", got)
				}
				n.ExitContainer("pod-00000", "pod-00000-a", 0, "")
				n.relist()
			})
		}
	}
}

func TestSubscribeWithEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		sub := n.g.Subscribe(ctx, pleg.WithCapacity(1))
		synctest.Wait()
		want(t, "subscription", read(sub), "closed")
	})
}

// The sandbox of a pod counts as a container, and can be distinguished, even when it
// is gone.
func TestEventsNameWhatTheyAreAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		pod := bare("a", plegtest.Running("a1"))
		pod.Sandboxes = []*pleg.Container{plegtest.NewSandbox("s1", pleg.ContainerStateRunning)}
		n.SetPods(pod)
		sub := n.g.Subscribe(t.Context(), pleg.WithCapacity(100))
		n.start()
		n.RemovePod("a")
		time.Sleep(1500 * time.Millisecond)
		for len(sub) > 0 {
			e := <-sub
			if e.Pod == nil || e.Pod.Name != "a" || e.Container == nil || e.Container.ID.ID != e.Data {
				t.Errorf("%s: pod %v, container %v", line(e), e.Pod, e.Container)
			}
			if e.IsSandbox() != (e.Data == "s1") {
				t.Errorf("%s: IsSandbox is %v", line(e), e.IsSandbox())
			}
			if e.ListedAt.IsZero() || e.Cause == "" {
				t.Errorf("%s: listed at %v, cause %q", line(e), e.ListedAt, e.Cause)
			}
		}
	})
}

// A subscription starts from the present by UID, without the PodSyncs of the past;
// its channel has the capacity that was asked for.
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
		n.ExitContainer("pod-00004", "pod-00004-a", 1, "Error") // delivered with a PodSync, for it recovers
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

// Rule 4: what a subscriber that has stalled receives when it reads again, where pods
// come back and PodSyncs are among the updates.
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

// Rule 4: a pod that comes back after its end was delivered is new.
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

// Rule 4: only coalesced transitions are counted as discarded.
func TestRule4WhatIsOnlyAddedIsNotDiscarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.g.Subscribe(t.Context(), pleg.WithCapacity(1))
		n.relist() // fills the channel with a; b waits
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		n.SetContainer("b", "b2", pleg.ContainerStateRunning)
		n.relist()
		wantMetric(t, reg, "kubelet_pleg_discard_events", 0)
		n.ExitContainer("a", "a2", 1, "")
		n.relist()
		wantMetric(t, reg, "kubelet_pleg_discard_events", 1)
	})
}

// The backlog counts a pod of which a part has been delivered.
func TestBacklogCountsWhatIsHalfDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2"), plegtest.Running("a3")))
		n.g.Subscribe(t.Context(), pleg.WithCapacity(1))
		n.relist()
		if got := n.g.HealthReport().Backlog; got != 1 {
			t.Errorf("a backlog of %d pods", got)
		}
	})
}

// Watch's subscription lives on when Stop has interrupted a delivery.
func TestStopInTheMiddleOfADelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2"), plegtest.Running("a3")))
		g := pleg.NewGenericPLEG(rt, 1, 0, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		events := g.Watch()
		g.Start(t.Context())
		synctest.Wait()
		g.Stop()
		want(t, "the channel", read(events), "a Started a1")
		rt.SetPod(bare("b", plegtest.Running("b1")))
		_ = g.Relist(t.Context())
		want(t, "without Start", read(events), "a Started a2")
		g.Start(t.Context())
		var got []string
		for range 2 {
			synctest.Wait()
			got = append(got, read(events)...)
		}
		want(t, "with Start", got, "a Started a3", "b Started b1")
		g.Stop()
	})
}

// The last events of a pod have it as it was listed last, also where only what
// makes no transition had changed.
func TestLastEventsHaveTheLastListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.relist()
		read(events)
		renamed := bare("a", plegtest.Running("a1"))
		renamed.Name = "renamed"
		n.SetPods(renamed)
		n.relist()
		n.g.RequestReinspect("a")
		n.relist()
		if e := <-events; line(e) != "a PodSync" || e.Pod.Name != "renamed" {
			t.Errorf("%s: the pod is %s", line(e), e.Pod.Name)
		}
	})
}
