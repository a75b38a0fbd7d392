package pleg_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 20: while a pod is suspended nothing of it is stored or delivered, whatever lists,
// hints and requests there are; other pods go on. When it is resumed it is listed once,
// and the outcome is delivered.
func TestRule20Suspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		events := n.g.Watch()
		n.start()
		synctest.Wait()
		read(events)
		resume := n.g.Suspend("a")
		n.SetPods(bare("a", plegtest.Exited("a1"), plegtest.Running("a2")), bare("b", plegtest.Exited("b1")))
		n.g.RequestRelist("a")
		n.g.RequestReinspect("a")
		n.g.Relist()
		time.Sleep(5 * time.Second)
		want(t, "events while it is suspended", read(events), "b Died b1")
		s, _ := n.cache.Get("a")
		if len(s.ContainerStatuses) != 1 || s.ContainerStatuses[0].State != pleg.ContainerStateRunning {
			t.Errorf("the cache has %v", s)
		}
		n.ResetCalls()
		resume()
		synctest.Wait()
		want(t, "events when it is resumed", read(events), "a Died a1", "a Started a2", "a PodSync")
		if got := n.Calls(plegtest.GetPod); got != 1 {
			t.Errorf("%d lists of the pod", got)
		}
	})
}

// Rule 20: a reader that wants something newer waits until the pod has been listed after
// it was resumed; also of a pod that did not exist.
func TestRule20ReadersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		resume := n.g.Suspend("a")
		asked := time.Now()
		got := make(chan *pleg.PodStatus, 1)
		go func() {
			s, _ := n.cache.GetNewerThan("a", asked)
			got <- s
		}()
		time.Sleep(5500 * time.Millisecond)
		if len(got) > 0 {
			t.Fatalf("a reader got %v of a suspended pod", <-got)
		}
		if _, known, _ := n.cache.Lookup("a"); known {
			t.Error("a pod is known because it is suspended")
		}
		n.SetPods(bare("a", plegtest.Running("a1")))
		resume()
		if s := <-got; len(s.ContainerStatuses) != 1 {
			t.Errorf("the reader got %v", s)
		}
	})
}

// Rule 20: suspensions nest, and a resume function counts once.
func TestRule20SuspensionsNest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		synctest.Wait()
		read(events)
		first, second := n.g.Suspend("a"), n.g.Suspend("a")
		n.SetPods()
		first()
		first()
		time.Sleep(2 * time.Second)
		want(t, "events after one of two resumptions", read(events))
		second()
		synctest.Wait()
		want(t, "events after both", read(events), "a Died a1", "a Removed a1")
	})
}

// Rule 20: a suspension survives Stop and Start. One that was resumed after Stop is over
// at the next Start.
func TestRule20SuspendedAcrossStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		events := n.g.Watch()
		n.start()
		synctest.Wait()
		read(events)
		n.g.Suspend("a")
		resume := n.g.Suspend("b")
		n.g.Stop()
		n.SetPods()
		resume()
		n.g.Start()
		time.Sleep(2 * time.Second)
		want(t, "events after another Start", read(events), "b Died b1", "b Removed b1")
	})
}

// Rule 20: a suspension that is not resumed lapses after the inspection timeout, and that
// is logged. Its resume function does nothing then, also to a later suspension.
func TestRule20SuspensionLapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		lapsed := 0
		log := funcr.New(func(_, args string) {
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(args, "not resumed in time") && strings.Contains(args, `"podUID"="a"`) {
				lapsed++
			}
		}, funcr.Options{})
		n := newNode(t, pleg.WithInspectionTimeout(10*time.Second), pleg.WithLogger(log))
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		synctest.Wait()
		read(events)
		began := time.Now()
		late := n.g.Suspend("a")
		n.SetPods(bare("a", plegtest.Exited("a1")))
		<-events
		if got := time.Since(began); got != 10*time.Second {
			t.Errorf("the suspension lapsed after %v", got)
		}
		n.g.Suspend("a")
		late()
		n.SetPods()
		time.Sleep(9 * time.Second)
		want(t, "events of the second suspension", read(events))
		time.Sleep(time.Second)
		synctest.Wait()
		want(t, "events after it has lapsed too", read(events), "a Removed a1")
		mu.Lock()
		defer mu.Unlock()
		if lapsed != 2 {
			t.Errorf("%d suspensions were logged as lapsed", lapsed)
		}
	})
}

// Rule 20: nothing of the pod is delivered after Suspend has returned, however the call
// falls among steps of the loop.
func TestRule20HoldsWhenSuspendReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		events := n.g.Watch()
		for i := range 50 {
			n.SetPods(bare("a", plegtest.Running("a1")))
			n.g.RequestRelist("a")
			time.Sleep(time.Duration(i) * 100 * time.Microsecond)
			resume := n.g.Suspend("a")
			read(events)
			n.SetPods()
			n.g.RequestRelist("a")
			n.g.Relist()
			synctest.Wait()
			want(t, "events of a suspended pod", read(events))
			resume()
			synctest.Wait()
			read(events)
		}
	})
}

// A million suspensions that are resumed leave nothing behind.
func TestSuspensionsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		for range 1000 {
			for range 100 {
				n.g.Suspend("a")()
			}
			synctest.Wait()
		}
		n.g.Relist()
		if got := n.g.HealthReport().Pods; got != 0 {
			t.Errorf("%d pods", got)
		}
	})
}
