package contract_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 21: an exit event is delivered at once, with a status made from the container's last status.
// The runtime's own status later replaces this status. If the two differ, a PodSync follows. The
// rest of the pod becomes no fresher.
func TestRule21ExitEvent(t *testing.T) {
	for name, c := range map[string]struct {
		code      int
		reason    string // the runtime's reason
		sent      string
		confirmed []string
	}{
		"Completed": {0, "Completed", "exited 0 Completed", nil},
		"Error":     {3, "Error", "exited 3 Error", nil},
		"OOMKilled": {137, "OOMKilled", "exited 137 Error", []string{"a PodSync exited 137 OOMKilled"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, events := watch(t, bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
				heal := n.blockLists()
				time.Sleep(1500 * time.Millisecond)
				minTime := time.Now().Add(-time.Nanosecond)
				n.EmitExit(exitOf("a1", c.code))
				synctest.Wait()
				e := <-events
				want(t, "published", []string{withStatus(e)}, "a Died a1 "+c.sent)
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
				n.EmitExit(exitOf("a1", 255)) // a second report of the exit; the first counts
				time.Sleep(5 * time.Second)
				want(t, "published again", readStatuses(events))
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

// Rule 21: the exit of a sandbox is only a hint.
func TestRule21ExitOfASandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events := watch(t, plegtest.NewPod("a", plegtest.Running("a1")))
		lists := n.Calls(plegtest.GetPods) + n.Calls(plegtest.GetPod)
		n.EmitExit(exitOf("a-sandbox", 0))
		synctest.Wait()
		if got := n.Calls(plegtest.GetPods) + n.Calls(plegtest.GetPod) - lists; got != 1 {
			t.Errorf("%d lists at once", got)
		}
		time.Sleep(5 * time.Second)
		want(t, "events", readStatuses(events))
	})
}

// Rule 21: a list no longer shows a container. An exit event then arrives, before the pod is
// inspected. The events Died and Removed contain the exit code, and the death is counted by its
// reason.
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

// Rule 21: one step cannot take all exit events. For each event that is not taken, the generator
// lists the event's pod, or all pods if the event names none. These deaths are delivered before the
// next period.
func TestRule21ManyExitsInOneStep(t *testing.T) {
	const pods, taken = 20, 10_000
	for name, named := range map[string]bool{"with their pods": true, "without pods": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := plegtest.NewRuntime()
				exit := func(pod int) pleg.ContainerExit {
					exit := exitOf(fmt.Sprintf("pod-%02d-1", pod), 1)
					if named {
						exit.PodUID = types.UID(fmt.Sprintf("pod-%02d", pod))
					}
					return exit
				}
				for i := range pods {
					uid := fmt.Sprintf("pod-%02d", i)
					rt.SetPod(bare(types.UID(uid), plegtest.Running(uid+"-1")))
				}
				busy, release := false, make(chan struct{})
				logger := slowLogger("Relisting", func() {
					if busy {
						<-release
					}
				})
				g := pleg.NewGenericPLEG(listing(rt), 0, time.Minute, pleg.NewCache(), clock.RealClock{},
					pleg.WithLogger(logger))
				events := g.Watch()
				g.Start(t.Context())
				t.Cleanup(g.Stop)
				synctest.Wait()
				read(events)
				time.Sleep(time.Second)
				busy = true
				g.RequestRelist("pod-00") // makes the loop wait for the logger
				synctest.Wait()
				for range taken {
					rt.EmitExit(exit(0))
				}
				for i := range pods {
					rt.EmitExit(exit(i))
					rt.ExitContainer(types.UID(fmt.Sprintf("pod-%02d", i)), exit(i).ContainerID, 1, "Completed")
				}
				synctest.Wait()
				busy = false
				close(release)
				time.Sleep(10 * time.Second)
				died := 0
				for len(events) > 0 {
					if e := <-events; e.Type == pleg.ContainerDied {
						died++
					}
				}
				if died != pods {
					t.Errorf("%d of %d deaths are delivered", died, pods)
				}
			})
		})
	}
}

// Rule 21: an exit event is delivered at once, even if the node's clock was set back after the
// container's start. An earlier status does not change the exit.
func TestRule21ClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listing)
		n.SetPods(bare("a", plegtest.Running("a1")))
		started := statusOf(n.Pod("a"))
		started.ContainerStatuses[0].StartedAt = time.Now().Add(time.Hour)
		n.SetStatus("a", started)
		events := n.g.Watch()
		n.start()
		want(t, "first", read(events), "a Started a1")
		time.Sleep(100 * time.Millisecond)
		n.EmitExit(exitOf("a1", 1))
		synctest.Wait()
		want(t, "the exit", read(events), "a Died a1")
		time.Sleep(time.Minute) // lists and statuses show the container running
		want(t, "more", read(events))
		if got := states(t, n.cache)["a1"]; got != pleg.ContainerStateExited {
			t.Errorf("a minute later the cache has a1 %s", got)
		}
	})
}

