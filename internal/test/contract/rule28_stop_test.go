package contract_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Stop waits for the calls that it has cancelled. It does not wait for the new list of a concurrent
// Relist.
func TestStopBesideRelist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(1)...)
		n.start()
		time.Sleep(2500 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Do: func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(100 * time.Millisecond)
			return ctx.Err()
		}})
		n.Delay(plegtest.GetPods, plegtest.AnyPod, 20*time.Second)
		n.g.RequestReinspect("pod-00000")
		done := make(chan struct{})
		go func() { defer close(done); n.relist() }()
		time.Sleep(100 * time.Millisecond)
		before := time.Now()
		n.g.Stop()
		if took := time.Since(before); took != 100*time.Millisecond {
			t.Errorf("Stop took %v", took)
		}
		n.Heal()
		<-done
		n.g.Stop()
	})
}

// A second Start and a second Stop have no effect. A Stop before Start has no effect either.
func TestStartTwiceStopTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.g.Stop() // before Start
		n.g.Start(t.Context())
		n.g.Start(t.Context())
		time.Sleep(5*time.Second + time.Millisecond)
		n.g.Stop()
		n.g.Stop()
		if got := n.Calls(plegtest.GetPods); got != 6 {
			t.Errorf("%d lists in 5 s: not one loop", got)
		}
		time.Sleep(5 * time.Second)
		if got := n.Calls(plegtest.GetPods); got != 6 {
			t.Errorf("%d lists: it goes on after Stop", got)
		}
	})
}

// After Stop and Start, the generator continues with its state: no event is delivered twice, and no
// change from the time in between is missed.
func TestStopAndStartAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		events := n.g.Watch()
		sub := n.g.Subscribe(t.Context(), pleg.WithCapacity(10))
		n.g.Start(t.Context())
		synctest.Wait()
		n.g.Stop()
		want(t, "watch", read(events), "a Started a1", "b Started b1")
		want(t, "subscription", read(sub), "a Started a1", "b Started b1", "closed")
		n.ExitContainer("a", "a1", 0, "Completed")
		n.RemovePod("b")
		time.Sleep(time.Hour)
		unhealthy(t, n.g, "pleg was last seen active 1h0m0s ago; threshold is 3m0s")
		n.start()
		want(t, "watch", read(events), "a Died a1", "b Died b1", "b Removed b1")
		if ok, err := n.g.Healthy(); !ok {
			t.Error(err)
		}
	})
}

// Stop cancels the calls that honour cancellation, and returns at once. A cancelled call is not
// counted as a failure, and is made again.
func TestStopCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(20)...)
		heal := n.Block(plegtest.GetPodStatus, plegtest.AnyPod)
		n.g.Start(t.Context())
		synctest.Wait()
		began := time.Now()
		n.g.Stop()
		if took := time.Since(began); took > 0 {
			t.Errorf("Stop took %v", took)
		}
		heal()
		n.start()
		for _, p := range pods(20) {
			if status, err := n.cache.Get(p.ID); err != nil || len(status.ContainerStatuses) != 1 {
				t.Errorf("%s: %v %v", p.ID, status, err)
			}
		}
	})
}

// slowToReturn is a runtime with inspections that return some time after their context has ended.
type slowToReturn struct {
	pleg.Runtime
	slow map[types.UID]time.Duration
}

func (s slowToReturn) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	<-ctx.Done()
	time.Sleep(s.slow[pod.ID])
	return nil, ctx.Err()
}

// Stop waits for all calls that it has cancelled, not only for the first.
func TestStopWaitsForWhatItCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime {
			return slowToReturn{rt.Plain(), map[types.UID]time.Duration{"pod-00000": time.Second, "pod-00001": 2 * time.Second}}
		})
		n.SetPods(pods(2)...)
		n.g.Start(t.Context())
		synctest.Wait()
		began := time.Now()
		n.g.Stop()
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("Stop took %v", took)
		}
	})
}

// If the runtime ignores cancellation, Stop still returns and leaves one goroutine behind. The next
// Start makes no second call while the first is stuck.
func TestStopDuringStuckCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(pods(3)...)
		healStatus := n.BlockIgnoringCancel(plegtest.GetPodStatus, "pod-00001")
		n.g.Start(t.Context())
		time.Sleep(2500 * time.Millisecond)
		healList := n.BlockIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)
		time.Sleep(time.Second)
		began := time.Now()
		n.g.Stop()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("Stop took %v", took)
		}
		n.g.Start(t.Context())
		time.Sleep(time.Minute)
		if got := n.MaxInFlight(plegtest.GetPods); got != 1 {
			t.Errorf("%d lists at once", got)
		}
		healList()
		time.Sleep(10 * time.Second)
		if got := n.MaxPodInFlight(plegtest.GetPodStatus, "pod-00001"); got != 1 {
			t.Errorf("%d inspections of one pod at once", got)
		}
		healStatus()
		synctest.Wait()
		if status, err := n.cache.Get("pod-00001"); err != nil || len(status.ContainerStatuses) != 1 {
			t.Errorf("after healing: %v %v", status, err)
		}
		n.g.Stop()
	})
}

