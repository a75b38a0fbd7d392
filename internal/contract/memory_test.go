package contract_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
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

// churning is a runtime whose pods come and go, with an event each time. It keeps nothing
// of those that are gone, so that the heap shows what the generator keeps.
type churning struct {
	listsFail atomic.Bool
	observe   atomic.Pointer[func(pleg.ContainerEvent)]

	mu   sync.Mutex
	pods map[types.UID]*pleg.Pod
	// broken are the pods that cannot be listed by themselves.
	broken func(types.UID) bool
}

func newChurning(pods ...*pleg.Pod) *churning {
	c := &churning{pods: make(map[types.UID]*pleg.Pod), broken: func(types.UID) bool { return false }}
	ignore := func(pleg.ContainerEvent) {}
	c.observe.Store(&ignore)
	for _, p := range pods {
		c.pods[p.ID] = p
	}
	return c
}

// set has a pod come, change or, if it is nil, go, and announces that.
func (c *churning) set(uid types.UID, pod *pleg.Pod) {
	c.mu.Lock()
	if pod == nil {
		delete(c.pods, uid)
	} else {
		c.pods[uid] = pod
	}
	c.mu.Unlock()
	c.hint(uid)
}

func (c *churning) hint(uid types.UID) {
	(*c.observe.Load())(pleg.ContainerEvent{PodUID: uid, ContainerID: "container of " + string(uid)})
}

func (c *churning) GetPods(context.Context, bool) ([]*pleg.Pod, error) {
	if c.listsFail.Load() {
		return nil, errors.New("too large")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []*pleg.Pod
	for _, p := range c.pods {
		list = append(list, p)
	}
	return list, nil
}

func (c *churning) GetPod(_ context.Context, uid types.UID) (*pleg.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch p := c.pods[uid]; {
	case c.broken(uid):
		return nil, errors.New("cannot be listed")
	case p == nil:
		return nil, pleg.ErrPodNotFound
	default:
		return p, nil
	}
}

func (c *churning) GetPodStatus(_ context.Context, p *pleg.Pod) (*pleg.PodStatus, error) {
	return statusOf(p), nil
}

func (c *churning) WatchContainerEvents(
	ctx context.Context, connected func(), observe func(pleg.ContainerEvent),
) error {
	c.observe.Store(&observe)
	connected()
	<-ctx.Done()
	return ctx.Err()
}

// While full lists fail and lists of single pods work, pods that came and went leave
// nothing behind: no record, no mark in the cache, no request.
func TestMemoryWhileFullListsFail(t *testing.T) {
	if raceEnabled {
		t.Skip("counts the heap")
	}
	synctest.Test(t, func(t *testing.T) {
		rt, cache := newChurning(pods(10)...), pleg.NewCache()
		g := pleg.NewGenericPLEG(rt, 100, time.Second, cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		g.Subscribe(t.Context(), pleg.WithCapacity(-1)) // nobody reads it
		g.Start(t.Context())
		defer g.Stop()
		time.Sleep(500 * time.Millisecond)
		rt.listsFail.Store(true)
		known := 0
		const batch = 100
		churn := func(first, n int) {
			for i := first; i < first+n; i += batch {
				for j := i; j < i+batch; j++ {
					uid := types.UID(fmt.Sprintf("churned-%06d", j))
					rt.set(uid, bare(uid, plegtest.Running(string(uid)+"-a")))
				}
				synctest.Wait()
				known = max(known, g.HealthReport().Pods-10)
				for j := i; j < i+batch; j++ {
					rt.set(types.UID(fmt.Sprintf("churned-%06d", j)), nil)
				}
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(2 * time.Minute) // the follow-ups are over, and the look-ups of what is gone
		}
		const some, more = 20_000, 100_000
		churn(0, some) // maps that held what is gone keep their size, which is bounded
		before := heapInUse()
		churn(some, more)
		if grown := heapInUse() - before; grown > 10*more {
			t.Errorf("%d bytes are held for each pod that is gone", grown/more)
		}
		r := g.HealthReport()
		if r.Pods != 10 || r.RelistError == "" || len(r.FailingPods) != 0 || len(cache.GetAll()) != 10 {
			t.Errorf("%d pods in the cache; the report is %+v", len(cache.GetAll()), r)
		}
		if known != batch {
			t.Errorf("%d of %d were known: it is no churn", known, batch)
		}
	})
}

// While the status of a pod never agrees with its list, readers of pods that do not exist leave nothing
// behind.
func TestMemoryOfReadersOfAbsentPods(t *testing.T) {
	if raceEnabled {
		t.Skip("counts the heap")
	}
	for name, wrap := range map[string]func(*plegtest.Runtime) pleg.Runtime{
		"getter": func(rt *plegtest.Runtime) pleg.Runtime { return rt }, "polling": polling,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNodeOf(t, wrap)
				n.SetPods(bare("a", plegtest.Running("a1")))
				n.SetStatus("a", &pleg.PodStatus{ID: "a"})
				n.start()
				const readers = 10_000
				ask := func(round int) {
					for i := range readers {
						uid := types.UID(fmt.Sprintf("absent-%d-%05d", round, i))
						go func() {
							if _, exists, err := n.cache.LookupNewerThan(t.Context(), uid, time.Now()); exists || err != nil {
								t.Errorf("%s exists: %v, %v", uid, exists, err)
							}
						}()
					}
					time.Sleep(10 * time.Second)
				}
				ask(0)
				before := heapInUse()
				ask(1)
				ask(2)
				if grown := heapInUse() - before; grown > 2*readers*20 {
					t.Errorf("%d bytes are held for each reader that was answered", grown/(2*readers))
				}
			})
		})
	}
}

