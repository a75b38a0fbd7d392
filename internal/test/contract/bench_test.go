package contract_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// benchNode makes a generator for a runtime of n pods, and relists once. Each pod has two
// containers and a sandbox.
func benchNode(n int, wrap func(*plegtest.Runtime) pleg.Runtime) (*plegtest.Runtime, *pleg.GenericPLEG) {
	rt := plegtest.NewRuntime()
	list := make([]*pleg.Pod, n)
	for i := range list {
		uid := fmt.Sprintf("pod-%05d", i)
		list[i] = plegtest.NewPod(types.UID(uid), plegtest.Running(uid+"-a"), plegtest.Running(uid+"-b"))
	}
	rt.SetPods(list...)
	g := pleg.NewGenericPLEG(
		wrap(rt), 1+4*n, time.Second, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(logr.Discard()))
	_ = g.Relist(context.Background())
	return rt, g
}

// BenchmarkIdleRelist measures a Relist that finds no change. The number of allocations does not
// depend on the number of pods; TestIdleRelistAllocatesAConstant checks that.
func BenchmarkIdleRelist(b *testing.B) {
	for _, n := range []int{110, 1000, 10000} {
		b.Run(fmt.Sprintf("pods=%d", n), func(b *testing.B) {
			_, g := benchNode(n, polling)
			b.ReportAllocs()
			for b.Loop() {
				_ = g.Relist(b.Context())
			}
		})
	}
}

// BenchmarkIdleRelistFreshPods is like BenchmarkIdleRelist, but consecutive lists do not share
// pods. The generator must therefore compare the pods.
func BenchmarkIdleRelistFreshPods(b *testing.B) {
	for _, n := range []int{110, 1000, 10000} {
		b.Run(fmt.Sprintf("pods=%d", n), func(b *testing.B) {
			_, g := benchNode(n, func(rt *plegtest.Runtime) pleg.Runtime { return newAlternating(rt.Plain()) })
			_ = g.Relist(b.Context())
			b.ReportAllocs()
			for b.Loop() {
				_ = g.Relist(b.Context())
			}
		})
	}
}

// alternating is a runtime with two copies of the same pods. Its lists return the copies in turn.
type alternating struct {
	pleg.Runtime
	lists [2][]*pleg.Pod
	turn  int
}

func newAlternating(rt pleg.Runtime) *alternating {
	a := &alternating{Runtime: rt}
	for i := range a.lists {
		list, _ := rt.GetPods(context.Background(), true)
		for _, p := range list {
			copied := *p
			copied.Containers, copied.Sandboxes = nil, nil
			for _, c := range p.Containers {
				again := *c
				copied.Containers = append(copied.Containers, &again)
			}
			for _, s := range p.Sandboxes {
				again := *s
				copied.Sandboxes = append(copied.Sandboxes, &again)
			}
			a.lists[i] = append(a.lists[i], &copied)
		}
	}
	return a
}

func (a *alternating) GetPods(context.Context, bool) ([]*pleg.Pod, error) {
	a.turn = 1 - a.turn
	return a.lists[a.turn], nil
}

// BenchmarkChanged100At5ms measures 100 changed pods. An inspection takes 5 ms, and eight run at a
// time: 13 rounds of 5 ms take 65 ms.
func BenchmarkChanged100At5ms(b *testing.B) {
	rt, g := benchNode(100, func(rt *plegtest.Runtime) pleg.Runtime { return slow{rt.Plain(), 5 * time.Millisecond} })
	events := g.Watch()
	states := []pleg.State{pleg.ContainerStateExited, pleg.ContainerStateRunning}
	round := 0
	for b.Loop() {
		b.StopTimer()
		for len(events) > 0 {
			<-events
		}
		for i := range 100 {
			uid := fmt.Sprintf("pod-%05d", i)
			rt.SetContainer(types.UID(uid), uid+"-a", states[round%2])
		}
		round++
		b.StartTimer()
		_ = g.Relist(b.Context())
	}
	if len(events) != 100 {
		b.Fatalf("%d events", len(events))
	}
}

// slow is a runtime with inspections that take the given time.
type slow struct {
	pleg.Runtime
	takes time.Duration
}

func (s slow) GetPodStatus(ctx context.Context, p *pleg.Pod) (*pleg.PodStatus, error) {
	timer := time.NewTimer(s.takes)
	defer timer.Stop()
	<-timer.C
	return s.Runtime.GetPodStatus(ctx, p)
}