// If a call is still in flight after Stop and then returns, the generator uses the answer and does
// not repeat the call.
func TestAnswerAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return late{rt.Plain(), answer} })
		n.SetPods(pods(1)...)
		n.g.Start(t.Context())
		synctest.Wait()
		n.g.Stop()
		close(answer)
		synctest.Wait()
		n.start()
		if s, err := n.cache.Get("pod-00000"); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("the cache has %v %v", s, err)
		}
		if got := n.Calls(plegtest.GetPodStatus); got != 1 {
			t.Errorf("%d inspections", got)
		}
	})
}

// Stop also cancels the calls that the loop begins in its last step.
func TestStopCancelsWhatTheLoopBeginsLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		gate := make(chan struct{})
		g := pleg.NewGenericPLEG(rt.Plain(), 0, 0, pleg.NewCache(), clock.RealClock{},
			pleg.WithLogger(slowLogger("Relisting", func() { <-gate })))
		g.Start(t.Context())
		synctest.Wait() // the loop is in the logger
		heal := rt.Block(plegtest.GetPods, plegtest.AnyPod)
		go func() {
			time.Sleep(2 * time.Second)
			close(gate)
		}()
		began := time.Now()
		g.Stop()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("Stop took %v", took)
		}
		if got := rt.InFlight(plegtest.GetPods); got != 0 {
			t.Errorf("%d lists left behind", got)
		}
		heal()
	})
}

// Stop is called at the moment when a relist begins.
func TestStopAtTheMomentOfARelist(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			rt := plegtest.NewRuntime()
			g := pleg.NewGenericPLEG(rt.Plain(), 0, 0, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(logr.Discard()))
			g.Start(t.Context())
			time.Sleep(500 * time.Millisecond)
			heal := rt.Block(plegtest.GetPods, plegtest.AnyPod)
			time.Sleep(500 * time.Millisecond)
			began := time.Now()
			g.Stop()
			if took := time.Since(began); took > 0 {
				t.Errorf("Stop took %v", took)
			}
			heal()
		})
	}
}

// Requests from before Stop are kept, with their cause.
func TestStopKeepsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.relist()
		events := n.g.Watch()
		read(events)
		heal := n.Block(plegtest.GetPodStatus, "a")
		n.g.Start(t.Context())
		n.g.RequestReinspect("a")
		synctest.Wait()
		n.g.Stop()
		heal()
		n.start()
		e := <-events
		if line(e) != "a PodSync" || e.Cause != pleg.CauseDemand {
			t.Errorf("got %s because of %q", line(e), e.Cause)
		}
		synctest.Wait()
		want(t, "more", read(events))
	})
}

// If Start's context ends, the effect is the same as that of Stop. A call of Start right afterwards
// starts the generator again.
func TestStartEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(1)...)
		n.t.Cleanup(n.g.Stop)
		ctx, cancel := context.WithCancel(t.Context())
		n.g.Start(ctx)
		events := n.g.Subscribe(t.Context(), pleg.WithCapacity(10))
		time.Sleep(time.Second)
		cancel()
		for range events { // closed, as after Stop
		}
		synctest.Wait()
		before := n.Calls(plegtest.GetPods)
		time.Sleep(10 * time.Second)
		if got := n.Calls(plegtest.GetPods); got != before {
			t.Errorf("%d lists after the end", got-before)
		}

		ctx, cancel = context.WithCancel(t.Context())
		n.g.Start(ctx)
		cancel()
		n.g.Start(t.Context())
		time.Sleep(10*time.Second + time.Millisecond)
		if got := n.Calls(plegtest.GetPods) - before; got < 11 {
			t.Errorf("%d lists in ten seconds", got)
		}
		n.g.Stop()
		ctx, cancel = context.WithCancel(t.Context())
		n.g.Start(ctx)
		n.g.Stop()
		n.g.Start(t.Context())
		cancel() // ends a context whose run Stop has already ended
		synctest.Wait()
		before = n.Calls(plegtest.GetPods)
		time.Sleep(10*time.Second + time.Millisecond)
		if got := n.Calls(plegtest.GetPods) - before; got != 10 {
			t.Errorf("%d lists of the last run in ten seconds", got)
		}
	})
}

// A GenericPLEG that was not made by New is a mistake in the caller's code: Start and Stop panic,
// and do not block for ever.
func TestZeroGenericPLEG(t *testing.T) {
	for name, call := range map[string]func(g *pleg.GenericPLEG){
		"Start": func(g *pleg.GenericPLEG) { g.Start(t.Context()) },
		"Stop":  func(g *pleg.GenericPLEG) { g.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			panicked := make(chan any, 1)
			go func() {
				defer func() { panicked <- recover() }()
				call(&pleg.GenericPLEG{})
			}()
			select {
			case got := <-panicked:
				if text, is := got.(string); !is || !strings.Contains(text, "New") {
					t.Errorf("it panics with %v", got)
				}
			case <-time.After(10 * time.Second):
				t.Error("it blocks")
			}
		})
	}
}

