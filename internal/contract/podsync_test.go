package contract_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 3: the PodSync of a reinspection comes with the inspection that was made for it,
// also where a change has superseded that. The change comes with the next one.
func TestRule3PodSyncComesWithItsInspection(t *testing.T) {
	for name, changedAfter := range map[string]time.Duration{
		"with the change":   0,
		"before the change": 50 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(bare("a", plegtest.Running("a1")))
				events := n.g.Watch()
				n.start()
				read(events)
				time.Sleep(100 * time.Millisecond)
				n.Delay(plegtest.GetPodStatus, "a", 100*time.Millisecond)
				n.g.RequestReinspect("a")
				time.Sleep(changedAfter)
				n.SetContainer("a", "a2", pleg.ContainerStateRunning)
				n.g.RequestRelist("a")
				time.Sleep(99*time.Millisecond - changedAfter)
				want(t, "before", read(events))
				time.Sleep(2 * time.Millisecond)
				want(t, "with the inspection", read(events), "a PodSync")
				if s, err := n.cache.Get("a"); err != nil || len(s.ContainerStatuses) != 2 {
					t.Errorf("the cache has %v %v", s, err)
				}
				time.Sleep(98 * time.Millisecond)
				want(t, "before the next", read(events))
				time.Sleep(2 * time.Millisecond)
				want(t, "with the next", read(events), "a Started a2")
			})
		})
	}
	t.Run("after the change", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.SetPods(bare("a", plegtest.Running("a1")))
			events := n.g.Watch()
			n.start()
			read(events)
			n.Delay(plegtest.GetPodStatus, "a", 100*time.Millisecond)
			n.ExitContainer("a", "a1", 1, "")
			n.g.RequestRelist("a")
			time.Sleep(50 * time.Millisecond)
			n.g.RequestReinspect("a")
			time.Sleep(51 * time.Millisecond)
			want(t, "with the inspection of the change", read(events), "a Died a1")
			time.Sleep(98 * time.Millisecond)
			want(t, "before the next", read(events))
			time.Sleep(2 * time.Millisecond)
			want(t, "with the next", read(events), "a PodSync")
		})
	})
}

// A reinspection that is requested during an inspection of the pod follows it.
func TestRequestReinspectDuringInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.Delay(plegtest.GetPodStatus, "a", 100*time.Millisecond)
		events := n.g.Watch()
		n.start()
		for range 150 {
			n.g.RequestReinspect("a")
		}
		time.Sleep(time.Second / 2)
		want(t, "events", read(events), "a Started a1", "a PodSync")
		if got := n.PodCalls(plegtest.GetPodStatus, "a"); got != 2 {
			t.Errorf("%d inspections", got)
		}
	})
}

// A PodSync has its own cause and list, even if it follows the inspection of a change;
// the change after it has no PodSync.
func TestPodSyncHasItsOwnCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.Delay(plegtest.GetPodStatus, "a", 100*time.Millisecond)
		events := n.g.Watch()
		n.start()
		began := time.Now()
		n.g.RequestReinspect("a")
		time.Sleep(150 * time.Millisecond)
		want(t, "the change", read(events), "a Started a1")
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		time.Sleep(60 * time.Millisecond)
		e := <-events
		if line(e) != "a PodSync" || e.Cause != pleg.CauseDemand || !e.ListedAt.Equal(began) {
			t.Errorf("got %s because of %s, listed at %v", line(e), e.Cause, e.ListedAt)
		}
		if e.Data != nil || e.Pod == nil || e.IsSandbox() {
			t.Errorf("got %+v", e)
		}
		time.Sleep(200 * time.Millisecond)
		want(t, "the next change", read(events), "a Started a2")
		time.Sleep(5 * time.Second)
		n.g.RequestReinspect("a")
		if e := <-events; line(e) != "a PodSync" || !e.ListedAt.Equal(began.Add(5*time.Second)) {
			t.Errorf("got %s, listed at %v", line(e), e.ListedAt.Sub(began))
		}
	})
}

// The inspection of a death fails: the event has no end. A PodSync brings it when an inspection
// succeeds, whether the container was inspected before its death or not. Another exited container is
// not amended by that.
func TestPodSyncOfAnEndThatWasNotSent(t *testing.T) {
	for id, status := range map[string]string{"inspected": "running", "new": "without status"} {
		t.Run(id, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(bare("a", plegtest.Running("inspected"), plegtest.Exited("other")))
				events := n.g.Watch()
				n.start()
				readStatuses(events)
				heal := n.Fail(plegtest.GetPodStatus, "a", errors.New("broken"))
				n.SetContainer("a", id, pleg.ContainerStateRunning)
				n.ExitContainer("a", id, 3, "Error")
				n.relist()
				want(t, "the inspection fails", readStatuses(events), "a Died "+id+" "+status)
				heal()
				time.Sleep(15 * time.Second)
				synctest.Wait()
				want(t, "it succeeds", readStatuses(events), "a PodSync exited 3 Error")
				n.g.RequestReinspect("a")
				n.relist()
				want(t, "later", readStatuses(events), "a PodSync without status")
			})
		})
	}
}
