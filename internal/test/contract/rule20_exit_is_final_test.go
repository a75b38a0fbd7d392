package contract_test

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 20: all lists are blocked, so only a status can show an exit. The death is delivered.
func TestRule20StatusAheadOfTheLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		events := n.watch(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		heal := n.blockLists()
		time.Sleep(1500 * time.Millisecond)
		n.ExitContainer("a", "a1", 3, "Error")
		n.g.RequestReinspect("a")
		synctest.Wait()
		want(t, "by the status", readStatuses(events), "a Died a1 exited 3 Error", "a PodSync without status")
		heal() // the list began before the exit
		time.Sleep(10 * time.Second)
		want(t, "by the lists", readStatuses(events))
		n.RemoveContainer("a", "a1")
		time.Sleep(2 * time.Second)
		want(t, "gone", readStatuses(events), "a Removed a1 exited 3 Error")
		wantExits(t, reg, "deaths", map[string]float64{"Error": 1})
	})
}

// Rule 20: if the cache shows an exit, an older status does not set the container back to running.
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

// Rule 20: an exit is final until a status shows a later start. The generator inspects the pod to
// look for that start. Lists cannot show that a container exited and started again between two
// lists.
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
				again := statusOf(n.Pod("a")) // running again, as every list shows
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

// Rule 20: a container is started again under its ID, and no inspection has shown the new life. The
// end of the earlier life is not reported for the new life: not by an exit event, not at its
// removal, and not in the metrics.
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

// Rule 20: a container exits before any list shows it, and is started again under its ID. The
// generator makes at most one list and one inspection of the pod per second.
func TestRule20StartedAgainBeforeItsList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listing)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		defer n.BlockIgnoringCancel(plegtest.GetPods, "")()
		time.Sleep(1500 * time.Millisecond)
		n.EmitExit(exitOf("a2", 1)) // a2 was created and exited since the last list
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

// Rule 20: a container is started again under its ID within a second of its end. Then an exit event
// of the earlier life arrives, for the first or second time. This event is no death. The end of the
// new life is a death. Each life is counted once.
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

// Rule 20: a container is started again under its ID before any inspection shows the end of its
// earlier life. A late exit event, or an inspection from before the new start, then shows that end.
// The new life does not end.
func TestRule20EndThatWasNotSeen(t *testing.T) {
	counted := map[bool]string{false: "unseen", true: "Error"} // the death comes with the inspection's status
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
				wantExits(t, reg, "deaths", map[string]float64{counted[stale]: 1})
			})
		})
	}
}

// Rule 20: only a list shows that a container ended, and it is started again under its ID during the
// inspection of its pod. Each of its two deaths is counted once.
func TestRule20StartedAgainDuringItsInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetricsOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(450 * time.Millisecond)
		defer n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Times: 1, Delay: 2500 * time.Millisecond})()
		n.ExitContainer("a", "a1", 137, "Error")
		time.Sleep(time.Second)
		n.SetContainer("a", "a1", pleg.ContainerStateRunning)
		time.Sleep(time.Minute)
		wantExits(t, reg, "the first death", map[string]float64{"unseen": 1})
		n.ExitContainer("a", "a1", 5, "Error")
		time.Sleep(time.Minute)
		wantExits(t, reg, "two deaths", map[string]float64{"unseen": 1, "Error": 1})
	})
}

// Rule 20: a container ended and was started again under its ID between two lists. An inspection
// has shown the new life. A late exit event of the earlier life is no death.
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

// Rule 20: a list that shows an unknown state after an exit does not change the end.
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

// Rule 20: a start and an end are never compared. A runtime that is short of CPU records the start
// of a short-lived container seconds after its end. After the exit event, lists and statuses still
// show the container running for a while. There is one life and one death.
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

// Rule 20: an inspection shows an exited container that no list has shown. A list that began
// earlier shows the container running, and the next list no longer shows it. The events Died and
// Removed contain the status of that inspection, even if a second inspection no longer shows the
// container.
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
				for i := range inspections {
					n.g.RequestReinspect("a")
					time.Sleep(50 * time.Millisecond)
					if i == 0 {
						n.RemoveContainer("a", "a2")
					}
				}
				time.Sleep(time.Minute)
				got := slices.DeleteFunc(readStatuses(events), func(s string) bool { return s == "a PodSync without status" })
				want(t, "events", got, "a Died a2 exited 3 Error", "a Removed a2 exited 3 Error")
				wantExits(t, reg, "deaths", map[string]float64{"Error": 1})
			})
		})
	}
}

// Rule 20: the memory for exited containers that only statuses show is bounded.
func TestRule20ExitsOfStatusesAreBounded(t *testing.T) {
	var calls atomic.Int64
	pod := bare("a", plegtest.Running("a1"))
	s := &scripted{
		pods: func() ([]*pleg.Pod, error) { return []*pleg.Pod{pod}, nil },
		status: func(*pleg.Pod) (*pleg.PodStatus, error) {
			status := statusOf(pod)
			for range 100 {
				x := plegtest.Exited(fmt.Sprintf("x%d", calls.Add(1)))
				status.ContainerStatuses = append(status.ContainerStatuses, &pleg.Status{ID: x.ID, State: x.State})
			}
			return status, nil
		},
	}
	g := pleg.NewGenericPLEG(struct{ pleg.Runtime }{s}, 0, 0, pleg.NewCache(), clock.RealClock{},
		pleg.WithLogger(logr.Discard()))
	defer g.Stop()
	inspect := func(times int) {
		for range times {
			g.RequestReinspect("a")
			_ = g.Relist(t.Context())
		}
	}
	inspect(500) // from here on, look-ups find only the newest 20,000 removed containers
	before := heapInUse()
	inspect(500)
	if grown := heapInUse() - before; grown > 1<<20 {
		t.Errorf("after 500 inspections the heap has grown by %d bytes", grown)
	}
}

