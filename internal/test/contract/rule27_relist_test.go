package contract_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// If Stop cancels the list of a Relist, Relist makes another list and completes.
func TestRelistGoesOnWhenItsListIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		heal := n.Block(plegtest.GetPods, plegtest.AnyPod)
		n.g.Start(t.Context())
		synctest.Wait()
		heal()
		n.g.Stop()
		heal = n.Block(plegtest.GetPods, plegtest.AnyPod)
		done := make(chan struct{})
		go func() { defer close(done); n.relist() }()
		synctest.Wait()
		heal() // the call in flight stays stuck
		n.g.Stop()
		<-done
		if got := len(n.cache.GetAll()); got != 1 {
			t.Errorf("%d pods in the cache", got)
		}
	})
}

// Relist returns even if PodSyncs are requested all the time, because it waits for at most one
// inspection of each pod.
func TestRelistEndsBesideEndlessReinspections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.start()
		synctest.Wait()
		n.Delay(plegtest.GetPodStatus, plegtest.AnyPod, 100*time.Millisecond)
		done := make(chan struct{})
		go func() { defer close(done); n.relist() }()
		for range 500 { // an inspection is always in flight, and another is requested
			n.g.RequestReinspect("a")
			n.g.RequestReinspect("b")
			select {
			case <-done:
				n.g.Stop()
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
		t.Error("Relist has not returned within 5 s")
		n.g.Stop()
		<-done
	})
}

// Many calls of Relist run at once, across Start and Stop.
func TestRelistAllAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(10)...)
		n.Delay(plegtest.GetPods, plegtest.AnyPod, 5*time.Millisecond)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() { n.relist() })
			if i == 20 {
				n.g.Start(t.Context())
			}
			if i == 40 {
				wg.Go(n.g.Stop)
			}
		}
		wg.Wait()
		n.g.Stop()
		if got := len(n.cache.GetAll()); got != 10 {
			t.Errorf("%d pods in the cache", got)
		}
	})
}

// If Stop interrupts a Relist, the Relist continues and completes.
func TestRelistAcrossStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		heal := n.Delay(plegtest.GetPodStatus, "a", 100*time.Millisecond)
		done := make(chan struct{})
		events := n.g.Watch()
		go func() {
			defer close(done)
			n.relist()
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

// Start makes a list at once, even right after another list. A Relist after Stop makes only one
// list, even if its inspections take longer than a period.
func TestRelistBesideThePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling, pleg.WithInspectionWorkers(1))
		n.SetPods(pods(5)...)
		n.relist()
		time.Sleep(300 * time.Millisecond)
		n.g.Start(t.Context())
		synctest.Wait()
		if got := n.Calls(plegtest.GetPods); got != 2 {
			t.Errorf("%d lists: Start did not make one", got)
		}
		n.g.Stop()
		time.Sleep(time.Minute)
		n.Delay(plegtest.GetPodStatus, plegtest.AnyPod, 900*time.Millisecond)
		for i := range 5 {
			n.g.RequestReinspect(types.UID(fmt.Sprintf("pod-%05d", i)))
		}
		n.relist()
		if got := n.Calls(plegtest.GetPods); got != 3 {
			t.Errorf("%d lists: Relist made more than one", got)
		}
	})
}

// Relist waits until the state in its list is inspected. An earlier inspection in flight is not
// enough. Relist does not wait for inspections that are requested later.
func TestRelistWaitsForTheRightInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Stale: true, Delay: 100 * time.Millisecond})
		n.start()
		time.Sleep(50 * time.Millisecond)
		n.ExitContainer("a", "a1", 5, "Error")
		n.relist()
		if s, err := n.cache.Get("a"); err != nil || s.ContainerStatuses[0].ExitCode != 5 {
			t.Errorf("Relist returned; the cache has %v %v", s, err)
		}
	})
}

// Calls of Relist whose context has ended leave nothing in memory, even if the generator is
// stopped.
func TestRelistThatHasEndedIsNotKept(t *testing.T) {
	n := newNode(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	relist := func(times int) {
		for range times {
			if err := n.g.Relist(ended); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
	}
	relist(10)
	before := heapInUse()
	relist(100_000)
	if grown := heapInUse() - before; grown > 1<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	if got := n.Calls(plegtest.GetPods); got > 0 {
		t.Errorf("%d lists", got)
	}
}

// Relist returns the error of the list. If the context of Relist ends, it returns the cause.
func TestRelistSaysWhetherItSucceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(1)...)
		if err := n.g.Relist(t.Context()); err != nil {
			t.Error(err)
		}
		broken := errors.New("broken")
		heal := n.Fail(plegtest.GetPods, plegtest.AnyPod, broken)
		if err := n.g.Relist(t.Context()); !errors.Is(err, broken) {
			t.Errorf("a list that fails: %v", err)
		}
		heal()
		heal = n.Block(plegtest.GetPods, plegtest.AnyPod)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n.g.Relist(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a list that hangs: %v", err)
		}
		if err := n.g.Relist(t.Context()); err == nil {
			t.Error("no error, although the list has passed its deadline")
		}
		heal()
		synctest.Wait() // the list has returned
		if err := n.g.Relist(t.Context()); err != nil {
			t.Error(err)
		}
		n.g.Stop()
	})
}

// Relist waits for a stuck inspection only until it is slow. If a pod was observed and changes
// again, Relist does not wait for its next inspection.
func TestRelistWaitsForNoObservedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.start()
		time.Sleep(100 * time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		n.ExitContainer("b", "b1", 1, "Error")
		n.Block(plegtest.GetPodStatus, "a")
		n.Delay(plegtest.GetPodStatus, "b", 700*time.Millisecond)
		began := time.Now()
		done := make(chan struct{})
		go func() { defer close(done); n.relist() }()
		time.Sleep(850 * time.Millisecond)
		n.SetContainer("b", "b2", pleg.ContainerStateRunning)
		n.g.RequestRelist("b")
		<-done
		if took := time.Since(began); took > 1100*time.Millisecond {
			t.Errorf("Relist has returned after %v", took)
		}
		n.g.Stop()
	})
}
