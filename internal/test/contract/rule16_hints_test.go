package contract_test

import (
	"context"
	"fmt"
	"slices"
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

// Rule 16: a hint does not make a state fresher. The pod list for the hint does. If the hint's pod
// does not exist, there is exactly one follow-up list.
func TestRule16HintMakesNothingFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(500 * time.Millisecond)
		minTime := time.Now()
		time.Sleep(time.Millisecond)
		n.Delay(plegtest.GetPod, "a", 100*time.Millisecond)
		n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "a1", CreatedAt: time.Now().Add(time.Hour)})
		n.Emit(pleg.ContainerEvent{PodUID: "nobody", ContainerID: "x"})
		synctest.Wait()
		if fresh(n.cache, "a", minTime) {
			t.Error("the hint made it fresh")
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if !fresh(n.cache, "a", minTime) {
			t.Error("the pod list did not make it fresh")
		}
		time.Sleep(300 * time.Millisecond)
		if got := n.PodCalls(plegtest.GetPod, "nobody"); got != 2 {
			t.Errorf("%d pod lists of a pod that does not exist", got)
		}
	})
}

// Rule 16: the generator never blocks the sender of events, even while every call is stuck.
func TestRule16SenderIsNeverHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return &flood{Runtime: rt, events: 50000} })
		n.SetPods(pods(10)...)
		healList := n.BlockIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)
		healPod := n.BlockIgnoringCancel(plegtest.GetPod, plegtest.AnyPod)
		n.g.Subscribe(t.Context(), pleg.WithCapacity(-1))
		before := time.Now()
		n.start()
		if got := n.g.HealthReport().Stream; got.State != pleg.StreamConnected || !got.LastEvent.Equal(before) {
			t.Errorf("the stream is %v", got)
		}
		healList()
		healPod()
		time.Sleep(2 * time.Second)
		if got := len(n.cache.GetAll()); got != 10 {
			t.Errorf("%d pods", got)
		}
	})
}

// flood is a runtime that sends garbage events as fast as they are read, and then keeps the stream
// open.
type flood struct {
	*plegtest.Runtime
	events int
}

func (f *flood) WatchContainerEvents(ctx context.Context, connected func(), observe func(pleg.ContainerEvent)) error {
	connected()
	for i := range f.events {
		observe(pleg.ContainerEvent{PodUID: types.UID(fmt.Sprint(i)), ContainerID: fmt.Sprint(i)})
	}
	<-ctx.Done()
	return ctx.Err()
}

// Rule 16: while no list completes, the number of kept hints is bounded.
func TestRule16HintsWhileListsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(1)...)
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(2500 * time.Millisecond)
		heal := n.BlockIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)
		defer n.BlockIgnoringCancel(plegtest.GetPod, plegtest.AnyPod)()
		time.Sleep(time.Second)
		before := heapInUse()
		for i := range 100_000 {
			n.Emit(pleg.ContainerEvent{PodUID: types.UID(fmt.Sprintf("made-up-%d", i)), ContainerID: "x"})
			if i%1000 == 0 {
				synctest.Wait()
			}
		}
		if grown := heapInUse() - before; grown > 16<<20 {
			t.Errorf("the heap has grown by %d MiB", grown>>20)
		}
		n.ExitContainer("pod-00000", "pod-00000-a", 1, "Error")
		heal()
		time.Sleep(2 * time.Second)
		want(t, "events", read(events), "pod-00000 Died pod-00000-a")
	})
}

// Rule 16: if there are more hints than can be kept, one full relist answers all of them.
func TestRule16TooManyHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		gate := make(chan struct{})
		var busy atomic.Bool
		log := slowLogger("Relisting", func() {
			if busy.Load() {
				<-gate
			}
		})
		g := pleg.NewGenericPLEG(rt, 0, time.Hour, pleg.NewCache(), clock.RealClock{},
			pleg.WithRelistThreshold(2*time.Hour), pleg.WithLogger(log))
		events := g.Watch()
		g.Start(t.Context())
		defer g.Stop()
		time.Sleep(time.Minute)
		read(events)
		lists := rt.Calls(plegtest.GetPods)
		busy.Store(true)
		rt.Emit(pleg.ContainerEvent{ContainerID: "unknown"}) // requests a list, which keeps the loop busy
		synctest.Wait()
		for i := range 10000 {
			rt.Emit(pleg.ContainerEvent{PodUID: types.UID(fmt.Sprintf("new-%d", i))})
		}
		synctest.Wait()
		rt.ExitContainer("b", "b1", 1, "Error")
		rt.Emit(pleg.ContainerEvent{PodUID: "b", ContainerID: "b1"})
		synctest.Wait()
		close(gate)
		time.Sleep(time.Minute)
		if got := read(events); !slices.Contains(got, "b Died b1") {
			t.Errorf("got %v", got)
		}
		if got := rt.Calls(plegtest.GetPods) - lists; got != 2 {
			t.Errorf("%d lists", got)
		}
	})
}

