package contract_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 14: a pod with a nil container, listed by the same pointer again, with an exit event in between.
func TestRule14BadDataBesideExitEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := bare("a", nil, plegtest.Running("a1"))
		source := plegtest.NewRuntime()
		s := &scripted{
			pods:   func() ([]*pleg.Pod, error) { return []*pleg.Pod{pod}, nil },
			pod:    func(types.UID) (*pleg.Pod, error) { return pod, nil },
			status: func(*pleg.Pod) (*pleg.PodStatus, error) { return statusOf(bare("a", plegtest.Running("a1"))), nil },
		}
		n := newNodeOf(t, func(*plegtest.Runtime) pleg.Runtime {
			return struct {
				*scripted
				pleg.ExitSource
			}{s, source}
		})
		events := n.g.Watch()
		n.start()
		want(t, "first", read(events), "a Started a1")
		source.EmitExit(exitOf("a1", 3)) // the pod is hinted at, and listed
		time.Sleep(5 * time.Second)
		want(t, "the exit", read(events), "a Died a1")
	})
}

// Rule 21: the runtime's own status comes also where an inspection was in flight, and had read the
// runtime before, when the exit was told.
func TestRule21ConfirmingInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events, _ := watchListing(t, bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		time.Sleep(100 * time.Millisecond)
		defer n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Delay: 500 * time.Millisecond, Times: 1, Stale: true})()
		n.g.RequestReinspect("a") // any inspection: of a sibling that has changed, a late reason, a canary
		time.Sleep(100 * time.Millisecond)
		n.EmitExit(exitOf("a1", 137))
		n.ExitContainer("a", "a1", 137, "OOMKilled")
		time.Sleep(10 * time.Minute)
		want(t, "events", readStatuses(events),
			"a Died a1 exited 137 Error", "a PodSync without status", "a PodSync exited 137 OOMKilled")
		for _, s := range mustGet(t, n.cache).ContainerStatuses {
			if s.ID.ID == "a1" && (s.Unconfirmed || s.Reason != "OOMKilled") {
				t.Errorf("ten minutes later the cache has reason %s, unconfirmed %v", s.Reason, s.Unconfirmed)
			}
		}
	})
}

// Rule 3: an inspection that began before a request for another does not answer it, though its status
// has another reason than before and so a PodSync.
func TestRule3ReinspectionBesideLateReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		events := n.g.Watch()
		n.start()
		n.ExitContainer("a", "a1", 137, "Error")
		time.Sleep(1500 * time.Millisecond)
		read(events)
		n.ExitContainer("a", "a1", 137, "OOMKilled") // the late reason
		defer n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Delay: 800 * time.Millisecond, Times: 1, Stale: true})()
		time.Sleep(2 * time.Second) // the late inspection is in flight, and has read the runtime
		n.ResetCalls()
		if n.InFlight(plegtest.GetPodStatus) != 1 {
			t.Fatal("no inspection is in flight")
		}
		n.SetIPs("a", "10.0.0.1")
		n.g.RequestReinspect("a")
		time.Sleep(time.Minute)
		if n.PodCalls(plegtest.GetPodStatus, "a") == 0 {
			t.Errorf("no inspection has begun after the request; events: %v", read(events))
		}
	})
}

// Rule 20 ends with a status that shows a later start, and the pod is inspected for that: no list shows
// that a container has exited and was started again under its ID between two of them.
func TestRule20StartedAgainBehindTheLists(t *testing.T) {
	for name, sendExit := range map[string]bool{"by an exit event": true, "by a status": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, events, _ := watchListing(t, bare("a", plegtest.Running("a1")))
				time.Sleep(300 * time.Millisecond)
				ended := statusOf(n.Pod("a"))
				ended.ContainerStatuses[0].State = pleg.ContainerStateExited
				ended.ContainerStatuses[0].Reason = "Completed"
				ended.ContainerStatuses[0].FinishedAt = time.Now()
				if sendExit {
					n.EmitExit(exitOf("a1", 0))
				} else {
					n.SetStatus("a", ended)
					n.g.RequestReinspect("a")
				}
				synctest.Wait()
				time.Sleep(1100 * time.Millisecond)
				again := statusOf(n.Pod("a")) // runs again, as every list shows
				again.ContainerStatuses[0].StartedAt = time.Now()
				n.SetStatus("a", again)
				time.Sleep(time.Hour)
				if got := states(t, n.cache)["a1"]; got != pleg.ContainerStateRunning {
					t.Errorf("an hour later the cache has a1 %s; events: %v", got, read(events))
				}
			})
		})
	}
}