// Rule 21: an exit event arrives before any list shows its container. The runtime's own status of
// the exit then replaces the event's status. It is not replaced when another list shows the
// container running.
func TestRule21RuntimesStatusStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events := watch(t, bare("a", plegtest.Running("a1")))
		time.Sleep(100 * time.Millisecond)
		n.EmitExit(exitOf("a2", 137))
		synctest.Wait()
		both := bare("a", plegtest.Running("a1"), plegtest.Running("a2"))
		status := statusOf(both)
		*status.ContainerStatuses[1] = pleg.Status{
			ID: status.ContainerStatuses[1].ID, Name: "a2", State: pleg.ContainerStateExited, ExitCode: 137, Reason: "OOMKilled",
		}
		n.SetStatus("a", status)
		n.SetPod(both)
		n.g.RequestRelist("a")
		time.Sleep(100 * time.Millisecond)
		n.SetPod(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		n.g.RequestRelist("a")
		time.Sleep(100 * time.Millisecond)
		n.RemoveContainer("a", "a2")
		n.SetStatus("a", nil)
		n.g.RequestRelist("a")
		time.Sleep(5 * time.Second)
		got := readStatuses(events)
		if last := got[len(got)-1]; last != "a Removed a2 exited 137 OOMKilled" {
			t.Errorf("the events are\n%s", strings.Join(got, "\n"))
		}
	})
}

// Rule 21: the generator makes a status from an exit event and the listed fields. After an
// inspection, it uses all fields of the runtime's status, even if that status shows the container
// running.
func TestRule21StatusMadeOfTheRuntimes(t *testing.T) {
	for name, started := range map[string]time.Time{"gone before it is inspected": {}, "inspected": time.Unix(7, 0)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, events := watch(t, bare("a", plegtest.Running("a1")))
				n.EmitExit(exitOf("a2", 137))
				synctest.Wait()
				second := plegtest.Running("a2")
				second.Attempt = 4
				both := bare("a", second, plegtest.Running("a1"))
				status := statusOf(both)
				status.ContainerStatuses[0].RestartCount, status.ContainerStatuses[0].StartedAt = 4, started
				if started.IsZero() {
					status.ContainerStatuses = status.ContainerStatuses[1:]
				}
				n.SetStatus("a", status)
				n.SetPod(both)
				n.g.RequestRelist("a")
				time.Sleep(time.Second)
				sent := 0
				for len(events) > 0 {
					e := <-events
					if e.Data != "a2" {
						continue
					}
					sent++
					if s := e.Status; s == nil || !s.Unconfirmed || s.ExitCode != 137 || s.RestartCount != 4 ||
						!s.StartedAt.Equal(started) {
						t.Errorf("%v with %+v", line(e), s)
					}
				}
				if sent == 0 {
					t.Error("it is not published")
				}
			})
		})
	}
}

// Rule 21: the runtime's own status may add a message, which the kubelet's runtime reads from the
// container's termination log. The message is sent with a PodSync.
func TestRule21MessageOfAnExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events := watch(t, bare("a", plegtest.Running("a1")))
		time.Sleep(100 * time.Millisecond)
		n.EmitExit(exitOf("a1", 1))
		synctest.Wait()
		want(t, "by the event", readNews(events), "a Died a1")
		dead := bare("a", plegtest.Exited("a1"))
		status := statusOf(dead)
		status.ContainerStatuses[0].ExitCode, status.ContainerStatuses[0].Reason = 1, "Error"
		status.ContainerStatuses[0].Message = "no such database"
		n.SetStatus("a", status)
		n.SetPod(dead)
		time.Sleep(time.Second)
		var syncs []string
		for len(events) > 0 {
			if e := <-events; e.Type == pleg.PodSync {
				syncs = append(syncs, e.Container.ID.ID+": "+e.Status.Message)
			}
		}
		want(t, "PodSyncs", syncs, "a1: no such database")
	})
}

