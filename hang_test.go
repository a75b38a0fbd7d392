package pleg_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// What hangs, in the corners: beside Relist, beside Stop, and for longer than its
// deadline.

// returns tells whether call returns within d.
func returns(d time.Duration, call func()) bool {
	done := make(chan struct{})
	go func() { defer close(done); call() }()
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// Relist does not wait for the inspection of a pod that is gone.
func TestRelistDoesNotWaitForGonePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		heal := n.HangDeaf(plegtest.GetPodStatus, "a")
		n.start()
		time.Sleep(100 * time.Millisecond)
		n.SetPods()
		n.g.RequestRelist("a")
		synctest.Wait()
		if !returns(time.Hour, n.g.Relist) {
			t.Error("Relist waits for the inspection of a pod that is gone")
		}
		heal()
	})
}

// A pod that comes back under its UID while the inspection of its former life does
// not come back is told of when the deadline of that has passed.
func TestPodComesBackAndIsToldOfAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		heal := n.HangDeaf(plegtest.GetPodStatus, "a")
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
		if r := n.g.HealthReport().Troubled; len(r) != 1 {
			t.Errorf("troubled: %v", r)
		}
		heal()
	})
}

// Rule 12: a call that does not heed its context costs its pod one deadline, not
// every event until it comes back.
func TestRule12ChangesPastTheDeadlineAreToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		heal := n.HangDeaf(plegtest.GetPodStatus, "a")
		n.start()
		time.Sleep(3 * time.Minute)
		want(t, "past the deadline", read(events), "a Started a1")
		n.ExitContainer("a", "a1", 1, "Error")
		time.Sleep(10 * time.Minute)
		want(t, "ten minutes later", read(events), "a Died a1")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if s, _ := n.cache.GetNewerThanContext(ctx, "a", time.Now()); s == nil {
			t.Error("no answer for a reader")
		}
		heal()
	})
}

// slowCache keeps the loop busy.
type slowCache struct {
	*pleg.PodCache
	slow func()
}

func (c *slowCache) UpdateTime(at time.Time) { c.slow(); c.PodCache.UpdateTime(at) }

// Stop cancels also the calls that the loop begins at its last step.
func TestStopCancelsWhatTheLoopBeginsLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		gate := make(chan struct{})
		cache := &slowCache{pleg.NewCache(), func() { <-gate }}
		g := pleg.NewGenericPLEG(rt.Plain(), 0, 0, cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		g.Start()
		synctest.Wait() // in UpdateTime
		heal := rt.Hang(plegtest.GetPods, plegtest.AnyPod)
		go func() {
			time.Sleep(2 * time.Second)
			close(gate)
		}()
		began := time.Now()
		g.Stop()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("Stop took %v", took)
		}
		if got := rt.InFlight(plegtest.GetPods); got != 0 {
			t.Errorf("%d lists left behind", got)
		}
		heal()
	})
}

// Stop at the very moment of a relist.
func TestStopAtTheMomentOfARelist(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			rt := plegtest.NewRuntime()
			g := pleg.NewGenericPLEG(rt.Plain(), 0, 0, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(logr.Discard()))
			g.Start()
			time.Sleep(500 * time.Millisecond)
			heal := rt.Hang(plegtest.GetPods, plegtest.AnyPod)
			time.Sleep(500 * time.Millisecond)
			began := time.Now()
			g.Stop()
			if took := time.Since(began); took > 0 {
				t.Errorf("Stop took %v", took)
			}
			heal()
		})
	}
}

// Relist returns although a list hangs past its deadline and no other can be made.
func TestRelistBesideExpiredList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		time.Sleep(500 * time.Millisecond)
		heal := n.HangDeaf(plegtest.GetPods, plegtest.AnyPod)
		time.Sleep(time.Second)
		if !returns(3*time.Minute, n.g.Relist) {
			t.Error("the first Relist did not return")
		}
		if !returns(time.Hour, n.g.Relist) {
			t.Error("the second Relist did not return")
		}
		heal()
	})
}

// A Relist that Stop has interrupted goes on, and is complete.
func TestRelistAcrossStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		heal := n.Delay(plegtest.GetPodStatus, "a", 100*time.Millisecond)
		done := make(chan struct{})
		events := n.g.Watch()
		go func() {
			defer close(done)
			n.g.Relist()
			if s, err := n.cache.Get("a"); err != nil || len(s.ContainerStatuses) != 1 {
				t.Errorf("Relist returned, the cache has %v %v", s, err)
			}
			want(t, "events", read(events), "a Started a1")
		}()
		time.Sleep(50 * time.Millisecond)
		n.g.Stop()
		<-done
		heal()
	})
}

// Relist returns when what is not hung has been announced, also behind a pod that
// was set aside meanwhile.
func TestRelistBesideHungPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(2)...)
		n.g.Relist()
		events := n.g.Watch()
		read(events)
		heal := n.HangDeaf(plegtest.GetPodStatus, "pod-00000")
		n.ExitContainer("pod-00000", "pod-00000-a", 1, "")
		go n.g.Relist()
		time.Sleep(970 * time.Millisecond)
		n.SetContainer("pod-00000", "x", pleg.ContainerStateRunning)
		n.ExitContainer("pod-00001", "pod-00001-a", 1, "")
		n.g.Relist()
		want(t, "when Relist returns", read(events), "pod-00001 Died pod-00001-a")
		heal()
		n.g.Stop()
	})
}
