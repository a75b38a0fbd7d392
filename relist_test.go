package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 10: requests are a set. 150 for one pod while the loop is busy make at
// most two listings; of 500 for as many pods none is lost.
func TestRule10RequestsAreASet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(500)...)
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(200 * time.Millisecond)
		n.Delay(plegtest.GetPod, plegtest.AnyPod, 10*time.Millisecond)
		for range 150 {
			n.g.RequestRelist("pod-00007")
			time.Sleep(10 * time.Microsecond)
		}
		time.Sleep(100 * time.Millisecond)
		if got := n.Calls(plegtest.GetPod); got > 2 {
			t.Errorf("%d listings for 150 requests", got)
		}
		for i := range 500 {
			uid := types.UID(fmt.Sprintf("pod-%05d", i))
			n.ExitContainer(uid, string(uid)+"-a", 1, "Error")
			n.g.RequestRelist(uid)
		}
		time.Sleep(100 * time.Millisecond)
		if got := len(read(events)); got != 500 {
			t.Errorf("%d pods seen", got)
		}
	})
}

// Without GetPod a request lists the whole node, and a reader waits for the next
// relist.
func TestRequestsWithoutPodGetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(500 * time.Millisecond)
		lists := n.Calls(plegtest.GetPods)
		for range 50 {
			n.g.RequestRelist("a")
		}
		synctest.Wait()
		// One, and one more if it began before the last request came.
		if got := n.Calls(plegtest.GetPods) - lists; got < 1 || got > 2 {
			t.Errorf("%d lists", got)
		}
		before := time.Now()
		if _, err := n.cache.GetNewerThan("a", before); err != nil || time.Since(before) != pleg.DefaultRelistPeriod {
			t.Errorf("%v after %v", err, time.Since(before))
		}
	})
}

// Polling only means that: no stream, no look on demand.
func TestPollingOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, pleg.WithPollingOnly())
		n.EmitOnChange(true)
		n.SetPods(pods(3)...)
		n.start()
		time.Sleep(500 * time.Millisecond)
		n.ExitContainer("pod-00000", "pod-00000-a", 1, "")
		if _, err := n.cache.GetNewerThan("pod-00000", time.Now()); err != nil {
			t.Error(err)
		}
		if n.Calls(plegtest.GetPod) != 0 || n.Calls(plegtest.WatchContainerEvents) != 0 || n.Calls(plegtest.GetPods) != 2 {
			t.Errorf("%d looks, %d streams, %d lists", n.Calls(plegtest.GetPod), n.Calls(plegtest.WatchContainerEvents), n.Calls(plegtest.GetPods))
		}
		if got := n.g.HealthReport().Stream.State; got != pleg.StreamOff {
			t.Errorf("the stream is %s", got)
		}
	})
}

// Rule 5: a full listing and one of a single pod may be under way at once; the
// one that began later is right, in whatever order they land.
func TestRule5LaterListingWins(t *testing.T) {
	t.Run("the full one began first and lands last", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
			events := n.g.Watch()
			n.start()
			read(events)
			time.Sleep(500 * time.Millisecond)
			n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Stale: true, Delay: 900 * time.Millisecond})
			time.Sleep(600 * time.Millisecond) // the list began, and has a and b running
			n.ExitContainer("a", "a1", 0, "Completed")
			n.RemovePod("b")
			n.SetPod(bare("c", plegtest.Running("c1")))
			for _, uid := range []types.UID{"a", "b", "c"} {
				n.g.RequestRelist(uid)
			}
			time.Sleep(100 * time.Millisecond)
			want(t, "after the looks", slices.Sorted(slices.Values(read(events))), "a Died a1", "b Died b1", "b Removed b1", "c Started c1")
			time.Sleep(750 * time.Millisecond)
			want(t, "after the old list", read(events))
			if s, _ := n.cache.Get("b"); s.Name != "" {
				t.Errorf("the old list brought b back: %v", s)
			}
			time.Sleep(5 * time.Second)
			want(t, "later", read(events))
		})
	})
	t.Run("the look began first and lands last", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.SetPods(bare("a", plegtest.Running("a1")))
			events := n.g.Watch()
			n.start()
			read(events)
			time.Sleep(900 * time.Millisecond)
			n.Inject(plegtest.Fault{Method: plegtest.GetPod, Stale: true, Delay: 500 * time.Millisecond, Times: 1})
			n.g.RequestRelist("a")
			time.Sleep(50 * time.Millisecond)
			n.ExitContainer("a", "a1", 0, "Completed")
			time.Sleep(100 * time.Millisecond)
			want(t, "after the list", read(events), "a Died a1")
			time.Sleep(time.Second)
			want(t, "after the old look", read(events))
		})
	})
}

