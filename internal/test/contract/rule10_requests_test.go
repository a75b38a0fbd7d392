package contract_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 10: requests are a set. 150 for one pod that is being listed make at most two
// pod lists; of 500 for as many pods none is lost.
func TestRule10RequestsAreASet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(500)...)
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(200 * time.Millisecond)
		n.Delay(plegtest.GetPod, plegtest.AnyPod, 10*time.Millisecond)
		for range 150 {
			n.g.RequestRelist("pod-00007")
			time.Sleep(10 * time.Microsecond)
		}
		time.Sleep(100 * time.Millisecond)
		if got := n.Calls(plegtest.GetPod); got > 2 {
			t.Errorf("%d pod lists for 150 requests", got)
		}
		for i := range 500 {
			uid := types.UID(fmt.Sprintf("pod-%05d", i))
			n.ExitContainer(uid, string(uid)+"-a", 1, "Error")
			n.g.RequestRelist(uid)
		}
		time.Sleep(100 * time.Millisecond)
		if got := len(read(events)); got != 500 {
			t.Errorf("%d pods seen", got)
		}
	})
}

// Rule 10: another request for a pod that waits to be listed changes nothing. A pod
// that was once listed with all the others can be listed by itself again.
func TestRule10WaitingRequestsAreASet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(30)...)
		n.start()
		time.Sleep(100 * time.Millisecond)
		n.Delay(plegtest.GetPod, plegtest.AnyPod, 50*time.Millisecond)
		for i := range 8 {
			n.g.RequestRelist(types.UID(fmt.Sprintf("pod-%05d", i)))
			synctest.Wait()
		}
		for range 5 {
			n.g.RequestRelist("pod-00020")
			n.g.RequestRelist("pod-00021")
			synctest.Wait()
		}
		time.Sleep(500 * time.Millisecond)
		if a, b := n.PodCalls(plegtest.GetPod, "pod-00020"), n.PodCalls(plegtest.GetPod, "pod-00021"); a != 1 || b != 1 {
			t.Errorf("%d and %d pod lists", a, b)
		}
		if got := n.MaxInFlight(plegtest.GetPod); got != 8 {
			t.Errorf("%d pod lists at once", got)
		}
		lists := n.Calls(plegtest.GetPods)
		for i := range 30 {
			n.g.RequestRelist(types.UID(fmt.Sprintf("pod-%05d", i)))
		}
		time.Sleep(200 * time.Millisecond)
		if got := n.Calls(plegtest.GetPods) - lists; got < 1 || got > 2 {
			t.Errorf("%d lists for thirty pods at once", got)
		}
		podLists := n.PodCalls(plegtest.GetPod, "pod-00025")
		n.g.RequestRelist("pod-00025")
		time.Sleep(100 * time.Millisecond)
		if got := n.PodCalls(plegtest.GetPod, "pod-00025") - podLists; got != 1 {
			t.Errorf("%d pod lists after that", got)
		}
	})
}

// Rule 10: a pod list in flight serves those who want nothing newer than it
// shows; whatever is asked during it has the pod listed again.
func TestRule10PodListInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(400 * time.Millisecond)
		minTime := time.Now()
		time.Sleep(50 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPod, Stale: true, Delay: 100 * time.Millisecond})
		n.g.RequestRelist("a")
		synctest.Wait()
		if _, err := n.cache.GetNewerThan("a", minTime); err != nil || time.Since(minTime) != 150*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(minTime))
		}
		time.Sleep(100 * time.Millisecond)
		if got := n.Calls(plegtest.GetPod); got != 2 {
			t.Errorf("%d pod lists", got)
		}
		n.g.RequestRelist("a")
		synctest.Wait()
		n.ExitContainer("a", "a1", 1, "")
		n.g.RequestRelist("a")
		time.Sleep(210 * time.Millisecond)
		want(t, "events", read(events), "a Died a1")
	})
}

