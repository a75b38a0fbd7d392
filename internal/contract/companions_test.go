package contract_test

import (
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

// plainCache is a cache with the six methods and none of the companions, as one is that
// embeds the interface.
type plainCache struct{ pleg.Cache }

// newPlainNode is newNode with a plain cache; node.cache is what is inside.
func newPlainNode(t *testing.T, opts ...pleg.Option) *node {
	t.Helper()
	n := &node{Runtime: plegtest.NewRuntime(), t: t, cache: pleg.NewCache()}
	n.g = pleg.NewGenericPLEG(n.Runtime, 0, 0, plainCache{n.cache}, clock.RealClock{},
		append(opts, pleg.WithLogger(logr.Discard()))...)
	return n
}

// With a plain cache freshness is held back for the pods that have changed and no others,
// also while their inspections hang, and nothing stays held back.
func TestPlainCacheHoldsBackChangedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPlainNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")), bare("c", plegtest.Running("c1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(500 * time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		n.Delay(plegtest.GetPodStatus, "a", 300*time.Millisecond)
		defer n.HangIgnoringCancel(plegtest.GetPodStatus, "c")()
		n.ExitContainer("c", "c1", 1, "Error")
		minTime := time.Now()
		time.Sleep(600 * time.Millisecond) // the list of 1 s is there
		for uid, expected := range map[types.UID]bool{"a": false, "b": true, "c": false} {
			if got := fresh(n.cache, uid, minTime); got != expected {
				t.Errorf("%s is fresh: %v", uid, got)
			}
		}
		time.Sleep(250 * time.Millisecond)
		want(t, "events", read(events), "a Died a1")
		for i := range 5 {
			for uid, expected := range map[types.UID]bool{"a": true, "b": true, "c": false} {
				if got := fresh(n.cache, uid, minTime.Add(time.Duration(i)*time.Second)); got != expected {
					t.Errorf("after %v: %s is fresh: %v", time.Since(minTime), uid, got)
				}
			}
			time.Sleep(time.Second)
		}
		n.Heal()
		time.Sleep(1100 * time.Millisecond)
		for _, uid := range []types.UID{"a", "b", "c", "nobody"} {
			if !fresh(n.cache, uid, time.Now().Add(-1100*time.Millisecond)) {
				t.Errorf("%s is held back for ever", uid)
			}
		}
		want(t, "events", read(events), "c Died c1")
	})
}

// With a plain cache nobody hears of readers, so that full lists keep their ordinary
// period, and serve all readers within that.
func TestPlainCacheServesReadersWithinAPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPlainNode(t, pleg.WithConnectedRelistPeriod(time.Minute))
		n.SetPods(pods(3)...)
		n.start()
		for _, ahead := range []time.Duration{-time.Second, 0, 400 * time.Millisecond} {
			for _, uid := range []types.UID{"pod-00001", "nobody"} {
				time.Sleep(10*time.Minute + 300*time.Millisecond)
				minTime := time.Now().Add(ahead)
				n.ExitContainer(uid, string(uid)+"-a", 1, "Error")
				s, err := n.cache.GetNewerThan(uid, minTime)
				if err != nil || uid == "pod-00001" && ahead >= 0 && s.ContainerStatuses[0].ExitCode != 1 {
					t.Errorf("%v ahead: got %v, %v", ahead, s, err)
				}
				if d := time.Since(minTime); d > time.Second+time.Millisecond {
					t.Errorf("%v ahead: %s after %v", ahead, uid, d)
				}
			}
		}
	})
}

