package contract_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// A generator has synced when each pod in the first successful full list is inspected, has a failed
// inspection, or has a slow inspection. It then stays synced.
func TestHasSynced(t *testing.T) {
	for name, c := range map[string]struct {
		fault   plegtest.Fault
		after   time.Duration
		failing int // the number of pods in FailingPods when the generator has synced
	}{
		"all are inspected": {after: 0},
		"one takes a while": {fault: plegtest.Fault{Delay: 300 * time.Millisecond}, after: 300 * time.Millisecond},
		"one fails":         {fault: plegtest.Fault{Err: errors.New("broken")}, after: 0, failing: 1},
		"one hangs":         {fault: plegtest.Fault{Block: true}, after: time.Second, failing: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(pods(3)...)
				if c.fault.Delay > 0 || c.fault.Block || c.fault.Err != nil {
					c.fault.Method, c.fault.PodUID = plegtest.GetPodStatus, "pod-00001"
					defer n.Inject(c.fault)()
				}
				if n.g.HasSynced() {
					t.Error("synced before Start")
				}
				began := time.Now()
				n.g.Start(t.Context())
				defer n.g.Stop()
				if err := n.g.WaitForSync(t.Context()); err != nil || time.Since(began) != c.after {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				if got := n.g.HealthReport().FailingPods; len(got) != c.failing {
					t.Errorf("failing: %v", got)
				}
				n.SetPod(bare("later", plegtest.Running("l1")))
				defer n.Block(plegtest.GetPodStatus, "later")()
				time.Sleep(time.Second)
				n.g.Stop()
				if !n.g.HasSynced() {
					t.Error("not synced any more")
				}
			})
		})
	}
}

// A node without pods has synced after the first list.
func TestHasSyncedWithoutPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.relist()
		if !n.g.HasSynced() || n.g.WaitForSync(t.Context()) != nil {
			t.Error("not synced")
		}
	})
}

// If a caller's context ends before the generator has synced, the error of WaitForSync says what is
// missing, such as a stuck call.
func TestWaitForSyncSaysWhatIsAwaited(t *testing.T) {
	for name, c := range map[string]struct {
		start bool
		fault plegtest.Fault
		says  string
	}{
		"not started": {says: "not running"},
		"a list fails": {
			true, plegtest.Fault{Method: plegtest.GetPods, Err: errors.New("no such socket")}, "no such socket",
		},
		"a list hangs": {
			true, plegtest.Fault{Method: plegtest.GetPods, Block: true}, "GetPods has been running for 500ms",
		},
		"inspections hang": {
			true, plegtest.Fault{Method: plegtest.GetPodStatus, Block: true}, "GetPodStatus of pod default/pod-00000",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNodeOf(t, polling)
				n.SetPods(pods(3)...)
				if c.fault.Method != "" {
					defer n.Inject(c.fault)()
				}
				if c.start {
					n.g.Start(t.Context())
					defer n.g.Stop()
				}
				ctx, cancel := context.WithTimeoutCause(t.Context(), 500*time.Millisecond, errors.New("impatient"))
				defer cancel()
				err := n.g.WaitForSync(ctx)
				if err == nil || !strings.Contains(err.Error(), c.says) || !errors.Is(err, context.Cause(ctx)) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// lastMoment is a context that has ended. Its Done method first calls the function happens.
type lastMoment struct {
	context.Context
	happens func()
}

func (c lastMoment) Done() <-chan struct{} {
	c.happens()
	return c.Context.Done()
}

// If the generator syncs at the moment when ctx ends, WaitForSync returns no error.
func TestWaitForSyncEndsAsItSyncs(t *testing.T) {
	for range 30 {
		n := newNode(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := n.g.WaitForSync(lastMoment{ctx, n.relist}); err != nil {
			t.Fatalf("it has synced: %v", err)
		}
	}
}

var _ interface {
	HasSynced() bool
	WaitForSync(context.Context) error
	Pods() []*pleg.Pod
} = (*pleg.GenericPLEG)(nil)

// OnSynced is called when the pods of the first list have been handled, both with and without
// Start.
func TestHandleSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newOrderlyNode(t)
		n.SetPods(bare("a"), bare("b"))
		heal := n.Block(plegtest.GetPodStatus, "b")
		var lines []string
		handler := pleg.Handler{
			OnPodAdded: func(p *pleg.Pod, _ bool) { lines = append(lines, string(p.ID)) },
			OnSynced:   func() { lines = append(lines, "synced") },
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = n.g.Handle(ctx, handler) }()
		n.start()
		want(t, "before", lines, "a")
		heal()
		synctest.Wait()
		want(t, "after", lines, "a", "b", "synced")
		n.SetPod(bare("c"))
		n.relist()
		synctest.Wait()
		want(t, "later", lines, "a", "b", "synced", "c")
		lines = nil
		go func() { _ = n.g.Handle(ctx, handler) }()
		synctest.Wait()
		want(t, "another", lines, "a", "b", "c", "synced")
		cancel()
		synctest.Wait()
	})
}

// OnSynced is called when the existing pods have been handled, even if new events arrive faster
// than they are handled.
func TestHandleSyncedBesideChurn(t *testing.T) {
	for _, capacity := range []int{-1, 1, 5, 0} {
		synctest.Test(t, func(t *testing.T) {
			n := newOrderlyNode(t)
			n.SetPods(bare("a", plegtest.Running("a0")), bare("b", plegtest.Running("b1")))
			n.start()
			ctx, cancel := context.WithCancel(t.Context())
			var lines []string
			go func() {
				_ = n.g.Handle(ctx, pleg.Handler{
					OnContainerStarted: func(e *pleg.PodLifecycleEvent) {
						if e.Initial {
							lines = append(lines, line(e))
						}
						time.Sleep(3 * time.Second)
					},
					OnSynced: func() { lines = append(lines, "synced") },
				}, pleg.WithCapacity(capacity))
			}()
			for i := range 60 {
				n.SetPod(bare("a", plegtest.Running(fmt.Sprint("a", i+1))))
				time.Sleep(time.Second)
			}
			want(t, fmt.Sprint("capacity ", capacity), lines, "a Started a0", "b Started b1", "synced")
			cancel()
			synctest.Wait()
			time.Sleep(3 * time.Second)
		})
	}
}

// If the generator was stopped before the pods were inspected, the error of WaitForSync says that
// the generator is not running.
func TestWaitForSyncAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.Delay(plegtest.GetPodStatus, "a", 500*time.Millisecond)
		n.g.Start(t.Context())
		synctest.Wait()
		n.g.Stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n.g.WaitForSync(ctx); err == nil || !strings.Contains(err.Error(), "is not running") {
			t.Errorf("the pod awaits its inspection, and the error is %v", err)
		}
	})
}