// Without GetPod a request lists the whole node, and a reader waits for the next
// relist.
func TestRequestsWithoutPodGetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(500 * time.Millisecond)
		lists := n.Calls(plegtest.GetPods)
		heal := n.Delay(plegtest.GetPods, plegtest.AnyPod, 10*time.Millisecond)
		for range 50 {
			n.g.RequestRelist("a")
		}
		time.Sleep(100 * time.Millisecond)
		// One, and one more if it began before the last request came.
		if got := n.Calls(plegtest.GetPods) - lists; got < 1 || got > 2 {
			t.Errorf("%d lists", got)
		}
		heal()
		before := time.Now()
		_, err := n.cache.GetNewerThan("a", before)
		if took := time.Since(before); err != nil || took < pleg.DefaultRelistPeriod*8/10 || took > pleg.DefaultRelistPeriod {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// A request for a full list during one gets another, which begins as long after it as
// it took.
func TestRequestDuringList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.start()
		n.Delay(plegtest.GetPods, plegtest.AnyPod, 100*time.Millisecond)
		time.Sleep(1050 * time.Millisecond)
		lists := n.Calls(plegtest.GetPods)
		n.g.RequestRelist("a")
		time.Sleep(140 * time.Millisecond) // 1.19 s
		if got := n.Calls(plegtest.GetPods) - lists; got != 0 {
			t.Errorf("%d lists without a rest", got)
		}
		time.Sleep(20 * time.Millisecond)
		if got := n.Calls(plegtest.GetPods) - lists; got != 1 {
			t.Errorf("%d lists after it", got)
		}
	})
}

// Many requests at once are served by one full list, unless a full list is stuck or has
// just been made.
func TestManyRequestsBesideAList(t *testing.T) {
	for name, prepare := range map[string]func(n *node) func(){
		"that hangs": func(n *node) func() {
			heal := n.BlockIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)
			time.Sleep(time.Second)
			return heal
		},
		"that has just been made": func(n *node) func() {
			heal := n.Delay(plegtest.GetPods, plegtest.AnyPod, 400*time.Millisecond)
			time.Sleep(950 * time.Millisecond) // 1.45 s
			return heal
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(pods(30)...)
				events := n.g.Watch()
				n.start()
				time.Sleep(500 * time.Millisecond)
				defer prepare(n)()
				read(events)
				for i := range 20 {
					uid := types.UID(fmt.Sprintf("pod-%05d", i))
					n.ExitContainer(uid, string(uid)+"-a", 1, "")
				}
				n.Delay(plegtest.GetPod, plegtest.AnyPod, time.Millisecond)
				for i := range 20 {
					n.g.RequestRelist(types.UID(fmt.Sprintf("pod-%05d", i)))
				}
				time.Sleep(10 * time.Millisecond)
				if got := len(read(events)); got != 20 {
					t.Errorf("%d pods seen", got)
				}
			})
		})
	}
}

// A pod list that fails or is stuck delays no other: the next full relist shows
// its pod.
func TestFailedPodListsDelayNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(30)...)
		n.start()
		time.Sleep(500 * time.Millisecond)
		n.Fail(plegtest.GetPod, "pod-00000", errors.New("broken"))
		for i := range 10 {
			defer n.BlockIgnoringCancel(plegtest.GetPod, types.UID(fmt.Sprintf("pod-%05d", i+1)))()
		}
		before := time.Now()
		for i := range 11 {
			n.g.RequestRelist(types.UID(fmt.Sprintf("pod-%05d", i)))
			time.Sleep(time.Millisecond)
		}
		for i := range 11 {
			if _, err := n.cache.GetNewerThan(types.UID(fmt.Sprintf("pod-%05d", i)), before); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(before); took > time.Second {
			t.Errorf("took %v", took)
		}
		time.Sleep(2 * time.Second)
		before = time.Now()
		if _, err := n.cache.GetNewerThan("pod-00020", before.Add(-1)); err != nil || time.Since(before) > time.Millisecond {
			t.Errorf("another pod list took %v: %v", time.Since(before), err)
		}
		healthy(t, n.g)
	})
}

