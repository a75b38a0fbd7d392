package pleg_test

import (
	"context"
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

// What hangs, in the corners: beside Relist, beside Stop, and for longer than its
// deadline.

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
		if r := n.g.HealthReport().FailingPods; len(r) != 1 {
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

// slowToHeed is a runtime whose inspections go on for a while after their context
// has ended.
type slowToHeed struct {
	pleg.Runtime
	slow map[types.UID]time.Duration
}

func (s slowToHeed) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	<-ctx.Done()
	time.Sleep(s.slow[pod.ID])
	return nil, ctx.Err()
}

// Stop waits for all calls that it has cancelled, not only for the first.
func TestStopWaitsForWhatItCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime {
			return slowToHeed{rt.Plain(), map[types.UID]time.Duration{"pod-00000": time.Second, "pod-00001": 2 * time.Second}}
		})
		n.SetPods(pods(2)...)
		n.g.Start()
		synctest.Wait()
		began := time.Now()
		n.g.Stop()
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("Stop took %v", took)
		}
	})
}

// What a call brings that Stop has left behind is taken, and is not asked again.
func TestAnswerAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return late{rt.Plain(), nil, answer} })
		n.SetPods(pods(1)...)
		n.g.Start()
		synctest.Wait()
		n.g.Stop()
		close(answer)
		synctest.Wait()
		n.start()
		if s, err := n.cache.Get("pod-00000"); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("the cache has %v %v", s, err)
		}
		if got := n.Calls(plegtest.GetPodStatus); got != 1 {
			t.Errorf("%d inspections", got)
		}
	})
}

// Stop in the middle of a batch holds back nobody after the next Start, and what
// was asked for before it is not forgotten.
func TestStopInTheMiddleOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(pods(2)...)
		events := n.g.Watch()
		heal := n.Hang(plegtest.GetPodStatus, "pod-00000")
		n.g.Start()
		synctest.Wait()
		want(t, "behind the pod that hangs", read(events))
		n.g.Stop()
		n.g.Start()
		synctest.Wait()
		want(t, "after the restart", read(events), "pod-00001 Started pod-00001-a", "pod-00001 Started pod-00001-sandbox")
		heal()
		synctest.Wait()
		n.g.Stop()
		read(events)

		heal = n.Hang(plegtest.GetPodStatus, "pod-00001")
		n.g.Start()
		n.g.RequestReinspect("pod-00001")
		synctest.Wait()
		n.g.Stop()
		heal()
		n.start()
		e := <-events
		if line(e) != "pod-00001 PodSync" || e.Cause != pleg.CauseDemand {
			t.Errorf("got %s because of %q", line(e), e.Cause)
		}
		synctest.Wait()
		want(t, "more", read(events))
	})
}

// The same when the turn that is given up is that of the inspection after the one
// that Stop cancels.
func TestStopBetweenTwoBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(pods(2)...)
		n.g.Relist()
		events := n.g.Watch()
		read(events)
		heal := n.Hang(plegtest.GetPodStatus, "pod-00000")
		n.ExitContainer("pod-00000", "pod-00000-a", 1, "")
		n.g.Start()
		time.Sleep(500 * time.Millisecond)
		n.SetContainer("pod-00000", "x", pleg.ContainerStateRunning)
		n.ExitContainer("pod-00001", "pod-00001-a", 1, "")
		go n.g.Relist()
		synctest.Wait()
		want(t, "behind the pod that hangs", read(events))
		n.g.Stop() // Relist goes on
		synctest.Wait()
		want(t, "at once", read(events), "pod-00001 Died pod-00001-a")
		heal()
	})
}

