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
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 3: whoever receives an event finds its cause, or something newer, in the cache.
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

// Rule 3 for inspections that fail: the error is there before the event.
func TestRule3EventComesAfterItsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPods(pods(10)...)
		rt.Fail(plegtest.GetPodStatus, plegtest.AnyPod, errors.New("broken"))
		cache := pleg.NewCache()
		g := pleg.NewGenericPLEG(rt, 0, 0, cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		events := g.Subscribe(t.Context(), pleg.WithCapacity(-1))
		g.Start(t.Context())
		defer g.Stop()
		for range 20 {
			e := <-events
			if _, err := cache.Get(e.ID); err == nil {
				t.Errorf("%s: no error in the cache", line(e))
			}
		}
	})
}

// Rule 3: an inspection that the next change has superseded still brings its status
// before its events.
func TestRule3SupersededStatusIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(500 * time.Millisecond)
		n.Delay(plegtest.GetPodStatus, "a", 100*time.Millisecond)
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		time.Sleep(50 * time.Millisecond)
		n.SetContainer("a", "a3", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		for _, id := range []string{"a2", "a3"} {
			e := <-events
			status, err := n.cache.Get("a")
			if line(e) != "a Started "+id || err != nil || status.TimeStamp.Before(e.ListedAt) {
				t.Errorf("%s, listed at %v, with a status of %v and %v", line(e), e.ListedAt, status.TimeStamp, err)
			}
		}
	})
}

// Rules 3 and 6: where the clock stands still, so that two lists have the same time, a
// superseded status is stored and announced as at any other time, and makes the pod no
// fresher than its list.
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
		heal := rt.Hang(plegtest.GetPodStatus, "a") // the inspection after this one
		go func() { _ = g.Relist(t.Context()) }()
		synctest.Wait()
		minTime := clk.Now()
		clk.Step(500 * time.Millisecond)
		go func() { _ = g.Relist(t.Context()) }() // which finds no change
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

// A reinspection that a change has superseded at one instant of the clock has its
// PodSync with the inspection that follows.
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

// Rule 5: a status carries the stamp of the newest list that its inspection is for.
func TestRule5StatusCarriesTheNewestStamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		began := time.Now()
		stamp := func() time.Duration {
			n.g.RequestReinspect("a")
			synctest.Wait()
			s, _ := n.cache.Get("a")
			return s.TimeStamp.Sub(began)
		}
		time.Sleep(5500 * time.Millisecond)
		if got := stamp(); got != 5*time.Second {
			t.Errorf("the stamp is %v", got)
		}
		// A list that is under way does not count yet.
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Delay: 100 * time.Millisecond, Times: 1})
		time.Sleep(550 * time.Millisecond)
		if got := stamp(); got != 5*time.Second {
			t.Errorf("the stamp is %v", got)
		}
		time.Sleep(100 * time.Millisecond)
		// The same object, and another one with the same content.
		for _, pod := range []*pleg.Pod{n.Pod("a"), bare("a", plegtest.Running("a1"))} {
			time.Sleep(100 * time.Millisecond)
			n.SetPod(pod)
			n.g.RequestRelist("a")
			synctest.Wait()
			if got, want := stamp(), time.Since(began); got != want {
				t.Errorf("the stamp is %v at %v", got, want)
			}
		}
	})
}

// Rule 7: an inspection is as fresh as the newest list that has found no change since,
// even a single-pod list that completed before it.
func TestRule7InspectionIsAsFreshAsTheLastList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(500 * time.Millisecond)
		n.Delay(plegtest.GetPodStatus, "a", 300*time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		time.Sleep(600 * time.Millisecond) // the list of 1 s has shown it
		began := time.Now()
		s, err := n.cache.GetNewerThan("a", began.Add(-1))
		if err != nil || s.ContainerStatuses[0].ExitCode != 1 || time.Since(began) != 200*time.Millisecond {
			t.Errorf("%v %v after %v", s, err, time.Since(began))
		}
	})
}

// Rule 7: the inspection for a former list makes nothing fresh that a later list showed
// changed.
func TestRule7FormerInspectionMakesNothingFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(200 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Stale: true, Delay: 100 * time.Millisecond})
		n.ExitContainer("a", "a1", 1, "")
		n.g.RequestRelist("a")
		time.Sleep(50 * time.Millisecond)
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		minTime := time.Now()
		s, err := n.cache.GetNewerThan("a", minTime)
		if err != nil || len(s.ContainerStatuses) != 2 {
			t.Errorf("got %v %v after %v", s, err, time.Since(minTime))
		}
	})
}

// Rule 7: two lists at one instant of a clock that stands still are two.
func TestRule7ListsAtOneInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(999 * time.Millisecond)
		heal1 := n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Times: 1, Stale: true, Hang: true})
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		synctest.Wait() // list 1 shows a2; its inspection hangs
		heal2 := n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Hang: true})
		n.SetContainer("a", "a3", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		synctest.Wait() // list 2, at the same instant, shows a3
		at := time.Now()
		heal1() // inspection 1 completes, without a3
		synctest.Wait()
		time.Sleep(500 * time.Millisecond) // a full relist that shows no change
		done := make(chan int, 1)
		go func() {
			s, _ := n.cache.GetNewerThan("a", at)
			done <- len(s.ContainerStatuses)
		}()
		synctest.Wait()
		select {
		case got := <-done:
			t.Errorf("%d containers, observed after a list had shown three", got)
			heal2()
		default:
			heal2()
			<-done
		}
	})
}

