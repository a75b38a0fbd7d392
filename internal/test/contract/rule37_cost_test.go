package contract_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// An idle relist makes as many allocations for ten thousand pods as for a hundred, even with
// metrics, subscribers and blocked readers. BenchmarkIdleRelist measures the same.
func TestIdleRelistAllocatesAConstant(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, n := range []int{110, 1000, 10000} {
		rt := plegtest.NewRuntime()
		rt.SetPods(pods(n)...)
		cache := pleg.NewCache()
		g := pleg.NewGenericPLEG(rt.Plain(), 0, time.Second, cache, clock.RealClock{},
			pleg.WithLogger(logr.Discard()), pleg.WithRegisterer(prometheus.NewRegistry()))
		ctx, cancel := context.WithCancel(context.Background())
		far := clock.RealClock{}.Now().Add(time.Hour)
		done := make(chan struct{})
		for i := range 10 {
			g.Subscribe(ctx, pleg.WithCapacity(1))
			go func() {
				_, _, _ = cache.LookupNewerThan(ctx, types.UID(fmt.Sprintf("pod-%05d", i)), far)
				done <- struct{}{}
			}()
		}
		for cache.BlockedReaders() < 10 {
			_ = g.Relist(ctx)
		}
		for range 100 { // native histograms allocate new buckets at first
			_ = g.Relist(ctx)
		}
		if got := testing.AllocsPerRun(100, func() { _ = g.Relist(ctx) }); got > 30 { // usually 29 allocations
			t.Errorf("%d pods: %v allocations a relist", n, got)
		}
		cancel()
		for range 10 {
			<-done
		}
		g.Stop()
	}
}

// The cost of a failing pod does not depend on the number of other failing pods.
func TestManyFailingPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, pleg.WithInspectionWorkers(1000))
		list := pods(4000)
		n.SetPods(list...)
		n.Fail(plegtest.GetPodStatus, plegtest.AnyPod, errors.New("broken"))
		n.start()
		if got := len(n.g.HealthReport().FailingPods); got != len(list) {
			t.Fatalf("%d pods fail", got)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const inspections = 50
		for i := range inspections {
			n.g.RequestReinspect(list[i].ID)
			synctest.Wait()
		}
		runtime.ReadMemStats(&after)
		if got := (after.TotalAlloc - before.TotalAlloc) / inspections; got > 100_000 {
			t.Errorf("an inspection that fails allocates %d bytes", got)
		}
	})
}

// A stream without events causes no calls.
func TestIdleStreamCostsNoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lists [2]int
		for i, opt := range []pleg.Option{pleg.WithPollingOnly(), pleg.WithRelistThreshold(0)} {
			n := newNode(t, opt)
			n.SetPods(pods(50)...)
			n.g.Start(t.Context())
			time.Sleep(10500 * time.Millisecond)
			n.ResetCalls()
			time.Sleep(10 * time.Minute)
			lists[i] = n.Calls(plegtest.GetPods)
			if got := n.Calls(plegtest.GetPod) + n.Calls(plegtest.GetPodStatus); got != 0 {
				t.Errorf("%d other calls", got)
			}
			n.g.Stop()
		}
		if lists[0] != lists[1] {
			t.Errorf("%d lists without the stream, %d with it", lists[0], lists[1])
		}
	})
}
