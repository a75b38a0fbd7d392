package contract_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// setEnd makes the status of the only container of pod a show an exit.
func (n *node) setEnd(code int, reason string, unknown bool) {
	n.SetStatus("a", nil)
	n.ExitContainer("a", "a1", code, reason)
	status := statusOf(n.Pod("a"))
	s := status.ContainerStatuses[0]
	s.ExitCode, s.Reason, s.EndUnknown, s.FinishedAt = code, reason, unknown, time.Now()
	n.SetStatus("a", status)
}

// Rule 35: the code of an exit event replaces an unknown end, and also the code 255. A PodSync
// contains the new code. If the end was settled, another PodSync confirms it. OnContainerEnded and the
// counter use the new code if the event arrives before the end is settled. Later statuses of the same
// end do not change it back.
func TestRule35ExitEventAfterTheRuntimesStatus(t *testing.T) {
	type outcome struct {
		events, handled []string
		counted         map[string]float64
	}
	for name, c := range map[string]struct {
		reason  string
		unknown bool
		after   time.Duration
		want    outcome
	}{
		"unknown": {"Unknown", true, 3 * time.Second, outcome{
			[]string{"a Died a1 exited 255 Unknown", "a PodSync exited 0 Completed"},
			[]string{"died a1 unseen", "ended a1 0 Completed"}, map[string]float64{"Completed": 1},
		}},
		"unknown, settled": {"Unknown", true, time.Minute, outcome{
			[]string{"a Died a1 exited 255 Unknown", "a PodSync exited 0 Completed", "a PodSync exited 0 Completed"},
			[]string{"died a1 unseen", "ended a1 unseen"}, map[string]float64{"Unknown": 1},
		}},
		"255": {"Error", false, time.Second, outcome{
			[]string{"a Died a1 exited 255 Error", "a PodSync exited 0 Completed"},
			[]string{"died a1 255 Error", "ended a1 0 Completed"}, map[string]float64{"Completed": 1},
		}},
		"255, settled": {"Error", false, time.Minute, outcome{
			[]string{"a Died a1 exited 255 Error", "a PodSync exited 0 Completed", "a PodSync exited 0 Completed"},
			[]string{"died a1 255 Error", "ended a1 255 Error"}, map[string]float64{"Error": 1},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, events, reg := watchListing(t, bare("a", plegtest.Running("a1")))
				l := &lives{}
				wantLines := l.follow(t, n)
				wantLines("at first", "initially started a1")
				time.Sleep(300 * time.Millisecond)
				exit := exitOf("a1", 0)
				time.Sleep(100 * time.Millisecond) // the runtime notices the end later
				n.setEnd(255, c.reason, c.unknown)
				time.Sleep(c.after)
				n.EmitExit(exit)
				time.Sleep(time.Minute)
				want(t, "events", readStatuses(events), c.want.events...)
				wantLines("handled", c.want.handled...)
				wantExits(t, reg, "deaths", c.want.counted)
				if s := mustGet(t, n.cache).ContainerStatuses[0]; s.ExitCode != 0 || s.EndUnknown || s.Reason != "Completed" {
					t.Errorf("the cache has %+v", s)
				}
			})
		})
	}
}

// Rule 35: a status or an exit event has shown an end. The generator keeps that end if the runtime
// later reports the end as unknown. A program may also exit with 255.
func TestRule35KnownEndStays(t *testing.T) {
	for name, c := range map[string]struct {
		code    int
		reason  string
		unknown bool
		seen    string
	}{
		"forgotten":     {255, "Unknown", true, "exited 7 Error"},
		"forgotten too": {-1, "Error", true, "exited 7 Error"},
		"255":           {255, "Error", false, "exited 7 Error"},
		"another code":  {8, "Error", false, "exited 8 Error"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, events, _ := watchListing(t, bare("a", plegtest.Running("a1")))
				n.setEnd(7, "Error", false)
				time.Sleep(5 * time.Second)
				want(t, "the end", readStatuses(events), "a Died a1 exited 7 Error")
				n.setEnd(c.code, c.reason, c.unknown)
				n.g.RequestReinspect("a")
				time.Sleep(time.Second)
				sent := readStatuses(events)
				s := mustGet(t, n.cache).ContainerStatuses[0]
				cached := &pleg.PodLifecycleEvent{Type: pleg.PodSync, ID: "a", Status: s}
				if withStatus(cached) != "a PodSync "+c.seen {
					t.Errorf("the cache has %+v; events: %v", s, sent)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		n, events, _ := watchListing(t, bare("a", plegtest.Running("a1")))
		n.EmitExit(exitOf("a1", 255))
		time.Sleep(time.Second)
		n.setEnd(255, "Error", false)
		time.Sleep(time.Minute)
		want(t, "a program that exits with 255", readStatuses(events), "a Died a1 exited 255 Error")
	})
}