// Rule 11: the addresses of a pod whose network is torn down stay; those of a new
// sandbox are its own.
func TestRule11LastIPsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		sandbox := func(state runtimeapi.PodSandboxState) *runtimeapi.PodSandboxStatus {
			return &runtimeapi.PodSandboxStatus{Id: "s", State: state}
		}
		ready, down := sandbox(runtimeapi.PodSandboxState_SANDBOX_READY), sandbox(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
		for i, step := range []struct {
			ips       []string
			sandboxes []*runtimeapi.PodSandboxStatus
			want      []string
		}{
			{nil, []*runtimeapi.PodSandboxStatus{ready}, nil},
			{[]string{"10.0.0.1", "fd00::1"}, []*runtimeapi.PodSandboxStatus{ready}, []string{"10.0.0.1", "fd00::1"}},
			{nil, []*runtimeapi.PodSandboxStatus{down}, []string{"10.0.0.1", "fd00::1"}},
			{nil, nil, []string{"10.0.0.1", "fd00::1"}},
			{nil, []*runtimeapi.PodSandboxStatus{ready, down}, nil},
			{[]string{"10.0.0.2"}, []*runtimeapi.PodSandboxStatus{ready, down}, []string{"10.0.0.2"}},
			{nil, []*runtimeapi.PodSandboxStatus{down, down}, []string{"10.0.0.2"}},
			{[]string{"10.0.0.3"}, []*runtimeapi.PodSandboxStatus{down}, []string{"10.0.0.3"}},
		} {
			given := &pleg.PodStatus{ID: "a", IPs: step.ips, SandboxStatuses: step.sandboxes}
			n.SetStatus("a", given)
			n.g.RequestReinspect("a")
			n.relist()
			if s, err := n.cache.Get("a"); err != nil || !slices.Equal(s.IPs, step.want) {
				t.Errorf("step %d: %v %v, not %v", i, s.IPs, err, step.want)
			}
			if !slices.Equal(given.IPs, step.ips) || !given.TimeStamp.IsZero() {
				t.Errorf("step %d: the status that was handed over was modified", i)
			}
		}
	})
}

// Rule 12: there are never more inspections at once than worker slots, nor more than
// one of a pod, except slow ones.
func TestRule12Bounds(t *testing.T) {
	for _, workers := range []int{1, 3, 8} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, pleg.WithInspectionWorkers(workers))
			n.SetPods(pods(60)...)
			n.Delay(plegtest.GetPodStatus, plegtest.AnyPod, 100*time.Millisecond)
			n.start()
			for i := range 100 {
				uid := types.UID(fmt.Sprintf("pod-%05d", i%7))
				n.SetPod(bare(uid, plegtest.Running(fmt.Sprint(i))))
				n.g.RequestRelist(uid)
				n.g.RequestReinspect(uid)
				time.Sleep(30 * time.Millisecond)
			}
			time.Sleep(time.Minute)
			if got := n.MaxInFlight(plegtest.GetPodStatus); got != workers {
				t.Errorf("%d inspections at once, %d workers", got, workers)
			}
			for i := range 60 {
				uid := types.UID(fmt.Sprintf("pod-%05d", i))
				if got := n.MaxPodInFlight(plegtest.GetPodStatus, uid); got != 1 {
					t.Errorf("%d inspections of %s at once", got, uid)
				}
			}
		})
	}
}

// Rule 12: on a runtime that hangs, no more than 64 inspections are slow beside those that
// hold the workers; neither Relist nor the other pods' sync waits for the rest, and all pods are
// inspected when the runtime answers again.
func TestRule12SlowInspectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(pods(200)...)
		heal := n.HangIgnoringCancel(plegtest.GetPodStatus, plegtest.AnyPod)
		n.start()
		time.Sleep(100 * time.Second)
		if got := n.MaxInFlight(plegtest.GetPodStatus); got != 64+pleg.DefaultInspectionWorkers {
			t.Errorf("%d inspections at once", got)
		}
		if !n.g.HasSynced() {
			t.Error("it has not synced")
		}
		began := time.Now()
		n.relist()
		if took := time.Since(began); took > 2*pleg.DefaultRelistPeriod {
			t.Errorf("Relist took %v", took)
		}
		heal()
		time.Sleep(time.Second)
		if got := len(n.cache.GetAll()); got != 200 {
			t.Errorf("%d pods are inspected", got)
		}
		if got := n.g.HealthReport().FailingPods; len(got) != 0 {
			t.Errorf("failing: %v", got)
		}
		if got := n.MaxInFlight(plegtest.GetPodStatus); got != 64+pleg.DefaultInspectionWorkers {
			t.Errorf("%d inspections at once", got)
		}
	})
}

// Rule 12: a worker slot is released once, though a slow inspection also returns.
func TestRule12WorkerSlotIsReleasedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling, pleg.WithInspectionWorkers(2))
		n.SetPods(pods(10)...)
		n.start()
		heal := n.Hang(plegtest.GetPodStatus, plegtest.AnyPod)
		for i := range 3 {
			n.g.RequestReinspect(types.UID(fmt.Sprintf("pod-%05d", i)))
		}
		time.Sleep(5 * time.Second)
		heal()
		time.Sleep(time.Second)
		n.ResetCalls()
		n.Delay(plegtest.GetPodStatus, plegtest.AnyPod, 100*time.Millisecond)
		for i := range 10 {
			n.g.RequestReinspect(types.UID(fmt.Sprintf("pod-%05d", i)))
		}
		time.Sleep(time.Second)
		if got := n.MaxInFlight(plegtest.GetPodStatus); got != 2 {
			t.Errorf("%d inspections at once", got)
		}
	})
}