// Relist does not wait for a pod that is set aside, nor for one that is gone, even
// if it began before that was known; it does wait for one that has come back.
func TestRelistWaitsForNobodyInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(3)...)
		n.start()
		events := n.g.Watch()
		heal := n.HangDeaf(plegtest.GetPodStatus, "pod-00000")
		n.ExitContainer("pod-00000", "pod-00000-a", 1, "")
		n.g.RequestRelist("pod-00000")
		time.Sleep(1500 * time.Millisecond)
		if !atOnce(n.g.Relist) {
			t.Error("Relist waits for a pod that is set aside")
		}
		heal()
		read(events)

		heal = n.HangDeaf(plegtest.GetPodStatus, "pod-00001")
		n.ExitContainer("pod-00001", "pod-00001-a", 1, "")
		done := make(chan struct{})
		go func() { defer close(done); n.g.Relist() }()
		synctest.Wait()
		n.RemovePod("pod-00001")
		n.g.RequestRelist("pod-00001")
		synctest.Wait()
		select {
		case <-done:
		default:
			t.Error("Relist goes on waiting for a pod that is gone")
		}
		if !atOnce(n.g.Relist) {
			t.Error("Relist waits for a pod that is gone")
		}
		n.SetPod(bare("pod-00001", plegtest.Running("again")))
		time.AfterFunc(300*time.Millisecond, heal)
		n.g.Relist()
		if s, err := n.cache.Get("pod-00001"); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("Relist did not wait for the pod that came back: %v %v", s, err)
		}
		<-done
	})
}

// A pod that is gone is no trouble, however long its last inspection hangs; and
// one that heeds its context is let go.
func TestInspectionOfGonePodIsNoTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(2)...)
		events := n.g.Watch()
		heal := n.HangDeaf(plegtest.GetPodStatus, "pod-00000")
		defer n.Hang(plegtest.GetPodStatus, "pod-00001")()
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
			t.Errorf("troubled: %v", got)
		}
		heal()
		synctest.Wait()
		want(t, "events", read(events))
	})
}

// A pod that has come back while its former inspection hangs: how long, which
// listing showed it, and that the clock of the next inspection begins anew.
func TestPodComesBackWithItsOwnTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		heal := n.HangDeaf(plegtest.GetPodStatus, "a")
		n.start()
		began := time.Now()
		time.Sleep(1500 * time.Millisecond)
		n.SetPods()
		time.Sleep(time.Second)
		n.SetPods(bare("a", plegtest.Running("a2")))
		time.Sleep(time.Second)
		if got := n.g.HealthReport().FailingPods; len(got) != 1 || !got[0].HangingSince.Equal(began) {
			t.Errorf("troubled: %v", got)
		}
		time.Sleep(pleg.DefaultInspectionTimeout)
		if e := <-events; line(e) != "a Started a2" || !e.ListedAt.Equal(began.Add(3*time.Second)) {
			t.Errorf("%s, listed at %v", line(e), e.ListedAt.Sub(began))
		}
		again := time.Now()
		healAgain := n.HangDeaf(plegtest.GetPodStatus, "a")
		heal()
		time.Sleep(70 * time.Second) // longer than any back-off
		if got := n.g.HealthReport().FailingPods; len(got) != 1 || got[0].HangingSince.Before(again) {
			t.Errorf("troubled: %v", got)
		}
		healAgain()
		time.Sleep(time.Second)
		if s, err := n.cache.Get("a"); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("the cache has %v %v", s, err)
		}
	})
}

// Rule 12: when a call past its deadline comes back, what it brings is older than
// what has been told since: the pod is inspected again.
func TestRule12LateAnswerIsOutrun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return late{rt.Plain(), nil, answer} })
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		time.Sleep(3*time.Minute + 500*time.Millisecond)
		read(events)
		n.g.RequestReinspect("a")
		n.ExitContainer("a", "a1", 7, "Error")
		time.Sleep(2 * time.Second)
		want(t, "past the deadline", read(events), "a Died a1", "a PodSync")
		close(answer)
		time.Sleep(2 * time.Minute)
		if s, err := n.cache.Get("a"); err != nil || len(s.ContainerStatuses) != 1 || s.ContainerStatuses[0].ExitCode != 7 {
			t.Errorf("the cache has %v %v", s, err)
		}
		want(t, "the recovery", read(events), "a PodSync")
		healthy(t, n.g)
		if got := n.g.HealthReport().FailingPods; len(got) != 0 {
			t.Errorf("troubled: %v", got)
		}
	})
}

