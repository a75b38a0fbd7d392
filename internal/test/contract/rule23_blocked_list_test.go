package contract_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// newStuckNode returns a node of pods with one container each. Every list and the inspection of
// one pod are stuck.
func newStuckNode(t *testing.T, pods int) (n *node, events <-chan *pleg.PodLifecycleEvent, heal func()) {
	t.Helper()
	n = newNode(t)
	n.setSingles(pods)
	watch := n.g.Watch()
	n.start()
	read(watch)
	lists := n.blockLists()
	inspection := n.BlockIgnoringCancel(plegtest.GetPodStatus, "pod-00")
	n.ResetCalls()
	return n, watch, func() { lists(); inspection() }
}

// Rule 23: while a full list is stuck, the known pods are inspected in turn, and each death is
// delivered within three periods. The report and Healthy name the pod with the stuck inspection.
// When the runtime answers again, lists work as usual.
func TestRule23StuckListBesideStuckPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 20
		n, events, heal := newStuckNode(t, pods)
		time.Sleep(5 * time.Second)
		stuck := n.g.HealthReport().StuckRelist
		if stuck == nil || len(stuck.Suspects) != 1 || stuck.Suspects[0].PodUID != "pod-00" || stuck.Answered != pods-1 {
			t.Errorf("after 5 s the report has %+v", stuck)
		}
		for i := 1; i < pods; i++ {
			uid := types.UID(fmt.Sprintf("pod-%02d", i))
			n.ExitContainer(uid, string(uid)+"-1", 1, "Error")
			began := time.Now()
			if e := <-events; line(e) != fmt.Sprintf("%s Died %s-1", uid, uid) || e.Status.ExitCode != 1 {
				t.Errorf("got %s, %+v", line(e), e.Status)
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("%s: delivered after %v", uid, took)
			}
		}
		time.Sleep(3 * time.Minute)
		_, err := n.g.Healthy()
		for _, part := range []string{
			"GetPods has been running for ", "; meanwhile, GetPodStatus of pod default/pod-00 (pod-00) has been unanswered for ",
			"; stuck pods: 1, inspected since: 19; ",
		} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in %v", part, err)
			}
		}
		heal()
		time.Sleep(2 * time.Second)
		r := n.g.HealthReport()
		if !r.Healthy || r.StuckRelist != nil {
			t.Errorf("the report is %+v", r)
		}
		n.ExitContainer("pod-00", "pod-00-1", 1, "Error")
		time.Sleep(15 * time.Second)
		want(t, "of the stuck pod", readStatuses(events),
			"pod-00 PodSync without status", "pod-00 Died pod-00-1 exited 1 Error")
	})
}

// Rule 23: a pod is no suspect if a full list was answered while its inspection was stuck. The report
// still names it.
func TestRule23PodStuckBeforeTheLastList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.setSingles(20)
		n.start()
		n.BlockIgnoringCancel(plegtest.GetPodStatus, "pod-01")
		n.ExitContainer("pod-01", "pod-01-1", 1, "Error")
		time.Sleep(5 * time.Second) // lists are answered
		n.blockLists()
		n.BlockIgnoringCancel(plegtest.GetPodStatus, "pod-02")
		time.Sleep(15 * time.Second)
		r := n.g.HealthReport()
		if r.StuckRelist == nil || len(r.StuckRelist.Suspects) != 1 || r.StuckRelist.Suspects[0].PodUID != "pod-02" {
			t.Errorf("the report has %+v", r.StuckRelist)
		}
		if len(r.FailingPods) != 2 || r.FailingPods[0].PodUID != "pod-01" {
			t.Errorf("the failing pods are %+v", r.FailingPods)
		}
		n.Heal()
	})
}

// Rule 23: while the runtime has answered nothing since the list began, no pod is a suspect. After ten
// seconds, the runtime is frozen.
func TestRule23FrozenRuntimeHasNoSuspects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _, heal := newStuckNode(t, 20)
		defer heal()
		defer n.BlockIgnoringCancel(plegtest.GetPodStatus, plegtest.AnyPod)()
		stuck, failing := 0, 0
		for range 300 {
			time.Sleep(100 * time.Millisecond)
			r := n.g.HealthReport()
			if failing = max(failing, len(r.FailingPods)); r.StuckRelist == nil {
				continue
			}
			stuck++
			frozen := time.Since(r.LastAnswer) > 10*time.Second
			if len(r.StuckRelist.Suspects) > 0 || r.StuckRelist.Frozen != frozen {
				t.Fatalf("after %v the report has %+v", time.Since(r.LastAnswer), r.StuckRelist)
			}
		}
		if stuck < 250 || failing < 2 {
			t.Errorf("%d stuck reports, %d failing pods", stuck, failing)
		}
	})
}

// Rule 23: while a list is stuck, each pod is inspected at most once in two periods. These
// inspections use at most half of the workers. If the runtime answers no call, only some pods are
// inspected.
func TestRule23InspectionsBesideStuckList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 100
		n, _, heal := newStuckNode(t, pods)
		defer heal()
		n.Delay(plegtest.GetPodStatus, "", 10*time.Millisecond)
		most := 0
		for range 20_000 {
			time.Sleep(time.Millisecond)
			most = max(most, n.InFlight(plegtest.GetPodStatus))
		}
		if got := n.PodCalls(plegtest.GetPodStatus, "pod-50"); got < 8 || got > 10 {
			t.Errorf("%d inspections of a pod in 20 s", got)
		}
		if most != pleg.DefaultInspectionWorkers/2+1 {
			t.Errorf("%d inspections at once, with that of the stuck pod", most)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		n, _, heal := newStuckNode(t, 100)
		defer heal()
		defer n.BlockIgnoringCancel(plegtest.GetPodStatus, "")()
		time.Sleep(time.Minute)
		if got := n.InFlight(plegtest.GetPodStatus); got > 40 {
			t.Errorf("%d inspections hang", got)
		}
	})
}

