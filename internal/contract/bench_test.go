package contract_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// benchNode is a generator over a runtime of n pods, each of two containers and a
// sandbox, that has seen them all.
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

// The whole way from Relist to "nothing changed". How often it allocates does not depend on
// the number of pods; TestIdleRelistAllocatesAConstant holds it to that.
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

// The same with a runtime that makes its pods anew for every list, so that they
// must be compared.
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

// alternating lists two copies of the same pods alternately.
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

// 100 changed pods at 5 ms an inspection, eight at a time: 13 rounds of 5 ms are
// 65 ms.
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

// slow is a runtime whose inspections take their time.
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

// Everything changes at once, with inspections that cost nothing.
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

// How many pods are worth a full list: the same requests for single-pod relists, below
// and above the number from which the whole node is listed.
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

// What the benchmark shows, held: an idle relist allocates as often for ten thousand pods as
// for a hundred, with metrics, subscribers and blocked readers too.
func TestIdleRelistAllocatesAConstant(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, n := range []int{110, 1000, 10000} {
		rt := plegtest.NewRuntime()
		rt.SetPods(pods(n)...)
		cache := pleg.NewCache()
		g := pleg.NewGenericPLEG(rt.Plain(), 0, time.Second, cache, clock.RealClock{},
			pleg.WithLogger(logr.Discard()), pleg.WithRegisterer(prometheus.NewRegistry()))
		ctx, cancel := context.WithCancel(context.Background())
		far := clock.RealClock{}.Now().Add(time.Hour)
		done := make(chan struct{})
		for i := range 10 {
			g.Subscribe(ctx, pleg.WithCapacity(1))
			go func() {
				_, _, _ = cache.LookupNewerThan(ctx, types.UID(fmt.Sprintf("pod-%05d", i)), far)
				done <- struct{}{}
			}()
		}
		for cache.BlockedReaders() < 10 {
			_ = g.Relist(ctx)
		}
		for range 100 { // native histograms add the buckets that they need
			_ = g.Relist(ctx)
		}
		if got := testing.AllocsPerRun(100, func() { _ = g.Relist(ctx) }); got > 30 { // some 21
			t.Errorf("%d pods: %v allocations a relist", n, got)
		}
		cancel()
		for range 10 {
			<-done
		}
		g.Stop()
	}
}