// At more hinted pods than can be kept, while full lists fail and none of these pods can
// be listed, what happens to a pod that is known is still reported.
func TestKnownPodBesideTooManyHints(t *testing.T) {
	for name, c := range map[string]struct {
		hints int  // before that of the known pod
		busy  bool // the loop, so that all hints come at once
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

// BenchmarkHeapPerPod measures what is held for a pod of a sandbox and two containers, each
// with as many labels, by the runtime that made it and by a generator and its cache
// besides. The heap is in heap-B/pod; the time means nothing.
func BenchmarkHeapPerPod(b *testing.B) {
	const pods = 1000
	for _, labels := range []int{0, 10} {
		b.Run(fmt.Sprintf("labels=%d/by=runtime", labels), func(b *testing.B) {
			benchmarkHeap(b, pods, labels, func(*churning) any { return nil })
		})
		b.Run(fmt.Sprintf("labels=%d/by=generator", labels), func(b *testing.B) {
			benchmarkHeap(b, pods, labels, func(rt *churning) any {
				cache := pleg.NewCache()
				g := pleg.NewGenericPLEG(rt, 0, time.Second, cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
				_ = g.Relist(b.Context())
				if n := len(cache.GetAll()); n != pods {
					b.Fatalf("%d pods", n)
				}
				return g
			})
		})
	}
}

// benchmarkHeap reports by how much a node of pods and its user have the heap grow, by the
// pod.
func benchmarkHeap(b *testing.B, pods, labels int, use func(*churning) any) {
	var grown int64
	for b.Loop() {
		before := heapInUse()
		list := make([]*pleg.Pod, pods)
		for i := range list {
			list[i] = podWithLabels(i, labels)
		}
		rt := newChurning(list...)
		user := use(rt)
		grown = heapInUse() - before
		runtime.KeepAlive(rt)
		runtime.KeepAlive(user)
	}
	b.ReportMetric(float64(grown)/float64(pods), "heap-B/pod")
}

// podWithLabels returns a pod that shares no memory with others, with IDs of the length of
// containerd's, and labels of ordinary length on the sandbox and both containers.
func podWithLabels(i, labels int) *pleg.Pod {
	id := func(kind string) string { return fmt.Sprintf("%064s", fmt.Sprint(kind, i)) }
	pod := bare(types.UID(fmt.Sprintf("5d4f0c1e-7b1a-4b53-9c55-%012d", i)),
		plegtest.Running(id("server")), plegtest.Running(id("sidecar")))
	pod.Name = fmt.Sprintf("frontend-6d4cf56db6-%05d", i)
	pod.Sandboxes = []*pleg.Container{plegtest.NewSandbox(id("sandbox"), pleg.ContainerStateRunning)}
	for _, c := range slices.Concat(pod.Containers, pod.Sandboxes) {
		for j := range labels {
			if c.Labels == nil {
				c.Labels = make(map[string]string, labels)
			}
			c.Labels[fmt.Sprintf("app.kubernetes.io/label-%02d", j)] = fmt.Sprintf("frontend-%05d-%02d", i, j)
		}
	}
	pod.Labels = pod.Sandboxes[0].Labels
	return pod
}

// What a pod that fails costs does not depend on how many others fail.
func TestManyFailingPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, pleg.WithInspectionWorkers(1000))
		list := pods(4000)
		n.SetPods(list...)
		n.Fail(plegtest.GetPodStatus, plegtest.AnyPod, errors.New("broken"))
		n.start()
		if got := len(n.g.HealthReport().FailingPods); got != len(list) {
			t.Fatalf("%d pods fail", got)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const inspections = 50
		for i := range inspections {
			n.g.RequestReinspect(list[i].ID)
			synctest.Wait()
		}
		runtime.ReadMemStats(&after)
		if got := (after.TotalAlloc - before.TotalAlloc) / inspections; got > 100_000 {
			t.Errorf("an inspection that fails allocates %d bytes", got)
		}
	})
}
