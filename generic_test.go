package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
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

func TestRelistIsFourLines(t *testing.T) {
	rt := plegtest.NewRuntime()
	rt.SetPods(bare("a", plegtest.Running("a1")))
	g := pleg.NewGenericPLEG(rt, 10, time.Second, pleg.NewCache(), clocktesting.NewFakeClock(time.Now()))
	events := g.Watch()
	g.Relist()
	want(t, "events", read(events), "a Started a1")
}

// Rule 1, and the state table of the kubelet: what each step of a container from
// one listing to the next is told as.
func TestRule1StateTable(t *testing.T) {
	absent := (*pleg.Container)(nil)
	created, running, exited, unknown := plegtest.Created("c"), plegtest.Running("c"), plegtest.Exited("c"), plegtest.Unknown("c")
	for _, step := range []struct {
		from, to *pleg.Container
		events   []string
	}{
		{absent, created, nil},
		{absent, unknown, nil},
		{absent, running, []string{"a Started c"}},
		{absent, exited, []string{"a Died c"}},
		{created, running, []string{"a Started c"}},
		{created, exited, []string{"a Died c"}},
		{created, unknown, nil},
		{created, absent, []string{"a Died c", "a Removed c"}},
		{unknown, running, []string{"a Started c"}},
		{unknown, exited, []string{"a Died c"}},
		{unknown, absent, []string{"a Died c", "a Removed c"}},
		{running, running, nil},
		{running, exited, []string{"a Died c"}},
		{running, unknown, nil},
		{running, absent, []string{"a Died c", "a Removed c"}},
		{exited, exited, nil},
		{exited, unknown, nil},
		{exited, absent, []string{"a Removed c"}},
	} {
		name := func(c *pleg.Container) string {
			if c == nil {
				return "absent"
			}
			return string(c.State)
		}
		t.Run(name(step.from)+" to "+name(step.to), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				// Both as a container and as a sandbox, which count alike.
				for _, sandbox := range []bool{false, true} {
					pod := func(c *pleg.Container) *pleg.Pod {
						p := bare("a", plegtest.Created("other"))
						switch {
						case c == nil:
						case sandbox:
							p.Sandboxes = []*pleg.Container{c}
						default:
							p.Containers = append(p.Containers, c)
						}
						return p
					}
					n.SetPods()
					n.g.Relist()
					n.SetPods(pod(step.from))
					n.g.Relist()
					events := n.g.Subscribe(t.Context(), 100)
					before := len(read(events))
					n.SetPods(pod(step.to))
					n.g.Relist()
					want(t, fmt.Sprintf("after %d events", before), read(events), step.events...)
				}
				n.g.Stop()
			})
		})
	}
}

// Rule 2 again: patience has an end. A pod that is slow is announced after the
// others, which it has delayed by a twentieth of a period.
func TestRule2PatienceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(4)...)
		n.Delay(plegtest.GetPodStatus, "pod-00001", 500*time.Millisecond)
		events := n.g.Watch()
		n.start()
		want(t, "at once", onlyPods(read(events)), "pod-00000")
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		want(t, "after 50 ms", onlyPods(read(events)), "pod-00002", "pod-00003")
		time.Sleep(450 * time.Millisecond)
		synctest.Wait()
		want(t, "in the end", onlyPods(read(events)), "pod-00001")
	})
}

// onlyPods returns the pods of events, each once, in order.
func onlyPods(lines []string) []string {
	for i, l := range lines {
		lines[i], _, _ = strings.Cut(l, " ")
	}
	return slices.Compact(lines)
}

// Rule 3: whoever holds an event finds its cause, or something newer, in the
// cache.
func TestRule3EventComesAfterItsStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(40)...)
		n.Delay(plegtest.GetPodStatus, plegtest.AnyPod, 7*time.Millisecond)
		n.Fail(plegtest.GetPodStatus, "pod-00003", errors.New("broken"))
		events := n.g.Subscribe(t.Context(), 0)
		n.start()
		check := func(e *pleg.PodLifecycleEvent) {
			t.Helper()
			status, err := n.cache.Get(e.ID)
			if e.ID == "pod-00003" {
				if err == nil {
					t.Errorf("%s: no error in the cache", line(e))
				}
				return
			}
			if status.TimeStamp.Before(e.ListedAt) {
				t.Errorf("%s: listed at %v, the cache has %v", line(e), e.ListedAt, status.TimeStamp)
			}
			for _, c := range status.ContainerStatuses {
				if c.ID.ID == e.Data && e.Type == pleg.ContainerDied && c.State != pleg.ContainerStateExited {
					t.Errorf("%s: the cache has it %s", line(e), c.State)
				}
			}
		}
		for range 80 {
			check(<-events)
		}
		for i := range 40 {
			n.ExitContainer(types.UID(fmt.Sprintf("pod-%05d", i)), fmt.Sprintf("pod-%05d-a", i), 1, "Error")
		}
		for range 40 {
			check(<-events)
		}
	})
}