// Rule 20: a container that runs again under its ID has not ended as in its earlier life, also where no
// inspection has shown the new one: not by an exit event, not when it is gone, and not in the metrics.
func TestRule20EndOfAnEarlierLife(t *testing.T) {
	for name, c := range map[string]struct {
		end     func(n *node, earlier pleg.ContainerExit)
		lines   []string
		counted map[string]float64
	}{
		"exit event": {func(n *node, _ pleg.ContainerExit) { n.EmitExit(exitOf("a1", 2)) },
			[]string{"a Died a1 exited 2 Error"}, map[string]float64{"Completed": 1}},
		"late exit event": {func(n *node, earlier pleg.ContainerExit) { n.EmitExit(earlier) },
			nil, map[string]float64{"Completed": 1}},
		"gone": {func(n *node, _ pleg.ContainerExit) { n.RemovePod("a") },
			[]string{"a Died a1 running", "a Removed a1 running"}, map[string]float64{"Completed": 1, "unseen": 1}},
		"list": {func(n *node, _ pleg.ContainerExit) { n.ExitContainer("a", "a1", 2, "Error") },
			[]string{"a Died a1 running"}, map[string]float64{"Completed": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, reg := newNodeWithMetrics(t)
				n.SetPods(bare("a", plegtest.Running("a1")))
				events := n.g.Watch()
				n.start()
				n.ExitContainer("a", "a1", 0, "Completed")
				earlier := exitOf("a1", 0)
				time.Sleep(10 * time.Second)
				want(t, "the earlier life", readStatuses(events), "a Started a1 running", "a Died a1 exited 0 Completed")
				heal := n.Fail(plegtest.GetPodStatus, "a", errors.New("broken"))
				n.SetContainer("a", "a1", pleg.ContainerStateRunning)
				time.Sleep(2 * time.Second)
				want(t, "started again", readStatuses(events), "a Started a1 running")
				c.end(n, earlier)
				time.Sleep(2 * time.Second)
				want(t, "ended again", readStatuses(events), c.lines...)
				wantExits(t, reg, "deaths", c.counted)
				heal()
			})
		})
	}
}

// Rule 20: an exit event that comes again, or late, after the container was started again under its
// ID is of the earlier life.
func TestRule21LateExitOfAnEarlierLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events, _ := watchListing(t, bare("a", plegtest.Running("a1")))
		exit := exitOf("a1", 1)
		n.EmitExit(exit)
		n.ExitContainer("a", "a1", 1, "Error")
		time.Sleep(5 * time.Second)
		want(t, "the end", read(events), "a Died a1")
		n.SetContainer("a", "a1", pleg.ContainerStateRunning)
		time.Sleep(5 * time.Second)
		want(t, "started again", read(events), "a Started a1")
		n.EmitExit(exit)
		time.Sleep(time.Hour)
		want(t, "the late event", read(events))
		if got := states(t, n.cache)["a1"]; got != pleg.ContainerStateRunning {
			t.Errorf("an hour later the cache has a1 %s", got)
		}
	})
}

// Rule 21: an exit is told at once also where the node's clock was set back since the container was
// started, and a status from before does not take it back.
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
		time.Sleep(time.Minute) // lists and statuses show it running
		want(t, "more", read(events))
		if got := states(t, n.cache)["a1"]; got != pleg.ContainerStateExited {
			t.Errorf("a minute later the cache has a1 %s", got)
		}
	})
}

