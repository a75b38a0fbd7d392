package contract_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 3: when a subscriber receives an event, the cache shows the state that caused the event, or
// newer state.
func TestRule3EventComesAfterItsStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(40)...)
		n.Delay(plegtest.GetPodStatus, plegtest.AnyPod, 7*time.Millisecond)
		n.Fail(plegtest.GetPodStatus, "pod-00003", errors.New("broken"))
		events := n.g.Subscribe(t.Context(), pleg.WithCapacity(-1))
		n.start()
		check := func(e *pleg.PodLifecycleEvent) {
			t.Helper()
			status, err := n.cache.Get(e.ID)
			if e.ID == "pod-00003" {
				if err == nil {
					t.Errorf("%s: no error in the cache", line(e))
				}
				return
			}
			if status.TimeStamp.Before(e.ListedAt) {
				t.Errorf("%s: listed at %v, the cache has %v", line(e), e.ListedAt, status.TimeStamp)
			}
			for _, c := range status.ContainerStatuses {
				if c.ID.ID == e.Data && e.Type == pleg.ContainerDied && c.State != pleg.ContainerStateExited {
					t.Errorf("%s: the cache has it %s", line(e), c.State)
				}
			}
		}
		for range 80 {
			check(<-events)
		}
		for i := range 40 {
			n.ExitContainer(types.UID(fmt.Sprintf("pod-%05d", i)), fmt.Sprintf("pod-%05d-a", i), 1, "Error")
		}
		for range 40 {
			check(<-events)
		}
	})
}

// Rules 3 and 6: if the clock stands still, two lists have the same time. The status of a
// superseded inspection is then stored and published as usual. The pod is only as fresh as the
// inspection's list.
func TestRule3SupersededStatusAtOneInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, cache, clk := plegtest.NewRuntime(), pleg.NewCache(), clocktesting.NewFakeClock(time.Now())
		g := pleg.NewGenericPLEG(rt, 0, time.Second, cache, clk, pleg.WithLogger(logr.Discard()))
		events := g.Watch()
		rt.SetPods(bare("a", plegtest.Running("a1")))
		_ = g.Relist(t.Context())
		read(events)
		release := make(chan struct{})
		wait := func(context.Context) error { <-release; return nil }
		rt.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Times: 1, Do: wait})
		rt.ExitContainer("a", "a1", 7, "Error")
		go func() { _ = g.Relist(t.Context()) }()
		synctest.Wait()
		rt.SetContainer("a", "a2", pleg.ContainerStateRunning)
		heal := rt.Block(plegtest.GetPodStatus, "a") // blocks the next inspection
		go func() { _ = g.Relist(t.Context()) }()
		synctest.Wait()
		minTime := clk.Now()
		clk.Step(500 * time.Millisecond)
		go func() { _ = g.Relist(t.Context()) }() // this relist finds no change
		synctest.Wait()
		close(release)
		synctest.Wait()
		if fresh(cache, "a", minTime) {
			t.Error("a status from before the second list passes for fresh")
		}
		want(t, "events while the next inspection hangs", read(events), "a Died a1")
		heal()
		synctest.Wait()
		want(t, "events", read(events), "a Started a2")
		if s, err := cache.Get("a"); err != nil || len(s.ContainerStatuses) != 2 || s.ContainerStatuses[1].ExitCode != 7 {
			t.Errorf("got %v %v", s, err)
		}
		g.Stop()
	})
}

// A change supersedes a requested inspection, and the clock stands still. The PodSync is delivered
// after the next inspection.
func TestSupersededReinspectionAtOneInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, clk := plegtest.NewRuntime(), clocktesting.NewFakeClock(time.Now())
		g := pleg.NewGenericPLEG(rt, 0, time.Second, pleg.NewCache(), clk, pleg.WithLogger(logr.Discard()))
		events := g.Watch()
		rt.SetPods(bare("a", plegtest.Running("a1")))
		_ = g.Relist(t.Context())
		read(events)
		release := make(chan struct{})
		wait := func(context.Context) error { <-release; return nil }
		rt.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Times: 1, Do: wait})
		g.RequestReinspect("a")
		go func() { _ = g.Relist(t.Context()) }()
		synctest.Wait()
		rt.ExitContainer("a", "a1", 7, "Error")
		go func() { _ = g.Relist(t.Context()) }()
		synctest.Wait()
		close(release)
		synctest.Wait()
		want(t, "events", read(events), "a Died a1", "a PodSync")
		g.Stop()
	})
}

// A PodSync has the cause and the ListedAt of its own inspection, even if a list shows a change
// before the PodSync is delivered. The change causes no second PodSync.
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

// Rule 3: an inspection that began before RequestReinspect does not answer the request. This also
// holds if that inspection shows a late reason and so causes a PodSync.
func TestRule3ReinspectionBesideLateReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		events := n.g.Watch()
		n.start()
		n.ExitContainer("a", "a1", 137, "Error")
		time.Sleep(1500 * time.Millisecond)
		read(events)
		n.ExitContainer("a", "a1", 137, "OOMKilled") // the late reason
		defer n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Delay: 800 * time.Millisecond, Times: 1, Stale: true})()
		time.Sleep(2 * time.Second) // the inspection for late reasons is in flight
		n.ResetCalls()
		if n.InFlight(plegtest.GetPodStatus) != 1 {
			t.Fatal("no inspection is in flight")
		}
		n.g.RequestReinspect("a")
		time.Sleep(time.Minute)
		if n.PodCalls(plegtest.GetPodStatus, "a") == 0 {
			t.Errorf("no inspection has begun after the request; events: %v", read(events))
		}
	})
}

// Rule 3: a container had died before the start, and the first status settles its end. During that
// inspection, another list confirms the pod. The events of a later subscriber have the time of the
// list for which the status was made.
func TestRule3SettledEndIsNoNewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Exited("a2")))
		defer n.Delay(plegtest.GetPodStatus, "a", 300*time.Millisecond)()
		n.start()
		time.Sleep(100 * time.Millisecond)
		n.g.RequestRelist("a")
		time.Sleep(time.Second)
		events := n.g.Subscribe(t.Context())
		synctest.Wait()
		for len(events) > 0 {
			if e, status := <-events, mustGet(t, n.cache); status.TimeStamp.Before(e.ListedAt) {
				t.Errorf("%s is of a list at %v, and the status of %v", line(e), e.ListedAt, status.TimeStamp)
			}
		}
	})
}
