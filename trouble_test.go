package pleg_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 12: an inspection that is past its deadline has failed, and the events are
// delivered, also if the pod was suspended at the deadline.
func TestRule12DeadlineDuringSuspension(t *testing.T) {
	for event, inspect := range map[string]func(*node){
		"a Died a1": func(n *node) {
			n.SetPods(bare("a", plegtest.Exited("a1")))
			n.g.RequestRelist("a")
		},
		"a PodSync": func(n *node) { n.g.RequestReinspect("a") },
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, pleg.WithInspectionTimeout(10*time.Second))
			defer n.Heal()
			n.SetPods(bare("a", plegtest.Running("a1")))
			events := n.g.Watch()
			n.start()
			synctest.Wait()
			read(events)
			n.HangIgnoringCancel(plegtest.GetPodStatus, "a")
			inspect(n)
			synctest.Wait()
			time.Sleep(5 * time.Second)
			resume := n.g.Suspend("a")
			time.Sleep(7 * time.Second)
			resume()
			asked := time.Now()
			synctest.Wait()
			if got := n.g.HealthReport().FailingPods; len(got) != 1 || got[0].Error == "" {
				t.Errorf("the report has %v", got)
			}
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			want(t, "events", read(events), event)
			if _, err := n.cache.Get("a"); err == nil {
				t.Error("no error in the cache")
			}
			if !fresh(n.cache, "a", asked) {
				t.Error("readers wait")
			}
		})
	}
}

// Lookup: known and a nil status for a pod that is listed and not inspected yet, also if
// it was suspended before it was created.
func TestLookupOfPodCreatedWhileSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		defer n.Heal()
		n.start()
		resume := n.g.Suspend("a")
		n.Hang(plegtest.GetPodStatus, "a")
		n.SetPods(bare("a", plegtest.Running("a1")))
		resume()
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if n.g.Pods().FindPodByID("a") == nil {
			t.Fatal("not listed")
		}
		if status, known, err := n.cache.Lookup("a"); !known || status != nil || err != nil {
			t.Errorf("Lookup of a listed pod: %v %v %v", status, known, err)
		}
	})
}

type nestedPanic struct{}

func (nestedPanic) String() string { panic(nestedPanic{}) }

// Rule 14: a filter that panics has said no, whatever it panics with, in Subscribe and in the
// loop.
func TestRule14FilterPanicsWithAnything(t *testing.T) {
	for _, listed := range []bool{true, false} {
		t.Run(fmt.Sprintf("listed=%v", listed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, reg := newNodeWithMetrics(t)
				if listed {
					n.SetPods(bare("a", plegtest.Running("a1")))
				}
				n.start()
				events := n.g.Subscribe(t.Context(), 10, pleg.WithFilter(func(*pleg.Pod) bool { panic(nestedPanic{}) }))
				n.SetPods(bare("a", plegtest.Exited("a1")))
				n.g.Relist()
				want(t, "events", read(events))
				wantMetric(t, reg, "pleg_bad_data_total", 1, "reason", "filter_panic")
			})
		})
	}
}

// A pod without a UID is never asked for.
func TestSuspendNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		n.ResetCalls()
		n.g.Suspend("")()
		synctest.Wait()
		if got := n.Calls(plegtest.GetPod); got != 0 {
			t.Errorf("%d lists of the pod without UID", got)
		}
		n.ResetCalls()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, _ = n.cache.GetNewerThanContext(ctx, "", time.Now())
		if got := n.Calls(plegtest.GetPod); got != 0 {
			t.Errorf("%d lists of the pod without UID, for a reader", got)
		}
	})
}

// Suspensions while the generator does not run leave nothing behind.
func TestSuspensionsWhileStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.g.Relist()
		before := heapInUse()
		for range 200000 {
			n.g.Suspend("a")()
		}
		if grown := heapInUse() - before; grown > 1<<20 {
			t.Errorf("%d bytes are held", grown)
		}
		n.g.Relist()
		runtime.KeepAlive(n)
	})
}

