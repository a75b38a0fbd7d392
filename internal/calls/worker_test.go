package calls_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg/internal/calls"
)

// where makes a call and returns the goroutine that made it.
func (o *owner) where(t *testing.T) string {
	t.Helper()
	var made string
	o.call("where", func(context.Context) error { made = goroutine(); return nil })
	o.only(t)
	return made
}

// A goroutine is used again until Rest ends it.
func TestRestEndsWaitingGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t)
		first := o.where(t)
		if second := o.where(t); second != first {
			t.Error("a goroutine that waited was not used")
		}
		o.Rest()
		o.Rest()
		third := o.where(t)
		if third == first {
			t.Error("Rest left a goroutine")
		}
		if fourth := o.where(t); fourth != third {
			t.Error("after a Go, a goroutine does not wait")
		}
	})
}

// What is in flight at Rest ends when it has returned, unless there was another Go.
func TestRestBesideACall(t *testing.T) {
	for _, again := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			o := newOwner(t)
			release := make(chan struct{})
			before := runtime.NumGoroutine()
			o.hang(calls.Info{}, release)
			synctest.Wait()
			o.Rest()
			waiting := before
			if again {
				o.call("b", returnsNil)
				waiting += 2
			}
			synctest.Wait()
			close(release)
			o.came()
			if got := runtime.NumGoroutine(); got != waiting {
				t.Errorf("another Go is %v: %d goroutines, not %d", again, got, waiting)
			}
		})
	}
}

// Of a thousand calls that return at once, a few goroutines stay.
func TestWaitingGoroutinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t)
		before := runtime.NumGoroutine()
		for range 3 {
			release := make(chan struct{})
			for range 1000 {
				o.hang(calls.Info{}, release)
			}
			close(release)
			if got := len(o.came()); got != 1000 {
				t.Fatalf("%d of 1000 have returned", got)
			}
			if got := runtime.NumGoroutine() - before; got > 64 {
				t.Errorf("%d goroutines wait", got)
			}
		}
		o.Rest()
		synctest.Wait()
		if got := runtime.NumGoroutine(); got != before {
			t.Errorf("%d goroutines, %d before", got, before)
		}
	})
}

// Owners that start, rest, cancel and look at once get every outcome once.
func TestConcurrentUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := calls.NewGroup[int]()
		const owners, each = 4, 300
		var mu sync.Mutex
		outcomes := make(map[int]int)
		var busy sync.WaitGroup
		for o := range owners {
			busy.Go(func() {
				for n := range each {
					key := o*each + n
					g.Go(key, calls.Info{Method: "GetPods"}, func(ctx context.Context) error {
						switch n % 4 {
						case 0:
							runtime.Goexit()
						case 1:
							<-ctx.Done()
						default:
						}
						return ctx.Err()
					}, func(key int, _ error, _ bool) {
						mu.Lock()
						defer mu.Unlock()
						outcomes[key]++
					})
					switch n % 7 {
					case 2:
						g.Rest()
					case 4:
						g.Cancel(key-n%3, errDeadline)
					case 6:
						g.InFlight("GetPods")
					default:
					}
				}
			})
		}
		busy.Wait()
		g.CancelAll(errStopped)
		if got := g.Wait(time.After(time.Second)); got != nil {
			t.Errorf("left: %v", got)
		}
		g.Rest()
		synctest.Wait()
		if len(outcomes) != owners*each {
			t.Errorf("%d calls of %d have an outcome", len(outcomes), owners*each)
		}
		for key, n := range outcomes {
			if n != 1 {
				t.Errorf("%d has %d outcomes", key, n)
			}
		}
	})
}