// Rule 5: a runtime answers overlapping calls in any order, and the one that was
// made later may have read its state earlier. What has died must not start again.
func TestRule5OverlappingListingsInventNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(900 * time.Millisecond)
		// The list begins at 1 s and reads at 1.3 s; the looks begin at 1.1 s, read
		// then, and land at 1.5 s.
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Delay: 300 * time.Millisecond})
		n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 2, Stale: true, Delay: 400 * time.Millisecond})
		time.Sleep(200 * time.Millisecond)
		n.g.RequestRelist("a")
		n.g.RequestRelist("b")
		time.Sleep(50 * time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		n.RemovePod("b")
		time.Sleep(200 * time.Millisecond)
		want(t, "after the list", read(events), "a Died a1", "b Died b1", "b Removed b1")
		time.Sleep(10 * time.Second)
		want(t, "after the looks", read(events))
		if got := n.PodCalls(plegtest.GetPod, "a"); got != 2 {
			t.Errorf("%d looks: the one that overlapped was not made again", got)
		}
	})
}

// Rule 5: where two listings that overlapped differ, a third one settles it; until
// then the pod does not look fresh, and no reader gets what is older than its
// minTime.
func TestRule5DisputedPodIsSettled(t *testing.T) {
	for name, c := range map[string]struct {
		change func(n *node)
		events []string
		check  func(s *pleg.PodStatus) bool
	}{
		"exited": {
			func(n *node) { n.ExitContainer("a", "a1", 1, "Error") }, []string{"a Died a1"},
			func(s *pleg.PodStatus) bool { return s.ContainerStatuses[0].ExitCode == 1 },
		},
		"gone": {
			func(n *node) { n.RemovePod("a") }, []string{"a Died a1", "a Removed a1"},
			func(s *pleg.PodStatus) bool { return len(s.ContainerStatuses) == 0 },
		},
		"unchanged after all": {
			func(n *node) {
				running := n.Pod("a")
				n.ExitContainer("a", "a1", 1, "Error")
				time.AfterFunc(200*time.Millisecond, func() { n.SetPod(running) })
			}, nil,
			func(s *pleg.PodStatus) bool { return s.ContainerStatuses[0].State == pleg.ContainerStateRunning },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(bare("a", plegtest.Running("a1")))
				events := n.g.Watch()
				n.start()
				read(events)
				time.Sleep(950 * time.Millisecond)
				// The look begins and reads at 0.95 s and lands at 1.05 s; the list
				// begins and reads at 1 s and lands at 1.1 s.
				n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 1, Stale: true, Delay: 100 * time.Millisecond})
				n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Stale: true, Delay: 100 * time.Millisecond})
				n.g.RequestRelist("a")
				time.Sleep(10 * time.Millisecond)
				c.change(n)
				time.Sleep(10 * time.Millisecond)
				minTime := time.Now()
				n.Delay(plegtest.GetPod, plegtest.AnyPod, 150*time.Millisecond)
				s, err := n.cache.GetNewerThan("a", minTime)
				if err != nil || !c.check(s) {
					t.Errorf("got %v %v", s, err)
				}
				time.Sleep(500 * time.Millisecond)
				want(t, "events", read(events), c.events...)
			})
		})
	}
}