// Rule 23: as many wedged pods as workers, from before the list hung, do not keep the others from being
// inspected.
func TestRule23BesideManyWedgedPods(t *testing.T) {
	for _, wedged := range []int{pleg.DefaultInspectionWorkers - 1, pleg.DefaultInspectionWorkers} {
		t.Run(fmt.Sprintf("wedged=%d", wedged), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.setSingles(30)
				events := n.g.Watch()
				n.start()
				read(events)
				defer n.Heal()
				for i := range wedged {
					uid := types.UID(fmt.Sprintf("pod-%02d", i))
					n.HangIgnoringCancel(plegtest.GetPodStatus, uid)
					n.g.RequestReinspect(uid)
				}
				time.Sleep(10 * time.Second)
				n.wedged()
				time.Sleep(10 * time.Second)
				n.ExitContainer("pod-29", "pod-29-1", 1, "Error")
				time.Sleep(10 * time.Minute)
				if got := read(events); !slices.Contains(got, "pod-29 Died pod-29-1") {
					_, err := n.g.Healthy()
					t.Errorf("ten minutes later the events are %v; %v", got, err)
				}
			})
		})
	}
}

// Rule 4: a container that the first full list shows running, and that dies before its pod's first
// inspection, is news, also where a list confirms the exit event before that.
func TestRule4ConfirmedExitIsNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listing, pleg.WithInspectionWorkers(1))
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		events := n.g.Watch()
		defer n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, PodUID: "a", Delay: 500 * time.Millisecond, Times: 1})()
		n.start() // the first full list shows b1 running; b waits for the worker
		n.EmitExit(exitOf("b1", 3))
		n.ExitContainer("b", "b1", 3, "Error")
		time.Sleep(10 * time.Second)
		want(t, "events", readNews(events), "=a Started a1", "=b Started b1", "b Died b1")
	})
}

// Rule 4: two containers of a pod die by exit events within the first period; to a slow subscriber
// from before the first list both deaths are news.
func TestRule4TwoExitsAreNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listing)
		defer n.Delay(plegtest.GetPod, "a", 100*time.Millisecond)()
		// So it is pod 0's event that waits for its reader.
		defer n.Delay(plegtest.GetPodStatus, "a", time.Millisecond)()
		n.SetPods(bare("0", plegtest.Running("01")), bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		events := n.g.Subscribe(t.Context(), pleg.WithCapacity(-1))
		n.start()
		time.Sleep(10 * time.Millisecond)
		n.EmitExit(exitOf("a1", 1))
		n.EmitExit(exitOf("a2", 2))
		synctest.Wait()
		var got []string
		for range 5 {
			e := <-events
			got = append(got, fmt.Sprintf("%s initial=%v", line(e), e.Initial))
		}
		want(t, "events", got, "0 Started 01 initial=true", "a Started a1 initial=true", "a Started a2 initial=true",
			"a Died a1 initial=false", "a Died a2 initial=false")
	})
}

// Rule 4: the first full list shows a container running whose exit was told while it was in flight: that
// is news, and is counted.
func TestRule4ExitBesideTheFirstList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		events := n.g.Watch()
		defer n.Inject(plegtest.Fault{Method: plegtest.GetPods, Delay: 300 * time.Millisecond, Times: 1, Stale: true})()
		n.start()
		time.Sleep(100 * time.Millisecond)
		n.EmitExit(exitOf("a1", 3))
		n.ExitContainer("a", "a1", 3, "Error")
		time.Sleep(10 * time.Second)
		want(t, "events", readNews(events), "=a Started a1", "=a Started a2", "a Died a1")
		wantExits(t, reg, "counted", map[string]float64{"Error": 1})
	})
}

// Exits: a container of which an exit event came before any list is counted once, however many lists
// still show it running.
func TestExitsBeforeTheirList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(100 * time.Millisecond)
		n.EmitExit(exitOf("a2", 3))
		synctest.Wait()
		for i := range 4 { // lists that still show it running, with something else that changes
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

// Rule 21: the runtime's own status of such a container stays when another list shows it running.
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

// Rule 21: such a status has what the runtime knows of the container: what the list shows and, as soon as
// the pod is inspected, all that the runtime says of it while it does not know of the exit.
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
				told := 0
				for len(events) > 0 {
					e := <-events
					if e.Data != "a2" {
						continue
					}
					told++
					if s := e.Status; s == nil || !s.Unconfirmed || s.ExitCode != 137 || s.RestartCount != 4 ||
						!s.StartedAt.Equal(started) {
						t.Errorf("%v with %+v", line(e), s)
					}
				}
				if told == 0 {
					t.Error("it is not told")
				}
			})
		})
	}
}

