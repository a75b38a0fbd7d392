package contract_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// blockedCollector is a collector whose Collect method first calls the function block.
type blockedCollector struct {
	prometheus.Counter
	block func()
}

func (c blockedCollector) Collect(out chan<- prometheus.Metric) { c.block(); c.Counter.Collect(out) }

// While the runtime, a handler or a collector is stuck, only methods that are documented to wait
// may block: Handle, Relist, Start, Stop, WaitForSync, and reads with a minTime.
func TestNoMethodWaitsForOthers(t *testing.T) {
	for _, what := range []string{"handler", "want", "collector", "GetPods", "GetPod", "GetPodStatus"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { blockAndCallAll(t, what) })
		})
	}
}

func blockAndCallAll(t *testing.T, what string) {
	var begun, stuck atomic.Bool
	release := make(chan struct{})
	block := func(who string) func() {
		return func() {
			if begun.Load() && who == what {
				stuck.Store(true)
				<-release
			}
		}
	}
	rt := plegtest.NewRuntime()
	rt.SetPods(plegtest.NewPod("a", plegtest.Running("a1")), plegtest.NewPod("b", plegtest.Running("b1")))
	reg := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "runtime_calls_total", Help: "Calls."})
	cache := pleg.NewCache()
	g := pleg.NewGenericPLEG(measured{rt, blockedCollector{counter, block("collector")}}, 0, 0, cache, clock.RealClock{},
		pleg.WithLogger(logr.Discard()), pleg.WithRegisterer(reg))
	g.Start(t.Context())
	go func() {
		_ = g.Handle(t.Context(), pleg.Handler{
			Want:            func(*pleg.Pod) bool { block("want")(); return true },
			OnContainerDied: func(*pleg.PodLifecycleEvent) { block("handler")() },
		})
	}()
	synctest.Wait()

	begun.Store(true)
	methods := map[string]plegtest.Method{
		"GetPods": plegtest.GetPods, "GetPod": plegtest.GetPod, "GetPodStatus": plegtest.GetPodStatus,
	}
	if m, is := methods[what]; is {
		stuck.Store(true)
		rt.BlockIgnoringCancel(m, plegtest.AnyPod)
	}
	rt.ExitContainer("a", "a1", 1, "Error")
	rt.SetPod(plegtest.NewPod("c", plegtest.Running("c1")))
	if what == "collector" {
		go func() { _, _ = reg.Gather() }()
	}
	time.Sleep(5 * time.Second)
	if !stuck.Load() {
		t.Fatal("nothing is stuck")
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range map[string]func(){
		"Healthy": func() { _, _ = g.Healthy() }, "HealthReport": func() { g.HealthReport() },
		"HasSynced": func() { g.HasSynced() }, "WaitForSync": func() { _ = g.WaitForSync(ended) },
		"Pods": func() { g.Pods() }, "Watch": func() { g.Watch() },
		"Subscribe":    func() { g.Subscribe(ended) },
		"Handle":       func() { _ = g.Handle(ended, pleg.Handler{}) },
		"Relist":       func() { _ = g.Relist(ended) },
		"Start":        func() { g.Start(t.Context()) }, // the generator is running
		"RequestList":  func() { g.RequestRelist("a") },
		"Reinspect":    func() { g.RequestReinspect("a") },
		"Get":          func() { _, _ = cache.Get("a") },
		"GetAll":       func() { cache.GetAll() },
		"Lookup":       func() { _, _, _ = cache.Lookup("a") },
		"fresh":        func() { _, _, _ = cache.LookupNewerThan(ended, "a", time.Now()) },
		"by ID":        func() { cache.ByContainerID("a1") },
		"by name":      func() { cache.ByName("default", "a") },
		"by IP":        func() { cache.ByIP("10.0.0.1") },
		"BlockedReads": func() { cache.BlockedReaders() },
		"metrics": func() {
			if what != "collector" {
				_, _ = reg.Gather()
			}
		},
	} {
		var done atomic.Bool
		go func() { call(); done.Store(true) }()
		synctest.Wait()
		if !done.Load() {
			t.Errorf("%s waits", name)
		}
	}
	stuck.Store(false)
	close(release)
	rt.Heal()
	g.Stop()
}

// catcher is a registerer that keeps the last collector.
type catcher struct{ collector *prometheus.Collector }

func (c catcher) Register(collector prometheus.Collector) error { *c.collector = collector; return nil }

func (catcher) MustRegister(...prometheus.Collector) {}

func (catcher) Unregister(prometheus.Collector) bool { return false }

// A slow reader of the collected metrics blocks no other method.
func TestSlowCollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var collector prometheus.Collector
		n := newNode(t, pleg.WithRegisterer(catcher{&collector}))
		metrics := make(chan prometheus.Metric)
		go func() {
			defer close(metrics)
			collector.Collect(metrics)
		}()
		for range metrics {
			before := time.Now()
			n.relist()
			_, _ = n.g.Healthy()
			synctest.Wait()
			if time.Since(before) != 0 {
				t.Error("something waited")
			}
		}
	})
}