func TestConstructorSaysWhichIsNil(t *testing.T) {
	rt, cache, clk := plegtest.NewRuntime(), pleg.NewCache(), clock.RealClock{}
	for _, c := range []struct {
		what      string
		construct func()
	}{
		{"runtime", func() { pleg.NewGenericPLEG(nil, 1, 1, cache, clk) }},
		{"runtime", func() { pleg.NewGenericPLEG((*plegtest.Runtime)(nil), 1, 1, cache, clk) }},
		{"cache", func() { pleg.NewGenericPLEG(rt, 1, 1, nil, clk) }},
		{"cache", func() { pleg.NewGenericPLEG(rt, 1, 1, (*pleg.PodCache)(nil), clk) }},
		{"clock", func() { pleg.NewGenericPLEG(rt, 1, 1, cache, nil) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			defer func() {
				if p := fmt.Sprint(recover()); !strings.Contains(p, "the "+c.what+" is nil") {
					t.Errorf("panicked with %q", p)
				}
			}()
			c.construct()
		})
	}
	pleg.NewGenericPLEG(rt, 1, 1, cache, clk, nil) // an option that is nil changes nothing
}

// A period of zero or less is the default, and so is a capacity.
func TestDefaults(t *testing.T) {
	for _, period := range []time.Duration{0, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			rt := plegtest.NewRuntime()
			g := pleg.NewGenericPLEG(rt.Plain(), -1, period, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(logr.Discard()),
				pleg.WithRelistThreshold(-1), pleg.WithInspectionWorkers(0), pleg.WithInspectionTimeout(-1))
			g.Start()
			defer g.Stop()
			time.Sleep(10*pleg.DefaultRelistPeriod + time.Millisecond)
			if got := rt.Calls(plegtest.GetPods); got != 11 {
				t.Errorf("%d lists in 10 s", got)
			}
			if got := cap(g.Watch()); got != pleg.DefaultChannelCapacity {
				t.Errorf("capacity %d", got)
			}
		})
	}
}

func TestStartTwiceStopTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.g.Stop() // before Start
		n.g.Start()
		n.g.Start()
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

// A generator goes on after Stop and Start where it was: nothing is told twice,
// and nothing that happened meanwhile is missed.
func TestStopAndStartAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		events := n.g.Watch()
		sub := n.g.Subscribe(t.Context(), 10)
		n.g.Start()
		synctest.Wait()
		n.g.Stop()
		want(t, "watch", read(events), "a Started a1", "b Started b1")
		want(t, "subscription", read(sub), "a Started a1", "b Started b1", "closed")
		n.ExitContainer("a", "a1", 0, "Completed")
		n.RemovePod("b")
		time.Sleep(time.Hour)
		if ok, err := n.g.Healthy(); ok || !strings.HasPrefix(err.Error(), "pleg was last seen active 1h0m0s ago; threshold is 3m0s") {
			t.Errorf("stopped for an hour: %v %v", ok, err)
		}
		n.start()
		want(t, "watch", read(events), "a Died a1", "b Died b1", "b Removed b1")
		if ok, err := n.g.Healthy(); !ok {
			t.Error(err)
		}
	})
}

// Stop returns although the runtime does not heed its context, leaves one
// goroutine behind, and the next Start makes no second call beside it.
func TestStopDuringHungCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(pods(3)...)
		healStatus := n.HangDeaf(plegtest.GetPodStatus, "pod-00001")
		n.g.Start()
		time.Sleep(2500 * time.Millisecond)
		healList := n.HangDeaf(plegtest.GetPods, plegtest.AnyPod)
		time.Sleep(time.Second)
		began := time.Now()
		n.g.Stop()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("Stop took %v", took)
		}
		n.g.Start()
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

// Stop cancels what heeds its context and returns at once; what was cancelled is
// neither a failure nor forgotten.
func TestStopCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(20)...)
		heal := n.Hang(plegtest.GetPodStatus, plegtest.AnyPod)
		n.g.Start()
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