// Rule 21: the runtime does not confirm an exit within a period. The health report contains the
// exit until the confirmation.
func TestRule21UnconfirmedExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events := watch(t, plegtest.NewPod("a", plegtest.Running("a1")))
		n.EmitExit(exitOf("a1", 3))
		time.Sleep(500 * time.Millisecond)
		want(t, "published", read(events), "a Died a1")
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
		want(t, "confirmed", read(events), "a PodSync") // the end was settled before
	})
}

// Rule 21: an exit event is delivered at once, even if a status has shown a start that is later
// than the exit.
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
				time.Sleep(skew + 100*time.Millisecond) // now the clock is past the recorded start
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

// unknownEnd makes a status of an end that the runtime does not know. FinishedAt is when the
// runtime noticed the end.
func unknownEnd(p *pleg.Pod, started time.Time) *pleg.PodStatus {
	status := statusOf(p)
	for _, s := range status.ContainerStatuses {
		s.State, s.ExitCode, s.Reason, s.EndUnknown = pleg.ContainerStateExited, 255, "Unknown", true
		s.StartedAt, s.FinishedAt, s.LogPath = started, time.Now(), "/log"
	}
	return status
}

// Rule 21: the first status that shows the exit does not know the exit code. The code of the exit
// event is used, and the other fields of the status are kept.
func TestRule21UnknownEndKeepsTheRuntimesFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listing)
		n.start()
		var started bool
		go func() {
			_ = n.g.Handle(t.Context(), pleg.Handler{OnContainerStarted: func(*pleg.PodLifecycleEvent) { started = true }})
		}()
		synctest.Wait()
		n.EmitExit(exitOf("a1", 3))
		synctest.Wait() // no inspection may come between the pod and its status
		pod := bare("a", plegtest.Exited("a1"))
		n.SetPods(pod)
		n.SetStatus("a", unknownEnd(pod, time.Now().Add(-time.Second)))
		time.Sleep(time.Minute)
		s := mustGet(t, n.cache).ContainerStatuses[0]
		if s.ExitCode != 3 || s.EndUnknown || s.Unconfirmed || s.StartedAt.IsZero() || s.LogPath == "" || !started {
			t.Errorf("the status is %+v; OnContainerStarted was called: %v", s, started)
		}
	})
}

// Rule 21: an exit event replaces an unknown end, although FinishedAt of the unknown end is later.
func TestRule21ExitEventAfterAnUnknownEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events, _ := watchListing(t, bare("a", plegtest.Running("a1")))
		time.Sleep(1500 * time.Millisecond)
		exit := exitOf("a1", 3)
		time.Sleep(100 * time.Millisecond)
		n.SetContainer("a", "a1", pleg.ContainerStateExited)
		n.SetStatus("a", unknownEnd(n.Pod("a"), time.Now().Add(-time.Second)))
		time.Sleep(time.Second)
		n.EmitExit(exit)
		time.Sleep(time.Minute)
		if s := mustGet(t, n.cache).ContainerStatuses[0]; s.ExitCode != 3 || s.EndUnknown {
			t.Errorf("the status is %+v; events: %v", s, readStatuses(events))
		}
	})
}

// Rule 21: an exit event arrives before any list shows its container. It also replaces an unknown
// end.
func TestRule21ExitEventBeforeTheListAndAnUnknownEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _, _ := watchListing(t, bare("a", plegtest.Running("a1")))
		time.Sleep(1500 * time.Millisecond)
		n.Block(plegtest.GetPod, "a")
		n.EmitExit(exitOf("a2", 3))
		status := unknownEnd(bare("a", plegtest.Exited("a2")), time.Now().Add(-time.Second))
		status.ContainerStatuses = append(status.ContainerStatuses, statusOf(n.Pod("a")).ContainerStatuses...)
		n.SetStatus("a", status)
		n.g.RequestReinspect("a")
		synctest.Wait()
		n.SetContainer("a", "a2", pleg.ContainerStateExited)
		time.Sleep(time.Minute)
		if s := mustGet(t, n.cache).ContainerStatuses[0]; s.ID.ID != "a2" || s.ExitCode != 3 || s.EndUnknown {
			t.Errorf("the status is %+v", s)
		}
	})
}

// Rule 21: a container with an unknown end is started again. The status of the new life is not an
// unknown end, even if the next inspection fails.
func TestRule21StartAfterAnUnknownEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events, _ := watchListing(t, bare("a", plegtest.Running("a1")))
		n.SetContainer("a", "a1", pleg.ContainerStateExited)
		n.SetStatus("a", unknownEnd(n.Pod("a"), time.Now().Add(-time.Second)))
		time.Sleep(5 * time.Second)
		read(events)
		heal := n.Fail(plegtest.GetPodStatus, "a", errors.New("broken"))
		n.SetContainer("a", "a1", pleg.ContainerStateRunning)
		time.Sleep(1500 * time.Millisecond)
		for len(events) > 0 {
			if e := <-events; e.Type == pleg.ContainerStarted && (e.Status == nil || e.Status.EndUnknown) {
				t.Errorf("Started has the status %+v", e.Status)
			}
		}
		heal()
	})
}

