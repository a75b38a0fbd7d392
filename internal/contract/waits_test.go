package contract_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// hangingCollector hangs as it is collected, once it is to.
type hangingCollector struct {
	prometheus.Counter
	hang func()
}

func (c hangingCollector) Collect(out chan<- prometheus.Metric) { c.hang(); c.Counter.Collect(out) }

// hangingCache hangs as it is written, once it is to.
type hangingCache struct {
	*pleg.PodCache
	hang func()
}

func (c hangingCache) Set(uid types.UID, s *pleg.PodStatus, err error, at time.Time) bool {
	c.hang()
	return c.PodCache.Set(uid, s, err, at)
}

// While code of a user or the runtime hangs, no method waits for it but those whose documentation
// says so: Handle, Relist, Start and Stop, WaitForSync, the readers that wait; and Pods for a cache
// of one's own.
func TestNoMethodWaitsForOthers(t *testing.T) {
	for _, what := range []string{"handler", "want", "logger", "collector", "cache", "GetPods", "GetPod", "GetPodStatus"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { hangAndCallAll(t, what) })
		})
	}
}

func hangAndCallAll(t *testing.T, what string) {
	var hanging, hung atomic.Bool
	release := make(chan struct{})
	hang := func(who string) func() {
		return func() {
			if hanging.Load() && who == what {
				hung.Store(true)
				<-release
			}
		}
	}
	rt := plegtest.NewRuntime()
	rt.SetPods(plegtest.NewPod("a", plegtest.Running("a1")), plegtest.NewPod("b", plegtest.Running("b1")))
	log := funcr.New(func(_, args string) {
		if strings.Contains(args, "Transition") {
			hang("logger")()
		}
	}, funcr.Options{Verbosity: 5})
	reg := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "runtime_calls_total", Help: "Calls."})
	cache := hangingCache{pleg.NewCache(), hang("cache")}
	g := pleg.NewGenericPLEG(measured{rt, hangingCollector{counter, hang("collector")}}, 0, 0, cache, clock.RealClock{},
		pleg.WithLogger(log), pleg.WithRegisterer(reg))
	g.Start(t.Context())
	go func() {
		_ = g.Handle(t.Context(), pleg.Handler{
			Want:            func(*pleg.Pod) bool { hang("want")(); return true },
			OnContainerDied: func(*pleg.PodLifecycleEvent) { hang("handler")() },
		})
	}()
	synctest.Wait()

	hanging.Store(true)
	methods := map[string]plegtest.Method{
		"GetPods": plegtest.GetPods, "GetPod": plegtest.GetPod, "GetPodStatus": plegtest.GetPodStatus,
	}
	if m, is := methods[what]; is {
		hung.Store(true)
		rt.HangIgnoringCancel(m, plegtest.AnyPod)
	}
	rt.ExitContainer("a", "a1", 1, "Error")
	rt.SetPod(plegtest.NewPod("c", plegtest.Running("c1")))
	if what == "collector" {
		go func() { _, _ = reg.Gather() }()
	}
	time.Sleep(5 * time.Second)
	if !hung.Load() {
		t.Fatal("nothing hangs")
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
		"Start":        func() { g.Start(t.Context()) }, // it runs
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
		if what == "cache" && name == "Pods" {
			continue
		}
		var done atomic.Bool
		go func() { call(); done.Store(true) }()
		synctest.Wait()
		if !done.Load() {
			t.Errorf("%s waits", name)
		}
	}
	hanging.Store(false)
	close(release)
	rt.Heal()
	g.Stop()
}
