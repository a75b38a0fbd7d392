package pleg_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 4: what the first full list shows is Initial, also of a pod that was suspended then.
func TestHostileRule4InitialOfPodSuspendedAtFirstList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		resume := n.g.Suspend("a")
		n.start()
		resume()
		synctest.Wait()
		select {
		case e := <-events:
			if !e.Initial {
				t.Errorf("%s is news, but the first full list showed it", line(e))
			}
		default:
			t.Error("no event")
		}
	})
}

// Rule 12: an inspection that is past its deadline has failed, and the events are
// delivered, also if the pod was suspended at the deadline.
func TestHostileRule12DeadlineDuringSuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, pleg.WithInspectionTimeout(10*time.Second))
		defer n.Heal()
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		synctest.Wait()
		read(events)
		n.HangIgnoringCancel(plegtest.GetPodStatus, "a")
		n.SetPods(bare("a", plegtest.Exited("a1")))
		n.g.RequestRelist("a")
		synctest.Wait()
		time.Sleep(5 * time.Second)
		resume := n.g.Suspend("a")
		time.Sleep(7 * time.Second)
		resume()
		asked := time.Now()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		want(t, "events", read(events), "a Died a1")
		if _, err := n.cache.Get("a"); err == nil {
			t.Error("no error in the cache")
		}
		if !fresh(n.cache, "a", asked) {
			t.Error("readers wait")
		}
	})
}

// Lookup: known and a nil status for a pod that is listed and not inspected yet, also if
// it was suspended before it was created.
func TestHostileLookupOfPodCreatedWhileSuspended(t *testing.T) {
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

// Rule 2: events of one full list are delivered by UID, whoever suspends another pod.
func TestHostileRule2OrderBesideSuspend(t *testing.T) {
	for _, suspend := range []bool{false, true} {
		t.Run(fmt.Sprint(suspend), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				events := n.g.Watch()
				n.start()
				n.Delay(plegtest.GetPodStatus, "a", 20*time.Millisecond)
				n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
				go n.g.Relist()
				time.Sleep(10 * time.Millisecond)
				if suspend {
					n.g.Suspend("z")()
				}
				time.Sleep(100 * time.Millisecond)
				want(t, "events", read(events), "a Started a1", "b Started b1")
			})
		})
	}
}

type hostileNested struct{}

func (hostileNested) String() string { panic(hostileNested{}) }

// Rule 14: a filter that panics has said no, whatever it panics with.
func TestHostileRule14FilterPanicsWithAnything(t *testing.T) {
	for _, when := range []string{"Subscribe", "in the loop"} {
		t.Run(when, func(t *testing.T) {
			if when != "Subscribe" {
				t.Skip("the panic ends the process")
			}
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(bare("a", plegtest.Running("a1")))
				n.start()
				defer func() {
					if p := recover(); p != nil {
						t.Errorf("Subscribe panics with a %T", p)
					}
				}()
				n.g.Subscribe(t.Context(), 10, pleg.WithFilter(func(*pleg.Pod) bool { panic(hostileNested{}) }))
			})
		})
	}
}

// Rule 14: a filter that ends its goroutine, as FailNow does, does not end the loop.
func TestHostileRule14FilterEndsTheGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		events := n.g.Subscribe(t.Context(), 10)
		n.g.Subscribe(t.Context(), 10, pleg.WithFilter(func(*pleg.Pod) bool { runtime.Goexit(); return false }))
		n.SetPods(bare("a", plegtest.Running("a1")))
		time.Sleep(2 * time.Second)
		read(events)
		n.SetPods(bare("a", plegtest.Exited("a1")))
		time.Sleep(2 * time.Second)
		want(t, "events", read(events), "a Died a1")
	})
}

// A pod without a UID is never asked for.
func TestHostileSuspendNothing(t *testing.T) {
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
		n.cache.GetNewerThanContext(ctx, "", time.Now())
		if got := n.Calls(plegtest.GetPod); got != 0 {
			t.Errorf("%d lists of the pod without UID, for a reader", got)
		}
	})
}

// Suspensions while the generator does not run leave nothing behind.
func TestHostileSuspensionsWhileStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.g.Relist()
		heap := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before := heap()
		for range 200000 {
			n.g.Suspend("a")()
		}
		if grown := int64(heap()) - int64(before); grown > 1<<20 {
			t.Errorf("%d bytes are held", grown)
		}
		n.g.Relist()
		runtime.KeepAlive(n)
	})
}

// The same beside one that lasts.
func TestHostileSuspensionsBesideOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		heap := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		n.g.Suspend("b")
		before := heap()
		for range 1000 {
			for range 100 {
				n.g.Suspend("a")()
			}
			synctest.Wait()
		}
		if grown := int64(heap()) - int64(before); grown > 1<<20 {
			t.Errorf("%d bytes are held", grown)
		}
		runtime.KeepAlive(n)
	})
}

// Rule 20: nothing of the pod is delivered once Suspend has returned, whatever the
// subscriber had not read.
func TestHostileRule20BacklogOfSuspendedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		events := n.g.Subscribe(t.Context(), 0)
		synctest.Wait()
		resume := n.g.Suspend("a")
		defer resume()
		time.Sleep(time.Second)
		select {
		case e := <-events:
			t.Errorf("%s of a suspended pod is delivered", line(e))
		default:
		}
	})
}

