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

// together makes n calls that are in flight at once, and returns the goroutines that
// made them.
func (o *owner) together(t *testing.T, n int) map[string]bool {
	t.Helper()
	var mu sync.Mutex
	made := make(map[string]bool)
	release := make(chan struct{})
	for range n {
		o.call("together", func(context.Context) error {
			mu.Lock()
			made[goroutine()] = true
			mu.Unlock()
			<-release
			return nil
		})
	}
	synctest.Wait()
	if len(made) != n {
		t.Errorf("%d goroutines made %d calls", len(made), n)
	}
	close(release)
	if got := len(o.came()); got != n {
		t.Errorf("%d calls of %d have returned", got, n)
	}
	return made
}

// common counts what two sets have in common.
func common(a, b map[string]bool) int {
	n := 0
	for id := range a {
		if b[id] {
			n++
		}
	}
	return n
}

// Goroutines are used again until Rest ends them.
func TestRestEndsWaitingGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t)
		first := o.together(t, 3)
		if got := common(first, o.together(t, 3)); got != 3 {
			t.Errorf("%d of 3 goroutines that waited were used", got)
		}
		o.Rest()
		o.Rest()
		synctest.Wait()
		second := o.together(t, 3)
		if got := common(first, second); got != 0 {
			t.Errorf("Rest left %d goroutines", got)
		}
		if got := common(second, o.together(t, 4)); got != 3 {
			t.Errorf("after another Go, %d of 3 goroutines wait", got)
		}
	})
}

// A goroutine that Rest has told to end stays if a call comes before it wakes.
func TestRestIsTakenBackByTheNextGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t)
		first := o.together(t, 1)
		for range 100 {
			o.Rest()
			release := make(chan struct{})
			o.call("again", func(context.Context) error { first[goroutine()] = true; <-release; return nil })
			close(release)
			o.came()
		}
		if len(first) > 50 {
			t.Errorf("%d goroutines made 101 calls", len(first))
		}
	})
}

// A goroutine whose call is in flight at Rest ends when it has returned, unless there
// was another Go.
func TestRestBesideACall(t *testing.T) {
	for _, again := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			o := newOwner(t)
			release := make(chan struct{})
			made := make(map[string]bool)
			o.call("a", func(context.Context) error { made[goroutine()] = true; <-release; return nil })
			synctest.Wait()
			o.Rest()
			if again {
				o.call("b", returnsNil)
				synctest.Wait()
			}
			close(release)
			o.came()
			if got := common(made, o.together(t, 2)) == 1; got != again {
				t.Errorf("another Go is %v, that the goroutine waits %v", again, got)
			}
		})
	}
}

// Of a thousand calls that return at once, a few goroutines stay.
func TestWaitingGoroutinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t)
		first := o.together(t, 1000)
		second := o.together(t, 1000)
		if got := common(first, second); got != 64 {
			t.Errorf("%d goroutines waited", got)
		}
		o.Rest()
		synctest.Wait()
		if got := common(second, o.together(t, 1000)); got != 0 {
			t.Errorf("Rest left %d goroutines", got)
		}
	})
}

// An owner that rests after every call allocates nothing for its goroutines.
func TestGoAllocatesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := calls.NewGroup[int]()
		defer g.Rest()
		done := func(int, error, bool) {}
		for name, after := range map[string]func(){"Go": func() {}, "Go and Rest": g.Rest} {
			got := testing.AllocsPerRun(100, func() {
				g.Go(1, calls.Info{}, returnsNil, done)
				synctest.Wait()
				after()
				synctest.Wait()
			})
			if got != 0 {
				t.Errorf("%v allocations per %s", got, name)
			}
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