// The same beside one that lasts.
func TestSuspensionsBesideOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		n.g.Suspend("b")
		before := heapInUse()
		for range 1000 {
			for range 100 {
				n.g.Suspend("a")()
			}
			synctest.Wait()
		}
		if grown := heapInUse() - before; grown > 1<<20 {
			t.Errorf("%d bytes are held", grown)
		}
		runtime.KeepAlive(n)
	})
}

// tornRuntime is a runtime whose inspections read and return when the test says.
type tornRuntime struct {
	*plegtest.Runtime
	torn            bool
	read, returning chan struct{}
}

func (r *tornRuntime) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	if !r.torn {
		return r.Runtime.GetPodStatus(ctx, pod)
	}
	r.torn = false
	<-r.read
	status, err := r.Runtime.GetPodStatus(ctx, pod)
	<-r.returning
	return status, err
}

// Rule 20: what an inspection saw in the middle of a suspension is not stored when that is
// over: the pod is listed by a list that begins then, and everything goes on from there.
func TestRule20InspectionThatOutlastsTheSuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &tornRuntime{read: make(chan struct{}), returning: make(chan struct{})}
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime { r.Runtime = rt; return r })
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		r.torn = true
		n.g.RequestReinspect("a")
		synctest.Wait()
		resume := n.g.Suspend("a")
		n.ExitContainer("a", "a1", 1, "Error")
		close(r.read)
		synctest.Wait()
		n.SetPods(bare("a", plegtest.Running("a2")))
		heal := n.Delay(plegtest.GetPod, "a", 100*time.Millisecond)
		defer heal()
		resume()
		synctest.Wait()
		close(r.returning)
		synctest.Wait()
		if s, _ := n.cache.Get("a"); s.ContainerStatuses[0].State == pleg.ContainerStateExited {
			t.Errorf("the cache has what the pod was while it was suspended")
		}
		want(t, "events before the pod is listed", read(events))
		time.Sleep(time.Second)
		want(t, "events", read(events), "a Died a1", "a Removed a1", "a Started a2", "a PodSync")
	})
}

// Rule 13: pods whose inspection does not hang do not make a node unhealthy. Suspended ones
// are not inspected.
func TestRule13SuspendedPodsDoNotHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.start()
		n.Hang(plegtest.GetPodStatus, plegtest.AnyPod)
		n.SetPods(bare("a", plegtest.Exited("a1")), bare("b", plegtest.Exited("b1")))
		n.g.Relist()
		time.Sleep(100 * time.Second)
		n.g.Suspend("a")
		n.g.Suspend("b")
		time.Sleep(100*time.Second + 500*time.Millisecond)
		synctest.Wait()
		n.Heal()
		if calls := n.g.HealthReport().CallsInFlight; len(calls) > 0 {
			t.Fatal(calls)
		}
		healthy(t, n.g)
	})
}

// WaitForSync says what is awaited, also when Stop came before the pods were inspected.
func TestWaitForSyncAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.Delay(plegtest.GetPodStatus, "a", 500*time.Millisecond)
		n.g.Start()
		synctest.Wait()
		n.g.Stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n.g.WaitForSync(ctx); err == nil || !strings.Contains(err.Error(), "inspect") {
			t.Errorf("the pod awaits its inspection, and the error is %v", err)
		}
	})
}

// Rule 4: a death has the last status that was seen of the container, also if that was seen
// before its start was published, by an inspection that was made for an older list.
func TestRule4StatusSeenBySupersededInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a"))
		events := n.g.Watch()
		n.start()
		once := plegtest.Fault{Method: plegtest.GetPodStatus, PodUID: "a", Times: 1, Hang: true}
		first := n.Inject(once)
		n.g.RequestReinspect("a")
		synctest.Wait()
		n.SetContainer("a", "a1", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		synctest.Wait()
		second := n.Inject(once)
		first()
		synctest.Wait()
		if s, _ := n.cache.Get("a"); len(s.ContainerStatuses) != 1 {
			t.Fatal("the cache has not seen a1")
		}
		n.RemoveContainer("a", "a1")
		n.g.RequestRelist("a")
		synctest.Wait()
		second()
		synctest.Wait()
		for len(events) > 0 {
			if e := <-events; e.Type != pleg.PodSync && e.Status == nil {
				t.Errorf("%s has no status, and the cache had one", line(e))
			}
		}
	})
}
