package contract_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 22: if the runtime changes the reason after the death, a PodSync follows. Otherwise, there
// is no PodSync.
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

// Rule 22: a slow inspection settles an end, although it has not returned. The generator still
// makes another inspection to look for a late reason.
func TestRule22LateReasonBesideASlowInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		n.ExitContainer("a", "a1", 137, "Error")
		time.Sleep(1500 * time.Millisecond) // the container died at 1 s
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Stale: true, Delay: 3 * time.Second, Times: 1})
		n.g.RequestReinspect("a")
		time.Sleep(100 * time.Millisecond)
		n.ExitContainer("a", "a1", 137, "OOMKilled")
		time.Sleep(time.Hour)
		if s, err := n.cache.Get("a"); s.ContainerStatuses[0].Reason != "OOMKilled" || err != nil {
			t.Errorf("the cache has %v, %v", s.ContainerStatuses[0].Reason, err)
		}
	})
}

// Rule 22: the end of a container is settled even if its pod is not inspected, because stuck pods
// keep all workers.
func TestRule22EndBesideManyStuckPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("z", plegtest.Running("z1")))
		n.start()
		l := &lives{}
		h := l.handler()
		h.Want = func(p *pleg.Pod) bool { return p.ID == "z" }
		go func() { _ = n.g.Handle(t.Context(), h) }()
		synctest.Wait()
		for i := range 80 { // 64 slow inspections release their workers; 8 others do not
			uid := types.UID(fmt.Sprintf("p%02d", i))
			defer n.BlockIgnoringCancel(plegtest.GetPodStatus, uid)()
			n.SetPod(bare(uid, plegtest.Running(string(uid)+"-1")))
		}
		time.Sleep(15 * time.Second)
		n.EmitExit(exitOf("z1", 137))
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := fmt.Sprint(l.lines); got != "[initially started z1 died z1 137? ended z1 137?]" {
			t.Error(got)
		}
	})
}

// Rule 22: a pod that changes during each of its inspections keeps no state of removed containers.
func TestRule22EndsOfAPodThatGoesOnChanging(t *testing.T) {
	if raceEnabled {
		t.Skip("counts the heap")
	}
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a0")))
		n.start()
		n.Delay(plegtest.GetPodStatus, "a", 1200*time.Millisecond)
		churn := func(from, to int) int64 {
			for i := from; i < to; i++ {
				n.SetContainer("a", fmt.Sprint("a", i+1), pleg.ContainerStateRunning)
				time.Sleep(300 * time.Millisecond)
				n.ExitContainer("a", fmt.Sprint("a", i), 0, strings.Repeat("reason", 1000)+fmt.Sprint(i))
				time.Sleep(300 * time.Millisecond)
				if i > 2 {
					n.RemoveContainer("a", fmt.Sprint("a", i-2))
				}
				time.Sleep(300 * time.Millisecond)
			}
			return int64(heapInUse())
		}
		before := churn(0, 200)
		if grew := churn(200, 1200) - before; grew > 2<<20 {
			t.Errorf("a pod of four containers takes %d more bytes after 1,000 restarts", grew)
		}
	})
}

