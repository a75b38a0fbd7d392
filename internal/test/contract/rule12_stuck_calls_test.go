package contract_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 12: of 50 changed pods some hang for ever and ignore cancellation. The events of
// the others are delivered and their statuses readable within one period, the node
// stays healthy, and the report names those that hang.
func TestRule12StuckPodsDelayNobody(t *testing.T) {
	for _, stuck := range []int{1, 3, 20} {
		t.Run(fmt.Sprint(stuck), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNodeOf(t, polling)
				n.SetPods(pods(50)...)
				events := n.g.Watch()
				n.start()
				read(events)
				for i := range stuck {
					defer n.BlockIgnoringCancel(plegtest.GetPodStatus, types.UID(fmt.Sprintf("pod-%05d", i*2)))()
				}
				// Those that hang hold the worker slots for a period, eight at a time.
				allowed := pleg.DefaultRelistPeriod * time.Duration(1+stuck/pleg.DefaultInspectionWorkers)
				for i := range 50 {
					uid := types.UID(fmt.Sprintf("pod-%05d", i))
					n.ExitContainer(uid, string(uid)+"-a", 7, "Error")
				}
				changed := time.Now()
				listed := changed.Add(pleg.DefaultRelistPeriod)
				readers := make(chan time.Time, 50)
				for i := range 50 {
					uid := types.UID(fmt.Sprintf("pod-%05d", i))
					if i%2 == 0 && i/2 < stuck {
						continue
					}
					go func() {
						s, err := n.cache.GetNewerThan(uid, changed)
						if err != nil || s.ContainerStatuses[0].ExitCode != 7 {
							t.Errorf("%s: %v %v", uid, s, err)
						}
						readers <- time.Now()
					}()
				}
				for range 50 - stuck {
					if got := <-readers; got.After(listed.Add(allowed)) {
						t.Errorf("a reader waited until %v after the list", got.Sub(listed))
					}
				}
				// Subscribers receive them in the same time and the flush timeout.
				time.Sleep(pleg.DefaultRelistPeriod / 20)
				synctest.Wait()
				if got := len(read(events)); got != 50-stuck {
					t.Errorf("%d pods delivered", got)
				}
				for range 60 {
					time.Sleep(10 * time.Second)
					if ok, err := n.g.Healthy(); !ok {
						t.Fatal(err)
					}
				}
				report := n.g.HealthReport()
				if got := report.FailingPods; len(got) != stuck || got[0].PodUID != "pod-00000" || got[0].StuckSince.IsZero() {
					t.Errorf("the report has %v", got)
				}
				// After the deadline, the events of a stuck pod are delivered, and the cache has the error.
				if got := len(read(events)); got != stuck {
					t.Errorf("%d of the stuck pods delivered", got)
				}
				if _, err := n.cache.Get("pod-00000"); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the error is %v", err)
				}
				if got := n.InFlight(plegtest.GetPodStatus); got != stuck {
					t.Errorf("%d calls in flight for %d pods", got, stuck)
				}
			})
		})
	}
}

// Rule 12: an inspection is slow when it has taken a period, not at the next relist.
func TestRule12SlowAfterOnePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(1)...)
		n.start()
		time.Sleep(500 * time.Millisecond)
		defer n.BlockIgnoringCancel(plegtest.GetPodStatus, "pod-00000")()
		n.g.RequestReinspect("pod-00000")
		time.Sleep(999 * time.Millisecond)
		before := len(n.g.HealthReport().FailingPods)
		time.Sleep(2 * time.Millisecond)
		if after := len(n.g.HealthReport().FailingPods); before != 0 || after != 1 {
			t.Errorf("reported: %d before, %d after", before, after)
		}
	})
}

// Rule 12: an inspection that honours its cancellation ends at the deadline, and the pod
// is inspected again.
func TestRule12Deadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling, pleg.WithRuntimeRequestTimeout(10*time.Second))
		n.SetPods(pods(2)...)
		heal := n.Block(plegtest.GetPodStatus, "pod-00000")
		n.start()
		time.Sleep(10*time.Second + time.Millisecond)
		if _, err := n.cache.Get("pod-00000"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error is %v", err)
		}
		if got := n.InFlight(plegtest.GetPodStatus); got != 0 {
			t.Errorf("%d calls in flight", got)
		}
		heal()
		time.Sleep(time.Second)
		if s, err := n.cache.Get("pod-00000"); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("not inspected again: %v %v", s, err)
		}
	})
}

