package contract_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// A Relist whose list Stop has cancelled makes another, and is complete.
func TestRelistGoesOnWhenItsListIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		heal := n.Block(plegtest.GetPods, plegtest.AnyPod)
		n.g.Start(t.Context())
		synctest.Wait()
		heal()
		n.g.Stop()
		heal = n.Block(plegtest.GetPods, plegtest.AnyPod)
		done := make(chan struct{})
		go func() { defer close(done); n.relist() }()
		synctest.Wait()
		heal() // the call in flight goes on stuck
		n.g.Stop()
		<-done
		if got := len(n.cache.GetAll()); got != 1 {
			t.Errorf("%d pods in the cache", got)
		}
	})
}

// Rules 5 and 12: where its list and a single-pod list conflict, Relist waits for the
// single-pod list that settles it and makes no second list of all pods: beside Start
// and, where nothing else would ever settle it, without.
func TestRelistResolvesConflicts(t *testing.T) {
	for _, started := range []bool{false, true} {
		t.Run(fmt.Sprintf("started=%v", started), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(bare("a", plegtest.Running("a1")))
				events := n.g.Watch()
				if started {
					n.start()
					time.Sleep(500 * time.Millisecond)
				} else {
					n.relist()
				}
				read(events)
				began := conflict(n)
				lists := n.Calls(plegtest.GetPods)
				done := make(chan struct{})
				go func() { defer close(done); n.relist() }()
				time.Sleep(50 * time.Millisecond)
				n.ExitContainer("a", "a1", 1, "Error")
				<-done
				want(t, "after Relist", read(events), "a Died a1", "slow Started slow-1")
				if !fresh(n.cache, "a", began) {
					t.Error("the pod is held back still")
				}
				if got := n.Calls(plegtest.GetPods) - lists; got != 1 {
					t.Errorf("%d lists", got)
				}
				n.g.Stop()
			})
		})
	}
}

// conflict begins a single-pod list of a that shows the present and completes 14 ms
// after the full list which a Relist called now begins: that takes 100 ms. It returns a
// time before that.
func conflict(n *node) time.Time {
	n.SetPod(bare("slow", plegtest.Running("slow-1")))
	n.Delay(plegtest.GetPodStatus, "slow", 20*time.Millisecond)
	go n.relist() // its list completes at once; so that there is a loop without Start
	time.Sleep(15 * time.Millisecond)
	n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 1, Stale: true, Delay: 15 * time.Millisecond})
	n.g.RequestRelist("a")
	time.Sleep(time.Millisecond)
	n.Delay(plegtest.GetPods, plegtest.AnyPod, 100*time.Millisecond)
	return time.Now().Add(-1)
}

// flapping is a runtime whose one container starts and exits at the pace of the lists,
// so that each full list conflicts with the single-pod list before it.
type flapping struct {
	observe atomic.Pointer[func(pleg.ContainerEvent)]
	lists   atomic.Int64
}

func (f *flapping) GetPods(ctx context.Context, _ bool) ([]*pleg.Pod, error) {
	f.lists.Add(1)
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	(*f.observe.Load())(pleg.ContainerEvent{PodUID: "a", ContainerID: "a1"})
	return []*pleg.Pod{bare("a", plegtest.Exited("a1"))}, nil
}

func (f *flapping) GetPod(context.Context, types.UID) (*pleg.Pod, error) {
	time.Sleep(time.Millisecond)
	return bare("a", plegtest.Running("a1")), nil
}

func (f *flapping) GetPodStatus(_ context.Context, p *pleg.Pod) (*pleg.PodStatus, error) {
	return &pleg.PodStatus{ID: p.ID}, nil
}

func (f *flapping) WatchContainerEvents(
	ctx context.Context, connected func(), observe func(pleg.ContainerEvent),
) error {
	f.observe.Store(&observe)
	connected()
	<-ctx.Done()
	return ctx.Err()
}

// A pod whose lists conflict again and again does not keep Relist for ever.
func TestRelistEndsBesideEndlessConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flapping{}
		ignore := func(pleg.ContainerEvent) {}
		f.observe.Store(&ignore)
		n := newNodeOf(t, func(*plegtest.Runtime) pleg.Runtime { return f })
		n.start()
		time.Sleep(5500 * time.Millisecond)
		for range 10 {
			lists := f.lists.Load()
			n.g.RequestRelist("a")
			n.relist()
			if got := f.lists.Load() - lists; got > 4 {
				t.Errorf("%d lists", got)
			}
		}
		n.g.Stop()
	})
}

