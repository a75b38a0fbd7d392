package pleg_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// wallClock is a clock whose times have no monotonic reading, so that they go back when it
// is set back. Its timers do not.
type wallClock struct {
	clock.RealClock
	ahead atomic.Int64
}

func (c *wallClock) Now() time.Time {
	return time.Now().Add(time.Duration(c.ahead.Load())).Round(0)
}

func (c *wallClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// newWallNode is newNode with a wall clock, on which the node has been started.
func newWallNode(t *testing.T, opts ...pleg.Option) (*node, *wallClock) {
	t.Helper()
	n, clk := &node{Runtime: plegtest.NewRuntime(), t: t, cache: pleg.NewCache()}, &wallClock{}
	n.g = pleg.NewGenericPLEG(n.Runtime, 0, 0, n.cache, clk, append(opts, pleg.WithLogger(logr.Discard()))...)
	n.SetPods(pods(5)...)
	n.start()
	return n, clk
}

// A wall clock that is set back an hour, or again and again, stops no periodic
// list, no retry and no single-pod list.
func TestWallClockGoesBack(t *testing.T) {
	for name, back := range map[string]func(clk *wallClock){
		"an hour once": func(clk *wallClock) { clk.ahead.Store(-int64(time.Hour)) },
		"again and again": func(clk *wallClock) {
			clk.ahead.Add(-int64(time.Hour))
			for i := range 5 {
				time.AfterFunc(time.Duration(i)*4400*time.Millisecond, func() { clk.ahead.Add(-int64(time.Minute)) })
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, clk := newWallNode(t)
				time.Sleep(5500 * time.Millisecond)
				events := n.g.Watch()
				read(events)
				back(clk)
				lists := n.Calls(plegtest.GetPods)
				n.ExitContainer("pod-00001", "pod-00001-a", 1, "Error")
				time.Sleep(3 * time.Second)
				want(t, "events", read(events), "pod-00001 Died pod-00001-a")
				time.Sleep(27 * time.Second)
				if got := n.Calls(plegtest.GetPods) - lists; got < 20 {
					t.Errorf("%d lists in 30 s", got)
				}
				n.ExitContainer("pod-00002", "pod-00002-a", 1, "Error")
				n.g.RequestRelist("pod-00002")
				synctest.Wait()
				want(t, "events of a request", read(events), "pod-00002 Died pod-00002-a")
				if s, err := n.cache.Get("pod-00002"); err != nil || s.ContainerStatuses[0].ExitCode != 1 {
					t.Errorf("the cache has %v %v", s, err)
				}
				healthy(t, n.g)
			})
		})
	}
}

// Nor does it hide that lists or inspections hang: what has taken an hour has still taken
// an hour.
func TestWallClockThatGoesBackHidesNoHang(t *testing.T) {
	for name, c := range map[string]struct {
		method plegtest.Method
		after  time.Duration // since the hang began
	}{
		"lists, soon":              {plegtest.GetPods, 10 * time.Second},
		"lists, past the deadline": {plegtest.GetPods, 150 * time.Second},
		"inspections, soon":        {plegtest.GetPodStatus, 10 * time.Second},
		"inspections, later":       {plegtest.GetPodStatus, 100 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, clk := newWallNode(t)
				time.Sleep(5500 * time.Millisecond)
				defer n.HangIgnoringCancel(c.method, plegtest.AnyPod)()
				if c.method == plegtest.GetPodStatus {
					for _, p := range pods(5) {
						n.ExitContainer(p.ID, string(p.ID)+"-a", 1, "Error")
					}
				}
				time.Sleep(c.after)
				clk.ahead.Store(-int64(time.Hour))
				time.Sleep(pleg.DefaultRelistThreshold - c.after + 5*time.Second)
				unhealthy(t, n.g, "pleg", string(c.method))
			})
		})
	}
}

// steppingClock is a fake clock that is stepped while the loop sets its timer.
type steppingClock struct {
	*clocktesting.FakeClock
	// The next steps: before and after the timer is set, and when the clock was read.
	before, after, read atomic.Int64
}

func (c *steppingClock) Now() time.Time {
	now := c.FakeClock.Now()
	c.step(&c.read)
	return now
}

func (c *steppingClock) step(by *atomic.Int64) {
	if d := by.Swap(0); d > 0 {
		c.Step(time.Duration(d))
	}
}

func (c *steppingClock) NewTimer(d time.Duration) clock.Timer {
	c.step(&c.before)
	defer c.step(&c.after)
	return steppingTimer{c.FakeClock.NewTimer(d), c}
}

type steppingTimer struct {
	clock.Timer
	clk *steppingClock
}

func (t steppingTimer) Reset(d time.Duration) bool {
	t.clk.step(&t.clk.before)
	defer t.clk.step(&t.clk.after)
	return t.Timer.Reset(d)
}

// A step of a fake clock that comes between the loop's reading of it and the loop's timer
// is not lost: what is due is done without another step.
func TestStepWhileTheTimerIsSet(t *testing.T) {
	for name, before := range map[string]bool{"before": true, "after": false} {
		newClock := func() (clk *steppingClock, next *atomic.Int64) {
			clk = &steppingClock{FakeClock: clocktesting.NewFakeClock(epoch)}
			if before {
				return clk, &clk.before
			}
			return clk, &clk.after
		}
		t.Run("NewTimer/"+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := plegtest.NewRuntime()
				defer rt.HangIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)()
				clk, next := newClock()
				g := pleg.NewGenericPLEG(rt.Plain(), 0, time.Second, pleg.NewCache(), clk, pleg.WithLogger(logr.Discard()))
				next.Store(int64(pleg.DefaultInspectionTimeout)) // when the first list has begun
				go g.Relist()
				synctest.Wait()
				if got := g.HealthReport().RelistError; got == "" {
					t.Error("the deadline of the list has not passed")
				}
			})
		})
	}
	t.Run("Now", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			rt := plegtest.NewRuntime()
			clk := &steppingClock{FakeClock: clocktesting.NewFakeClock(epoch)}
			var lists atomic.Int32
			cache := &slowCache{pleg.NewCache(), func() { // after which the loop reads the clock, or sleeps
				if lists.Add(1) <= 3 {
					clk.Step(time.Second)
				}
			}}
			g := pleg.NewGenericPLEG(rt.Plain(), 0, time.Second, cache, clk, pleg.WithLogger(logr.Discard()))
			clk.read.Store(int64(time.Second))
			g.Start()
			defer g.Stop()
			synctest.Wait()
			if got := rt.Calls(plegtest.GetPods); got != 5 {
				t.Errorf("%d lists", got)
			}
		})
	})
}
