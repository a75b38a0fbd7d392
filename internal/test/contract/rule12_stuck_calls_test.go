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

// Rule 12: an inspection that honours its cancellation ends at the deadline. The pod is then
// inspected again.
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

// Rule 12: a requested inspection is stuck until its deadline, and meanwhile the pod changes. The
// change and exactly one PodSync are then delivered.
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

// Rule 12: at most one inspection of a pod runs at a time. Inspections that are not slow are never
// more than the workers.
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

// Rule 12: all inspections are stuck. At most 64 of them release their workers, and Relist does not
// wait for the others. When the runtime answers again, all pods are inspected.
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

// Rule 12: a slow inspection that returns does not release its worker a second time.
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
