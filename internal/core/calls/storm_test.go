package calls_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubepleg/pleg/internal/core/calls"
)

// Several goroutines use a group at once. The function done is called once for every call, and no
// goroutine is left in the end.
func TestGroup(t *testing.T) {
	for seed := range uint64(30) {
		g := calls.NewGroup[int]()
		var begun, ended, key atomic.Int64
		var wg sync.WaitGroup
		for w := range uint64(6) {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, w))
				for range 400 {
					k := int(key.Add(1))
					kind := rnd.IntN(12)
					again := rnd.IntN(4) == 0
					switch rnd.IntN(14) {
					case 0, 1, 2:
						timeout := make(chan time.Time)
						close(timeout)
						g.Stop(errStopped, timeout)
					case 3:
						g.InFlight()
					case 4:
						for _, left := range g.Stop(errStopped, time.After(20*time.Second)) {
							t.Errorf("left: %v", left)
						}
					case 5:
						runtime.Gosched()
					default:
						begun.Add(1)
						var once atomic.Bool
						g.Go(k, calls.Info{Method: "GetPods"}, func(ctx context.Context) error {
							switch kind {
							case 0:
								runtime.Goexit()
							case 1:
								panic("boom")
							case 2:
								defer runtime.Goexit()
								panic("boom")
							case 3:
								<-ctx.Done()
								return ctx.Err()
							case 4:
								time.Sleep(time.Microsecond)
							case 5:
								c, cancel := context.WithCancel(ctx)
								_ = cancel
								_ = c
								return nil
							case 6:
								if ctx.Err() != nil {
									return nil
								}
								return errNotFound
							case 7:
								context.AfterFunc(ctx, func() {})
							case 8:
								return badError{runtime.Goexit}
							}
							return nil
						}, func(err error, stopped bool) {
							if once.Swap(true) {
								t.Errorf("done twice: %d", k)
							}
							if stopped && err == nil {
								t.Error("stopped without an error")
							}
							if kind == 9 && err != nil && !errors.Is(err, errStopped) {
								t.Error(err)
							}
							if again {
								begun.Add(1)
								g.Go(-k, calls.Info{}, func(context.Context) error { return nil },
									func(err error, _ bool) {
										if err != nil {
											t.Error(err)
										}
										ended.Add(1)
									})
							}
							ended.Add(1)
						})
						if kind == 3 {
							g.Cancel(k, errDeadline)
						}
					}
				}
			})
		}
		wg.Wait()
		for deadline := time.Now().Add(20 * time.Second); ended.Load() < begun.Load(); {
			if time.Now().After(deadline) {
				t.Fatalf("seed %d: %d of %d calls have ended; in flight: %d", seed, ended.Load(), begun.Load(), len(g.InFlight()))
			}
			time.Sleep(time.Millisecond)
		}
		for left := g.InFlight(); len(left) > 0; left = g.InFlight() { // until done() has returned
			runtime.Gosched()
		}
	}
}