// HasSynced: each pod of the first full list was inspected, failed or is slow. A suspended
// one is none of these.
func TestHostileSyncedBesideSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		resume := n.g.Suspend("a")
		defer resume()
		n.start()
		if _, known, _ := n.cache.Lookup("a"); n.g.HasSynced() && !known {
			t.Error("it has synced, and a listed pod is not known")
		}
		if n.g.Pods().FindPodByID("a") == nil || n.g.HealthReport().Pods != 1 {
			t.Error("the pod was listed, and is not in Pods")
		}
	})
}

// Without companions the guarantees stay, except that blocked readers wait for a full
// relist: also the reader of a pod that is gone, while another pod is suspended.
func TestHostileSixMethodsAbsenceBesideSuspended(t *testing.T) {
	for _, beside := range []string{"nothing", "suspended", "hung"} {
		t.Run(beside, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt, cache := plegtest.NewRuntime(), pleg.NewCache()
				g := pleg.NewGenericPLEG(rt, 0, 0, struct{ pleg.Cache }{cache}, clock.RealClock{})
				rt.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
				g.Start()
				defer g.Stop()
				synctest.Wait()
				switch beside {
				case "suspended":
					defer g.Suspend("a")()
				case "hung":
					defer rt.Hang(plegtest.GetPodStatus, "a")()
					rt.ExitContainer("a", "a1", 1, "Error")
				}
				events := g.Subscribe(t.Context(), 100)
				rt.RemovePod("b")
				time.Sleep(5 * time.Second)
				removed := time.Time{}
				for len(events) > 0 {
					if e := <-events; e.Type == pleg.ContainerRemoved {
						removed = e.ListedAt
					}
				}
				if !fresh(cache, "b", removed.Add(-1)) {
					t.Errorf("the removal is delivered, and the cache is older")
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if _, err := cache.GetNewerThanContext(ctx, "b", time.Now()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// hostileTorn is a runtime whose inspections read and return when the test says.
type hostileTorn struct {
	*plegtest.Runtime
	torn            bool
	read, returning chan struct{}
}

func (r *hostileTorn) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
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
func TestHostileRule20InspectionThatOutlastsTheSuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &hostileTorn{read: make(chan struct{}), returning: make(chan struct{})}
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
func TestHostileRule13SuspendedPodsDoNotHang(t *testing.T) {
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
		time.Sleep(100 * time.Second)
		n.Heal()
		if calls := n.g.HealthReport().CallsInFlight; len(calls) > 0 {
			t.Fatal(calls)
		}
		healthy(t, n.g)
	})
}

// A filter may take a lock under which Suspend is called: Suspend is not said to ask it.
func TestHostileFilterIsNotAskedInSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		inSuspend, asked := false, false
		n.g.Subscribe(t.Context(), 10, pleg.WithFilter(func(*pleg.Pod) bool { asked = asked || inSuspend; return true }))
		n.Delay(plegtest.GetPodStatus, "a", 20*time.Millisecond)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		go n.g.Relist()
		time.Sleep(10 * time.Millisecond)
		inSuspend = true
		n.g.Suspend("z")
		inSuspend = false
		if asked {
			t.Error("the filter is asked in Suspend of another pod")
		}
		time.Sleep(time.Second)
	})
}

// A pod that is removed and comes back with its UID is asked about again, also if that
// happened while it was suspended.
func TestHostileFilterOfPodReplacedWhileSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(&pleg.Pod{ID: "a", Name: "a", Labels: map[string]string{"app": "shop"}, Containers: []*pleg.Container{plegtest.Running("a1")}})
		n.start()
		asked := 0
		events := n.g.Subscribe(t.Context(), 10, pleg.WithFilter(func(p *pleg.Pod) bool { asked++; return p.Labels["app"] == "shop" }))
		read(events)
		resume := n.g.Suspend("a")
		n.SetPods()
		time.Sleep(3 * time.Second)
		n.SetPods(&pleg.Pod{ID: "a", Name: "a", Labels: map[string]string{"app": "other"}, Containers: []*pleg.Container{plegtest.Running("a2")}})
		time.Sleep(3 * time.Second)
		resume()
		synctest.Wait()
		got := read(events)
		if asked != 2 {
			t.Errorf("asked %d times; events %v", asked, got)
		}
	})
}

// WaitForSync says what is awaited, also when Stop came before the pods were inspected.
func TestHostileWaitForSyncAfterStop(t *testing.T) {
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

// Rule 4: the Status of a death is the last that was seen, also for an unbuffered
// subscriber whose event waits for it: it comes late, and an inspection has seen the end
// meanwhile.
func TestHostileRule4StatusOfCommittedEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		events := n.g.Subscribe(t.Context(), 0)
		<-events
		heal := n.Fail(plegtest.GetPodStatus, "a", context.DeadlineExceeded)
		n.ExitContainer("a", "a1", 137, "OOMKilled")
		n.g.Relist()
		synctest.Wait()
		heal()
		n.g.Relist()
		if s, _ := n.cache.Get("a"); s.ContainerStatuses[0].State != pleg.ContainerStateExited {
			t.Fatal("not inspected")
		}
		e := <-events
		if e.Type != pleg.ContainerDied || e.Status == nil || e.Status.State != pleg.ContainerStateExited {
			t.Errorf("%s has status %+v, and the cache has its end", line(e), e.Status)
		}
	})
}

// Rule 4: a death has the last status that was seen of the container, also if that was seen
// before its start was published, by an inspection that was made for an older list.
func TestHostileRule4StatusSeenBySupersededInspection(t *testing.T) {
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