// Rule 12: an answer past the deadline is discarded; that it came shows that another
// inspection may succeed, which follows at once.
func TestRule12AnswerPastTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return late{rt.Plain(), nil, answer} })
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		time.Sleep(pleg.DefaultRuntimeRequestTimeout - 500*time.Millisecond)
		want(t, "before the deadline", read(events))
		time.Sleep(time.Second)
		want(t, "past it", read(events), "a Started a1")
		close(answer)
		synctest.Wait()
		if s, err := n.cache.Get("a"); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("the cache has %v %v", s, err)
		}
		if got := n.Calls(plegtest.GetPodStatus); got != 2 {
			t.Errorf("%d inspections", got)
		}
		want(t, "then", read(events), "a PodSync")
		time.Sleep(5 * time.Minute)
		if got := n.Calls(plegtest.GetPodStatus); got != 2 {
			t.Errorf("%d inspections five minutes later", got)
		}
		want(t, "five minutes later", read(events))
	})
}

// Rule 12: what has changed by the time of an answer past the deadline is in the status
// that follows it. A PodSync that was asked for meanwhile comes with that, once.
func TestRule12LateAnswerIsSuperseded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return late{rt.Plain(), nil, answer} })
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		time.Sleep(3*time.Minute + 500*time.Millisecond)
		read(events)
		n.g.RequestReinspect("a")
		n.ExitContainer("a", "a1", 7, "Error")
		time.Sleep(2 * time.Second)
		want(t, "past the deadline", read(events), "a Died a1")
		close(answer)
		time.Sleep(2 * time.Minute)
		if s, err := n.cache.Get("a"); err != nil || len(s.ContainerStatuses) != 1 || s.ContainerStatuses[0].ExitCode != 7 {
			t.Errorf("the cache has %v %v", s, err)
		}
		want(t, "the recovery", read(events), "a PodSync")
		healthy(t, n.g)
		if got := n.g.HealthReport().FailingPods; len(got) != 0 {
			t.Errorf("reported: %v", got)
		}
	})
}

// Rule 12: a call that ignores its cancellation costs its pod one deadline, not every
// event until it returns.
func TestRule12ChangesPastTheDeadlineAreDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		heal := n.BlockIgnoringCancel(plegtest.GetPodStatus, "a")
		n.start()
		time.Sleep(3 * time.Minute)
		want(t, "past the deadline", read(events), "a Started a1")
		n.ExitContainer("a", "a1", 1, "Error")
		time.Sleep(10 * time.Minute)
		want(t, "ten minutes later", read(events), "a Died a1")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if _, _, err := n.cache.LookupNewerThan(ctx, "a", time.Now()); ctx.Err() != nil {
			t.Error("no answer for a reader:", err)
		}
		heal()
	})
}

// Rule 12: a change during a stuck call is delivered at the call's deadline, together with the change
// that the call was made for.
func TestRule12ChangeBeforeTheDeadlineIsDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		defer n.BlockIgnoringCancel(plegtest.GetPodStatus, "a")()
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		time.Sleep(10 * time.Second) // the inspection for a2 is slow
		n.SetContainer("a", "a3", pleg.ContainerStateRunning)
		time.Sleep(10 * time.Minute)
		want(t, "past the deadline", read(events), "a Started a3", "a Started a2") // newest first
		done := make(chan struct{})
		minTime := time.Now()
		go func() { _, _ = n.cache.GetNewerThan("a", minTime); close(done) }()
		time.Sleep(10 * time.Minute)
		select {
		case <-done:
		default:
			t.Error("a reader is still blocked after ten minutes")
			n.RemovePod("a")
			<-done
		}
	})
}

// Rule 12: the PodSync of a reinspection that is stuck past its deadline is delivered with
// the change that came meanwhile, once.
func TestRule12ReinspectionPastItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(500 * time.Millisecond)
		defer n.BlockIgnoringCancel(plegtest.GetPodStatus, "a")()
		n.g.RequestReinspect("a")
		time.Sleep(10 * time.Second)
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		time.Sleep(10 * time.Minute)
		want(t, "past the deadline", read(events), "a Started a2", "a PodSync")
		n.SetContainer("a", "a3", pleg.ContainerStateRunning)
		time.Sleep(10 * time.Minute)
		want(t, "the next change", read(events), "a Started a3")
	})
}