// With a plain cache everything else works too: Relist, requests, reinspections, hints,
// errors beside the last good status, absence, and the report.
func TestPlainCacheWithEveryFeature(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPlainNode(t)
		n.SetPods(pods(3)...)
		events := n.g.Watch()
		n.relist()
		if got := len(read(events)); got != 6 { // the sandboxes as well
			t.Errorf("%d events", got)
		}
		n.start()
		time.Sleep(500 * time.Millisecond)
		n.g.RequestReinspect("pod-00000")
		n.ExitContainer("pod-00001", "pod-00001-a", 1, "Error")
		n.g.RequestRelist("pod-00001")
		n.EmitOnChange(true)
		n.RemovePod("pod-00002")
		time.Sleep(10 * time.Millisecond)
		got := make(map[string]bool)
		for _, l := range read(events) {
			got[l] = true
		}
		for _, l := range []string{
			"pod-00000 PodSync", "pod-00001 Died pod-00001-a", "pod-00002 Died pod-00002-a", "pod-00002 Removed pod-00002-a",
		} {
			if !got[l] {
				t.Errorf("%q is missing in %v", l, got)
			}
		}
		if got := len(n.cache.GetAll()); got != 2 || n.g.HealthReport().BlockedReaders != -1 {
			t.Errorf("%d pods, %d blocked readers", got, n.g.HealthReport().BlockedReaders)
		}
		n.EmitOnChange(false)
		heal := n.HangIgnoringCancel(plegtest.GetPodStatus, "pod-00001")
		n.SetContainer("pod-00001", "x", pleg.ContainerStateRunning)
		time.Sleep(pleg.DefaultRuntimeRequestTimeout + 2*time.Second)
		if s, err := n.cache.Get("pod-00001"); err == nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("the cache has %v, %v", s, err)
		}
		want(t, "past the deadline", read(events), "pod-00001 Started x")
		heal()
		time.Sleep(2 * time.Minute)
		if s, err := n.cache.Get("pod-00001"); err != nil || len(s.ContainerStatuses) != 2 {
			t.Errorf("the cache has %v, %v", s, err)
		}
		healthy(t, n.g)
	})
}

// panickyCache panics once in each of its methods.
type panickyCache struct {
	pleg.Cache
	panicked map[string]bool
}

func (c panickyCache) once(method string) {
	if !c.panicked[method] {
		c.panicked[method] = true
		panic(method)
	}
}

func (c panickyCache) Set(uid types.UID, status *pleg.PodStatus, err error, at time.Time) bool {
	c.once("Set")
	return c.Cache.Set(uid, status, err, at)
}

func (c panickyCache) Get(uid types.UID) (*pleg.PodStatus, error) {
	c.once("Get")
	return c.Cache.Get(uid)
}

func (c panickyCache) SetObservedTime(uid types.UID, at time.Time) {
	c.once("SetObservedTime")
	c.Cache.SetObservedTime(uid, at)
}

func (c panickyCache) UpdateTime(at time.Time) {
	c.once("UpdateTime")
	c.Cache.UpdateTime(at)
}

func (c panickyCache) Delete(uid types.UID) {
	c.once("Delete")
	c.Cache.Delete(uid)
}

// A cache that panics is told of, and costs no pod: its status is there after the next inspection.
func TestCacheThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime, cache, reg := plegtest.NewRuntime(), pleg.NewCache(), prometheus.NewRegistry()
		panicky := panickyCache{cache, make(map[string]bool)}
		g := pleg.NewGenericPLEG(runtime, 0, 0, panicky, clock.RealClock{},
			pleg.WithLogger(logr.Discard()), pleg.WithRegisterer(reg))
		pod := bare("a", plegtest.Running("a1"))
		runtime.SetPods(pod, bare("b", plegtest.Running("b1")))
		events := g.Watch()
		_ = g.Relist(t.Context())
		want(t, "first", read(events), "a Started a1", "b Started b1")
		g.Start(t.Context())
		defer g.Stop()
		time.Sleep(10 * time.Second)
		want(t, "once they are inspected again", read(events), "a PodSync", "b PodSync")
		runtime.RemovePod("b")
		time.Sleep(10 * time.Second)
		want(t, "gone", read(events), "b Died b1", "b Removed b1")
		if status, err := cache.Get("a"); err != nil || len(status.ContainerStatuses) != 1 {
			t.Errorf("the cache has %v, %v", status, err)
		}
		wantMetric(t, reg, "pleg_bad_data_total", float64(len(panicky.panicked)), "reason", "cache_panic")
		if len(panicky.panicked) != 5 {
			t.Errorf("these panicked: %v", panicky.panicked)
		}
	})
}
