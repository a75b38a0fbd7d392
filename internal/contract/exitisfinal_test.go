package contract_test

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// states returns the states of a pod's containers as the cache has them.
func states(t *testing.T, cache pleg.Cache, uid types.UID) map[string]pleg.State {
	t.Helper()
	status, err := cache.Get(uid)
	if err != nil {
		t.Error(err)
	}
	states := make(map[string]pleg.State)
	for _, s := range status.ContainerStatuses {
		states[s.ID.ID] = s.State
	}
	return states
}

// wedged makes every list hang, also one of a single pod.
func (n *node) wedged() (heal func()) {
	all := n.Inject(plegtest.Fault{Method: plegtest.GetPods, Hang: true, IgnoreCancel: true})
	one := n.Inject(plegtest.Fault{Method: plegtest.GetPod, Hang: true, IgnoreCancel: true})
	return func() { all(); one() }
}

// Rule 20: a status tells an exit that no list has shown, and that no list can show.
func TestRule20StatusAheadOfTheLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		events := n.g.Watch()
		n.start()
		read(events)
		heal := n.wedged()
		time.Sleep(1500 * time.Millisecond)
		n.ExitContainer("a", "a1", 3, "Error")
		n.g.RequestReinspect("a")
		synctest.Wait()
		want(t, "told by the status", readStatuses(events), "a Died a1 exited 3 Error", "a PodSync without status")
		heal() // the list is from before
		time.Sleep(10 * time.Second)
		want(t, "told by the lists", readStatuses(events))
		n.RemoveContainer("a", "a1")
		time.Sleep(2 * time.Second)
		want(t, "gone", readStatuses(events), "a Removed a1 exited 3 Error")
	})
}

// Rule 20: what the cache shows exited is never shown running again by a status from before.
func TestRule20StatusNeverGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		before := statusOf(n.Pod("a"))
		n.ExitContainer("a", "a1", 3, "Error")
		time.Sleep(1500 * time.Millisecond)
		want(t, "the death", readStatuses(events), "a Died a1 exited 3 Error")
		n.SetStatus("a", before)
		for range 3 {
			n.g.RequestReinspect("a")
			time.Sleep(2 * time.Second)
			if got := states(t, n.cache, "a")["a1"]; got != pleg.ContainerStateExited {
				t.Errorf("the cache has a1 %s", got)
			}
		}
		want(t, "reinspected", readStatuses(events),
			"a PodSync without status", "a PodSync without status", "a PodSync without status")
	})
}

// Rule 20 ends where a status shows a start later than the exit: the runtime has started the
// container again under its ID.
func TestRule20StartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		n.ExitContainer("a", "a1", 3, "Error")
		ended := statusOf(n.Pod("a"))
		ended.ContainerStatuses[0].FinishedAt = time.Now()
		n.SetContainer("a", "a1", pleg.ContainerStateRunning)
		n.SetStatus("a", ended)
		n.g.RequestReinspect("a")
		synctest.Wait()
		want(t, "ended", read(events), "a Died a1", "a PodSync")
		time.Sleep(time.Second)
		again := statusOf(n.Pod("a"))
		again.ContainerStatuses[0].StartedAt = time.Now()
		n.SetStatus("a", again)
		n.g.RequestReinspect("a")
		time.Sleep(5 * time.Second)
		want(t, "started again", read(events), "a PodSync", "a Started a1")
		if got := states(t, n.cache, "a")["a1"]; got != pleg.ContainerStateRunning {
			t.Errorf("the cache has a1 %s", got)
		}
	})
}