// Rule 16: a hint arrives before the runtime's lists show the change. The change is not missed,
// whatever the pod list for the hint shows. One more list follows after a twentieth of the period,
// long before the next full list.
func TestRule16HintAheadWhilePeriodIsLong(t *testing.T) {
	sandboxGoes := func(n *node, count int) {
		for i := range count {
			uid := fmt.Sprintf("pod-%05d", i)
			n.Emit(pleg.ContainerEvent{PodUID: types.UID(uid), ContainerID: uid + "-sandbox"})
		}
	}
	for name, c := range map[string]struct {
		pods int
		hint func(n *node)
	}{
		"some":                            {8, func(n *node) { sandboxGoes(n, 8) }},
		"so many that the node is listed": {9, func(n *node) { sandboxGoes(n, 9) }},
		"together with a change": {1, func(n *node) {
			n.ExitContainer("pod-00000", "pod-00000-a", 0, "")
			n.Emit(pleg.ContainerEvent{PodUID: "pod-00000", ContainerID: "pod-00000-a"})
			sandboxGoes(n, 1)
		}},
		"superseded by a full list": {1, func(n *node) {
			n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 1, Delay: 5 * time.Millisecond, Stale: true})
			sandboxGoes(n, 1)
			time.Sleep(time.Millisecond)
			n.relist()
		}},
		"whose pod is requested once more": {1, func(n *node) {
			n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 1, Delay: 20 * time.Millisecond, Stale: true})
			n.g.RequestRelist("pod-00000")
			time.Sleep(5 * time.Millisecond)
			sandboxGoes(n, 1)
			time.Sleep(5 * time.Millisecond)
			n.g.RequestRelist("pod-00000")
			time.Sleep(15 * time.Millisecond)
		}},
		"and a second one that is ahead too": {1, func(n *node) {
			sandboxGoes(n, 1)
			time.Sleep(30 * time.Millisecond)
			sandboxGoes(n, 1)
			time.Sleep(25 * time.Millisecond)
		}},
		"with a reader of a time in the future": {1, func(n *node) {
			go func() { _, _ = n.cache.GetNewerThan("pod-00000", time.Now().Add(20*time.Millisecond)) }()
			time.Sleep(time.Millisecond)
			sandboxGoes(n, 1)
			time.Sleep(29 * time.Millisecond)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &node{Runtime: plegtest.NewRuntime(), t: t, cache: pleg.NewCache()}
				n.g = pleg.NewGenericPLEG(n.Runtime, 0, 20*time.Second, n.cache, clock.RealClock{},
					pleg.WithLogger(logr.Discard()))
				n.SetPods(pods(20)...)
				n.start()
				time.Sleep(10*time.Minute + 500*time.Millisecond)
				c.hint(n)
				time.Sleep(10 * time.Millisecond)
				for _, p := range pods(c.pods) {
					n.RemovePod(p.ID)
				}
				time.Sleep(1100 * time.Millisecond)
				if got := n.g.HealthReport().Pods; got != 20-c.pods {
					t.Errorf("%d pods are known", got)
				}
			})
		})
	}
}

// Full lists fail. Hints arrive for very many pods that cannot be listed, and then for a known pod.
// The change of the known pod is still reported.
func TestKnownPodBesideTooManyHints(t *testing.T) {
	for name, c := range map[string]struct {
		hints int  // before the hint of the known pod
		busy  bool // true if the loop is busy, so that all hints arrive at once
	}{
		"one after the other": {10_100, false},
		"as many as fit":      {9_999, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := newChurning(bare("known", plegtest.Running("known-1")), bare("busy", plegtest.Running("busy-1")))
				rt.broken = func(uid types.UID) bool { return uid != "known" }
				gate := make(chan struct{})
				var busy atomic.Bool
				log := slowLogger("Wrote status", func() {
					if busy.Load() {
						<-gate
					}
				})
				g := pleg.NewGenericPLEG(rt, 0, time.Second, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(log))
				events := g.Watch()
				g.Start(t.Context())
				defer g.Stop()
				time.Sleep(500 * time.Millisecond)
				read(events)
				rt.listsFail.Store(true)
				if busy.Store(c.busy); c.busy {
					g.RequestReinspect("busy")
				}
				synctest.Wait()
				for i := range c.hints {
					rt.hint(types.UID(fmt.Sprintf("unknown-%05d", i)))
					if !c.busy && i%100 == 0 {
						time.Sleep(time.Millisecond)
					}
				}
				rt.set("known", bare("known", plegtest.Exited("known-1")))
				close(gate)
				died := time.Now()
				tooLate := time.After(2 * time.Second)
				for e := (*pleg.PodLifecycleEvent)(nil); e == nil || line(e) != "known Died known-1"; {
					select {
					case e = <-events:
					case <-tooLate:
						t.Fatalf("not reported after %v", time.Since(died))
					}
				}
			})
		})
	}
}

// odd is an event source that reports its connection too often, and sends events at the wrong time.
type odd struct {
	*plegtest.Runtime
	late    bool // true if it is silent until the test stops it
	stopped chan struct{}
}

func (o odd) WatchContainerEvents(_ context.Context, connected func(), observe func(pleg.ContainerEvent)) error {
	if !o.late {
		connected()
		connected()
		observe(pleg.ContainerEvent{PodUID: "a", CreatedAt: time.Now().Add(time.Hour)})
	}
	<-o.stopped
	connected()
	observe(pleg.ContainerEvent{PodUID: "a"})
	return nil
}

// Rule 16: events of a cancelled stream are ignored. A connection that is reported twice counts
// once.
func TestRule16OddSource(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			stopped := make(chan struct{})
			n, reg := newNodeWithMetricsOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return odd{rt, late, stopped} })
			n.g.Start(t.Context())
			synctest.Wait()
			if !late {
				wantMetric(t, reg, "kubelet_evented_pleg_connection_success_count", 1)
			}
			last := n.g.HealthReport().Stream.LastEvent
			n.g.Stop()
			time.Sleep(time.Second)
			close(stopped)
			synctest.Wait()
			got := n.g.HealthReport().Stream
			if got.State != pleg.StreamOff || !got.LastEvent.Equal(last) || got.Error != "" {
				t.Errorf("the stream is %+v", got)
			}
		})
	}
}