// A pod list that is stuck releases its slot after a period, not at the next
// full relist. Full relists fail here: one that succeeds would answer the request.
func TestStuckPodListReleasesItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(10)...)
		n.start()
		time.Sleep(500 * time.Millisecond)
		n.Fail(plegtest.GetPods, plegtest.AnyPod, errors.New("broken"))
		for i := range 8 {
			uid := types.UID(fmt.Sprintf("pod-%05d", i))
			defer n.BlockIgnoringCancel(plegtest.GetPod, uid)()
			n.g.RequestRelist(uid)
			synctest.Wait()
		}
		n.g.RequestRelist("pod-00009")
		time.Sleep(999 * time.Millisecond)
		before := n.PodCalls(plegtest.GetPod, "pod-00009")
		time.Sleep(2 * time.Millisecond)
		if after := n.PodCalls(plegtest.GetPod, "pod-00009"); before != 0 || after != 1 {
			t.Errorf("%d pod lists before, %d after", before, after)
		}
	})
}

// A pod list that has ended, in time or not, leaves as many slots as there
// were. One that honours its cancellation ends at its deadline.
func TestPodListSlotsAreReleasedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(30)...)
		n.start()
		heal := n.Block(plegtest.GetPod, plegtest.AnyPod)
		for i := range 6 {
			n.g.RequestRelist(types.UID(fmt.Sprintf("pod-%05d", i)))
			synctest.Wait()
		}
		time.Sleep(5 * time.Second)
		heal()
		for i := range 6 {
			n.g.RequestRelist(types.UID(fmt.Sprintf("pod-%05d", i+10)))
			synctest.Wait()
		}
		time.Sleep(5 * time.Second)
		n.ResetCalls()
		n.Delay(plegtest.GetPod, plegtest.AnyPod, 50*time.Millisecond)
		for i := range 16 {
			n.g.RequestRelist(types.UID(fmt.Sprintf("pod-%05d", i)))
			synctest.Wait()
		}
		time.Sleep(500 * time.Millisecond)
		if got := n.MaxInFlight(plegtest.GetPod); got != 8 {
			t.Errorf("%d pod lists at once", got)
		}
		defer n.Block(plegtest.GetPod, plegtest.AnyPod)()
		n.g.RequestRelist("pod-00000")
		time.Sleep(pleg.DefaultRuntimeRequestTimeout + time.Second)
		if got := n.InFlight(plegtest.GetPod); got != 0 {
			t.Errorf("%d pod lists are left past their deadline", got)
		}
	})
}

// What a pod list has shown is in the report at once.
func TestPodListIsInTheReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		time.Sleep(500 * time.Millisecond)
		n.SetPod(bare("a", plegtest.Running("a1")))
		n.g.RequestRelist("a")
		synctest.Wait()
		if got := n.g.HealthReport().Pods; got != 1 {
			t.Errorf("the report has %d pods", got)
		}
	})
}

// Rule 10: a reader that waits for a time to come is answered by the first full list after it.
func TestRule10FutureMinTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a"))
		n.start()
		time.Sleep(500 * time.Millisecond)
		began := time.Now()
		var readers sync.WaitGroup
		for ahead, served := range map[time.Duration]time.Duration{0: 500, 100: 500, 999: 1500, 1000: 1500, 2500: 3500} {
			for _, uid := range []types.UID{"a", "nobody"} {
				readers.Go(func() {
					_, err := n.cache.GetNewerThan(uid, began.Add(ahead*time.Millisecond))
					if got := time.Since(began); err != nil || got != served*time.Millisecond {
						t.Errorf("a reader of %s was served after %v: %v", uid, got, err)
					}
				})
			}
		}
		readers.Wait()
		if got := n.Calls(plegtest.GetPod); got > 10 {
			t.Errorf("%d pod lists for 10 readers", got)
		}
	})
}