// Rule 20: only statuses show the second life of a container, and its end is unknown. The second
// life does not get the exit code of the first.
func TestRule20UnknownEndOfAnotherLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _, _ := watchListing(t, bare("a", plegtest.Running("a1")))
		n.ExitContainer("a", "a1", 3, "Error")
		first := statusOf(n.Pod("a"))
		first.ContainerStatuses[0].StartedAt, first.ContainerStatuses[0].ExitCode = time.Now().Add(-time.Second), 3
		n.SetStatus("a", first)
		time.Sleep(5500 * time.Millisecond)
		n.SetStatus("a", unknownEnd(n.Pod("a"), time.Now()))
		n.g.RequestReinspect("a")
		time.Sleep(time.Minute)
		if s := mustGet(t, n.cache).ContainerStatuses[0]; !s.EndUnknown {
			t.Errorf("the end of the second life is that of the first: %+v", s)
		}
	})
}

// Rule 20: a list shows the end of life 1, and only statuses show lives 2 and 3. A late exit event
// of life 2 is no death of life 3.
func TestRule20LateExitOfALifeThatOnlyAStatusShowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, events, _ := watchListing(t, bare("a", plegtest.Running("a1")))
		n.ExitContainer("a", "a1", 1, "Error")
		time.Sleep(3 * time.Second)
		start := func() {
			n.SetContainer("a", "a1", pleg.ContainerStateRunning)
			status := statusOf(n.Pod("a"))
			status.ContainerStatuses[0].StartedAt = time.Now()
			n.SetStatus("a", status)
			n.g.RequestReinspect("a")
			time.Sleep(3 * time.Second)
		}
		start()
		second := exitOf("a1", 2)
		start()
		n.EmitExit(second)
		time.Sleep(time.Minute)
		if got := states(t, n.cache)["a1"]; got != pleg.ContainerStateRunning {
			t.Errorf("the cache has a1 %s; events: %v", got, readStatuses(events))
		}
	})
}

// Rule 20: after an exit event, a status shows the container running. The generator changes that
// status to show the exit. The status then agrees with a list that shows the exit, and the pod
// becomes fresher.
func TestRule20CorrectedStatusAgrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := watch(t, bare("a", plegtest.Running("a1")))
		began := time.Now()
		n.SetStatus("a", statusOf(n.Pod("a"))) // the status shows a1 running for ever
		n.EmitExit(exitOf("a1", 3))
		synctest.Wait()
		n.SetContainer("a", "a1", pleg.ContainerStateExited)
		for range 20 {
			now := time.Now()
			time.Sleep(1100 * time.Millisecond) // lets a full list complete
			if !fresh(n.cache, "a", now) {
				t.Errorf("after %v, the pod is older than the newest list", time.Since(began))
			}
		}
		s := mustGet(t, n.cache).ContainerStatuses[0]
		if s.State != pleg.ContainerStateExited || s.ExitCode != 3 || !s.Unconfirmed {
			t.Errorf("the cache has %+v", s)
		}
	})
}

// Rule 20: a runtime restarts and loads old state. Its lists and statuses then show an exited
// container running again, with the same start time. The exit stays final.
func TestRule20RunningAgainSinceTheSameStart(t *testing.T) {
	for name, settled := range map[string]time.Duration{"settled": 10 * time.Second, "not yet settled": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, events, reg := watchListing(t, bare("a", plegtest.Running("a1")))
				l := &lives{}
				wantLines := l.follow(t, n)
				time.Sleep(300 * time.Millisecond)
				before, err := n.GetPodStatus(t.Context(), n.Pod("a"))
				if err != nil {
					t.Fatal(err)
				}
				n.ExitContainer("a", "a1", 2, "Error")
				time.Sleep(settled)
				n.SetStatus("a", before)
				n.SetContainer("a", "a1", pleg.ContainerStateRunning)
				time.Sleep(time.Minute)
				want(t, "events", readStatuses(events), "a Died a1 exited 2 Error")
				wantLines("handled", "initially started a1", "died a1 2 Error", "ended a1 2 Error")
				if got := states(t, n.cache)["a1"]; got != pleg.ContainerStateExited {
					t.Errorf("the cache has a1 %s", got)
				}
				n.ExitContainer("a", "a1", 2, "Error")
				time.Sleep(time.Minute)
				wantExits(t, reg, "deaths", map[string]float64{"Error": 1})
				n.SetStatus("a", nil)
				n.SetContainer("a", "a1", pleg.ContainerStateRunning) // another life, with another start time
				time.Sleep(time.Minute)
				want(t, "started again", readStatuses(events), "a Started a1 running")
			})
		})
	}
}

// Rule 20: a container exited before its first inspection, and no list showed the exit. More than
// ten seconds later, the container is started again under its ID. When the end of the earlier life
// is settled, the cache shows the container running.
func TestRule20StartedAgainBeforeAnyStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listing)
		n.start()
		heal := n.Fail(plegtest.GetPodStatus, "a", errors.New("broken"))
		n.SetPods(bare("a", plegtest.Running("a1")))
		time.Sleep(1500 * time.Millisecond)
		n.EmitExit(exitOf("a1", 1))
		list := n.Fail(plegtest.GetPods, plegtest.AnyPod, errors.New("broken"))
		n.SetContainer("a", "a1", pleg.ContainerStateExited)
		time.Sleep(11 * time.Second)
		n.SetContainer("a", "a1", pleg.ContainerStateRunning)
		list()
		heal()
		time.Sleep(time.Minute)
		if got := states(t, n.cache)["a1"]; got != pleg.ContainerStateRunning {
			t.Errorf("the cache has a1 %s", got)
		}
	})
}