// Rule 5: a disputed pod is settled also by a runtime that hands out the very pod
// again that it was known by.
func TestRule5DisputedPodIsSettledByTheSamePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running, exited := bare("a", plegtest.Running("a1")), bare("a", plegtest.NewContainer("a1", pleg.ContainerStateExited))
		var (
			present            atomic.Pointer[pleg.Pod]
			delay, inspections atomic.Int64
		)
		slowly := func() *pleg.Pod {
			p := present.Load()
			time.Sleep(time.Duration(delay.Load()))
			return p
		}
		rt := &scripted{
			pods: func() ([]*pleg.Pod, error) { return []*pleg.Pod{slowly()}, nil },
			pod:  func(types.UID) (*pleg.Pod, error) { return slowly(), nil },
			status: func(p *pleg.Pod) (*pleg.PodStatus, error) {
				inspections.Add(1)
				return &pleg.PodStatus{ID: p.ID}, nil
			},
		}
		present.Store(running)
		n := newNodeOf(t, rt.instead)
		events := n.g.Watch()
		n.start()
		read(events)
		// The look reads at 0.95 s and lands at 1.05 s, the list reads at 1 s and
		// lands at 1.1 s; what settles it begins then.
		time.Sleep(950 * time.Millisecond)
		delay.Store(int64(100 * time.Millisecond))
		n.g.RequestRelist("a")
		time.Sleep(10 * time.Millisecond)
		present.Store(exited)
		time.Sleep(100 * time.Millisecond)
		present.Store(running)
		minTime := time.Now()
		if _, err := n.cache.GetNewerThan("a", minTime); err != nil || time.Since(minTime) > 300*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(minTime))
		}
		if got := inspections.Load(); got != 2 {
			t.Errorf("%d inspections", got)
		}
		want(t, "events", read(events))
	})
}

// A list that overlapped with a look, and shows the same in another order, is no
// reason to look again.
func TestAnotherOrderIsNoDispute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(950 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 1, Stale: true, Delay: 100 * time.Millisecond})
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Stale: true, Delay: 100 * time.Millisecond})
		n.g.RequestRelist("a")
		time.Sleep(10 * time.Millisecond)
		n.SetPod(bare("a", plegtest.Running("a2"), plegtest.Running("a1")))
		time.Sleep(500 * time.Millisecond)
		if got := n.PodCalls(plegtest.GetPod, "a"); got != 1 {
			t.Errorf("%d looks", got)
		}
		want(t, "events", read(events))
		if _, err := n.cache.Get("a"); err != nil || n.g.HealthReport().Pods != 1 {
			t.Errorf("%v, %d pods", err, n.g.HealthReport().Pods)
		}
	})
}

// Rule 9: a pod that a look finds to be gone is gone once, and not inspected again.
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

// A look that fails, or hangs, delays nobody: the next relist shows the pod, and
// other looks go on.
func TestLooksThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(30)...)
		n.start()
		time.Sleep(500 * time.Millisecond)
		n.Fail(plegtest.GetPod, "pod-00000", errors.New("broken"))
		for i := range 10 {
			defer n.HangDeaf(plegtest.GetPod, types.UID(fmt.Sprintf("pod-%05d", i+1)))()
		}
		before := time.Now()
		for i := range 11 {
			n.g.RequestRelist(types.UID(fmt.Sprintf("pod-%05d", i)))
			time.Sleep(time.Millisecond)
		}
		for i := range 11 {
			if _, err := n.cache.GetNewerThan(types.UID(fmt.Sprintf("pod-%05d", i)), before); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(before); took > time.Second {
			t.Errorf("took %v", took)
		}
		time.Sleep(2 * time.Second)
		before = time.Now()
		if _, err := n.cache.GetNewerThan("pod-00020", before); err != nil || time.Since(before) > time.Millisecond {
			t.Errorf("another look took %v: %v", time.Since(before), err)
		}
		healthy(t, n.g)
	})
}

