package contract_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// states returns the states of pod a's containers as the cache has them.
func states(t *testing.T, cache *pleg.PodCache) map[string]pleg.State {
	t.Helper()
	status := mustGet(t, cache)
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
		n, reg := newNodeWithMetrics(t)
		events := n.watch(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
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
		wantExits(t, reg, "deaths", map[string]float64{"Error": 1})
	})
}

// Rule 20: what the cache shows exited is never shown running again by a status from before.
func TestRule20StatusNeverGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events := watch(t, bare("a", plegtest.Running("a1")))
		before := statusOf(n.Pod("a"))
		n.ExitContainer("a", "a1", 3, "Error")
		time.Sleep(1500 * time.Millisecond)
		want(t, "the death", readStatuses(events), "a Died a1 exited 3 Error")
		n.SetStatus("a", before)
		for range 3 {
			n.g.RequestReinspect("a")
			time.Sleep(2 * time.Second)
			if got := states(t, n.cache)["a1"]; got != pleg.ContainerStateExited {
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
		n, events := watch(t, bare("a", plegtest.Running("a1")))
		n.ExitContainer("a", "a1", 3, "Error")
		ended := statusOf(n.Pod("a"))
		ended.ContainerStatuses[0].FinishedAt = time.Now()
		n.SetContainer("a", "a1", pleg.ContainerStateRunning)
		n.SetStatus("a", ended)
		n.g.RequestReinspect("a")
		synctest.Wait()
		want(t, "ended", read(events), "a Died a1", "a PodSync")
		time.Sleep(1500 * time.Millisecond)
		again := statusOf(n.Pod("a"))
		again.ContainerStatuses[0].StartedAt = time.Now()
		n.SetStatus("a", again)
		n.g.RequestReinspect("a")
		time.Sleep(5 * time.Second)
		want(t, "started again", read(events), "a PodSync", "a Started a1")
		if got := states(t, n.cache)["a1"]; got != pleg.ContainerStateRunning {
			t.Errorf("the cache has a1 %s", got)
		}
	})
}

// exitOf is an exit event of a container.
func exitOf(id string, code int) pleg.ContainerExit {
	return pleg.ContainerExit{ContainerID: id, ExitCode: code, FinishedAt: time.Now()}
}

// watch starts a node with some pods, and returns its events from then on.
func watch(t *testing.T, pods ...*pleg.Pod) (*node, <-chan *pleg.PodLifecycleEvent) {
	t.Helper()
	n := newNode(t)
	return n, n.watch(pods...)
}

// listing is a runtime that reports exits, lists single pods, and has no event stream.
func listing(rt *plegtest.Runtime) pleg.Runtime {
	return struct {
		pleg.Runtime
		pleg.PodGetter
		pleg.ExitSource
	}{rt.Plain(), rt, rt}
}

// watchListing is watch with such a runtime and a registry of metrics.
func watchListing(t *testing.T, pods ...*pleg.Pod) (*node, <-chan *pleg.PodLifecycleEvent, *prometheus.Registry) {
	t.Helper()
	n, reg := newNodeWithMetricsOf(t, listing)
	return n, n.watch(pods...), reg
}

// watch starts the generator with some pods, and returns the events from then on.
func (n *node) watch(pods ...*pleg.Pod) <-chan *pleg.PodLifecycleEvent {
	n.SetPods(pods...)
	events := n.g.Watch()
	n.start()
	read(events)
	return events
}

