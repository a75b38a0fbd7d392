package podworkers_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/podworkers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBroken = errors.New("broken")

// call describes a call of Sync or OnError, and when the call came.
type call struct {
	what string
	at   time.Duration // since the node began
}

// ticking is a clock that never returns the same time twice, unlike the clock of a bubble.
type ticking struct {
	clock.RealClock
	ticks atomic.Int64
}

func (c *ticking) Now() time.Time { return c.RealClock.Now().Add(time.Duration(c.ticks.Add(1))) }

// node is a fake runtime with a generator and workers, in a bubble.
type node struct {
	*plegtest.Runtime
	*podworkers.Workers
	g     *pleg.GenericPLEG
	began time.Time
	ctx   context.Context // the context of the workers; the function end cancels it
	end   context.CancelFunc

	mu    sync.Mutex
	calls map[types.UID][]call
}

// newNode starts a node with these pods, and records the calls of Sync and OnError. The node stops
// when the test ends.
func newNode(t *testing.T, sync podworkers.SyncFunc, pods ...*pleg.Pod) *node {
	n := &node{Runtime: plegtest.NewRuntime(), began: time.Now(), calls: make(map[types.UID][]call)}
	n.g = pleg.NewGenericPLEG(n.Runtime, 0, time.Second, pleg.NewCache(), &ticking{})
	n.SetPods(pods...)
	n.g.Start(t.Context())
	synctest.Wait()
	n.ctx, n.end = context.WithCancel(t.Context())
	n.Workers = podworkers.New(n.g, podworkers.Options{
		Sync: func(ctx context.Context, status *pleg.PodStatus, exists bool) (podworkers.Result, error) {
			what := "gone"
			if exists {
				what = "none"
			}
			if len(status.ContainerStatuses) > 0 {
				newest := status.ContainerStatuses[0]
				what = newest.ID.ID + " " + string(newest.State)
			}
			n.note(status.ID, what)
			return sync(ctx, status, exists)
		},
		OnError: func(pod types.UID, err error, retry time.Duration) {
			what, _, _ := strings.Cut(err.Error(), ":")
			n.note(pod, what+", "+retry.String())
		},
	})
	t.Cleanup(func() {
		n.end()
		n.Wait()
		n.g.Stop()
	})
	return n
}

func (n *node) note(pod types.UID, what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := call{what, time.Since(n.began).Truncate(time.Millisecond)}
	if all := n.calls[pod]; len(all) == 0 || all[len(all)-1] != c { // simultaneous events may cause equal calls
		n.calls[pod] = append(all, c)
	}
}

// takes compares the calls for a pod with want, and fails the test if they differ. It removes the
// calls that it has compared.
func (n *node) takes(t *testing.T, pod types.UID, want ...call) {
	t.Helper()
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Equal(n.calls[pod], want) {
		t.Errorf("the calls for %s were %v, not %v", pod, n.calls[pod], want)
	}
	delete(n.calls, pod)
}

// run starts workers for the node's pods, and waits until each worker has called Sync.
func (n *node) run() {
	go func() { _ = n.Run(n.ctx, nil) }()
	synctest.Wait()
}

func idle(context.Context, *pleg.PodStatus, bool) (podworkers.Result, error) {
	return podworkers.Result{}, nil
}

const ms = time.Millisecond

// New panics if generator or Sync is nil. Otherwise, the workers would panic later, in their
// goroutines.
func TestNewPanics(t *testing.T) {
	g := pleg.New(plegtest.NewRuntime())
	for name, f := range map[string]func(){
		"no generator": func() { podworkers.New(nil, podworkers.Options{Sync: idle}) },
		"no Sync":      func() { podworkers.New(g, podworkers.Options{}) },
	} {
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.HasPrefix(text, "podworkers: New needs") {
					t.Errorf("%s: %q", name, text)
				}
			}()
			f()
		}()
	}
}

