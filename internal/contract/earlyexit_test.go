package contract_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 21: an exit event comes before any list has shown its container. The list that is the first to show the
// container overlaps with another, and an inspection that began earlier returns before the next list. The death
// has its code, and the cache never shows the container running.
func TestRule21EarlyExitBesideOverlappingLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events, _ := watchListing(t, bare("a", plegtest.Running("a1")))
		time.Sleep(900 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Delay: 200 * time.Millisecond, Stale: true, Times: 1})
		n.Inject(plegtest.Fault{Method: plegtest.GetPod, Delay: 200 * time.Millisecond, Times: 2})
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Delay: 300 * time.Millisecond, Stale: true, Times: 1})
		time.Sleep(150 * time.Millisecond) // the full list is in flight
		n.EmitExit(exitOf("a2", 3))
		time.Sleep(50 * time.Millisecond)
		n.g.RequestRelist("a")
		n.g.RequestReinspect("a")
		time.Sleep(50 * time.Millisecond)
		n.SetContainer("a", "a2", pleg.ContainerStateRunning) // as a runtime that is short of CPU shows it
		for range 200 {
			time.Sleep(10 * time.Millisecond)
			if got := states(t, n.cache)["a2"]; got == pleg.ContainerStateRunning {
				t.Fatalf("the cache has a2 running; events: %v", readStatuses(events))
			}
		}
		got := readStatuses(events)
		slices.Sort(got) // the list and the inspection may return in either order
		want(t, "events", got, "a Died a2 exited 3 Error", "a PodSync without status")
		n.ExitContainer("a", "a2", 3, "Error")
		time.Sleep(time.Minute)
		want(t, "confirmed", readStatuses(events))
	})
}

// Rule 21: an exit event comes after a list has shown its container gone, and before the pod's inspection. The
// death and the removal have the exit, and it is counted by its reason.
func TestRule21ExitOfAContainerThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events, reg := watchListing(t, bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		time.Sleep(300 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Delay: 300 * time.Millisecond, Times: 1})
		n.RemoveContainer("a", "a1")
		n.g.RequestRelist("a")
		time.Sleep(100 * time.Millisecond)
		n.EmitExit(exitOf("a1", 3))
		time.Sleep(time.Minute)
		want(t, "events", readStatuses(events), "a Died a1 exited 3 Error", "a Removed a1 exited 3 Error")
		wantExits(t, reg, "deaths", map[string]float64{"Error": 1})
	})
}

// Rule 21: an exit event is of a container that is new in its pod, whose inspection hangs. The death is
// delivered at once if the inspection is slow, and else when it is, and not at its deadline.
func TestRule21ExitOfANewContainerInAHungPod(t *testing.T) {
	for name, after := range map[string]time.Duration{
		"slow": 1500 * time.Millisecond, "not yet slow": 100 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, events := watch(t, bare("a", plegtest.Running("a1")))
				time.Sleep(300 * time.Millisecond)
				defer n.HangIgnoringCancel(plegtest.GetPodStatus, "a")()
				n.SetContainer("a", "a2", pleg.ContainerStateRunning)
				n.g.RequestRelist("a")
				time.Sleep(after)
				n.EmitExit(exitOf("a2", 3))
				time.Sleep(max(0, pleg.DefaultRelistPeriod-after))
				synctest.Wait()
				want(t, "events", readStatuses(events), "a Died a2 exited 3 Error")
			})
		})
	}
}

// Rule 20: an inspection shows a container exited before any list has shown it. A list that began earlier shows
// it running, and then it is gone. Its death and its removal have the status that was seen, also if another
// inspection has shown it gone before that list completes.
func TestRule20ExitSeenBeforeAnyList(t *testing.T) {
	for name, inspections := range map[string]int{"one inspection": 1, "two inspections": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, reg := newNodeWithMetrics(t)
				n.SetPods(bare("a", plegtest.Running("a1")))
				events := n.g.Watch()
				n.start()
				read(events)
				time.Sleep(300 * time.Millisecond)
				n.Inject(plegtest.Fault{Method: plegtest.GetPod, Delay: 200 * time.Millisecond, Stale: true, Times: 1})
				n.SetContainer("a", "a2", pleg.ContainerStateRunning)
				n.g.RequestRelist("a")
				time.Sleep(50 * time.Millisecond)
				n.ExitContainer("a", "a2", 3, "Error")
				for range inspections {
					n.g.RequestReinspect("a")
					time.Sleep(50 * time.Millisecond)
					n.RemoveContainer("a", "a2")
				}
				time.Sleep(time.Minute)
				got := slices.DeleteFunc(readStatuses(events), func(s string) bool { return s == "a PodSync without status" })
				want(t, "events", got, "a Died a2 exited 3 Error", "a Removed a2 exited 3 Error")
				wantExits(t, reg, "deaths", map[string]float64{"Error": 1})
			})
		})
	}
}