// Rule 5: only what overlapped and differs is looked at again.
func TestRule5OverlapsThatAgreeCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")), bare("d", plegtest.Running("d1")))
		n.start()
		time.Sleep(900 * time.Millisecond)
		// The list begins and reads at 1 s and lands at 1.4 s.
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Stale: true, Delay: 400 * time.Millisecond})
		// Looks that began before it and landed while it was under way.
		n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 3, Stale: true, Delay: 200 * time.Millisecond})
		early := []types.UID{"a", "new", "never"}
		for _, uid := range early {
			n.g.RequestRelist(uid)
		}
		time.Sleep(150 * time.Millisecond)
		n.SetPod(bare("a", plegtest.Running("a1"))) // the same in another guise
		time.Sleep(100 * time.Millisecond)
		// Looks that began after it, and landed before it.
		n.SetPod(bare("c", plegtest.Running("c1")))
		n.ExitContainer("b", "b1", 0, "Completed")
		n.RemovePod("d")
		later := []types.UID{"b", "c", "d"}
		for _, uid := range later {
			n.g.RequestRelist(uid)
		}
		time.Sleep(5 * time.Second)
		for _, uid := range append(early, later...) {
			if got := n.PodCalls(plegtest.GetPod, uid); got != 1 {
				t.Errorf("%d looks at %s", got, uid)
			}
		}
		// A look that a full listing has outrun is not made again either.
		n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 1, Delay: 900 * time.Millisecond})
		n.g.RequestRelist("a")
		time.Sleep(5 * time.Second)
		if got := n.PodCalls(plegtest.GetPod, "a"); got != 2 {
			t.Errorf("%d looks at a", got)
		}
	})
}

// Rule 5: a pod that was disputed is like any other when that is settled, by a
// look or by the next full listing: fresh with each relist, and not inspected
// again.
func TestRule5DisputeLeavesNothingBehind(t *testing.T) {
	for _, looks := range []bool{true, false} {
		t.Run(fmt.Sprintf("looks=%v", looks), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, reg := newNodeWithMetrics(t)
				n.SetPods(bare("a", plegtest.Running("a1")))
				events := n.g.Watch()
				n.start()
				read(events)
				time.Sleep(2950 * time.Millisecond)
				// Looks begin and read at 2.95 s and land at 3.05 s; the list begins
				// and reads at 3 s and lands at 3.1 s.
				n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 3, Stale: true, Delay: 100 * time.Millisecond})
				n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Stale: true, Delay: 100 * time.Millisecond})
				for _, uid := range []types.UID{"a", "brief", "empty"} {
					n.g.RequestRelist(uid)
				}
				time.Sleep(10 * time.Millisecond)
				running := n.Pod("a")
				n.ExitContainer("a", "a1", 1, "Error")
				n.SetPod(bare("brief", plegtest.Running("brief-1")))
				n.SetPod(bare("empty"))
				if !looks {
					n.Fail(plegtest.GetPod, plegtest.AnyPod, errors.New("broken"))
				}
				time.Sleep(110 * time.Millisecond)
				n.SetPod(running)
				n.RemovePod("brief")
				minTime := time.Now()
				if s, err := n.cache.GetNewerThan("a", minTime); err != nil || s.ContainerStatuses[0].State != pleg.ContainerStateRunning {
					t.Errorf("got %v %v", s, err)
				}
				if took := time.Since(minTime); took > time.Second {
					t.Errorf("settled after %v", took)
				}
				time.Sleep(5 * time.Second)
				inspections := n.Calls(plegtest.GetPodStatus)
				for range 5 {
					for _, uid := range []types.UID{"a", "brief", "empty"} {
						if !fresh(n.cache, uid, time.Now().Add(-1100*time.Millisecond)) {
							t.Errorf("%s is held back", uid)
						}
					}
					time.Sleep(time.Second)
				}
				if got := n.Calls(plegtest.GetPodStatus) - inspections; got != 0 {
					t.Errorf("%d inspections more", got)
				}
				if got := len(n.cache.GetAll()); got != 2 {
					t.Errorf("%d pods in the cache", got)
				}
				if looks { // what is disputed is not yet a change
					wantMetric(t, reg, "pleg_unannounced_changes_total", 0)
				}
			})
		})
	}
}

// Rule 5: an inspection that lands while its pod is disputed does not make it look
// fresh.
func TestRule5InspectionSettlesNoDispute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(940 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Times: 1, Stale: true, Delay: 210 * time.Millisecond})
		n.g.RequestReinspect("a") // lands at 1.15 s
		time.Sleep(10 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 1, Stale: true, Delay: 100 * time.Millisecond})
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Stale: true, Delay: 100 * time.Millisecond})
		n.g.RequestRelist("a")
		time.Sleep(10 * time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		time.Sleep(10 * time.Millisecond)
		minTime := time.Now()
		n.Delay(plegtest.GetPod, plegtest.AnyPod, 150*time.Millisecond)
		if s, err := n.cache.GetNewerThan("a", minTime); err != nil || s.ContainerStatuses[0].ExitCode != 1 {
			t.Errorf("got %v %v after %v", s, err, time.Since(minTime))
		}
	})
}

