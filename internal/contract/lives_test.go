package contract_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 20: a container is started again under its ID within a second of its end. An exit event of its earlier
// life that comes now, for the first or the second time, is no death. The end of the new life is one, and each
// life is counted once.
func TestRule20LateExitOfAShortPause(t *testing.T) {
	for name, twice := range map[string]bool{"late": false, "twice": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, events, reg := watchListing(t, bare("a", plegtest.Running("a1")))
				time.Sleep(300 * time.Millisecond)
				earlier := exitOf("a1", 1)
				n.ExitContainer("a", "a1", 1, "Error")
				if twice {
					n.EmitExit(earlier)
				} else {
					n.g.RequestRelist("a")
				}
				time.Sleep(200 * time.Millisecond)
				want(t, "the end", readStatuses(events), "a Died a1 exited 1 Error")
				n.SetContainer("a", "a1", pleg.ContainerStateRunning)
				n.g.RequestRelist("a")
				time.Sleep(3 * time.Second)
				want(t, "started again", readStatuses(events), "a Started a1 running")
				n.EmitExit(earlier)
				time.Sleep(time.Hour)
				want(t, "the event of the earlier life", readStatuses(events))
				if got := states(t, n.cache)["a1"]; got != pleg.ContainerStateRunning {
					t.Errorf("an hour later the cache has a1 %s", got)
				}
				n.ExitContainer("a", "a1", 2, "Error")
				n.EmitExit(exitOf("a1", 2))
				time.Sleep(time.Minute)
				want(t, "the end of the new life", readStatuses(events), "a Died a1 exited 2 Error")
				wantExits(t, reg, "deaths", map[string]float64{"Error": 2})
			})
		})
	}
}

// Rule 20: no inspection has shown the end of a life before its container was started again under its ID. What
// shows that end late, an exit event or an inspection that began before, is no death of the new life.
func TestRule20EndThatWasNotSeen(t *testing.T) {
	for name, stale := range map[string]bool{"an exit event": false, "an inspection": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, events, reg := watchListing(t, bare("a", plegtest.Running("a1")))
				time.Sleep(300 * time.Millisecond)
				fault := plegtest.Fault{Method: plegtest.GetPodStatus, Times: 1, Err: errors.New("broken")}
				if stale {
					fault = plegtest.Fault{Method: plegtest.GetPodStatus, Times: 1, Stale: true, Delay: 500 * time.Millisecond}
				}
				defer n.Inject(fault)()
				n.ExitContainer("a", "a1", 1, "Error")
				earlier := exitOf("a1", 1)
				n.g.RequestRelist("a")
				time.Sleep(200 * time.Millisecond)
				n.SetContainer("a", "a1", pleg.ContainerStateRunning)
				n.g.RequestRelist("a")
				time.Sleep(3 * time.Second)
				if !stale {
					n.EmitExit(earlier)
				}
				time.Sleep(time.Hour)
				if got := states(t, n.cache)["a1"]; got != pleg.ContainerStateRunning {
					t.Errorf("an hour later the cache has a1 %s; events: %v", got, readStatuses(events))
				}
				wantExits(t, reg, "deaths", map[string]float64{"unseen": 1})
			})
		})
	}
}

// Rule 20: a container ended and was started again under its ID between two lists, and an inspection has shown
// the new life. A late exit event of the earlier life is no death.
func TestRule20LifeThatOnlyAStatusShowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events, _ := watchListing(t, bare("a", plegtest.Running("a1")))
		time.Sleep(1300 * time.Millisecond)
		earlier := exitOf("a1", 1)
		n.SetContainer("a", "a1", pleg.ContainerStateExited)
		time.Sleep(100 * time.Millisecond)
		n.SetContainer("a", "a1", pleg.ContainerStateRunning)
		n.g.RequestReinspect("a")
		time.Sleep(100 * time.Millisecond)
		n.EmitExit(earlier)
		time.Sleep(time.Hour)
		want(t, "events", readStatuses(events), "a PodSync without status")
		if got := states(t, n.cache)["a1"]; got != pleg.ContainerStateRunning {
			t.Errorf("an hour later the cache has a1 %s", got)
		}
	})
}

// Rule 20: a list that does not know the state of a container takes nothing away from its end.
func TestRule20UnknownStateAfterAnExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		n.ExitContainer("a", "a1", 2, "Error")
		time.Sleep(1500 * time.Millisecond)
		heal := n.Fail(plegtest.GetPodStatus, "a", errors.New("broken"))
		n.SetContainer("a", "a1", pleg.ContainerStateUnknown)
		time.Sleep(2 * time.Second)
		n.RemoveContainer("a", "a1")
		time.Sleep(5 * time.Second)
		wantExits(t, reg, "deaths", map[string]float64{"Error": 1})
		heal()
	})
}
