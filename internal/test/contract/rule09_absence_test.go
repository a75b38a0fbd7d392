package contract_test

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 9: a pod that a pod list finds gone is removed once, and not inspected
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

// Rule 9: what the runtime no longer lists is gone: from the cache, for subscribers, for
// readers; its inspection is dropped.
func TestRule9GonePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		events := n.g.Watch()
		n.start()
		read(events)
		heal := n.BlockIgnoringCancel(plegtest.GetPodStatus, "b")
		n.ExitContainer("b", "b1", 0, "Completed")
		time.Sleep(1500 * time.Millisecond)
		n.SetPods()
		before := time.Now()
		time.Sleep(time.Second)
		synctest.Wait()
		want(t, "events", read(events), "a Died a1", "a Removed a1", "b Died b1", "b Removed b1")
		for _, uid := range []types.UID{"a", "b"} {
			if s, err := n.cache.GetNewerThan(uid, before); err != nil || s.Name != "" || s.ID != uid {
				t.Errorf("%s: %v %v", uid, s, err)
			}
		}
		heal()
		synctest.Wait()
		if got := n.cache.GetAll(); len(got) != 0 {
			t.Errorf("a late inspection brought it back: %v", got)
		}
		want(t, "events", read(events))
	})
}

// A pod that is gone takes the requests for it along.
func TestGonePodIsNotInspectedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.start()
		heal := n.BlockIgnoringCancel(plegtest.GetPodStatus, "a")
		n.ExitContainer("a", "a1", 1, "")
		time.Sleep(2500 * time.Millisecond)
		if got := n.g.HealthReport().FailingPods; len(got) != 1 {
			t.Errorf("reported: %v", got)
		}
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		synctest.Wait()
		n.RemovePod("a")
		n.g.RequestRelist("a")
		synctest.Wait()
		if got := n.g.HealthReport().FailingPods; len(got) != 0 {
			t.Errorf("reported: %v", got)
		}
		calls := n.Calls(plegtest.GetPodStatus)
		heal()
		synctest.Wait()
		if got := n.Calls(plegtest.GetPodStatus) - calls; got != 0 {
			t.Errorf("%d inspections", got)
		}
		healthy(t, n.g)
	})
}

// A pod that is gone is not reported, even while its last inspection is stuck. An inspection that honours
// cancellation ends.
func TestInspectionOfGonePodIsNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(2)...)
		events := n.g.Watch()
		heal := n.BlockIgnoringCancel(plegtest.GetPodStatus, "pod-00000")
		defer n.Block(plegtest.GetPodStatus, "pod-00001")()
		n.start()
		n.SetPods()
		n.g.RequestRelist("pod-00000")
		n.g.RequestRelist("pod-00001")
		synctest.Wait()
		if got := n.InFlight(plegtest.GetPodStatus); got != 1 {
			t.Errorf("%d inspections in flight", got)
		}
		time.Sleep(10 * time.Minute)
		if got := n.g.HealthReport().FailingPods; len(got) != 0 {
			t.Errorf("reported: %v", got)
		}
		heal()
		synctest.Wait()
		want(t, "events", read(events))
	})
}

// A pod goes and comes back under its UID while its first inspection is stuck. It is delivered as it is now.
func TestPodComesBackWhileItsInspectionHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		heal := n.BlockIgnoringCancel(plegtest.GetPodStatus, "a")
		n.start()
		time.Sleep(1500 * time.Millisecond)
		n.SetPods()
		time.Sleep(time.Second)
		n.SetPods(bare("a", plegtest.Running("a2")))
		time.Sleep(time.Second)
		want(t, "while it hangs", read(events))
		heal()
		synctest.Wait()
		want(t, "then", read(events), "a Started a2")
	})
}

// A pod that comes back under its UID while the inspection of its former life never
// returns is delivered when the deadline of that has passed.
func TestPodComesBackAndIsDeliveredAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		heal := n.BlockIgnoringCancel(plegtest.GetPodStatus, "a")
		n.start()
		time.Sleep(1500 * time.Millisecond)
		n.SetPods()
		time.Sleep(time.Second)
		n.SetPods(bare("a", plegtest.Running("a2")))
		time.Sleep(10 * time.Minute)
		want(t, "past the deadline", read(events), "a Started a2")
		if _, err := n.cache.Get("a"); err == nil {
			t.Error("no error in the cache")
		}
		if r := n.g.HealthReport().FailingPods; len(r) != 1 {
			t.Errorf("reported: %v", r)
		}
		heal()
	})
}

// A pod that pod lists showed to be gone and that the next full list shows again,
// where the last one had it, is like any other.
func TestPodComesBackBetweenTwoFullLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		time.Sleep(500 * time.Millisecond)
		n.RemovePod("a")
		n.g.RequestRelist("a")
		synctest.Wait()
		n.SetPod(bare("a", plegtest.Running("a2")))
		time.Sleep(time.Second)
		want(t, "events", read(events), "a Started a1", "a Died a1", "a Removed a1", "a Started a2")
		if s, err := n.cache.Get("a"); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("the cache has %v %v", s, err)
		}
	})
}

// A pod that has come back while its former inspection is stuck: since when, and which list
// showed it. That call's return is no answer once it was cancelled, so that it still
// counts when the next inspection is stuck too.
func TestPodComesBackWithItsOwnTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		heal := n.BlockIgnoringCancel(plegtest.GetPodStatus, "a")
		n.start()
		began := time.Now()
		time.Sleep(1500 * time.Millisecond)
		n.SetPods()
		time.Sleep(time.Second)
		n.SetPods(bare("a", plegtest.Running("a2")))
		time.Sleep(time.Second)
		if got := n.g.HealthReport().FailingPods; len(got) != 1 || !got[0].StuckSince.Equal(began) {
			t.Errorf("reported: %v", got)
		}
		time.Sleep(pleg.DefaultRuntimeRequestTimeout)
		if e := <-events; line(e) != "a Started a2" || !e.ListedAt.Equal(began.Add(3*time.Second)) {
			t.Errorf("%s, listed at %v", line(e), e.ListedAt.Sub(began))
		}
		healAgain := n.BlockIgnoringCancel(plegtest.GetPodStatus, "a")
		heal()
		time.Sleep(70 * time.Second) // longer than any back-off
		if got := n.g.HealthReport().FailingPods; len(got) != 1 || !got[0].StuckSince.Equal(began) {
			t.Errorf("reported: %v", got)
		}
		healAgain()
		time.Sleep(time.Second)
		if got := n.g.HealthReport().FailingPods; len(got) != 0 {
			t.Errorf("reported: %v", got)
		}
		if s, err := n.cache.Get("a"); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("the cache has %v %v", s, err)
		}
	})
}

// Rule 9 on the cache alone: absence satisfies readers with an empty status.
func TestRule9AbsenceIsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pleg.NewCache()
		c.Set("a", status("a", "there"), nil, at(1))
		got := make(chan *pleg.PodStatus)
		for range 2 {
			go func() {
				s, err := c.GetNewerThan("a", at(5))
				if err != nil {
					t.Error(err)
				}
				got <- s
			}()
			synctest.Wait()
			c.Delete("a")
			synctest.Wait()
			c.SetObservedTime("a", at(6))
			if s := <-got; s.ID != "a" || s.Name != "" {
				t.Errorf("got %v", s)
			}
			// The second time round, what was observed is outrun by a full list.
			c.UpdateTime(at(6))
			c = pleg.NewCache()
			c.Set("a", status("a", "there"), nil, at(1))
		}
		if len(c.GetAll()) != 1 {
			t.Error("GetAll shows what is absent")
		}
	})
}