// A pod that was set aside while it had a turn in the next batch is told of when
// it comes back.
func TestHungPodIsToldOfAfterItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.g.Relist()
		events := n.g.Watch()
		read(events)
		heal := n.HangDeaf(plegtest.GetPodStatus, "a")
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

// Rule 2: what stands before others in its relist and is set aside, or is gone,
// lets them go at once.
func TestRule2WhatIsGivenUpHoldsBackNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")), bare("c", plegtest.Running("c1")))
		n.Delay(plegtest.GetPodStatus, "a", 970*time.Millisecond)
		heal := n.HangDeaf(plegtest.GetPodStatus, "b")
		n.Delay(plegtest.GetPodStatus, "c", 975*time.Millisecond)
		events := n.g.Watch()
		n.g.Relist()
		want(t, "when b is set aside", read(events), "a Started a1", "c Started c1")
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
		want(t, "when a is gone", read(events), "b Died b1", "a Died a1", "a Removed a1")
	})
}

// A full list past its deadline that brings an answer after all is taken in, and
// those who had waited for it are not told twice.
func TestExpiredListComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return late{rt.Plain(), answer, nil} })
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.g.Relist() // until the deadline
		n.start()
		time.Sleep(time.Second)
		close(answer)
		synctest.Wait()
		want(t, "events", read(events), "a Started a1")
		n.g.Relist()
		healthy(t, n.g)
	})
}

// Rule 13: the moment at which a list failed is that of its deadline, whatever
// else happens while it hangs.
func TestRule13FailureHasItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		defer n.HangDeaf(plegtest.GetPods, plegtest.AnyPod)()
		n.start()
		time.Sleep(2*time.Minute + 30*time.Second)
		n.g.RequestRelist("a")
		time.Sleep(30 * time.Second)
		unhealthy(t, n.g, "pleg has yet to be successful: GetPods has been running for 3m0s", "the last list failed 1m0s ago")
	})
}

// A pod that is gone takes what was wanted of it along.
func TestGonePodIsNotInspectedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.start()
		heal := n.HangDeaf(plegtest.GetPodStatus, "a")
		n.ExitContainer("a", "a1", 1, "")
		time.Sleep(2500 * time.Millisecond)
		if got := n.g.HealthReport().FailingPods; len(got) != 1 {
			t.Errorf("troubled: %v", got)
		}
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		synctest.Wait()
		n.RemovePod("a")
		n.g.RequestRelist("a")
		synctest.Wait()
		if got := n.g.HealthReport().FailingPods; len(got) != 0 {
			t.Errorf("troubled: %v", got)
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

// The same as TestStopBetweenTwoBatches, with a pod that is gone.
func TestPodIsGoneBetweenTwoBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(2)...)
		n.g.Relist()
		events := n.g.Watch()
		read(events)
		heal := n.HangDeaf(plegtest.GetPodStatus, "pod-00000")
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

// Rule 12: a change that comes while a call hangs is told of at that call's deadline,
// as that is which the call was made for.
func TestRule12ChangeBeforeTheDeadlineIsToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		defer n.HangDeaf(plegtest.GetPodStatus, "a")()
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		time.Sleep(10 * time.Second) // the inspection for a2 is set aside
		n.SetContainer("a", "a3", pleg.ContainerStateRunning)
		time.Sleep(10 * time.Minute)
		want(t, "past the deadline", read(events), "a Started a2", "a Started a3")
		done := make(chan struct{})
		minTime := time.Now()
		go func() { _, _ = n.cache.GetNewerThan("a", minTime); close(done) }()
		time.Sleep(10 * time.Minute)
		select {
		case <-done:
		default:
			t.Error("a reader is still blocked after ten minutes")
			n.RemovePod("a")
			<-done
		}
	})
}
