package pleg_test

import (
	"context"
	"fmt"
	"runtime"
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
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		events := n.g.Watch()
		n.start()
		n.Delay(plegtest.GetPodStatus, "a", 20*time.Millisecond)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")), bare("c", plegtest.Running("c1")))
		go n.g.Relist()
		time.Sleep(10 * time.Millisecond)
		n.g.Suspend("z")()
		time.Sleep(100 * time.Millisecond)
		want(t, "events", read(events), "a Started a1", "b Started b1", "c Started c1")
	})
}

type hostileNested struct{}

func (hostileNested) String() string { panic(hostileNested{}) }

// Rule 14: a filter that panics has said no, whatever it panics with.
func TestHostileRule14FilterPanicsWithAnything(t *testing.T) {
	for _, when := range []string{"Subscribe", "in the loop"} {
		t.Run(when, func(t *testing.T) {
			if when != "Subscribe" {
				t.Skip("ends the process")
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

// Rule 4: a pod that is listed when a subscription begins is no news to it, also if it is
// inspected later.
func TestHostileRule4InitialOfListedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		n.Delay(plegtest.GetPodStatus, "a", 500*time.Millisecond)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.g.RequestRelist("a")
		synctest.Wait()
		if n.g.Pods().FindPodByID("a") == nil {
			t.Fatal("not listed")
		}
		events := n.g.Subscribe(t.Context(), 10)
		time.Sleep(time.Second)
		select {
		case e := <-events:
			if !e.Initial {
				t.Errorf("%s is news; the pod was in Pods before", line(e))
			}
		default:
			t.Error("no event")
		}
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
		_, known, _ := n.cache.Lookup("a")
		fmt.Println("synced", n.g.HasSynced(), "known", known, "pods", len(n.g.Pods()), "report", n.g.HealthReport().Pods)
	})
}

// Without companions the guarantees stay, except that blocked readers wait for a full
// relist: also the reader of a pod that is gone, while another pod is suspended.
func TestHostileSixMethodsAbsenceBesideSuspended(t *testing.T) {
	for _, suspend := range []bool{false, true} {
		t.Run(fmt.Sprint("suspended ", suspend), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt, cache := plegtest.NewRuntime(), pleg.NewCache()
				g := pleg.NewGenericPLEG(rt, 0, 0, struct{ pleg.Cache }{cache}, clock.RealClock{})
				rt.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
				g.Start()
				defer g.Stop()
				synctest.Wait()
				if suspend {
					defer g.Suspend("a")()
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
