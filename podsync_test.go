package pleg_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// A container that came and went between two lists is known only from its events: its
// pod gets a PodSync, once, and a counter counts it.
func TestUnseenContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(500 * time.Millisecond)
		for range 4 { // created, started, stopped, deleted
			n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "shortlived"})
		}
		n.Emit(pleg.ContainerEvent{PodUID: "gone", ContainerID: "shortlived too"})
		synctest.Wait()
		want(t, "events", read(events), "a PodSync")
		wantMetric(t, reg, "pleg_unseen_containers_total", 2)
		n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "shortlived"})
		// What was listed and is removed is not unseen, however late its events.
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		time.Sleep(time.Second)
		n.RemoveContainer("a", "a2")
		time.Sleep(time.Second)
		n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "a2"})
		synctest.Wait()
		want(t, "events", read(events), "a Started a2", "a Died a2", "a Removed a2")
		wantMetric(t, reg, "pleg_unseen_containers_total", 2)
		if s, err := n.cache.Get("a"); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("a status was made up: %v %v", s, err)
		}
	})
}

// A container that a list shows is not counted as unseen, even if the list before its
// hint's did not show it yet. Without GetPod the full list decides.
func TestSeenAndUnseenContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(100 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPod, Stale: true, Delay: 100 * time.Millisecond, Times: 1})
		n.g.RequestRelist("a")
		synctest.Wait()
		n.EmitOnChange(true)
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		time.Sleep(3 * time.Second)
		want(t, "events", read(events), "a Started a2")
		wantMetric(t, reg, "pleg_unseen_containers_total", 0)
	})
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listsOnly)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(100 * time.Millisecond)
		n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "shortlived"})
		time.Sleep(3 * time.Second)
		want(t, "events", read(events), "a PodSync")
	})
}

// Late events about containers that are known to be gone have no PodSync, however many
// went with them.
func TestManyRemovedContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		list := make([]*pleg.Container, 4100)
		for i := range list {
			list[i] = plegtest.Running(fmt.Sprint(i))
		}
		n.SetPods(bare("a", list...))
		n.start()
		n.SetPods(bare("a"))
		time.Sleep(1500 * time.Millisecond)
		for i := range list {
			n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: fmt.Sprint(i)})
		}
		time.Sleep(time.Second)
		wantMetric(t, reg, "pleg_unseen_containers_total", 0)
	})
}

// Rule 3: the PodSync for an unseen container waits for the inspection that its pod
// waits for.
func TestRule3PodSyncWaitsForTheInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(100 * time.Millisecond)
		n.Delay(plegtest.GetPodStatus, "a", 100*time.Millisecond)
		n.ExitContainer("a", "a1", 1, "")
		n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "shortlived"}) // with the change
		synctest.Wait()
		want(t, "before", read(events))
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		want(t, "after", read(events), "a Died a1", "a PodSync")
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		time.Sleep(50 * time.Millisecond)
		n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "shortlived too"}) // during the inspection
		synctest.Wait()
		want(t, "before", read(events))
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		want(t, "after", read(events), "a Started a2", "a PodSync")
		n.SetContainer("a", "a2", pleg.ContainerStateExited)
		n.g.RequestRelist("a")
		time.Sleep(50 * time.Millisecond)
		n.SetContainer("a", "a3", pleg.ContainerStateRunning)
		n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "shortlived again"}) // with the next change
		time.Sleep(60 * time.Millisecond)
		want(t, "with the first inspection", read(events), "a Died a2")
		time.Sleep(100 * time.Millisecond)
		want(t, "with the second", read(events), "a Started a3", "a PodSync")
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
		n.ExitContainer("a", "a1", 1, "")
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
		want(t, "the next change", read(events), "a Died a1")
		time.Sleep(5 * time.Second)
		n.g.RequestReinspect("a")
		if e := <-events; line(e) != "a PodSync" || !e.ListedAt.Equal(began.Add(5*time.Second)) {
			t.Errorf("got %s, listed at %v", line(e), e.ListedAt.Sub(began))
		}
	})
}