// A pod in which nothing is to be told is known and inspected all the same.
func TestPodWithoutTransitionsIsInspected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a"), bare("b", plegtest.Created("b1")))
		events := n.g.Watch()
		n.g.Relist()
		want(t, "events", read(events))
		if got := len(n.cache.GetAll()); got != 2 {
			t.Errorf("%d pods in the cache", got)
		}
	})
}

// Rule 10: a request for a pod that has been asked for and not been looked at yet
// is none more, and a pod that was once listed with all others can be looked at by
// itself again.
func TestRule10LooksWaitInASet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(30)...)
		n.start()
		time.Sleep(100 * time.Millisecond)
		n.Delay(plegtest.GetPod, plegtest.AnyPod, 50*time.Millisecond)
		for i := range 8 {
			n.g.RequestRelist(types.UID(fmt.Sprintf("pod-%05d", i)))
			synctest.Wait()
		}
		for range 5 {
			n.g.RequestRelist("pod-00020")
			n.g.RequestRelist("pod-00021")
			synctest.Wait()
		}
		time.Sleep(500 * time.Millisecond)
		if a, b := n.PodCalls(plegtest.GetPod, "pod-00020"), n.PodCalls(plegtest.GetPod, "pod-00021"); a != 1 || b != 1 {
			t.Errorf("%d and %d looks", a, b)
		}
		if got := n.MaxInFlight(plegtest.GetPod); got != 8 {
			t.Errorf("%d looks at once", got)
		}
		lists := n.Calls(plegtest.GetPods)
		for i := range 30 {
			n.g.RequestRelist(types.UID(fmt.Sprintf("pod-%05d", i)))
		}
		time.Sleep(200 * time.Millisecond)
		if got := n.Calls(plegtest.GetPods) - lists; got < 1 || got > 2 {
			t.Errorf("%d lists for thirty pods at once", got)
		}
		looks := n.PodCalls(plegtest.GetPod, "pod-00025")
		n.g.RequestRelist("pod-00025")
		time.Sleep(100 * time.Millisecond)
		if got := n.PodCalls(plegtest.GetPod, "pod-00025") - looks; got != 1 {
			t.Errorf("%d looks after that", got)
		}
	})
}

// What asks for a full list while one is under way gets another, as long after it
// as it took.
func TestRequestDuringList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.start()
		n.Delay(plegtest.GetPods, plegtest.AnyPod, 100*time.Millisecond)
		time.Sleep(1050 * time.Millisecond)
		lists := n.Calls(plegtest.GetPods)
		n.g.RequestRelist("a")
		time.Sleep(140 * time.Millisecond) // 1.19 s
		if got := n.Calls(plegtest.GetPods) - lists; got != 0 {
			t.Errorf("%d lists without a rest", got)
		}
		time.Sleep(20 * time.Millisecond)
		if got := n.Calls(plegtest.GetPods) - lists; got != 1 {
			t.Errorf("%d lists after it", got)
		}
	})
}

// Looks that hang give their places back after a period, not at the next relist.
func TestHungLooksGiveTheirPlacesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(10)...)
		n.start()
		time.Sleep(500 * time.Millisecond)
		for i := range 8 {
			uid := types.UID(fmt.Sprintf("pod-%05d", i))
			defer n.HangDeaf(plegtest.GetPod, uid)()
			n.g.RequestRelist(uid)
			synctest.Wait()
		}
		n.g.RequestRelist("pod-00009")
		time.Sleep(999 * time.Millisecond)
		before := n.PodCalls(plegtest.GetPod, "pod-00009")
		time.Sleep(2 * time.Millisecond)
		if after := n.PodCalls(plegtest.GetPod, "pod-00009"); before != 0 || after != 1 {
			t.Errorf("%d looks before, %d after", before, after)
		}
	})
}

// A Relist whose list Stop has cancelled goes on too, and is complete.
func TestRelistGoesOnWhenItsListIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		heal := n.Hang(plegtest.GetPods, plegtest.AnyPod)
		n.g.Start()
		synctest.Wait()
		heal()
		n.g.Stop()
		heal = n.Hang(plegtest.GetPods, plegtest.AnyPod)
		done := make(chan struct{})
		go func() { defer close(done); n.g.Relist() }()
		synctest.Wait()
		heal() // what is under way hangs on
		n.g.Stop()
		<-done
		if got := len(n.cache.GetAll()); got != 1 {
			t.Errorf("%d pods in the cache", got)
		}
	})
}