// After an action, a worker sees the action's effect at once, without an event. Therefore, it
// restarts a container only once.
func TestActsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n *node
		n = newNode(t, func(_ context.Context, status *pleg.PodStatus, _ bool) (podworkers.Result, error) {
			newest := status.ContainerStatuses[0]
			if newest.State != pleg.ContainerStateExited {
				return podworkers.Result{}, nil
			}
			time.Sleep(20 * ms)
			n.RestartContainer("a", newest.ID.ID, newest.ID.ID+"'")
			return podworkers.Result{Acted: true}, nil
		}, plegtest.NewPod("a", plegtest.Running("app")))
		n.run()
		time.Sleep(5*time.Second + 500*ms)
		n.takes(t, "a", call{"app running", 0})
		n.ExitContainer("a", "app", 1, "Error")
		n.Emit(pleg.ContainerEvent{PodUID: "a"}) // reports the exit, but not the restart
		time.Sleep(time.Minute)
		n.takes(t, "a", call{"app exited", 5500 * ms}, call{"app' running", 5520 * ms})
	})
}

// A worker ends right after its action. The pod's next worker sees the effect of this action.
func TestNextRunSeesTheAction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n *node
		ctx, cancel := context.WithCancel(t.Context())
		n = newNode(t, func(_ context.Context, status *pleg.PodStatus, _ bool) (podworkers.Result, error) {
			newest := status.ContainerStatuses[0]
			if newest.State != pleg.ContainerStateExited {
				return podworkers.Result{}, nil
			}
			n.RestartContainer("a", newest.ID.ID, newest.ID.ID+"'")
			cancel()
			return podworkers.Result{Acted: true}, nil
		}, plegtest.NewPod("a", plegtest.Running("app")))
		n.ExitContainer("a", "app", 1, "Error")
		time.Sleep(1500 * ms)
		_ = n.Run(ctx, nil)
		time.Sleep(20 * ms)
		n.run()
		time.Sleep(time.Minute)
		n.takes(t, "a", call{"app exited", 1500 * ms}, call{"app' running", 1520 * ms})
	})
}

// New Workers may follow others that have just acted. Each pod's first status is newer than New.
func TestFirstStatusIsNewerThanNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := plegtest.NewRuntime()
		runtime.SetPods(plegtest.NewPod("a", plegtest.Running("a1")))
		g := pleg.New(runtime)
		g.Start(t.Context())
		synctest.Wait()
		defer g.Stop()
		runtime.SetContainer("a", "a1", pleg.ContainerStateExited) // no list shows it yet
		lists, pod := runtime.Block(plegtest.GetPods, plegtest.AnyPod), runtime.Block(plegtest.GetPod, plegtest.AnyPod)
		var seen []pleg.State
		workers := podworkers.New(g, podworkers.Options{
			Sync: func(_ context.Context, status *pleg.PodStatus, _ bool) (podworkers.Result, error) {
				seen = append(seen, status.ContainerStatuses[0].State)
				return podworkers.Result{}, nil
			},
		})
		ctx, end := context.WithCancel(t.Context())
		workers.Add(ctx, "a")
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(seen) > 0 {
			t.Errorf("a worker acts on %v, which is older than New", seen)
		}
		lists()
		pod()
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(seen) != 1 || seen[0] != pleg.ContainerStateExited {
			t.Errorf("a worker acts on %v", seen)
		}
		end()
		workers.Wait()
	})
}

// If a worker is woken several times while it is busy, it calls Sync exactly once more.
func TestEventsWhileBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, func(context.Context, *pleg.PodStatus, bool) (podworkers.Result, error) {
			time.Sleep(500 * ms)
			return podworkers.Result{}, nil
		}, plegtest.NewPod("a", plegtest.Running("app")))
		n.Add(n.ctx, "a")
		synctest.Wait()
		for range 3 {
			n.Wake("a")
		}
		time.Sleep(time.Minute)
		n.takes(t, "a", call{"app running", 0}, call{"app running", 500 * ms})
	})
}

