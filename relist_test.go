package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 10: a reader that blocks has the one pod listed, at once.
func TestRule10BlockedReaderAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(100)...)
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(1500 * time.Millisecond)
		lists := n.Calls(plegtest.GetPods)
		for i := range 20 {
			uid := types.UID(fmt.Sprintf("pod-%05d", i))
			n.ExitContainer(uid, string(uid)+"-a", 5, "Error")
			before := time.Now()
			s, err := n.cache.GetNewerThan(uid, before)
			if err != nil || s.ContainerStatuses[0].ExitCode != 5 {
				t.Errorf("%s: %v %v", uid, s, err)
			}
			if took := time.Since(before); took > time.Millisecond {
				t.Errorf("%s took %v", uid, took)
			}
			// Unchanged now, and as quick.
			before = time.Now()
			if _, err := n.cache.GetNewerThan(uid, before); err != nil || time.Since(before) > time.Millisecond {
				t.Errorf("%s: %v after %v", uid, err, time.Since(before))
			}
		}
		if got := n.Calls(plegtest.GetPods); got != lists {
			t.Errorf("%d lists of the whole node", got-lists)
		}
		synctest.Wait()
		e := <-events
		if line(e) != "pod-00000 Died pod-00000-a" || e.Cause != pleg.CauseDemand {
			t.Errorf("got %s because of %s", line(e), e.Cause)
		}
	})
}

// Rules 9 and 10: the runtime's word that it does not know a pod is an answer,
// for a pod that was never there and for one that has just gone.
func TestRule9And10AbsenceOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(500 * time.Millisecond)
		n.RemovePod("a")
		for _, uid := range []types.UID{"a", "never"} {
			before := time.Now()
			s, err := n.cache.GetNewerThan(uid, before)
			if err != nil || s.ID != uid || s.Name != "" || time.Since(before) > time.Millisecond {
				t.Errorf("%s: %v %v after %v", uid, s, err, time.Since(before))
			}
		}
		synctest.Wait()
		want(t, "events", read(events), "a Died a1", "a Removed a1")
	})
}

// Rule 10: a minTime in the future is no loop, whether near or far.
func TestRule10FutureMinTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(3)...)
		n.start()
		time.Sleep(500 * time.Millisecond)
		before := time.Now()
		near, far := before.Add(200*time.Millisecond), before.Add(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 10 {
			go func() { _, _ = n.cache.GetNewerThanContext(ctx, "pod-00001", far) }()
		}
		if _, err := n.cache.GetNewerThan("pod-00000", near); err != nil || time.Since(before) > 201*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(before))
		}
		time.Sleep(10 * time.Minute)
		if got := n.Calls(plegtest.GetPod); got != 1 {
			t.Errorf("%d looks", got)
		}
		if got := n.cache.BlockedReaders(); got != 10 {
			t.Errorf("%d readers are left", got)
		}
	})
}

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
		if got := n.Calls(plegtest.GetPods) - lists; got != 1 {
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