// Relist is complete when it returns: beside Start, without it, many at a time,
// and across a Stop.
func TestRelistIsComplete(t *testing.T) {
	for _, started := range []bool{false, true} {
		t.Run(fmt.Sprintf("started=%v", started), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNodeOf(t, polling)
				n.Delay(plegtest.GetPodStatus, plegtest.AnyPod, 3*time.Millisecond)
				n.Delay(plegtest.GetPods, plegtest.AnyPod, time.Millisecond)
				if started {
					n.start()
				}
				events := n.g.Watch()
				for round := range 20 {
					state := pleg.ContainerStateRunning
					if round%2 == 1 {
						state = pleg.ContainerStateExited
					}
					for i := range 50 {
						uid := types.UID(fmt.Sprintf("pod-%05d", i))
						n.SetPod(bare(uid, plegtest.NewContainer(fmt.Sprintf("%s-%d", uid, round/2), state)))
					}
					n.g.Relist()
					if got := len(read(events)); round%2 == 1 && got != 50 {
						t.Fatalf("round %d: %d events are there", round, got)
					}
					for _, s := range n.cache.GetAll() {
						if s.ContainerStatuses[0].State != state {
							t.Fatalf("round %d: the cache has %s", round, s.ContainerStatuses[0].State)
						}
					}
				}
			})
		})
	}
}

func TestRelistAllAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(10)...)
		n.Delay(plegtest.GetPods, plegtest.AnyPod, 5*time.Millisecond)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() { n.g.Relist() })
			if i == 20 {
				n.g.Start()
			}
			if i == 40 {
				wg.Go(n.g.Stop)
			}
		}
		wg.Wait()
		n.g.Stop()
		if got := len(n.cache.GetAll()); got != 10 {
			t.Errorf("%d pods in the cache", got)
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
			n.g.Start()
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
					_, _ = n.cache.GetNewerThanContext(ctx, uid, time.Now())
					time.Sleep(2 * time.Millisecond)
				}
			})
			wg.Go(func() {
				for ctx.Err() == nil {
					ctx, unsubscribe := context.WithCancel(ctx)
					sub := n.g.Subscribe(ctx, i)
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

// Start relists at once, whenever the last one was; and after Stop Relist makes
// one relist and no more, however long it takes.
func TestRelistBesideThePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling, pleg.WithInspectionWorkers(1))
		n.SetPods(pods(5)...)
		n.g.Relist()
		time.Sleep(300 * time.Millisecond)
		n.g.Start()
		synctest.Wait()
		if got := n.Calls(plegtest.GetPods); got != 2 {
			t.Errorf("%d lists: Start did not make one", got)
		}
		n.g.Stop()
		time.Sleep(time.Minute)
		n.Delay(plegtest.GetPodStatus, plegtest.AnyPod, 900*time.Millisecond)
		for i := range 5 {
			n.g.RequestReinspect(types.UID(fmt.Sprintf("pod-%05d", i)))
		}
		n.g.Relist()
		if got := n.Calls(plegtest.GetPods); got != 3 {
			t.Errorf("%d lists: Relist made more than one", got)
		}
	})
}

// Rule 1: the order in which a runtime lists containers says nothing.
func TestRule1OrderOfContainersIsNothing(t *testing.T) {
	for _, count := range []int{3, 200} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			list := make([]*pleg.Container, count)
			for i := range list {
				list[i] = plegtest.Running(fmt.Sprint(i))
			}
			n.SetPods(bare("a", list...))
			n.g.Relist()
			events := n.g.Watch()
			read(events)
			other := slices.Clone(list)
			slices.Reverse(other)
			n.SetPods(bare("a", other...))
			n.g.Relist()
			want(t, "events", read(events))
		})
	}
}

// Rule 2: news that waits for its turn is replaced by newer news of its pod, and
// never comes after it.
func TestRule2WaitingNewsIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		defer n.HangDeaf(plegtest.GetPodStatus, "a")()
		events := n.g.Watch()
		n.start()
		n.g.RequestReinspect("b")
		synctest.Wait()
		n.SetPods(n.Pod("a"), bare("b", plegtest.Exited("b1")), bare("c", plegtest.Running("c1")))
		go n.g.Relist()
		synctest.Wait()
		want(t, "behind b, whose turn is taken", read(events), "c Started c1")
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		want(t, "when patience ends", read(events), "b Died b1", "b PodSync")
		time.Sleep(time.Second)
		want(t, "later", read(events))
	})
}