// Rule 5: what a list shows is as new as its beginning, not as its end.
func TestRule5ListIsStampedBeforeItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(900 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Stale: true, Delay: 300 * time.Millisecond})
		time.Sleep(200 * time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		if s, err := n.cache.GetNewerThan("a", time.Now()); err != nil || s.ContainerStatuses[0].ExitCode != 1 {
			t.Errorf("got %v %v", s, err)
		}
	})
}

// A pod that was set aside takes no turn, so that nobody waits for it.
func TestRule2HungPodHasNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(2)...)
		n.start()
		events := n.g.Watch()
		defer n.HangDeaf(plegtest.GetPodStatus, "pod-00000")()
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

// Rule 10: a look that is under way serves those who ask for no more than it can
// show; who asks for more gets another.
func TestRule10LookUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(400 * time.Millisecond)
		minTime := time.Now()
		time.Sleep(50 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPod, Stale: true, Delay: 100 * time.Millisecond})
		n.g.RequestRelist("a")
		synctest.Wait()
		if _, err := n.cache.GetNewerThan("a", minTime); err != nil || time.Since(minTime) != 150*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(minTime))
		}
		time.Sleep(100 * time.Millisecond)
		if got := n.Calls(plegtest.GetPod); got != 1 {
			t.Errorf("%d looks", got)
		}
		n.g.RequestRelist("a")
		synctest.Wait()
		n.ExitContainer("a", "a1", 1, "")
		n.g.RequestRelist("a")
		time.Sleep(210 * time.Millisecond)
		want(t, "events", read(events), "a Died a1")
	})
}

// Many looks at once are one list, unless the list hangs or has just been made.
func TestManyLooksBesideAList(t *testing.T) {
	for name, prepare := range map[string]func(n *node) func(){
		"that hangs": func(n *node) func() {
			heal := n.HangDeaf(plegtest.GetPods, plegtest.AnyPod)
			time.Sleep(time.Second)
			return heal
		},
		"that has just been made": func(n *node) func() {
			heal := n.Delay(plegtest.GetPods, plegtest.AnyPod, 400*time.Millisecond)
			time.Sleep(950 * time.Millisecond) // 1.45 s
			return heal
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(pods(30)...)
				events := n.g.Watch()
				n.start()
				time.Sleep(500 * time.Millisecond)
				defer prepare(n)()
				read(events)
				for i := range 20 {
					uid := types.UID(fmt.Sprintf("pod-%05d", i))
					n.ExitContainer(uid, string(uid)+"-a", 1, "")
				}
				n.Delay(plegtest.GetPod, plegtest.AnyPod, time.Millisecond)
				for i := range 20 {
					n.g.RequestRelist(types.UID(fmt.Sprintf("pod-%05d", i)))
				}
				time.Sleep(10 * time.Millisecond)
				if got := len(read(events)); got != 20 {
					t.Errorf("%d pods seen", got)
				}
			})
		})
	}
}

// Looks that have ended, in time or not, leave as many places as there were; and
// one that heeds its context is let go at its deadline.
func TestLooksStayAsMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(30)...)
		n.start()
		heal := n.Hang(plegtest.GetPod, plegtest.AnyPod)
		for i := range 6 {
			n.g.RequestRelist(types.UID(fmt.Sprintf("pod-%05d", i)))
			synctest.Wait()
		}
		time.Sleep(5 * time.Second)
		heal()
		for i := range 6 {
			n.g.RequestRelist(types.UID(fmt.Sprintf("pod-%05d", i+10)))
			synctest.Wait()
		}
		time.Sleep(5 * time.Second)
		n.ResetCalls()
		n.Delay(plegtest.GetPod, plegtest.AnyPod, 50*time.Millisecond)
		for i := range 16 {
			n.g.RequestRelist(types.UID(fmt.Sprintf("pod-%05d", i)))
			synctest.Wait()
		}
		time.Sleep(500 * time.Millisecond)
		if got := n.MaxInFlight(plegtest.GetPod); got != 8 {
			t.Errorf("%d looks at once", got)
		}
		defer n.Hang(plegtest.GetPod, plegtest.AnyPod)()
		n.g.RequestRelist("pod-00000")
		time.Sleep(pleg.DefaultInspectionTimeout + time.Second)
		if got := n.InFlight(plegtest.GetPod); got != 0 {
			t.Errorf("%d looks are left past their deadline", got)
		}
	})
}