// Rules 12 and 16: while the full list is stuck, a change that the event stream announces is
// delivered all the same.
func TestRule12StuckFullListDelaysNoHint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.EmitOnChange(true)
		n.SetPods(pods(3)...)
		n.start()
		defer n.BlockIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)()
		time.Sleep(30 * time.Second)
		events := n.g.Subscribe(t.Context(), pleg.WithCapacity(100))
		n.ExitContainer("pod-00001", "pod-00001-a", 1, "Error")
		synctest.Wait()
		for {
			select {
			case e := <-events:
				if e.ID == "pod-00001" && e.Type == pleg.ContainerDied && !e.Initial {
					return
				}
			default:
				t.Fatal("the death is not delivered")
			}
		}
	})
}

// Rule 12: there are never more inspections at once than worker slots, nor more than
// one of a pod, except slow ones.
func TestRule12Bounds(t *testing.T) {
	for _, workers := range []int{1, 3, 8} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, pleg.WithInspectionWorkers(workers))
			n.SetPods(pods(60)...)
			n.Delay(plegtest.GetPodStatus, plegtest.AnyPod, 100*time.Millisecond)
			n.start()
			for i := range 100 {
				uid := types.UID(fmt.Sprintf("pod-%05d", i%7))
				n.SetPod(bare(uid, plegtest.Running(fmt.Sprint(i))))
				n.g.RequestRelist(uid)
				n.g.RequestReinspect(uid)
				time.Sleep(30 * time.Millisecond)
			}
			time.Sleep(time.Minute)
			if got := n.MaxInFlight(plegtest.GetPodStatus); got != workers {
				t.Errorf("%d inspections at once, %d workers", got, workers)
			}
			for i := range 60 {
				uid := types.UID(fmt.Sprintf("pod-%05d", i))
				if got := n.MaxPodInFlight(plegtest.GetPodStatus, uid); got != 1 {
					t.Errorf("%d inspections of %s at once", got, uid)
				}
			}
		})
	}
}

// Rule 12: on a stuck runtime, at most 64 inspections are slow without holding a worker. Neither Relist nor
// another pod's PodSync waits for the rest. When the runtime answers again, all pods are inspected.
func TestRule12SlowInspectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(pods(200)...)
		heal := n.BlockIgnoringCancel(plegtest.GetPodStatus, plegtest.AnyPod)
		n.start()
		time.Sleep(100 * time.Second)
		if got := n.MaxInFlight(plegtest.GetPodStatus); got != 64+pleg.DefaultInspectionWorkers {
			t.Errorf("%d inspections at once", got)
		}
		if !n.g.HasSynced() {
			t.Error("it has not synced")
		}
		began := time.Now()
		n.relist()
		if took := time.Since(began); took > 2*pleg.DefaultRelistPeriod {
			t.Errorf("Relist took %v", took)
		}
		heal()
		time.Sleep(time.Second)
		if got := len(n.cache.GetAll()); got != 200 {
			t.Errorf("%d pods are inspected", got)
		}
		if got := n.g.HealthReport().FailingPods; len(got) != 0 {
			t.Errorf("failing: %v", got)
		}
		if got := n.MaxInFlight(plegtest.GetPodStatus); got != 64+pleg.DefaultInspectionWorkers {
			t.Errorf("%d inspections at once", got)
		}
	})
}

// Rule 12: a worker slot is released once, though a slow inspection also returns.
func TestRule12WorkerSlotIsReleasedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling, pleg.WithInspectionWorkers(2))
		n.SetPods(pods(10)...)
		n.start()
		heal := n.Block(plegtest.GetPodStatus, plegtest.AnyPod)
		for i := range 3 {
			n.g.RequestReinspect(types.UID(fmt.Sprintf("pod-%05d", i)))
		}
		time.Sleep(5 * time.Second)
		heal()
		time.Sleep(time.Second)
		n.ResetCalls()
		n.Delay(plegtest.GetPodStatus, plegtest.AnyPod, 100*time.Millisecond)
		for i := range 10 {
			n.g.RequestReinspect(types.UID(fmt.Sprintf("pod-%05d", i)))
		}
		time.Sleep(time.Second)
		if got := n.MaxInFlight(plegtest.GetPodStatus); got != 2 {
			t.Errorf("%d inspections at once", got)
		}
	})
}