// Rule 2: patience is for the pod that stands first, anew for each, and each
// relist has its own.
func TestRule2PatienceBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")), bare("c", plegtest.Running("c1")))
		n.Delay(plegtest.GetPodStatus, "a", 40*time.Millisecond)
		n.Delay(plegtest.GetPodStatus, "b", 80*time.Millisecond)
		events := n.g.Watch()
		n.start()
		time.Sleep(200 * time.Millisecond)
		want(t, "one batch", read(events), "a Started a1", "b Started b1", "c Started c1")
	})
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
			defer n.HangDeaf(plegtest.GetPodStatus, "a")()
			events := n.g.Watch()
			n.start()
			time.Sleep(30 * time.Millisecond)
			if hangs {
				defer n.HangDeaf(plegtest.GetPodStatus, "c")()
			} else {
				n.Delay(plegtest.GetPodStatus, "c", 40*time.Millisecond)
			}
			n.SetPod(bare("c", plegtest.Running("c1")))
			n.SetPod(bare("d", plegtest.Running("d1")))
			go n.g.Relist()
			time.Sleep(21 * time.Millisecond) // 51 ms
			want(t, "the first batch", read(events), "b Started b1")
			time.Sleep(30 * time.Millisecond) // 81 ms
			if hangs {
				want(t, "the second batch", read(events), "d Started d1")
			} else {
				want(t, "the second batch", read(events), "c Started c1", "d Started d1")
			}
			time.Sleep(time.Second)
		})
	}
}

// Rule 3 for inspections that fail: the error is there before the event.
func TestRule3EventComesAfterItsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPods(pods(10)...)
		rt.Fail(plegtest.GetPodStatus, plegtest.AnyPod, errors.New("broken"))
		cache := slowSetCache{pleg.NewCache()}
		g := pleg.NewGenericPLEG(rt, 0, 0, cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		events := g.Subscribe(t.Context(), 0)
		g.Start()
		defer g.Stop()
		for range 20 {
			e := <-events
			if _, err := cache.Get(e.ID); err == nil {
				t.Errorf("%s: no error in the cache", line(e))
			}
		}
	})
}

// slowSetCache gives everybody time to come before what is stored.
type slowSetCache struct{ *pleg.PodCache }

func (c slowSetCache) Set(uid types.UID, status *pleg.PodStatus, err error, at time.Time) bool {
	time.Sleep(time.Millisecond)
	return c.PodCache.Set(uid, status, err, at)
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
	g.Subscribe(t.Context(), 0) // nobody reads it
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	rounds := 0
	heapAfter := func(n int) int {
		for range n {
			rounds++
			a, b, nobody := types.UID(fmt.Sprintf("a-%d", rounds)), types.UID(fmt.Sprintf("b-%d", rounds)), types.UID(fmt.Sprintf("nobody-%d", rounds))
			rt.pods = []*pleg.Pod{bare(a, plegtest.Running(string(a))), bare(b, plegtest.Running(string(b)))}
			g.RequestRelist(nobody)
			_, _ = cache.GetNewerThanContext(gone, nobody, clk.Now())
			g.Relist()
			for len(events) > 0 {
				<-events
			}
			clk.Step(time.Second)
		}
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := heapAfter(1000)
	const more = 5000
	if grown := heapAfter(more) - before; grown > 10*more {
		t.Errorf("%d bytes are held for each pod that is gone", grown/more)
	}
	g.Stop()
}

// Relist waits for the inspection of what it has seen, not only for one that was
// under way before; and it does not wait for what is asked for after it.
func TestRelistWaitsForTheRightInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Stale: true, Delay: 100 * time.Millisecond})
		n.start()
		time.Sleep(50 * time.Millisecond)
		n.ExitContainer("a", "a1", 5, "Error")
		n.g.Relist()
		if s, err := n.cache.Get("a"); err != nil || s.ContainerStatuses[0].ExitCode != 5 {
			t.Errorf("Relist returned; the cache has %v %v", s, err)
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for ctx.Err() == nil {
				n.g.RequestReinspect("a")
				time.Sleep(10 * time.Millisecond)
			}
		}()
		time.Sleep(20 * time.Millisecond)
		began := time.Now()
		n.g.Relist()
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("Relist took %v", took)
		}
		cancel()
		time.Sleep(time.Second)
	})
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
