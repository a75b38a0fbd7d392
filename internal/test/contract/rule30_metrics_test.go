package contract_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Each death is counted once, with the runtime's reason as its label. An unusual reason is counted
// as "other". The number of subscribers does not matter.
func TestExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.g.Subscribe(t.Context(), pleg.WithCapacity(100))
		n.g.Subscribe(t.Context(), pleg.WithCapacity(-1))
		reasons := []string{
			"Completed", "ContainerCannotRun", "Error", "OOMKilled", "StartError", "Unknown", "seccomp killed",
			"", "killed by cosmic rays", "other", "unseen",
		}
		pod := plegtest.NewPod("a")
		for _, reason := range reasons {
			pod.Containers = append(pod.Containers, plegtest.Running("c "+reason))
		}
		n.SetPods(pod)
		n.start()
		for i, reason := range reasons {
			n.ExitContainer("a", "c "+reason, i, reason)
		}
		n.SetSandbox("a", "a-sandbox", pleg.ContainerStateExited)
		time.Sleep(time.Minute)
		want := map[string]float64{
			"Completed": 1, "ContainerCannotRun": 1, "Error": 1, "OOMKilled": 1, "StartError": 1, "Unknown": 1,
			"seccomp killed": 1, "other": 4,
		}
		wantExits(t, reg, "deaths", want)
		n.g.RequestReinspect("a")
		n.ExitContainer("a", "c Error", 137, "OOMKilled") // the runtime corrects the reason
		n.UpdatePod("a", func(p *pleg.Pod) { p.Containers = p.Containers[2:] })
		time.Sleep(time.Minute)
		n.RemovePod("a")
		time.Sleep(time.Minute)
		wantExits(t, reg, "reinspected and removed", want)
	})
}

// Containers that had died before the first list are not counted. Containers that die before their
// inspection are counted.
func TestExitsBeforeTheFirstList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t, pleg.WithInspectionWorkers(1))
		n.SetPods(
			bare("a", plegtest.Exited("a1")),
			bare("b", plegtest.Running("b1"), plegtest.Exited("b2"), plegtest.Running("b3")),
		)
		defer n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Delay: 300 * time.Millisecond, Times: 1})()
		n.start()
		n.ExitContainer("b", "b1", 1, "Error")
		n.g.RequestRelist("b")
		time.Sleep(3 * time.Second)
		wantExits(t, reg, "at first", map[string]float64{"Error": 1})
		n.SetPods(bare("a", plegtest.Exited("a2")), bare("c", plegtest.Exited("c1")))
		time.Sleep(3 * time.Second)
		// a2 and c1 started and died between two lists, and b3 is removed.
		wantExits(t, reg, "later", map[string]float64{"Error": 1, "Completed": 2, "unseen": 1})
	})
}

// A death is counted when an inspection shows the end, even if earlier inspections failed or showed
// the container running. If the container is removed before that, the death is counted as unseen.
func TestExitsAreCountedWhenTheyAreSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")), bare("b", plegtest.Running("b1")))
		n.start()
		heal := n.Fail(plegtest.GetPodStatus, "a", errors.New("broken"))
		n.SetStatus("b", statusOf(n.Pod("b")))
		n.ExitContainer("a", "a1", 1, "Error")
		n.ExitContainer("a", "a2", 1, "Error")
		n.ExitContainer("b", "b1", 137, "OOMKilled")
		time.Sleep(1500 * time.Millisecond)
		wantExits(t, reg, "not seen yet", map[string]float64{})
		n.RemoveContainer("a", "a2")
		time.Sleep(time.Minute)
		wantExits(t, reg, "one is gone", map[string]float64{"unseen": 1})
		n.SetStatus("b", nil)
		heal()
		time.Sleep(5 * time.Minute)
		wantExits(t, reg, "seen", map[string]float64{"unseen": 1, "Error": 1, "OOMKilled": 1})
		n.SetPods()
		time.Sleep(time.Minute)
		wantExits(t, reg, "removed", map[string]float64{"unseen": 1, "Error": 1, "OOMKilled": 1})
	})
}

