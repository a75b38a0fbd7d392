package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// The tests in internal/test/contract, ordered by rule, cover the behaviour of a generator.

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRelistIsFourLines(t *testing.T) {
	rt := plegtest.NewRuntime()
	rt.SetPods(plegtest.NewPod("a", plegtest.Running("a1")))
	g := pleg.NewGenericPLEG(rt, 10, time.Second, pleg.NewCache(), clocktesting.NewFakeClock(time.Now()))
	events := g.Watch()
	_ = g.Relist(t.Context())
	if e := <-events; e.ID != "a" || e.Type != pleg.ContainerStarted || e.Data != "a1" {
		t.Errorf("got %v", e)
	}
}

func TestConstructorRejectsNil(t *testing.T) {
	rt, cache, clk := plegtest.NewRuntime(), pleg.NewCache(), clock.RealClock{}
	for _, c := range []struct {
		what      string
		construct func()
	}{
		{"runtime", func() { pleg.NewGenericPLEG(nil, 1, 1, cache, clk) }},
		{"cache", func() { pleg.NewGenericPLEG(rt, 1, 1, nil, clk) }},
		{"clock", func() { pleg.NewGenericPLEG(rt, 1, 1, cache, nil) }},
		{"runtime", func() { pleg.New(nil) }},
		{"cache", func() { pleg.New(rt, pleg.WithCache(nil)) }},
		{"clock", func() { pleg.New(rt, pleg.WithClock(nil)) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			defer func() {
				if p := fmt.Sprint(recover()); !strings.Contains(p, "is nil") || !strings.Contains(p, c.what) {
					t.Errorf("panicked with %q", p)
				}
			}()
			c.construct()
		})
	}
	pleg.NewGenericPLEG(rt, 1, 1, cache, clk, nil) // a nil option changes nothing
}

// New uses the default values. Options set the values that NewGenericPLEG takes as arguments.
func TestNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, cache := plegtest.NewRuntime(), pleg.NewCache()
		if g := pleg.New(rt); g.Cache() == nil || g.Clock() != (clock.RealClock{}) ||
			cap(g.Watch()) != pleg.DefaultChannelCapacity {
			t.Errorf("cache %v, clock %v, capacity %d", g.Cache(), g.Clock(), cap(g.Watch()))
		}
		fake := clocktesting.NewFakeClock(time.Now())
		if g := pleg.New(rt, pleg.WithCache(cache), pleg.WithClock(fake)); g.Cache() != cache || g.Clock() != fake {
			t.Errorf("cache %v, clock %v", g.Cache(), g.Clock())
		}
		g := pleg.New(rt.Plain(), pleg.WithRelistPeriod(3*time.Second), pleg.WithWatchCapacity(7))
		if got := cap(g.Watch()); got != 7 {
			t.Errorf("capacity %d", got)
		}
		g.Start(t.Context())
		defer g.Stop()
		time.Sleep(10 * time.Second)
		if got := rt.Calls(plegtest.GetPods); got != 4 {
			t.Errorf("%d lists in 10 s", got)
		}
	})
}

// The zero value of a PodCache works as an empty cache, for readers and for a generator.
func TestZeroCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cache, unused pleg.PodCache
		if s, err := unused.Get("a"); s == nil || s.ID != "a" || err != nil || len(unused.GetAll()) != 0 {
			t.Errorf("got %v, %v", s, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := unused.LookupNewerThan(ctx, "a", time.Now()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		unused.Delete("a")
		unused.UpdateTime(time.Now())
		unused.SetObservedTime("a", time.Now())
		unused.Set("b", nil, nil, time.Now())
		if got := len(unused.GetAll()); got != 1 || unused.BlockedReaders() != 0 {
			t.Errorf("%d pods, %d readers", got, unused.BlockedReaders())
		}
		rt := plegtest.NewRuntime()
		rt.SetPods(plegtest.NewPod("a", plegtest.Running("a1")), plegtest.NewPod("b", plegtest.Running("b1")))
		g := pleg.NewGenericPLEG(rt, 0, 0, &cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		g.Start(t.Context())
		defer g.Stop()
		minTime := time.Now()
		time.Sleep(500 * time.Millisecond)
		if s, err := cache.GetNewerThan("b", minTime); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("got %v, %v", s, err)
		}
	})
}

// A period or a capacity of zero or less selects the default.
func TestDefaults(t *testing.T) {
	for _, period := range []time.Duration{0, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			rt := plegtest.NewRuntime()
			g := pleg.NewGenericPLEG(rt.Plain(), 0, period, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(logr.Discard()),
				pleg.WithRelistThreshold(-1), pleg.WithInspectionWorkers(0), pleg.WithRuntimeRequestTimeout(-1))
			g.Start(t.Context())
			defer g.Stop()
			time.Sleep(10*pleg.DefaultRelistPeriod + time.Millisecond)
			if got := rt.Calls(plegtest.GetPods); got != 11 {
				t.Errorf("%d lists in 10 s", got)
			}
			if got := cap(g.Watch()); got != pleg.DefaultChannelCapacity {
				t.Errorf("capacity %d", got)
			}
		})
	}
}