// Relist returns even if PodSyncs are requested all the time: it waits for one inspection of each pod at most.
func TestRelistEndsBesideEndlessReinspections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.start()
		synctest.Wait()
		n.Delay(plegtest.GetPodStatus, plegtest.AnyPod, 100*time.Millisecond)
		done := make(chan struct{})
		go func() { defer close(done); n.relist() }()
		for range 500 { // an inspection is always in flight, and another wanted
			n.g.RequestReinspect("a")
			n.g.RequestReinspect("b")
			select {
			case <-done:
				n.g.Stop()
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
		t.Error("Relist has not returned within 5 s")
		n.g.Stop()
		<-done
	})
}

// Where the single-pod list that was to settle a conflict fails, Relist does not wait
// for that pod; the next full list settles it.
func TestRelistBesideConflictThatIsNotSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		events := n.g.Watch()
		n.start()
		time.Sleep(500 * time.Millisecond)
		read(events)
		began := conflict(n)
		n.Delay(plegtest.GetPodStatus, "b", 300*time.Millisecond)
		n.Fail(plegtest.GetPod, "a", errors.New("no"))
		done := make(chan struct{})
		go func() { defer close(done); n.relist() }()
		time.Sleep(50 * time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		n.ExitContainer("b", "b1", 1, "Error")
		<-done
		want(t, "after Relist", read(events), "b Died b1", "slow Started slow-1")
		if fresh(n.cache, "a", began) || !fresh(n.cache, "b", began) {
			t.Error("a is not held back, or b is")
		}
		time.Sleep(time.Second)
		want(t, "after the next full list", read(events), "a Died a1")
		if !fresh(n.cache, "a", began) {
			t.Error("a is held back still")
		}
	})
}

// Relist is complete when it returns, with and without Start.
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
					n.relist()
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

// Many calls of Relist at once, across Start and Stop.
func TestRelistAllAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(10)...)
		n.Delay(plegtest.GetPods, plegtest.AnyPod, 5*time.Millisecond)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() { n.relist() })
			if i == 20 {
				n.g.Start(t.Context())
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

// A Relist that Stop has interrupted goes on, and is complete.
func TestRelistAcrossStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		heal := n.Delay(plegtest.GetPodStatus, "a", 100*time.Millisecond)
		done := make(chan struct{})
		events := n.g.Watch()
		go func() {
			defer close(done)
			n.relist()
			if s, err := n.cache.Get("a"); err != nil || len(s.ContainerStatuses) != 1 {
				t.Errorf("Relist returned, the cache has %v %v", s, err)
			}
			want(t, "events", read(events), "a Started a1")
		}()
		time.Sleep(50 * time.Millisecond)
		n.g.Stop()
		<-done
		heal()
	})
}

// Start relists at once, whenever the last relist was. After Stop, Relist makes one
// relist and no more, however long it takes.
func TestRelistBesideThePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling, pleg.WithInspectionWorkers(1))
		n.SetPods(pods(5)...)
		n.relist()
		time.Sleep(300 * time.Millisecond)
		n.g.Start(t.Context())
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
		n.relist()
		if got := n.Calls(plegtest.GetPods); got != 3 {
			t.Errorf("%d lists: Relist made more than one", got)
		}
	})
}

// Relist waits for the inspection of what it has seen, not only for one that was in
// flight before; and it does not wait for what is requested after it.
func TestRelistWaitsForTheRightInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Stale: true, Delay: 100 * time.Millisecond})
		n.start()
		time.Sleep(50 * time.Millisecond)
		n.ExitContainer("a", "a1", 5, "Error")
		n.relist()
		if s, err := n.cache.Get("a"); err != nil || s.ContainerStatuses[0].ExitCode != 5 {
			t.Errorf("Relist returned; the cache has %v %v", s, err)
		}
	})
}