// After each failure, the worker waits twice as long before it retries, up to LongestRetry. An
// action between two failures does not reset the wait. A call of Sync with nothing left to do
// resets it. Wake ends the wait.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		results := make(chan func() (podworkers.Result, error), 20)
		fail := func() (podworkers.Result, error) { return podworkers.Result{Acted: true}, errBroken }
		act := func() (podworkers.Result, error) {
			time.Sleep(ms)
			return podworkers.Result{Acted: true}, nil
		}
		n := newNode(t, func(context.Context, *pleg.PodStatus, bool) (podworkers.Result, error) {
			if len(results) == 0 {
				return podworkers.Result{}, nil
			}
			return (<-results)()
		}, plegtest.NewPod("a", plegtest.Running("app")))
		for range 9 {
			results <- fail
		}
		n.Add(n.ctx, "a")
		time.Sleep(30 * time.Second)
		var want []call
		at := time.Duration(0)
		for _, wait := range []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000} {
			want = append(want, call{"app running", at}, call{"broken, " + (wait * ms).String(), at})
			at += wait * ms
		}
		n.takes(t, "a", want...)

		results <- act
		results <- fail
		time.Sleep(at - time.Since(n.began) + ms)
		at += ms
		n.takes(t, "a", call{"app running", at - ms}, call{"app running", at}, call{"broken, 10s", at})
		n.Wake("a")
		n.takes(t, "a", call{"app running", at})
		results <- fail
		n.Wake("a")
		n.takes(t, "a", call{"app running", at}, call{"broken, 100ms", at})
		time.Sleep(time.Minute)
		n.takes(t, "a", call{"app running", at + 100*ms})
	})
}

// If a pod's inspection fails, the worker does not call Sync. It calls Sync once an inspection
// succeeds.
func TestInspectionFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, idle)
		heal := n.Fail(plegtest.GetPodStatus, "a", errBroken)
		n.EmitOnChange(true)
		n.SetPod(plegtest.NewPod("a", plegtest.Running("app")))
		synctest.Wait()
		n.Add(n.ctx, "a")
		n.takes(t, "a", call{"inspecting the pod, 100ms", 0})
		heal()
		time.Sleep(time.Minute)
		n.mu.Lock()
		defer n.mu.Unlock()
		last := n.calls["a"][len(n.calls["a"])-1]
		if last.what != "app running" || last.at > 2*time.Second {
			t.Errorf("the last call was %v", last)
		}
	})
}

// A pod that is stuck in the runtime delays only its own worker.
func TestPodThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, idle, plegtest.NewPod("a", plegtest.Running("app")), plegtest.NewPod("b", plegtest.Running("web")))
		n.EmitOnChange(true)
		n.run()
		n.takes(t, "a", call{"app running", 0})
		n.takes(t, "b", call{"web running", 0})
		heal := n.Block(plegtest.GetPodStatus, "a")
		n.ExitContainer("a", "app", 1, "Error")
		n.ExitContainer("b", "web", 1, "Error")
		n.takes(t, "a")
		n.takes(t, "b", call{"web exited", 0})
		heal()
		n.takes(t, "a", call{"app exited", 0})
	})
}

// When a pod is gone, its worker calls Sync a last time and ends. If the pod comes back, another
// worker starts.
func TestEndsWithItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, idle, plegtest.NewPod("a", plegtest.Running("app")))
		n.EmitOnChange(true)
		n.run()
		n.takes(t, "a", call{"app running", 0})
		n.RemovePod("a")
		n.takes(t, "a", call{"gone", 0})
		if n.Wake("a") {
			t.Error("the pod still has a worker")
		}
		n.SetPod(plegtest.NewPod("a", plegtest.Running("again")))
		n.takes(t, "a", call{"again running", 0})
	})
}