// If a container dies and is removed during a long inspection of its pod, the death is counted,
// although no event reports it. The reason comes from the inspection, if the inspection has seen
// the container.
func TestExitsBetweenTwoPublications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		defer n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Delay: 5 * time.Second, Times: 1})()
		n.UpdatePod("a", func(p *pleg.Pod) { p.Containers = append(p.Containers, plegtest.Exited("a2")) })
		time.Sleep(1100 * time.Millisecond)
		n.UpdatePod("a", func(p *pleg.Pod) { p.Containers = append(p.Containers, plegtest.Running("a3")) })
		time.Sleep(1100 * time.Millisecond)
		n.ExitContainer("a", "a3", 1, "Error")
		time.Sleep(1100 * time.Millisecond)
		n.UpdatePod("a", func(p *pleg.Pod) { p.Containers = p.Containers[:1] })
		time.Sleep(10 * time.Second)
		wantExits(t, reg, "removed", map[string]float64{"unseen": 2})
	})
}

// If the state of an exited container is unknown for a while, this is no second death. If a
// container runs again under its ID and exits, this is a second death.
func TestExitsOfContainersThatAreUnknownForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2"), plegtest.Exited("a3")))
		n.start()
		step := func(state pleg.State, ids ...string) {
			for _, id := range ids {
				n.SetContainer("a", id, state)
			}
			time.Sleep(2 * time.Second)
		}
		n.ExitContainer("a", "a1", 1, "Error")
		n.ExitContainer("a", "a2", 1, "Error")
		for range 3 {
			step(pleg.ContainerStateExited, "a1", "a2", "a3")
			step(pleg.ContainerStateUnknown, "a1", "a2", "a3")
		}
		n.RemoveContainer("a", "a2")
		step(pleg.ContainerStateExited, "a1", "a3")
		time.Sleep(2 * time.Second)
		wantExits(t, reg, "unknown in between", map[string]float64{"Error": 2})
		step(pleg.ContainerStateUnknown, "a1")
		step(pleg.ContainerStateRunning, "a1")
		step(pleg.ContainerStateExited, "a1")
		time.Sleep(2 * time.Second) // until the end is settled
		wantExits(t, reg, "running in between", map[string]float64{"Error": 2, "Completed": 1})
	})
}

// An exit event does not contain the reason. The death is counted when the runtime's own status
// shows the exit, when the container is removed, or after ten seconds.
func TestExitsReportedByEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		n.start()
		n.EmitExit(exitOf("a1", 137))
		time.Sleep(9 * time.Second)
		wantExits(t, reg, "the runtime says running", map[string]float64{})
		n.ExitContainer("a", "a1", 137, "OOMKilled")
		time.Sleep(10 * time.Second)
		wantExits(t, reg, "confirmed", map[string]float64{"OOMKilled": 1})
		n.EmitExit(exitOf("a2", 137))
		time.Sleep(time.Millisecond)
		n.RemovePod("a")
		time.Sleep(10 * time.Second)
		wantExits(t, reg, "gone", map[string]float64{"OOMKilled": 1, "Error": 1})
		n.SetPod(bare("b", plegtest.Running("b1")))
		n.g.RequestRelist("b")
		time.Sleep(time.Second)
		n.EmitExit(exitOf("b1", 2))
		time.Sleep(11 * time.Second)
		wantExits(t, reg, "never confirmed", map[string]float64{"OOMKilled": 1, "Error": 2})
	})
}

