package contract_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// shortLived returns pod a with one container, and its status, which has a start later than its end by some time.
func shortLived(state pleg.State, finished time.Time, skew time.Duration) (*pleg.Pod, *pleg.PodStatus) {
	pod := bare("a", plegtest.NewContainer("a1", state))
	status := statusOf(pod)
	s := status.ContainerStatuses[0]
	if state != pleg.ContainerStateCreated {
		s.StartedAt = finished.Add(skew)
	}
	if state == pleg.ContainerStateExited {
		s.FinishedAt, s.ExitCode, s.Reason = finished, 3, "Error"
	}
	return pod, status
}

// startedAfterItsEnd are times between the end of a container and its start, as its status shows them: by a
// runtime that was short of CPU, and by a clock that was set back.
var startedAfterItsEnd = map[string]time.Duration{
	"starved": 2 * time.Second, "clock set back": time.Hour, "at once": 100 * time.Millisecond,
}

// Rule 20: a start and an end are never compared. A runtime that is short of CPU stamps the start of a
// short-lived container seconds after its end. Lists and statuses show the container running for a while after
// its exit event. That is one life and one death.
func TestRule20StartStampedAfterTheEnd(t *testing.T) {
	for name, skew := range startedAfterItsEnd {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, reg := newNodeWithMetricsOf(t, listing)
				set := func(state pleg.State, finished time.Time) {
					pod, status := shortLived(state, finished, skew)
					n.SetPods(pod)
					n.SetStatus("a", status)
				}
				set(pleg.ContainerStateCreated, time.Time{})
				events := n.g.Watch()
				n.start()
				read(events)
				time.Sleep(100 * time.Millisecond)
				exit := exitOf("a1", 3)
				n.EmitExit(exit)
				synctest.Wait()
				set(pleg.ContainerStateRunning, exit.FinishedAt)
				time.Sleep(2500 * time.Millisecond)
				set(pleg.ContainerStateExited, exit.FinishedAt)
				time.Sleep(time.Minute)
				want(t, "events", readStatuses(events), "a Died a1 exited 3 Error")
				wantExits(t, reg, "deaths", map[string]float64{"Error": 1})
				if got := states(t, n.cache)["a1"]; got != pleg.ContainerStateExited {
					t.Errorf("a minute later the cache has a1 %s", got)
				}
			})
		})
	}
}

// Rule 21: an exit event is delivered at once, also if a status has shown a start that is later than the exit.
func TestRule21ExitBeforeItsStampedStart(t *testing.T) {
	for name, skew := range startedAfterItsEnd {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNodeOf(t, listing)
				exit := exitOf("a1", 3)
				pod, status := shortLived(pleg.ContainerStateRunning, exit.FinishedAt, skew)
				n.SetPods(pod)
				n.SetStatus("a", status)
				events := n.g.Watch()
				n.start()
				want(t, "first", read(events), "a Started a1")
				time.Sleep(skew + 100*time.Millisecond) // the start has passed by the clock
				n.EmitExit(exit)
				synctest.Wait()
				want(t, "the exit", readStatuses(events), "a Died a1 exited 3 Error")
				time.Sleep(2500 * time.Millisecond)
				pod, status = shortLived(pleg.ContainerStateExited, exit.FinishedAt, skew)
				n.SetPods(pod)
				n.SetStatus("a", status)
				time.Sleep(time.Minute)
				want(t, "later", readStatuses(events))
			})
		})
	}
}