// Relist does not wait for a stuck pod or for a pod that is gone, even if it became so during the call. It
// waits for a pod that has come back.
func TestRelistWaitsForNobodyInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(3)...)
		n.start()
		events := n.g.Watch()
		heal := n.BlockIgnoringCancel(plegtest.GetPodStatus, "pod-00000")
		n.ExitContainer("pod-00000", "pod-00000-a", 1, "")
		n.g.RequestRelist("pod-00000")
		time.Sleep(1500 * time.Millisecond)
		if !atOnce(n.relist) {
			t.Error("Relist waits for a pod that hangs")
		}
		heal()
		read(events)

		heal = n.BlockIgnoringCancel(plegtest.GetPodStatus, "pod-00001")
		n.ExitContainer("pod-00001", "pod-00001-a", 1, "")
		done := make(chan struct{})
		go func() { defer close(done); n.relist() }()
		synctest.Wait()
		n.RemovePod("pod-00001")
		n.g.RequestRelist("pod-00001")
		synctest.Wait()
		select {
		case <-done:
		default:
			t.Error("Relist goes on waiting for a pod that is gone")
		}
		if !atOnce(n.relist) {
			t.Error("Relist waits for a pod that is gone")
		}
		n.SetPod(bare("pod-00001", plegtest.Running("again")))
		time.AfterFunc(300*time.Millisecond, heal)
		n.relist()
		if s, err := n.cache.Get("pod-00001"); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("Relist did not wait for the pod that came back: %v %v", s, err)
		}
		<-done
	})
}

// Relist does not wait for the inspection of a pod that is gone.
func TestRelistDoesNotWaitForGonePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		heal := n.BlockIgnoringCancel(plegtest.GetPodStatus, "a")
		n.start()
		time.Sleep(100 * time.Millisecond)
		n.SetPods()
		n.g.RequestRelist("a")
		synctest.Wait()
		if !returns(time.Hour, n.relist) {
			t.Error("Relist waits for the inspection of a pod that is gone")
		}
		heal()
	})
}

// Relist returns even if a list has timed out and no other can be made.
func TestRelistBesideExpiredList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		time.Sleep(500 * time.Millisecond)
		heal := n.BlockIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)
		time.Sleep(time.Second)
		if !returns(3*time.Minute, n.relist) {
			t.Error("the first Relist did not return")
		}
		if !returns(time.Hour, n.relist) {
			t.Error("the second Relist did not return")
		}
		heal()
	})
}

// A full list that returns after its deadline is accepted, and the Relist that waited
// for it returns once.
func TestExpiredListComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return late{rt.Plain(), answer, nil} })
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.relist() // until the deadline
		n.start()
		time.Sleep(time.Second)
		close(answer)
		synctest.Wait()
		want(t, "events", read(events), "a Started a1")
		n.relist()
		healthy(t, n.g)
	})
}

// A Relist whose context has ended leaves nothing behind, however often it is called while nothing
// runs.
func TestRelistThatHasEndedIsNotKept(t *testing.T) {
	n := newNode(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	relist := func(times int) {
		for range times {
			if err := n.g.Relist(ended); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
	}
	relist(10)
	before := heapInUse()
	relist(100_000)
	if grown := heapInUse() - before; grown > 1<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	if got := n.Calls(plegtest.GetPods); got > 0 {
		t.Errorf("%d lists", got)
	}
}

// Relist returns the error of the list, or why it does not wait on.
func TestRelistSaysWhetherItSucceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(1)...)
		if err := n.g.Relist(t.Context()); err != nil {
			t.Error(err)
		}
		broken := errors.New("broken")
		heal := n.Fail(plegtest.GetPods, plegtest.AnyPod, broken)
		if err := n.g.Relist(t.Context()); !errors.Is(err, broken) {
			t.Errorf("a list that fails: %v", err)
		}
		heal()
		heal = n.Block(plegtest.GetPods, plegtest.AnyPod)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n.g.Relist(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a list that hangs: %v", err)
		}
		if err := n.g.Relist(t.Context()); err == nil {
			t.Error("no error, although the list has passed its deadline")
		}
		heal()
		synctest.Wait() // the list has returned
		if err := n.g.Relist(t.Context()); err != nil {
			t.Error(err)
		}
		n.g.Stop()
	})
}

// Relist waits for a stuck pod until its inspection is slow. It does not wait for another pod that
// was observed, and is being inspected again because it has changed since.
func TestRelistWaitsForNoObservedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.start()
		time.Sleep(100 * time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		n.ExitContainer("b", "b1", 1, "Error")
		n.Block(plegtest.GetPodStatus, "a")
		n.Delay(plegtest.GetPodStatus, "b", 700*time.Millisecond)
		began := time.Now()
		done := make(chan struct{})
		go func() { defer close(done); n.relist() }()
		time.Sleep(850 * time.Millisecond)
		n.SetContainer("b", "b2", pleg.ContainerStateRunning)
		n.g.RequestRelist("b")
		<-done
		if took := time.Since(began); took > 1100*time.Millisecond {
			t.Errorf("Relist has returned after %v", took)
		}
		n.g.Stop()
	})
}