// A pod may be removed and come back while Run's handler is behind. The handler then learns only
// that the pod has changed. The pod gets a worker again.
func TestPodComesBackUnseen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, idle, plegtest.NewPod("a"))
		n.EmitOnChange(true)
		busy := make(chan struct{})
		go func() {
			_ = n.Run(n.ctx, func(pod *pleg.Pod) bool {
				if pod.ID == "b" {
					<-busy
				}
				return true
			}, pleg.WithCapacity(-1))
		}()
		n.takes(t, "a", call{"none", 0})
		for _, other := range []types.UID{"b", "c", "d"} { // c and d wait behind b
			n.SetPod(plegtest.NewPod(other))
			synctest.Wait()
		}
		n.RemovePod("a")
		synctest.Wait()
		n.Wake("a") // its worker sees that the pod is gone, and ends
		n.takes(t, "a", call{"gone", 0})
		back := plegtest.NewPod("a")
		back.Sandboxes[0].ID.ID = "another"
		n.SetPod(back)
		synctest.Wait()
		close(busy)
		n.takes(t, "a", call{"none", 0})
	})
}

// If Sync ends its goroutine, the worker is gone, and the pod can get another worker.
func TestSyncEndsItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, func(context.Context, *pleg.PodStatus, bool) (podworkers.Result, error) {
			runtime.Goexit()
			return podworkers.Result{}, nil
		}, plegtest.NewPod("a"))
		for range 2 {
			n.Add(n.ctx, "a")
			n.takes(t, "a", call{"none", 0})
			if n.Wake("a") {
				t.Error("the pod still has a worker")
			}
		}
	})
}

// If a pod does not exist, its worker still waits for the time in Result.After. If the worker is
// woken during its last call of Sync, it calls Sync again before it ends.
func TestWorkerOfNoPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		results := make(chan podworkers.Result, 3)
		n := newNode(t, func(context.Context, *pleg.PodStatus, bool) (podworkers.Result, error) { return <-results, nil })
		results <- podworkers.Result{After: time.Minute}
		n.Add(n.ctx, "a")
		n.takes(t, "a", call{"gone", 0})
		time.Sleep(time.Minute)
		n.takes(t, "a", call{"gone", time.Minute})
		if !n.Wake("a") {
			t.Error("the pod has no worker")
		}
		results <- podworkers.Result{Done: true}
		n.takes(t, "a", call{"gone", time.Minute})
		results <- podworkers.Result{}
		synctest.Wait()
		if n.Wake("a") {
			t.Error("the pod still has a worker")
		}
	})
}

// If Sync returns Done, the worker ends although its pod exists.
func TestDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, func(context.Context, *pleg.PodStatus, bool) (podworkers.Result, error) {
			return podworkers.Result{Done: true, After: time.Second}, nil
		}, plegtest.NewPod("a", plegtest.Running("app")))
		n.Add(n.ctx, "a")
		n.takes(t, "a", call{"app running", 0})
		time.Sleep(time.Minute)
		n.takes(t, "a")
		if n.Wake("a") {
			t.Error("the pod still has a worker")
		}
	})
}

// Run starts workers only for the pods for which the function want returns true. When ctx ends, Run
// returns after all workers have ended.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, func(ctx context.Context, _ *pleg.PodStatus, _ bool) (podworkers.Result, error) {
			<-ctx.Done()
			time.Sleep(time.Second)
			return podworkers.Result{Acted: true}, nil
		}, plegtest.NewPod("a", plegtest.Running("app")), plegtest.NewPod("b", plegtest.Running("web")))
		ended := make(chan error)
		go func() { ended <- n.Run(n.ctx, func(pod *pleg.Pod) bool { return pod.ID == "a" }) }()
		n.takes(t, "a", call{"app running", 0})
		n.takes(t, "b")
		n.end()
		n.Add(n.ctx, "b")
		if err := <-ended; !errors.Is(err, context.Canceled) || time.Since(n.began) != time.Second {
			t.Errorf("it returned %v after %v", err, time.Since(n.began))
		}
		n.takes(t, "a")
		n.takes(t, "b")
	})
}

// When the generator stops, Run returns. Its workers continue, and another call of Run uses them.
func TestRunUntilStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, idle, plegtest.NewPod("a", plegtest.Running("app")))
		ended := make(chan error)
		go func() { ended <- n.Run(n.ctx, nil) }()
		synctest.Wait()
		n.g.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		n.g.Start(t.Context())
		n.run()
		if !n.Wake("a") {
			t.Error("the pod has no worker")
		}
	})
}