// Rule 22: one inspection shows a late reason, and the exit of another container. The status of
// this inspection is too old for the cache. Subscribers are still sent the late reason, and in the
// end the cache contains it too.
func TestRule22LateReasonBesideAnotherExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		events := n.g.Watch()
		n.start()
		time.Sleep(300 * time.Millisecond)
		n.ExitContainer("a", "a1", 137, "Error")
		time.Sleep(4 * time.Second) // the inspection that looks for a late reason has found none
		read(events)
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Delay: 300 * time.Millisecond, Times: 1})
		n.g.RequestReinspect("a")
		time.Sleep(50 * time.Millisecond)
		n.g.RequestRelist("a") // it finds no change, which makes the cache's time later than the inspection's
		time.Sleep(50 * time.Millisecond)
		n.SetContainer("a", "a3", pleg.ContainerStateRunning)
		n.g.RequestRelist("a") // shows a change, which supersedes the inspection
		time.Sleep(50 * time.Millisecond)
		n.ExitContainer("a", "a1", 137, "OOMKilled")
		n.ExitContainer("a", "a2", 1, "Error")
		time.Sleep(time.Minute)
		sent := make(map[string]string) // the reasons by container ID
		for len(events) > 0 {
			if e := <-events; e.Status != nil && e.Status.State == pleg.ContainerStateExited {
				sent[e.Container.ID.ID] = e.Status.Reason
			}
		}
		if sent["a1"] != "OOMKilled" || sent["a2"] != "Error" {
			t.Errorf("subscribers were sent %v", sent)
		}
		if s := mustGet(t, n.cache).FindContainerStatusByName("a1"); s.Reason != "OOMKilled" {
			t.Errorf("the cache has %+v", s)
		}
	})
}

// Rule 22: the runtime's status shows an exit only seconds after the exit event, and shows the
// reason even later. The reason is still delivered.
func TestRule22LateReasonOfALateConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events, _ := watchListing(t, bare("a", plegtest.Running("a1")))
		time.Sleep(1500 * time.Millisecond)
		n.EmitExit(exitOf("a1", 137))
		time.Sleep(2800 * time.Millisecond)
		n.ExitContainer("a", "a1", 137, "Error")
		time.Sleep(400 * time.Millisecond)
		n.ExitContainer("a", "a1", 137, "OOMKilled")
		time.Sleep(time.Minute)
		if s := mustGet(t, n.cache).ContainerStatuses[0]; s.Reason != "OOMKilled" {
			t.Errorf("the reason is %s; events: %v", s.Reason, readStatuses(events))
		}
	})
}

// Rule 22: an end is settled before the runtime confirms the exit or answers an inspection. After
// the confirmation, the runtime changes the reason. In the end, the cache and the subscribers have
// the new reason.
func TestRule22LateReasonOfASettledEnd(t *testing.T) {
	for name, fault := range map[string]*plegtest.Fault{
		"confirmed late":   nil,
		"failed":           {Method: plegtest.GetPodStatus, Err: errors.New("broken")},
		"slow":             {Method: plegtest.GetPodStatus, Stale: true, Delay: 8 * time.Second, Times: 1},
		"slow and failing": {Method: plegtest.GetPodStatus, Err: errors.New("broken"), Delay: 8 * time.Second, Times: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, events, _ := watchListing(t, bare("a", plegtest.Running("a1")))
				heal := func() {}
				time.Sleep(1500 * time.Millisecond)
				if fault != nil {
					heal = n.Inject(*fault)
				}
				n.EmitExit(exitOf("a1", 137))
				time.Sleep(12 * time.Second)
				n.ExitContainer("a", "a1", 137, "Error")
				heal()
				n.g.RequestRelist("a")
				time.Sleep(400 * time.Millisecond)
				n.ExitContainer("a", "a1", 137, "OOMKilled")
				time.Sleep(time.Minute)
				if s := mustGet(t, n.cache).ContainerStatuses[0]; s.Reason != "OOMKilled" || s.Unconfirmed {
					t.Errorf("the cache has %+v", s)
				}
				if sent := readStatuses(events); sent[len(sent)-1] != "a PodSync exited 137 OOMKilled" {
					t.Errorf("events: %q", sent)
				}
			})
		})
	}
}

// Rule 22: an unconfirmed end is settled after ten seconds. The later confirmation is a PodSync, once. A
// confirmation before that is not.
func TestRule22LateConfirmation(t *testing.T) {
	const died, confirmed = "a Died a1 exited 137 Error", "a PodSync exited 137 Error"
	for after, sent := range map[time.Duration][]string{time.Second: {died}, 12 * time.Second: {died, confirmed}} {
		t.Run(after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, events, _ := watchListing(t, bare("a", plegtest.Running("a1")))
				time.Sleep(1500 * time.Millisecond)
				n.EmitExit(exitOf("a1", 137))
				time.Sleep(after)
				n.ExitContainer("a", "a1", 137, "Error")
				time.Sleep(time.Minute)
				want(t, "events", readStatuses(events), sent...)
			})
		})
	}
}

