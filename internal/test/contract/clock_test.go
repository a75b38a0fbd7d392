package contract_test

import (
	"context"
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

// steppingClock is a fake clock that steps itself while the loop reads it or sets its timer.
type steppingClock struct {
	*clocktesting.FakeClock
	// Each field is the length of one step. The clock makes the steps before and after the timer is
	// set, and after the clock is read.
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

// If a fake clock is stepped after the loop has read it and before the loop's timer is set, the
// step is not lost: due work is done without another step.
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
				defer rt.BlockIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)()
				clk, next := newClock()
				g := pleg.NewGenericPLEG(rt.Plain(), 0, time.Second, pleg.NewCache(), clk, pleg.WithLogger(logr.Discard()))
				next.Store(int64(pleg.DefaultRuntimeRequestTimeout)) // past the first deadline
				go func() { _ = g.Relist(t.Context()) }()
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
			rt.Inject(plegtest.Fault{Method: plegtest.GetPods, Do: func(context.Context) error {
				if lists.Add(1) <= 4 {
					clk.read.Store(int64(time.Second))
				}
				return nil
			}})
			g := pleg.NewGenericPLEG(rt.Plain(), 0, time.Second, pleg.NewCache(), clk, pleg.WithLogger(logr.Discard()))
			g.Start(t.Context())
			defer g.Stop()
			synctest.Wait()
			if got := rt.Calls(plegtest.GetPods); got != 5 {
				t.Errorf("%d lists", got)
			}
		})
	})
}
