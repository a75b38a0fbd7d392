package contract_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// While full lists fail and pod lists work, removed pods leave nothing in memory: no record, no
// cache entry, no request.
func TestMemoryWhileFullListsFail(t *testing.T) {
	if raceEnabled {
		t.Skip("counts the heap")
	}
	synctest.Test(t, func(t *testing.T) {
		rt, cache := newChurning(pods(10)...), pleg.NewCache()
		g := pleg.NewGenericPLEG(rt, 100, time.Second, cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		g.Subscribe(t.Context(), pleg.WithCapacity(-1)) // no goroutine reads the channel
		g.Start(t.Context())
		defer g.Stop()
		time.Sleep(500 * time.Millisecond)
		rt.listsFail.Store(true)
		known := 0
		const batch = 100
		churn := func(first, n int) {
			for i := first; i < first+n; i += batch {
				for j := i; j < i+batch; j++ {
					uid := types.UID(fmt.Sprintf("churned-%06d", j))
					rt.set(uid, bare(uid, plegtest.Running(string(uid)+"-a")))
				}
				synctest.Wait()
				known = max(known, g.HealthReport().Pods-10)
				for j := i; j < i+batch; j++ {
					rt.set(types.UID(fmt.Sprintf("churned-%06d", j)), nil)
				}
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(2 * time.Minute) // after this, follow-ups and look-ups of removed pods are over
		}
		const some, more = 20_000, 100_000
		churn(0, some) // a map does not shrink when keys are deleted; this size is bounded
		before := heapInUse()
		churn(some, more)
		if grown := heapInUse() - before; grown > 10*more {
			t.Errorf("%d bytes are held for each pod that is gone", grown/more)
		}
		r := g.HealthReport()
		if r.Pods != 10 || r.RelistError == "" || len(r.FailingPods) != 0 || len(cache.GetAll()) != 10 {
			t.Errorf("%d pods in the cache; the report is %+v", len(cache.GetAll()), r)
		}
		if known != batch {
			t.Errorf("%d of %d were known: it is no churn", known, batch)
		}
	})
}

// The status of one pod never agrees with its list. Readers of pods that do not exist leave nothing
// in memory after they are answered.
func TestMemoryOfReadersOfAbsentPods(t *testing.T) {
	if raceEnabled {
		t.Skip("counts the heap")
	}
	for name, wrap := range map[string]func(*plegtest.Runtime) pleg.Runtime{
		"getter": func(rt *plegtest.Runtime) pleg.Runtime { return rt }, "polling": polling,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNodeOf(t, wrap)
				n.SetPods(bare("a", plegtest.Running("a1")))
				n.SetStatus("a", &pleg.PodStatus{ID: "a"})
				n.start()
				const readers = 10_000
				ask := func(round int) {
					for i := range readers {
						uid := types.UID(fmt.Sprintf("absent-%d-%05d", round, i))
						go func() {
							if _, exists, err := n.cache.LookupNewerThan(t.Context(), uid, time.Now()); exists || err != nil {
								t.Errorf("%s exists: %v, %v", uid, exists, err)
							}
						}()
					}
					time.Sleep(10 * time.Second)
				}
				ask(0)
				before := heapInUse()
				ask(1)
				ask(2)
				if grown := heapInUse() - before; grown > 2*readers*20 {
					t.Errorf("%d bytes are held for each reader that was answered", grown/(2*readers))
				}
			})
		})
	}
}

// The generator uses memory only for pods that exist. Removed pods leave nothing in memory. This
// also holds for requested pods, and if a subscriber does not read.
func TestMemoryIsBoundedByWhatExists(t *testing.T) {
	if raceEnabled {
		t.Skip("counts the heap")
	}
	clk := clocktesting.NewFakeClock(epoch)
	rt, cache := &passing{}, pleg.NewCache()
	g := pleg.NewGenericPLEG(rt, 100, time.Second, cache, clk, pleg.WithLogger(logr.Discard()))
	events := g.Watch()
	g.Subscribe(t.Context(), pleg.WithCapacity(-1)) // no goroutine reads the channel
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	rounds := 0
	heapAfter := func(n int) int64 {
		for range n {
			rounds++
			a, b := fmt.Sprintf("a-%d", rounds), fmt.Sprintf("b-%d", rounds)
			nobody := types.UID(fmt.Sprintf("nobody-%d", rounds))
			rt.pods = []*pleg.Pod{bare(types.UID(a), plegtest.Running(a)), bare(types.UID(b), plegtest.Running(b))}
			g.RequestRelist(nobody)
			_, _, _ = cache.LookupNewerThan(gone, nobody, clk.Now())
			_ = g.Relist(t.Context())
			for len(events) > 0 {
				<-events
			}
			clk.Step(time.Second)
		}
		return heapInUse()
	}
	before := heapAfter(1000)
	const more = 5000
	if grown := heapAfter(more) - before; grown > 10*more {
		t.Errorf("%d bytes are held for each pod that is gone", grown/more)
	}
	g.Stop()
}