// What a look has shown is in the report at once.
func TestLookIsInTheReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		time.Sleep(500 * time.Millisecond)
		n.SetPod(bare("a", plegtest.Running("a1")))
		n.g.RequestRelist("a")
		synctest.Wait()
		if got := n.g.HealthReport().Pods; got != 1 {
			t.Errorf("the report has %d pods", got)
		}
	})
}

// Rules 12 and 19: where a list and a look overlapped and differ about a pod, Relist
// waits for one more list, so that when it returns the pod is settled: beside Start
// and, where nobody would ever settle it otherwise, without.
func TestRelistSettlesWhatIsDisputed(t *testing.T) {
	for _, started := range []bool{false, true} {
		t.Run(fmt.Sprintf("started=%v", started), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(bare("a", plegtest.Running("a1")))
				events := n.g.Watch()
				if started {
					n.start()
					time.Sleep(500 * time.Millisecond)
				} else {
					n.g.Relist()
				}
				read(events)
				n.Inject(plegtest.Fault{Method: plegtest.GetPods, Delay: 100 * time.Millisecond})
				n.Inject(plegtest.Fault{Method: plegtest.GetPod, Delay: 10 * time.Millisecond})
				n.g.RequestRelist("a")
				done := make(chan struct{})
				go func() {
					n.g.Relist()
					close(done)
				}()
				time.Sleep(50 * time.Millisecond)
				n.ExitContainer("a", "a1", 1, "Error")
				<-done
				want(t, "after Relist", read(events), "a Died a1")
				if !fresh(n.cache, "a", time.Now().Add(-200*time.Millisecond)) {
					t.Error("the pod is held back still")
				}
				n.g.Stop()
			})
		})
	}
}

// flapping is a runtime whose one container goes up and down at the pace of the
// lists, so that each of them disagrees with the look before it.
type flapping struct {
	observe atomic.Pointer[func(pleg.ContainerEvent)]
	lists   atomic.Int64
}

func (f *flapping) GetPods(ctx context.Context, _ bool) ([]*pleg.Pod, error) {
	f.lists.Add(1)
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	(*f.observe.Load())(pleg.ContainerEvent{PodUID: "a", ContainerID: "a1"})
	return []*pleg.Pod{bare("a", plegtest.Exited("a1"))}, nil
}

func (f *flapping) GetPod(context.Context, types.UID) (*pleg.Pod, error) {
	time.Sleep(time.Millisecond)
	return bare("a", plegtest.Running("a1")), nil
}

func (f *flapping) GetPodStatus(_ context.Context, p *pleg.Pod) (*pleg.PodStatus, error) {
	return &pleg.PodStatus{ID: p.ID}, nil
}

func (f *flapping) WatchContainerEvents(ctx context.Context, connected func(), observe func(pleg.ContainerEvent)) error {
	f.observe.Store(&observe)
	connected()
	<-ctx.Done()
	return ctx.Err()
}

// A pod that is disputed again and again does not keep Relist for ever.
func TestRelistDoesNotSettleForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flapping{}
		f.observe.Store(new(func(pleg.ContainerEvent) {}))
		n := newNodeOf(t, func(*plegtest.Runtime) pleg.Runtime { return f })
		n.start()
		time.Sleep(5500 * time.Millisecond)
		for range 10 {
			lists := f.lists.Load()
			n.g.RequestRelist("a")
			n.g.Relist()
			if got := f.lists.Load() - lists; got > 4 {
				t.Errorf("%d lists", got)
			}
		}
		n.g.Stop()
	})
}