// Rule 23: a full list that always takes slightly longer than a period is not stuck.
func TestRule23SlowLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		const pods = 100
		for i := range pods {
			uid := fmt.Sprintf("pod-%03d", i)
			n.SetPod(bare(types.UID(uid), plegtest.Running(uid+"-1")))
		}
		n.start()
		n.Delay(plegtest.GetPods, "", 1200*time.Millisecond)
		n.Delay(plegtest.GetPodStatus, "", 5*time.Millisecond)
		time.Sleep(10 * time.Second)
		n.ResetCalls()
		time.Sleep(time.Minute)
		if got := n.Calls(plegtest.GetPodStatus); got > 0 {
			t.Errorf("%d inspections in a minute beside %d lists", got, n.Calls(plegtest.GetPods))
		}
	})
}

// Rule 23: many pods are stuck. The inspections of a round leave workers free for requested
// inspections. They also do not use up the 64 slow inspections that release a worker.
func TestRule23RoundsLeaveWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		defer n.Heal()
		const pods = 110
		for i := range pods {
			uid := types.UID(fmt.Sprintf("pod-%03d", i))
			n.SetPod(bare(uid, plegtest.Running(string(uid)+"-1")))
		}
		events := n.g.Watch()
		n.start()
		read(events)
		for i := range pods {
			if i%5 != 0 {
				n.BlockIgnoringCancel(plegtest.GetPodStatus, types.UID(fmt.Sprintf("pod-%03d", i)))
			}
		}
		heal := n.blockLists()
		time.Sleep(3 * time.Minute)
		heal()
		time.Sleep(3 * time.Second)
		read(events)
		n.ExitContainer("pod-005", "pod-005-1", 1, "Error")
		time.Sleep(10 * time.Minute)
		want(t, "ten minutes after the lists recovered", readStatuses(events), "pod-005 Died pod-005-1 exited 1 Error")
		healthy(t, n.g)
	})
}

// Rule 23: the number of stuck pods equals the number of workers, and their UIDs come first. The
// other pods are still inspected.
func TestRule23StuckPodsComeFirst(t *testing.T) {
	for _, workers := range []int{1, 2, pleg.DefaultInspectionWorkers} {
		t.Run(fmt.Sprintf("workers=%d", workers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, pleg.WithInspectionWorkers(workers))
				n.setSingles(30)
				events := n.g.Watch()
				n.start()
				read(events)
				defer n.Heal()
				n.blockLists()
				for i := range workers {
					n.BlockIgnoringCancel(plegtest.GetPodStatus, types.UID(fmt.Sprintf("pod-%02d", i)))
				}
				time.Sleep(10 * time.Second)
				n.ExitContainer("pod-25", "pod-25-1", 1, "Error")
				time.Sleep(10 * time.Minute)
				var got []string
				for _, e := range readStatuses(events) {
					if strings.HasPrefix(e, "pod-25") {
						got = append(got, e)
					}
				}
				want(t, "ten minutes later", got, "pod-25 Died pod-25-1 exited 1 Error")
			})
		})
	}
}

// Rule 23: there are eight workers, and seven or eight pods were stuck before the list became
// stuck. The other pods are still inspected.
func TestRule23BesideManyStuckPods(t *testing.T) {
	for _, stuck := range []int{pleg.DefaultInspectionWorkers - 1, pleg.DefaultInspectionWorkers} {
		t.Run(fmt.Sprintf("stuck=%d", stuck), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.setSingles(30)
				events := n.g.Watch()
				n.start()
				read(events)
				defer n.Heal()
				for i := range stuck {
					uid := types.UID(fmt.Sprintf("pod-%02d", i))
					n.BlockIgnoringCancel(plegtest.GetPodStatus, uid)
					n.g.RequestReinspect(uid)
				}
				time.Sleep(10 * time.Second)
				n.blockLists()
				time.Sleep(10 * time.Second)
				n.ExitContainer("pod-29", "pod-29-1", 1, "Error")
				time.Sleep(10 * time.Minute)
				if got := read(events); !slices.Contains(got, "pod-29 Died pod-29-1") {
					_, err := n.g.Healthy()
					t.Errorf("ten minutes later the events are %v; %v", got, err)
				}
			})
		})
	}
}

// Rule 23: while lists are stuck, pods with stuck inspections stay suspects, even after a list has
// timed out and is tried again.
func TestRule23SuspectsStayAcrossRetries(t *testing.T) {
	for name, ignores := range map[string]bool{"calls end at their deadline": false, "calls ignore it": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.setSingles(20)
				n.start()
				for _, fault := range []plegtest.Fault{
					{Method: plegtest.GetPods}, {Method: plegtest.GetPod}, {Method: plegtest.GetPodStatus, PodUID: "pod-00"},
				} {
					fault.Block, fault.IgnoreCancel = true, ignores
					defer n.Inject(fault)()
				}
				time.Sleep(5 * time.Second)
				began := time.Now()
				for time.Since(began) < 3*pleg.DefaultRuntimeRequestTimeout {
					time.Sleep(100 * time.Millisecond)
					stuck := n.g.HealthReport().StuckRelist
					if stuck == nil || len(stuck.Suspects) != 1 || stuck.Suspects[0].PodUID != "pod-00" {
						t.Fatalf("after %v the report has %+v", time.Since(began), stuck)
					}
				}
			})
		})
	}
}