// Rule 21: if an exit event names a pod, it does not apply to a container of another pod, even with
// the same ID.
func TestRule21ExitOfAnotherPodsContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events, _ := watchListing(t, bare("a", plegtest.Running("twice")), bare("b", plegtest.Running("twice")))
		exit := exitOf("twice", 3)
		exit.PodUID = "b"
		n.EmitExit(exit)
		time.Sleep(500 * time.Millisecond)
		want(t, "b's", readStatuses(events), "b Died twice exited 3 Error")
		exit = exitOf("c1", 4)
		exit.PodUID = "c"
		n.EmitExit(exit) // before c is listed
		time.Sleep(100 * time.Millisecond)
		n.SetPods(bare("a", plegtest.Running("c1")), bare("c", plegtest.Running("c1")))
		n.g.RequestRelist("a")
		time.Sleep(100 * time.Millisecond)
		if got := states(t, n.cache)["c1"]; got != pleg.ContainerStateRunning {
			t.Errorf("a's container is %s by c's exit", got)
		}
	})
}

// Rule 21: if a user deletes a pod from the cache, its exit events are still delivered.
func TestRule21ExitOfAPodDeletedFromTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events, _ := watchListing(t, bare("a", plegtest.Running("a1")))
		time.Sleep(300 * time.Millisecond)
		n.cache.Delete("a")
		n.EmitExit(exitOf("a1", 3))
		synctest.Wait()
		want(t, "at once", readStatuses(events), "a Died a1 exited 3 Error")
	})
}

// Rule 21: a container and its successor have exited, and inspections fail. In the cached status,
// the successor comes first.
func TestRule21ExitOfASuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		named := func(c *pleg.Container) *pleg.Container {
			c.Name = "app"
			return c
		}
		n, _, _ := watchListing(t, bare("a", named(plegtest.Running("a1"))))
		n.ExitContainer("a", "a1", 1, "Error")
		time.Sleep(1500 * time.Millisecond)
		defer n.Fail(plegtest.GetPodStatus, "a", errors.New("broken"))()
		n.UpdatePod("a", func(p *pleg.Pod) {
			p.Containers = append([]*pleg.Container{named(plegtest.Running("a2"))}, p.Containers...)
		})
		time.Sleep(1500 * time.Millisecond)
		n.EmitExit(exitOf("a2", 2))
		synctest.Wait()
		status, _ := n.cache.Get("a")
		if s := status.FindContainerStatusByName("app"); s.ExitCode != 2 {
			t.Errorf("the newest is %+v", s)
		}
		if found, _ := n.cache.ByContainerID("a2"); found.FindContainerStatusByName("app").ID.ID != "a2" {
			t.Error("a look-up has them in another order")
		}
	})
}

// Rule 21: an exit event that names no container is only a hint.
func TestRule21ExitOfNoContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events, _ := watchListing(t, bare("a", plegtest.Running("a1")))
		time.Sleep(300 * time.Millisecond)
		n.ExitContainer("a", "a1", 3, "Error")
		n.EmitExit(pleg.ContainerExit{PodUID: "a"})
		synctest.Wait()
		want(t, "at once", readStatuses(events), "a Died a1 exited 3 Error")
	})
}

// Rule 21: the generator forgets the exit of an unknown container after a while. This also holds if
// it drops every full list because of pod lists of another pod.
func TestRule21EarlyExitWhileFullListsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listing)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		n.Delay(plegtest.GetPods, "", 300*time.Millisecond)
		n.Delay(plegtest.GetPod, "a", 300*time.Millisecond)
		n.EmitExit(exitOf("b1", 1))
		for range 10 {
			time.Sleep(900*time.Millisecond - time.Duration(time.Now().Nanosecond()))
			n.g.RequestRelist("a") // the pod list begins before the full list, and completes before it
			time.Sleep(200 * time.Millisecond)
		}
		time.Sleep(900 * time.Millisecond)
		n.SetPod(bare("b", plegtest.Running("b1")))
		time.Sleep(5 * time.Second)
		want(t, "events", read(events), "b Started b1")
	})
}