// Exits: a death is counted whose end an inspection in flight shows after a list showed it gone.
func TestExitsSeenByAnInspectionInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		defer n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Delay: 5 * time.Second, Times: 2})()
		time.Sleep(1100 * time.Millisecond) // it is listed, and being inspected
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

// Rule 20: a container that exits before any list has shown it, and is started again under its ID, is no
// reason to ask the runtime as fast as it answers.
func TestRule20StartedAgainBeforeItsList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listing)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		defer n.HangIgnoringCancel(plegtest.GetPods, "")()
		time.Sleep(1500 * time.Millisecond)
		n.EmitExit(exitOf("a2", 1)) // created and exited since the last list
		time.Sleep(100 * time.Millisecond)
		n.SetContainer("a", "a2", pleg.ContainerStateRunning) // started again
		n.Delay(plegtest.GetPod, "", 5*time.Millisecond)
		n.Delay(plegtest.GetPodStatus, "", 5*time.Millisecond)
		n.ResetCalls()
		n.g.RequestRelist("a")
		time.Sleep(time.Minute)
		if lists, inspections := n.Calls(plegtest.GetPod), n.Calls(plegtest.GetPodStatus); lists > 60 || inspections > 60 {
			t.Errorf("%d lists of the pod and %d inspections in a minute", lists, inspections)
		}
	})
}

// Rule 20: containerd sets StartedAt when its task has been started, so that by the two times a process
// that ends at once has exited before it has started. A status from in between, which shows it running,
// is none of another start.
func TestRule20ExitBeforeItsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &restarting{Runtime: plegtest.NewRuntime(), started: map[string]time.Time{}, finished: map[string]time.Time{}}
		n := newNodeOf(t, func(*plegtest.Runtime) pleg.Runtime {
			return struct {
				pleg.Runtime
				pleg.PodGetter
				pleg.ExitSource
			}{rt, rt, rt}
		})
		rt.SetPods(bare("a", plegtest.Running("a1"), plegtest.Created("a2")))
		events := n.g.Watch()
		n.start()
		time.Sleep(300 * time.Millisecond)
		read(events)
		rt.EmitExit(exitOf("a2", 1))
		synctest.Wait()
		rt.mu.Lock()
		rt.finished["a2"] = time.Now()
		time.Sleep(2 * time.Millisecond)
		rt.started["a2"] = time.Now()
		rt.mu.Unlock()
		rt.SetContainer("a", "a2", pleg.ContainerStateRunning) // CRI knows of the start, and not of the exit
		n.g.RequestReinspect("a")
		time.Sleep(10 * time.Millisecond)
		rt.ExitContainer("a", "a2", 1, "Error")
		time.Sleep(10 * time.Second)
		want(t, "events", read(events), "a Died a2", "a PodSync")
	})
}

// restarting is a runtime that says when containers have started and ended.
type restarting struct {
	*plegtest.Runtime
	mu                sync.Mutex
	started, finished map[string]time.Time
}

func (s *restarting) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	status, err := s.Runtime.GetPodStatus(ctx, pod)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range status.ContainerStatuses {
		c.StartedAt = s.started[c.ID.ID]
		if c.State == pleg.ContainerStateExited {
			c.FinishedAt = s.finished[c.ID.ID]
		}
	}
	return status, nil
}

// Rule 21: the runtime's own status may say more than code and reason: its message, which the kubelet's
// runtime reads from the container's termination log, comes with a PodSync.
func TestRule21MessageOfAnExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events := watch(t, bare("a", plegtest.Running("a1")))
		time.Sleep(100 * time.Millisecond)
		n.EmitExit(exitOf("a1", 1))
		synctest.Wait()
		want(t, "told by the event", readNews(events), "a Died a1")
		dead := bare("a", plegtest.Exited("a1"))
		status := statusOf(dead)
		status.ContainerStatuses[0].ExitCode, status.ContainerStatuses[0].Reason = 1, "Error"
		status.ContainerStatuses[0].Message = "no such database"
		n.SetStatus("a", status)
		n.SetPod(dead)
		time.Sleep(time.Second)
		var told []string
		for len(events) > 0 {
			if e := <-events; e.Type == pleg.PodSync {
				told = append(told, e.Container.ID.ID+": "+e.Status.Message)
			}
		}
		want(t, "PodSyncs", told, "a1: no such database")
	})
}