// BenchmarkEverythingChanged measures a change of all pods at once. Inspections take no time.
func BenchmarkEverythingChanged(b *testing.B) {
	for _, n := range []int{110, 1000, 10000} {
		b.Run(fmt.Sprintf("pods=%d", n), func(b *testing.B) {
			rt, g := benchNode(n, polling)
			events := g.Watch()
			states := []pleg.State{pleg.ContainerStateExited, pleg.ContainerStateRunning}
			round := 0
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				for len(events) > 0 {
					<-events
				}
				for i := range n {
					uid := fmt.Sprintf("pod-%05d", i)
					rt.SetContainer(types.UID(uid), uid+"-a", states[round%2])
				}
				round++
				b.StartTimer()
				_ = g.Relist(b.Context())
			}
		})
	}
}

// BenchmarkRequestedPodLists compares numbers of requested pod lists. For more than eight pods, the
// generator makes one full list instead.
func BenchmarkRequestedPodLists(b *testing.B) {
	for _, n := range []int{1, 8, 9, 64} {
		b.Run(fmt.Sprintf("pods=%d", n), func(b *testing.B) {
			rt, g := benchNode(300, func(rt *plegtest.Runtime) pleg.Runtime { return rt })
			g.Start(b.Context())
			defer g.Stop()
			round := 0
			states := []pleg.State{pleg.ContainerStateExited, pleg.ContainerStateRunning}
			events := g.Subscribe(context.Background(), pleg.WithCapacity(4*300))
			for range 3 * 300 {
				<-events
			}
			for b.Loop() {
				for i := range n {
					uid := fmt.Sprintf("pod-%05d", i)
					rt.SetContainer(types.UID(uid), uid+"-a", states[round%2])
					g.RequestRelist(types.UID(uid))
				}
				for range n {
					<-events
				}
				round++
			}
		})
	}
}

func BenchmarkGetNewerThanFanOut(b *testing.B) {
	const readers = 1000
	c := pleg.NewCache()
	now := clock.RealClock{}.Now()
	c.Set("a", status("a", ""), nil, now)
	b.ReportAllocs()
	for b.Loop() {
		var wg sync.WaitGroup
		for range readers {
			wg.Go(func() { _, _ = c.GetNewerThan("a", now) })
		}
		for c.BlockedReaders() < readers {
			runtime.Gosched()
		}
		now = now.Add(time.Second)
		c.UpdateTime(now)
		wg.Wait()
	}
}

func BenchmarkCacheGet(b *testing.B) {
	c := pleg.NewCache()
	for i := range 10000 {
		uid := types.UID(fmt.Sprint(i))
		c.Set(uid, status(uid, ""), nil, at(1))
	}
	b.ReportAllocs()
	for b.Loop() {
		_, _ = c.Get("5000")
	}
}

// BenchmarkCacheSet stores the status of one changed pod among 10,000, with the same containers or
// with one restarted container.
func BenchmarkCacheSet(b *testing.B) {
	for _, restarted := range []bool{false, true} {
		b.Run(fmt.Sprintf("restarted=%v", restarted), func(b *testing.B) {
			c := pleg.NewCache()
			for i := range 10000 {
				uid := types.UID(fmt.Sprint(i))
				c.Set(uid, lookupStatus(uid, fmt.Sprint("pod-", i), 1, []string{fmt.Sprintf("%064x", i)},
					[]string{"10.0.0.1"}), nil, at(1))
			}
			ids := []string{fmt.Sprintf("%064x", 5000), fmt.Sprintf("%063xf", 5000)}
			versions := []*pleg.PodStatus{
				lookupStatus("5000", "pod-5000", 1, ids[:1], []string{"10.0.0.1"}),
				lookupStatus("5000", "pod-5000", 1, ids[:1], []string{"10.0.0.1"}),
			}
			if restarted {
				versions[1] = lookupStatus("5000", "pod-5000", 1, ids, []string{"10.0.0.1"})
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c.Set("5000", versions[i%2], nil, at(1))
			}
		})
	}
}

// BenchmarkHeapPerPod measures the heap of a pod with a sandbox and two containers, each with the
// given number of labels. It measures the runtime's pods alone, and with a generator and its cache.
// The result is heap-B/pod; the time has no meaning.
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

// benchmarkHeap reports the heap per pod of a runtime, together with the value that the function
// use makes from it.
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

// podWithLabels returns a pod that shares no memory with other pods. Its IDs are as long as
// containerd's. The sandbox and both containers have labels of ordinary length.
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
