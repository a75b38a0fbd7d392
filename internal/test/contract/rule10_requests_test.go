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

// Many requests at once are answered by pod lists if a full list is stuck or has just been made.
func TestManyRequestsBesideAList(t *testing.T) {
	for name, prepare := range map[string]func(n *node) func(){
		"that hangs": func(n *node) func() {
			heal := n.BlockIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)
			time.Sleep(time.Second)
			return heal
		},
		"that has just been made": func(n *node) func() {
			heal := n.Delay(plegtest.GetPods, plegtest.AnyPod, 400*time.Millisecond)
			time.Sleep(950 * time.Millisecond) // now 1.45 s after the start
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

// A pod list releases exactly one slot when it completes, even if it was slow. A pod list that
// honours cancellation ends at its deadline.
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

// The report shows the result of a pod list at once.
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

// Rule 10: a reader with a minTime in the future is answered by the first full list after that
// time.
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

// Rule 10: while full lists fail, each of many readers is answered, by lists of single pods.
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

// A generator with WithPollingOnly opens no stream and makes no pod lists.
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

// A reader with an empty UID requests no list.
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

// Rules 5 and 10: a list takes about a period or longer, and hints arrive all the time. The number
// of lists does not grow with time. A reader waits for at most two full lists and the time between
// them.
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
