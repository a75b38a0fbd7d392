package contract_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// newWedgedNode is a node of pods with a container each, of which one hangs with every list.
func newWedgedNode(t *testing.T, pods int) (n *node, events <-chan *pleg.PodLifecycleEvent, heal func()) {
	t.Helper()
	n = newNode(t)
	n.setSingles(pods)
	watch := n.g.Watch()
	n.start()
	read(watch)
	lists := n.wedged()
	wedged := n.HangIgnoringCancel(plegtest.GetPodStatus, "pod-00")
	n.ResetCalls()
	return n, watch, func() { lists(); wedged() }
}

// Rule 23: while a full list hangs, the pods that are known are inspected in turn, and a death in any
// of them is told within three periods. The report and Healthy name the pod whose inspection
// hangs too. When it ends, all is as before.
func TestRule23HungListBesideWedgedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 20
		n, events, heal := newWedgedNode(t, pods)
		time.Sleep(5 * time.Second)
		hung := n.g.HealthReport().HungRelist
		if hung == nil || len(hung.Suspects) != 1 || hung.Suspects[0].PodUID != "pod-00" || hung.Answered != pods-1 {
			t.Errorf("after 5 s the report has %+v", hung)
		}
		for i := 1; i < pods; i++ {
			uid := types.UID(fmt.Sprintf("pod-%02d", i))
			n.ExitContainer(uid, string(uid)+"-1", 1, "Error")
			began := time.Now()
			if e := <-events; line(e) != fmt.Sprintf("%s Died %s-1", uid, uid) || e.Status.ExitCode != 1 {
				t.Errorf("got %s, %+v", line(e), e.Status)
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("%s: told after %v", uid, took)
			}
		}
		time.Sleep(3 * time.Minute)
		_, err := n.g.Healthy()
		for _, part := range []string{
			"GetPods has been running for ", "; meanwhile, GetPodStatus of pod default/pod-00 (pod-00) has been unanswered for ",
			"; pods inspected since: 19",
		} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in %v", part, err)
			}
		}
		heal()
		time.Sleep(2 * time.Second)
		r := n.g.HealthReport()
		if !r.Healthy || r.HungRelist != nil {
			t.Errorf("the report is %+v", r)
		}
		n.ExitContainer("pod-00", "pod-00-1", 1, "Error")
		time.Sleep(15 * time.Second)
		want(t, "of the wedged pod", readStatuses(events),
			"pod-00 PodSync without status", "pod-00 Died pod-00-1 exited 1 Error")
	})
}

// Rule 23: each pod is inspected at most every other period while a list hangs, by half of the
// workers, and a runtime that answers nothing is not asked about every pod.
func TestRule23InspectionsBesideHungList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 100
		n, _, heal := newWedgedNode(t, pods)
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
			t.Errorf("%d inspections at once, with that of the wedged pod", most)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		n, _, heal := newWedgedNode(t, 100)
		defer heal()
		defer n.HangIgnoringCancel(plegtest.GetPodStatus, "")()
		time.Sleep(time.Minute)
		if got := n.InFlight(plegtest.GetPodStatus); got > 40 {
			t.Errorf("%d inspections hang", got)
		}
	})
}

// Rule 21: an exit that the runtime does not confirm is in the report and in a metric after a
// period, and until it does.
func TestRule21UnconfirmedExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events := watch(t, plegtest.NewPod("a", plegtest.Running("a1")))
		n.EmitExit(exitOf("a1", 3))
		time.Sleep(500 * time.Millisecond)
		want(t, "told", read(events), "a Died a1")
		if got := n.g.HealthReport().UnconfirmedExits; len(got) != 0 {
			t.Errorf("at once: %+v", got)
		}
		time.Sleep(10 * time.Second)
		got := n.g.HealthReport().UnconfirmedExits
		if len(got) != 1 || got[0].PodUID != "a" || got[0].ContainerID != "a1" || got[0].ExitCode != 3 {
			t.Errorf("after 10 s: %+v", got)
		}
		if states(t, n.cache)["a1"] != pleg.ContainerStateExited {
			t.Error("the cache has forgotten it")
		}
		n.ExitContainer("a", "a1", 3, "Error")
		time.Sleep(2 * time.Second)
		if got := n.g.HealthReport().UnconfirmedExits; len(got) != 0 {
			t.Errorf("confirmed: %+v", got)
		}
		want(t, "confirmed", read(events))
	})
}

// How many transitions each cause has found is counted.
func TestTransitionsByCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		n.start()
		last := make(map[string]float64)
		synctest.Wait()
		time.Sleep(300 * time.Millisecond) // none of the changes comes with a list of the period
		first := []string{"period", "period"}
		if metric(t, reg, "pleg_transitions_total", "cause", "hint") > 0 {
			first = []string{"hint", "hint"}
		}
		found := func(what string, change func(), expected ...string) {
			t.Helper()
			change()
			time.Sleep(2 * time.Second)
			var got []string
			for _, cause := range []string{"period", "hint", "exit", "demand"} {
				count := metric(t, reg, "pleg_transitions_total", "cause", cause)
				for range int(count - last[cause]) {
					got = append(got, cause)
				}
				last[cause] = count
			}
			want(t, what, got, expected...)
		}
		found("the start", func() {}, first...) // by the period, or by the connection of the stream
		found("an exit event", func() { n.EmitExit(exitOf("a1", 1)); n.ExitContainer("a", "a1", 1, "Error") }, "exit")
		found("no event", func() { n.ExitContainer("a", "a2", 1, "Error") }, "period")
		found("an event", func() {
			n.EmitOnChange(true)
			n.SetContainer("a", "a3", pleg.ContainerStateRunning)
			n.EmitOnChange(false)
		}, "hint")
		found("a request", func() {
			n.SetContainer("a", "a4", pleg.ContainerStateRunning)
			n.g.RequestRelist("a")
		}, "demand")
		found("a status", func() {
			defer n.wedged()()
			time.Sleep(1500 * time.Millisecond)
			n.ExitContainer("a", "a4", 1, "Error")
			time.Sleep(4 * time.Second)
		}, "period")
	})
}