// Start's context ends. Another generator can use the cache at once, and the first generator no
// longer writes to it.
func TestNewGeneratorAtTheEndOfTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		defer n.BlockIgnoringCancel(plegtest.GetPodStatus, "b")()
		for range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			n.g.Start(ctx)
			synctest.Wait()
			n.SetPod(bare("b", plegtest.Running("b1")))
			n.g.RequestRelist("b")
			cancel()
			n.g = pleg.NewGenericPLEG(n.Runtime, 0, 0, n.cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
			n.RemovePod("b")
		}
		events := n.g.Watch()
		n.start()
		want(t, "of the last generator", read(events), "a Started a1")
		if got := len(n.cache.GetAll()); got != 1 {
			t.Errorf("the cache has %d pods", got)
		}
	})
}

// A PodCache can be given to another generator. The cache then contains the other generator's
// state. Readers that were blocked before keep waiting.
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

// stubborn is an ExitSource that ignores cancellation. The test calls the function observe of a
// stream that was cancelled.
type stubborn struct {
	pleg.Runtime
	release chan struct{}
	watches *atomic.Int64
	observe atomic.Pointer[func(pleg.ContainerExit)]
}

func (s *stubborn) WatchContainerExits(_ context.Context, connected func(), observe func(pleg.ContainerExit)) error {
	s.watches.Add(1)
	s.observe.Store(&observe)
	connected()
	<-s.release
	panic("at last")
}

func TestExitStreamIgnoresCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPods(bare("a", plegtest.Running("a1")))
		s := &stubborn{Runtime: rt.Plain(), release: make(chan struct{}), watches: new(atomic.Int64)}
		g := pleg.NewGenericPLEG(s, 0, 0, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		events := g.Watch()
		g.Start(t.Context())
		synctest.Wait()
		read(events)
		began := time.Now()
		g.Stop()
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("Stop took %v", took)
		}
		g.Start(t.Context())
		time.Sleep(time.Minute)
		(*s.observe.Load())(exitOf("a1", 1))
		time.Sleep(time.Minute)
		want(t, "of a closed stream", read(events))
		if s.watches.Load() != 1 {
			t.Errorf("%d watches", s.watches.Load())
		}
		close(s.release)
		time.Sleep(5 * time.Minute)
		if s.watches.Load() < 2 {
			t.Errorf("%d watches", s.watches.Load())
		}
		g.Stop()
	})
}

// Stop ends the stream in each of its states.
func TestStopInEveryStateOfTheStream(t *testing.T) {
	for name, prepare := range map[string]func(n *node){
		"connected":   func(*node) {},
		"connecting":  func(n *node) { n.Block(plegtest.WatchContainerEvents, plegtest.AnyPod) },
		"broken":      func(n *node) { n.Fail(plegtest.WatchContainerEvents, plegtest.AnyPod, errors.New("refused")) },
		"unsupported": func(n *node) { n.SetEventMode(plegtest.EventsUnsupported) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				prepare(n)
				n.g.Start(t.Context())
				synctest.Wait()
				if got := n.g.HealthReport().Stream.State; string(got) != name {
					t.Errorf("the stream is %s", got)
				}
				before := time.Now()
				n.g.Stop()
				if time.Since(before) > 0 {
					t.Errorf("Stop took %v", time.Since(before))
				}
				if got := n.g.HealthReport().Stream.State; got != pleg.StreamOff {
					t.Errorf("the stream is %s", got)
				}
				if got := n.Streams(); got != 0 {
					t.Errorf("%d streams left", got)
				}
			})
		})
	}
}

// If a stream ignores its cancellation, Stop does not wait until the stream ends. No second stream
// is opened before the first has ended.
func TestStreamIgnoresCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		heal := n.BlockIgnoringCancel(plegtest.WatchContainerEvents, plegtest.AnyPod)
		n.g.Start(t.Context())
		synctest.Wait()
		n.g.Stop()
		n.g.Start(t.Context())
		time.Sleep(10 * time.Minute)
		if got := n.MaxInFlight(plegtest.WatchContainerEvents); got != 1 {
			t.Errorf("%d streams at once", got)
		}
		heal()
		time.Sleep(2 * time.Minute)
		if got := n.g.HealthReport().Stream.State; got != pleg.StreamConnected {
			t.Errorf("the stream is %s", got)
		}
		n.g.Stop()
	})
}

// If Stop interrupts a delivery, the channel of Watch receives the remaining events after the next
// Start.
func TestStopInTheMiddleOfADelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2"), plegtest.Running("a3")))
		g := pleg.NewGenericPLEG(rt, 1, 0, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		events := g.Watch()
		g.Start(t.Context())
		synctest.Wait()
		g.Stop()
		want(t, "the channel", read(events), "a Started a1")
		rt.SetPod(bare("b", plegtest.Running("b1")))
		_ = g.Relist(t.Context())
		want(t, "without Start", read(events), "a Started a2")
		g.Start(t.Context())
		var got []string
		for range 2 {
			synctest.Wait()
			got = append(got, read(events)...)
		}
		want(t, "with Start", got, "a Started a3", "b Started b1")
		g.Stop()
	})
}