// Where the list that was to settle a dispute fails, Relist is complete as far as
// the first one goes.
func TestRelistWhoseSecondListFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		events := n.g.Watch()
		n.g.Relist()
		read(events)
		var lists atomic.Int64
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Delay: 100 * time.Millisecond, Do: func(context.Context) error {
			if lists.Add(1) == 2 {
				return errors.New("no")
			}
			return nil
		}})
		n.Inject(plegtest.Fault{Method: plegtest.GetPod, Delay: 10 * time.Millisecond})
		n.Delay(plegtest.GetPodStatus, "b", 300*time.Millisecond)
		n.g.RequestRelist("a")
		before := time.Now().Add(-1)
		done := make(chan struct{})
		go func() { defer close(done); n.g.Relist() }()
		time.Sleep(50 * time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		n.ExitContainer("b", "b1", 1, "Error")
		<-done
		want(t, "events", read(events), "a Died a1", "b Died b1")
		if !fresh(n.cache, "a", before) || !fresh(n.cache, "b", before) {
			t.Error("a pod is held back")
		}
		n.g.Stop()
	})
}

// Stop waits for what it has cancelled, and not for the list that a Relist beside
// it makes anew.
func TestStopBesideRelist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(1)...)
		n.start()
		time.Sleep(2500 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Do: func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(100 * time.Millisecond)
			return ctx.Err()
		}})
		n.Delay(plegtest.GetPods, plegtest.AnyPod, 20*time.Second)
		n.g.RequestReinspect("pod-00000")
		done := make(chan struct{})
		go func() { defer close(done); n.g.Relist() }()
		time.Sleep(100 * time.Millisecond)
		before := time.Now()
		n.g.Stop()
		if took := time.Since(before); took != 100*time.Millisecond {
			t.Errorf("Stop took %v", took)
		}
		n.Heal()
		<-done
		n.g.Stop()
	})
}

// Rule 10: readers are served by looks while lists fail, however many they are.
func TestRule10ManyReadersWhileListsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(30)...)
		n.start()
		time.Sleep(500 * time.Millisecond)
		n.Fail(plegtest.GetPods, plegtest.AnyPod, errors.New("too large"))
		began := time.Now()
		var readers sync.WaitGroup
		for _, p := range pods(30) {
			readers.Go(func() {
				if _, err := n.cache.GetNewerThan(p.ID, began); err != nil {
					t.Error(err)
				}
			})
		}
		readers.Wait()
		if took := time.Since(began); took > time.Second {
			t.Errorf("answered after %v", took)
		}
	})
}

// Rule 10: of the readers of one pod that wait for times to come, the earliest has
// the pod listed, and full relists serve the others; readers of other pods are
// served in their own time.
func TestRule10FutureMinTimes(t *testing.T) {
	for _, c := range []struct {
		name    string
		early   bool // the readers block before Start
		readers []types.UID
		ahead   []time.Duration // in milliseconds, like served
		served  []time.Duration
		calls   int // of GetPod
	}{
		{"of one pod, the later one first", false, []types.UID{"a", "a"}, []time.Duration{200, 100}, []time.Duration{500, 100}, 1},
		{"of one pod, the earlier one first", false, []types.UID{"a", "a"}, []time.Duration{100, 200}, []time.Duration{100, 500}, 1},
		{"of two pods", false, []types.UID{"a", "b"}, []time.Duration{100, 200}, []time.Duration{100, 200}, 2},
		{
			"of one pod, before Start", true, []types.UID{"a", "a", "a", "a"},
			[]time.Duration{500, 300, 400, 700}, []time.Duration{1000, 300, 1000, 1000}, 1,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(bare("a"), bare("b"))
				if !c.early {
					n.start()
					time.Sleep(500 * time.Millisecond)
				}
				began := time.Now()
				var readers sync.WaitGroup
				for i, uid := range c.readers {
					readers.Go(func() {
						_, err := n.cache.GetNewerThan(uid, began.Add(c.ahead[i]*time.Millisecond))
						if got := time.Since(began).Round(time.Millisecond); err != nil || got != c.served[i]*time.Millisecond {
							t.Errorf("reader %d was served after %v: %v", i, got, err)
						}
					})
					synctest.Wait()
				}
				if c.early {
					n.start()
				}
				readers.Wait()
				if got := n.Calls(plegtest.GetPod); got != c.calls {
					t.Errorf("%d single-pod relists", got)
				}
			})
		})
	}
}