// If an exit event arrives before any list shows its container, the death is counted once, even if
// later lists show the container running.
func TestExitsBeforeTheirList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(100 * time.Millisecond)
		n.EmitExit(exitOf("a2", 3))
		synctest.Wait()
		for i := range 4 { // these lists show another change, and still show a2 running
			n.UpdatePod("a", func(p *pleg.Pod) {
				other := plegtest.Running(fmt.Sprintf("x%d", i))
				p.Containers = []*pleg.Container{plegtest.Running("a1"), plegtest.Running("a2"), other}
			})
			n.g.RequestRelist("a")
			time.Sleep(100 * time.Millisecond)
		}
		n.RemoveContainer("a", "a2") // no status has shown the exit
		time.Sleep(2 * time.Second)
		counted := counted(t, reg)
		if got := counted["Error"]; got != 1 {
			t.Errorf("a2 has died %v times", got)
		}
	})
}

// A list no longer shows a container, but an inspection that began earlier shows its end. The death
// is counted with the reason of that end.
func TestExitsSeenByAnInspectionInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		defer n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Delay: 5 * time.Second, Times: 2})()
		time.Sleep(1100 * time.Millisecond) // a2 is listed, and its inspection is in flight
		n.ExitContainer("a", "a2", 1, "Error")
		status := statusOf(n.Pod("a"))
		for _, s := range status.ContainerStatuses {
			if s.ID.ID == "a2" {
				s.ExitCode, s.Reason = 1, "Error"
			}
		}
		n.SetStatus("a", status)
		time.Sleep(1100 * time.Millisecond)
		n.RemoveContainer("a", "a2")
		time.Sleep(4 * time.Second) // the first inspection has returned, and the second is in flight
		n.SetStatus("a", nil)
		time.Sleep(time.Hour)
		wantExits(t, reg, "an hour later", map[string]float64{"Error": 1})
	})
}

// Transitions are counted by their cause.
func TestTransitionsByCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		n.start()
		last := make(map[string]float64)
		synctest.Wait()
		time.Sleep(300 * time.Millisecond) // no periodic list shows any of the changes
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
		found("the start", func() {}, first...) // by the period or a hint
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
			defer n.blockLists()()
			time.Sleep(1500 * time.Millisecond)
			n.ExitContainer("a", "a4", 1, "Error")
			time.Sleep(4 * time.Second)
		}, "period")
	})
}

// Rule 30: the number of counted transitions is at least the number of delivered ones. A wrong list
// shows an exited container running while its pod cannot be inspected, and the next status shows
// the exit.
func TestRule30TransitionsThatAreTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events, reg := watchListing(t, bare("a", plegtest.Running("a1")))
		began, err := n.GetPodStatus(t.Context(), n.Pod("a"))
		if err != nil {
			t.Fatal(err)
		}
		n.ExitContainer("a", "a1", 2, "Error")
		time.Sleep(10 * time.Second)
		heal := n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Err: errors.New("broken")})
		n.SetStatus("a", began)
		n.SetContainer("a", "a1", pleg.ContainerStateRunning)
		time.Sleep(5 * time.Second)
		heal()
		time.Sleep(time.Minute)
		delivered := read(events)
		want(t, "events", delivered, "a Died a1", "a Started a1", "a Died a1", "a PodSync")
		if got := countedTransitions(t, reg); got != 4 { // one of them is from the first list
			t.Errorf("%v transitions are counted", got)
		}
	})
}

// Rule 30: the first inspection of a pod is stuck, an exit event reports a death in the pod, and
// the pod is removed. The death is counted.
func TestRule30DeathInAPodThatWasNeverInspected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetricsOf(t, listing)
		n.SetPods(bare("a", plegtest.Running("a1")))
		heal := n.Block(plegtest.GetPodStatus, "a")
		n.start()
		time.Sleep(100 * time.Millisecond)
		n.EmitExit(exitOf("a1", 3))
		synctest.Wait()
		n.RemovePod("a")
		time.Sleep(5 * time.Second)
		wantExits(t, reg, "deaths", map[string]float64{"Error": 1})
		heal()
	})
}
