package contract_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A PodCache can be given to another generator: it then has what the second knows, and its blocked
// readers keep waiting.
func TestCacheOfAStoppedGenerator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.g.Start(t.Context())
		synctest.Wait()
		n.g.Stop()
		got := make(chan *pleg.PodStatus)
		go func() {
			s, _ := n.cache.GetNewerThan("c", time.Now())
			got <- s
		}()
		time.Sleep(time.Second)

		rt := plegtest.NewRuntime()
		rt.SetPods(bare("b", plegtest.Running("b2")), bare("c", plegtest.Running("c1")))
		second := pleg.NewGenericPLEG(rt, 0, 0, n.cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		if s, exists, _ := n.cache.Lookup("a"); exists {
			t.Errorf("from before: %v", s)
		}
		_ = second.Relist(t.Context())
		if s := <-got; len(s.ContainerStatuses) != 1 {
			t.Errorf("the blocked reader got %v", s)
		}
		for uid, containers := range map[types.UID]int{"a": 0, "b": 1, "c": 1} {
			if s, err := n.cache.Get(uid); len(s.ContainerStatuses) != containers || err != nil {
				t.Errorf("%s: %v, %v", uid, s, err)
			}
		}
	})
}

// The period is kept; a runtime that is slower than it is left a period's rest.
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

// A generator and its users from many goroutines, for the race detector.
func TestEverythingAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.EmitOnChange(true)
		n.SetPods(pods(10)...)
		n.start()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 4 {
			uid := types.UID(fmt.Sprintf("pod-%05d", i))
			wg.Go(func() {
				for ctx.Err() == nil {
					_, _, _ = n.cache.LookupNewerThan(ctx, uid, time.Now())
					time.Sleep(2 * time.Millisecond)
				}
			})
			wg.Go(func() {
				for ctx.Err() == nil {
					ctx, unsubscribe := context.WithCancel(ctx)
					sub := n.g.Subscribe(ctx, pleg.WithCapacity(i-1))
					for range 10 {
						<-sub
					}
					unsubscribe()
					time.Sleep(time.Millisecond)
				}
			})
			wg.Go(func() {
				for j := 0; ctx.Err() == nil; j++ {
					n.SetPod(bare(uid, plegtest.Running(fmt.Sprintf("c%d", j))))
					n.g.RequestRelist(uid)
					n.g.RequestReinspect(uid)
					n.g.HealthReport()
					time.Sleep(3 * time.Millisecond)
				}
			})
		}
		time.Sleep(3 * time.Second)
		cancel()
		wg.Wait()
	})
}

// passing is a runtime that remembers nothing of what has passed.
type passing struct{ pods []*pleg.Pod }

func (p *passing) GetPods(context.Context, bool) ([]*pleg.Pod, error) { return p.pods, nil }

func (p *passing) GetPod(_ context.Context, uid types.UID) (*pleg.Pod, error) {
	for _, pod := range p.pods {
		if pod.ID == uid {
			return pod, nil
		}
	}
	return nil, pleg.ErrPodNotFound
}

func (p *passing) GetPodStatus(_ context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	return &pleg.PodStatus{ID: pod.ID}, nil
}

// What is held is bounded by what exists: pods that came and went leave nothing
// behind, whoever asked for them and whoever does not read.
func TestMemoryIsBoundedByWhatExists(t *testing.T) {
	if raceEnabled {
		t.Skip("counts the heap")
	}
	clk := clocktesting.NewFakeClock(epoch)
	rt, cache := &passing{}, pleg.NewCache()
	g := pleg.NewGenericPLEG(rt, 100, time.Second, cache, clk, pleg.WithLogger(logr.Discard()))
	events := g.Watch()
	g.Subscribe(t.Context(), pleg.WithCapacity(-1)) // nobody reads it
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	rounds := 0
	heapAfter := func(n int) int64 {
		for range n {
			rounds++
			a, b := fmt.Sprintf("a-%d", rounds), fmt.Sprintf("b-%d", rounds)
			nobody := types.UID(fmt.Sprintf("nobody-%d", rounds))
			rt.pods = []*pleg.Pod{bare(types.UID(a), plegtest.Running(a)), bare(types.UID(b), plegtest.Running(b))}
			g.RequestRelist(nobody)
			_, _, _ = cache.LookupNewerThan(gone, nobody, clk.Now())
			_ = g.Relist(t.Context())
			for len(events) > 0 {
				<-events
			}
			clk.Step(time.Second)
		}
		return heapInUse()
	}
	before := heapAfter(1000)
	const more = 5000
	if grown := heapAfter(more) - before; grown > 10*more {
		t.Errorf("%d bytes are held for each pod that is gone", grown/more)
	}
	g.Stop()
}

// With polling only there is no stream and no single-pod relist.
func TestPollingOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, pleg.WithPollingOnly())
		n.EmitOnChange(true)
		n.SetPods(pods(3)...)
		n.start()
		time.Sleep(500 * time.Millisecond)
		n.ExitContainer("pod-00000", "pod-00000-a", 1, "")
		if _, err := n.cache.GetNewerThan("pod-00000", time.Now()); err != nil {
			t.Error(err)
		}
		if n.Calls(plegtest.GetPod) != 0 || n.Calls(plegtest.WatchContainerEvents) != 0 || n.Calls(plegtest.GetPods) != 2 {
			t.Errorf("%d single-pod relists, %d streams, %d lists",
				n.Calls(plegtest.GetPod), n.Calls(plegtest.WatchContainerEvents), n.Calls(plegtest.GetPods))
		}
		if got := n.g.HealthReport().Stream.State; got != pleg.StreamOff {
			t.Errorf("the stream is %s", got)
		}
	})
}