// Rule 10: readers are served by pod lists while full lists fail, however
// many they are.
func TestRule10ManyReadersWhileListsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(30)...)
		n.start()
		time.Sleep(500 * time.Millisecond)
		n.Fail(plegtest.GetPods, plegtest.AnyPod, errors.New("too large"))
		began := time.Now()
		var readers sync.WaitGroup
		for _, p := range pods(30) {
			readers.Go(func() {
				if _, err := n.cache.GetNewerThan(p.ID, began.Add(-1)); err != nil {
					t.Error(err)
				}
			})
		}
		readers.Wait()
		if took := time.Since(began); took > time.Second {
			t.Errorf("answered after %v", took)
		}
	})
}

// With polling only there is no stream and no pod list.
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
			t.Errorf("%d pod lists, %d streams, %d lists",
				n.Calls(plegtest.GetPod), n.Calls(plegtest.WatchContainerEvents), n.Calls(plegtest.GetPods))
		}
		if got := n.g.HealthReport().Stream.State; got != pleg.StreamOff {
			t.Errorf("the stream is %s", got)
		}
	})
}

// listsOnly is a runtime that has events and cannot list one pod.
func listsOnly(rt *plegtest.Runtime) pleg.Runtime {
	return struct {
		pleg.Runtime
		pleg.EventSource
	}{rt.Plain(), rt}
}

// Rule 10: where no pod can be listed by itself, a blocked reader is answered within a period.
func TestRule10ReaderWithoutPodGetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listsOnly)
		n.SetPods(pods(2)...)
		n.start()
		time.Sleep(10*time.Minute + 500*time.Millisecond)
		began := time.Now()
		if _, err := n.cache.GetNewerThan("pod-00000", began.Add(-1)); err != nil || time.Since(began) > time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// A pod without a UID is never asked for.
func TestReaderOfNoPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		n.ResetCalls()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, _, _ = n.cache.LookupNewerThan(ctx, "", time.Now())
		if got := n.Calls(plegtest.GetPod); got != 0 {
			t.Errorf("%d lists of the pod without UID, for a reader", got)
		}
	})
}

// Rules 5, 10: what hints cost where a list takes about as long as a period, or longer. The number of lists
// does not grow with time, and a reader waits for two full lists at most, and for the time between them.
func TestRule10HintsWhileListsAreSlow(t *testing.T) {
	for _, took := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second} {
		for _, hinted := range []int{1, 8} {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(pods(hinted)...)
				n.Delay(plegtest.GetPods, "", took)
				n.Delay(plegtest.GetPod, plegtest.AnyPod, took*11/10)
				n.EmitOnChange(false)
				n.start()
				time.Sleep(time.Minute)
				n.ResetCalls()
				for i := range hinted {
					n.Emit(pleg.ContainerEvent{PodUID: types.UID(fmt.Sprintf("pod-%05d", i))})
				}
				time.Sleep(10 * time.Minute)
				early := n.Calls(plegtest.GetPod)
				time.Sleep(10 * time.Minute)
				late := n.Calls(plegtest.GetPod)
				longest := time.Duration(0)
				for i := range 20 {
					time.Sleep(took/7 + time.Duration(i)*time.Millisecond)
					began := time.Now()
					if _, err := n.cache.GetNewerThan("pod-00000", began.Add(-1)); err != nil {
						t.Error(err)
					}
					longest = max(longest, time.Since(began))
				}
				t.Logf("%v, %d pods: %d and %d pod lists in ten and twenty minutes, %d full lists; a reader waits %v at most",
					took, hinted, early, late, n.Calls(plegtest.GetPods), longest)
				if early > 4*hinted || late != early {
					t.Errorf("lists of %v, %d pods hinted: %d pod lists in ten minutes, %d in twenty", took, hinted, early, late)
				}
				if longest > 2*took+time.Second {
					t.Errorf("lists of %v: a reader has waited for %v", took, longest)
				}
			})
		}
	}
}
