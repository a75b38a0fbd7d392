package contract_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 19: a relist period above half the threshold is shortened, because it would make the
// generator unhealthy between two lists.
func TestRule19LongPeriodIsHalfOfTheThreshold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPods(pods(1)...)
		g := pleg.NewGenericPLEG(
			rt.Plain(), 0, time.Hour, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		g.Start(t.Context())
		defer g.Stop()
		for range 60 {
			time.Sleep(time.Minute)
			healthy(t, g)
		}
		if got := rt.Calls(plegtest.GetPods); got < 40 || got > 41 {
			t.Errorf("%d lists in an hour", got)
		}
	})
}

// Rule 19: full lists are made every period, whatever the event stream sends.
func TestRule19FullListsComeEveryPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.EmitOnChange(true)
		n.SetPods(pods(5)...)
		n.start()
		time.Sleep(time.Hour)
		if got := n.Calls(plegtest.GetPods); got < 3600 || got > 3602 {
			t.Errorf("%d lists in an hour", got)
		}
		if got := n.g.HealthReport().Stream.State; got != pleg.StreamConnected {
			t.Errorf("the stream is %s", got)
		}
	})
}

// Full lists are made every period. If a list takes longer than a period, the next list begins one
// period after the end of the long list.
func TestPeriod(t *testing.T) {
	for _, c := range []struct {
		takes time.Duration
		lists int
	}{{0, 61}, {900 * time.Millisecond, 61}, {3 * time.Second, 16}} {
		synctest.Test(t, func(t *testing.T) {
			n := newNodeOf(t, polling)
			n.Delay(plegtest.GetPods, plegtest.AnyPod, c.takes)
			n.g.Start(t.Context())
			time.Sleep(time.Minute + time.Millisecond)
			if got := n.Calls(plegtest.GetPods); got != c.lists {
				t.Errorf("a list takes %v: %d lists in a minute, not %d", c.takes, got, c.lists)
			}
			n.g.Stop()
		})
	}
}

// Rule 19: after Start, full lists are made every period, even while a Relist from before Start
// still waits.
func TestStartBesideRelist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(pods(400)...)
		n.Delay(plegtest.GetPodStatus, plegtest.AnyPod, 900*time.Millisecond) // 45 s in all
		returned := make(chan struct{})
		go func() { n.relist(); close(returned) }()
		synctest.Wait()
		n.start()
		time.Sleep(30 * time.Second)
		if got := n.Calls(plegtest.GetPods); got < 29 {
			t.Errorf("%d lists in 30 s", got)
		}
		<-returned
		before := n.Calls(plegtest.GetPods)
		time.Sleep(10 * time.Second)
		if got := n.Calls(plegtest.GetPods) - before; got < 9 {
			t.Errorf("%d lists in the next 10 s", got)
		}
		go n.relist()
		n.g.Stop()
		synctest.Wait()
		before = n.Calls(plegtest.GetPods)
		time.Sleep(10 * time.Second)
		if got := n.Calls(plegtest.GetPods) - before; got != 0 {
			t.Errorf("%d lists after Stop", got)
		}
	})
}