// Rule 21: an exit event is told at once, with a status made of the last one. The runtime's own
// replaces it, with a PodSync if it says something else. Nothing else of the pod becomes fresher.
func TestRule21ExitEvent(t *testing.T) {
	for name, c := range map[string]struct {
		code      int
		reason    string // the runtime's
		told      string
		confirmed []string
	}{
		"Completed": {0, "Completed", "exited 0 Completed", nil},
		"Error":     {3, "Error", "exited 3 Error", nil},
		"OOMKilled": {137, "OOMKilled", "exited 137 Error", []string{"a PodSync exited 137 OOMKilled"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, events := watch(t, bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
				heal := n.wedged()
				time.Sleep(1500 * time.Millisecond)
				minTime := time.Now().Add(-time.Nanosecond)
				n.EmitExit(exitOf("a1", c.code))
				synctest.Wait()
				e := <-events
				want(t, "told", []string{withStatus(e)}, "a Died a1 "+c.told)
				if s := e.Status; !s.Unconfirmed || !s.FinishedAt.Equal(time.Now()) || e.Cause != pleg.CauseExit {
					t.Errorf("because of %s, %+v", e.Cause, s)
				}
				if s := mustGet(t, n.cache).FindContainerStatusByName("a1"); s.ExitCode != c.code || !s.Unconfirmed {
					t.Errorf("the cache has %+v", s)
				}
				if fresh(n.cache, "a", minTime) {
					t.Error("the pod is fresher")
				}
				time.Sleep(time.Millisecond)
				n.EmitExit(exitOf("a1", 255)) // again, by another witness: the first counts
				time.Sleep(5 * time.Second)
				want(t, "told again", readStatuses(events))
				if s := mustGet(t, n.cache).FindContainerStatusByName("a1"); s.ExitCode != c.code {
					t.Errorf("after another event the cache has %+v", s)
				}
				n.ExitContainer("a", "a1", c.code, c.reason)
				heal()
				time.Sleep(10 * time.Second)
				want(t, "confirmed", readStatuses(events), c.confirmed...)
				for _, s := range mustGet(t, n.cache).ContainerStatuses {
					if s.ID.ID == "a1" && (s.Unconfirmed || s.Reason != c.reason || s.ExitCode != c.code) {
						t.Errorf("the cache has %+v", s)
					}
				}
				n.RemovePod("a")
				time.Sleep(2 * time.Second)
				want(t, "the end", readStatuses(events), fmt.Sprintf("a Removed a1 exited %d %s", c.code, c.reason),
					"a Died a2 running", "a Removed a2 running")
			})
		})
	}
}

// mustGet returns the status that the cache has of pod a.
func mustGet(t *testing.T, cache *pleg.PodCache) *pleg.PodStatus {
	t.Helper()
	status, err := cache.Get("a")
	if err != nil {
		t.Error(err)
	}
	return status
}

// Rule 21: an exit event may come before any list has shown its container, and before the pod is
// inspected for the first time; it may be of nothing that is listed, of a sandbox, or late.
func TestRule21ExitEventAtAnyTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events := watch(t, plegtest.NewPod("a", plegtest.Running("a1")))
		n.EmitExit(exitOf("b1", 5)) // CRI shows it later
		n.EmitExit(exitOf("nobody's", 5))
		n.EmitExit(exitOf("a-sandbox", 0))
		synctest.Wait()
		n.SetPod(bare("b", plegtest.Running("b1"), plegtest.Running("b2")))
		time.Sleep(2 * time.Second)
		want(t, "before its list", readStatuses(events), "b Died b1 exited 5 Error", "b Started b2 running")
		defer n.Inject(plegtest.Fault{
			Method: plegtest.GetPodStatus, PodUID: "c", Delay: 500 * time.Millisecond, Times: 1, Stale: true,
		})()
		n.SetPod(bare("c", plegtest.Running("c1"), plegtest.Running("c2")))
		n.g.RequestRelist("c")
		time.Sleep(100 * time.Millisecond)
		n.EmitExit(exitOf("c1", 6))
		time.Sleep(time.Second)
		want(t, "before its inspection", readStatuses(events), "c Died c1 exited 6 Error", "c Started c2 running")
		n.ExitContainer("c", "c2", 7, "Error")
		time.Sleep(2 * time.Second)
		n.EmitExit(exitOf("c2", 8))
		time.Sleep(2 * time.Second)
		want(t, "late", readStatuses(events), "c Died c2 exited 7 Error")
	})
}

// Rule 22: the reason that a runtime tells late is told with a PodSync, and nothing if it stays.
func TestRule22LateReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events := watch(t,
			bare("a", plegtest.Running("a1"), plegtest.Running("a2"), plegtest.Running("a3"), plegtest.Exited("a4")))
		n.ResetCalls()
		step := func(what, id, reason, late string, calls int, lines ...string) {
			t.Helper()
			n.ExitContainer("a", id, 137, reason)
			time.Sleep(1500 * time.Millisecond)
			n.ExitContainer("a", id, 137, late)
			time.Sleep(10 * time.Second)
			want(t, what, readStatuses(events), lines...)
			if got := n.PodCalls(plegtest.GetPodStatus, "a"); got != calls {
				t.Errorf("%s: %d inspections", what, got)
			}
			n.ResetCalls()
		}
		step("late", "a1", "Error", "OOMKilled", 2, "a Died a1 exited 137 Error", "a PodSync exited 137 OOMKilled")
		step("the same", "a2", "Error", "Error", 2, "a Died a2 exited 137 Error")
		step("Completed", "a3", "Completed", "Completed", 1, "a Died a3 exited 137 Completed")
	})
}