// Rule 22: an end is settled, and the runtime confirms it later. A subscription that begins between the
// two also gets the PodSync. A subscriber that has not been sent Died before the confirmation gets no PodSync.
func TestRule22LateConfirmationOfASettledEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _, _ := watchListing(t, bare("a", plegtest.Running("a1")))
		slow := n.g.Subscribe(t.Context(), pleg.WithCapacity(-1))
		time.Sleep(1500 * time.Millisecond)
		n.EmitExit(exitOf("a1", 137))
		time.Sleep(12 * time.Second)
		late := n.g.Subscribe(t.Context())
		n.ExitContainer("a", "a1", 137, "Error")
		time.Sleep(time.Minute)
		want(t, "late", readStatuses(late), "a Died a1 exited 137 Error", "a PodSync exited 137 Error")
		var read []string
		for range 3 {
			synctest.Wait()
			select {
			case e := <-slow:
				read = append(read, withStatus(e))
			default:
			}
		}
		want(t, "slow", read, "a Started a1 running", "a Died a1 exited 137 Error")
	})
}

// Rule 22: the first full list shows a container exited. The pod's first good status settles the
// container's end. Without a good status, the end is settled after ten seconds. The end stays
// Initial, is not counted, and may be delivered after OnSynced.
func TestRule22EndsOfTheFirstList(t *testing.T) {
	for name, c := range map[string]struct {
		fails time.Duration
		lines []string
	}{
		"at once":  {0, []string{"initially died a1 3 Error", "initially ended a1 3 Error"}},
		"late":     {4 * time.Second, []string{"initially died a1 unseen", "initially ended a1 3 Error"}},
		"too late": {time.Minute, []string{"initially died a1 unseen", "initially ended a1 unseen"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, reg := newNodeWithMetrics(t)
				n.SetPods(bare("a", plegtest.Running("a1")))
				n.ExitContainer("a", "a1", 3, "Error")
				heal := n.Fail(plegtest.GetPodStatus, "a", errors.New("broken"))
				if c.fails == 0 {
					heal()
				}
				events := n.g.Watch()
				l := &lives{}
				wantLines := l.follow(t, n)
				n.start()
				time.Sleep(c.fails)
				heal()
				time.Sleep(20 * time.Second)
				wantLines("handled", append([]string{"initially started a1"}, c.lines...)...)
				wantExits(t, reg, "deaths", map[string]float64{})
				if s := mustGet(t, n.cache).ContainerStatuses[0]; s.ExitCode != 3 {
					t.Errorf("the cache has %+v", s)
				}
				n.ExitContainer("a", "a1", 3, "OOMKilled")
				n.g.RequestReinspect("a")
				time.Sleep(20 * time.Second)
				if sent := readStatuses(events); sent[len(sent)-1] != "a PodSync exited 3 OOMKilled" {
					t.Errorf("events: %q", sent)
				}
				wantLines("afterwards")
			})
		})
	}
}

// Rule 22: no exit event reports an exit. The cause of the settled end is then not CauseExit, even
// if the inspection that settles the end is slow.
func TestRule22CauseOfASettledEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		var causes []pleg.Cause
		go func() {
			_ = n.g.Handle(t.Context(), pleg.Handler{OnContainerEnded: func(e *pleg.PodLifecycleEvent) {
				causes = append(causes, e.Cause)
			}})
		}()
		n.ExitContainer("a", "a1", 3, "Error")
		time.Sleep(1500 * time.Millisecond)
		n.Delay(plegtest.GetPodStatus, "a", 5*time.Second)
		time.Sleep(time.Minute)
		synctest.Wait()
		if fmt.Sprint(causes) != "[period]" {
			t.Errorf("the causes are %v", causes)
		}
	})
}
