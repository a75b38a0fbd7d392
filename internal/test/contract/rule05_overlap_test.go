package contract_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 5: a full list and a single-pod list may be in flight together; the one that
// began later is right, in whichever order they complete.
func TestRule5LaterListingWins(t *testing.T) {
	t.Run("the full list began first and completes last", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
			events := n.g.Watch()
			n.start()
			read(events)
			time.Sleep(500 * time.Millisecond)
			n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Stale: true, Delay: 900 * time.Millisecond})
			time.Sleep(600 * time.Millisecond) // the list began, and has a and b running
			n.ExitContainer("a", "a1", 0, "Completed")
			n.RemovePod("b")
			n.SetPod(bare("c", plegtest.Running("c1")))
			for _, uid := range []types.UID{"a", "b", "c"} {
				n.g.RequestRelist(uid)
			}
			time.Sleep(100 * time.Millisecond)
			want(t, "after the single-pod lists", slices.Sorted(slices.Values(read(events))),
				"a Died a1", "b Died b1", "b Removed b1", "c Started c1")
			time.Sleep(750 * time.Millisecond)
			want(t, "after the old list", read(events))
			if s, _ := n.cache.Get("b"); s.Name != "" {
				t.Errorf("the old list brought b back: %v", s)
			}
			time.Sleep(5 * time.Second)
			want(t, "later", read(events))
		})
	})
	t.Run("the single-pod list began first and completes last", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.SetPods(bare("a", plegtest.Running("a1")))
			events := n.g.Watch()
			n.start()
			read(events)
			time.Sleep(900 * time.Millisecond)
			n.Inject(plegtest.Fault{Method: plegtest.GetPod, Stale: true, Delay: 500 * time.Millisecond, Times: 1})
			n.g.RequestRelist("a")
			time.Sleep(50 * time.Millisecond)
			n.ExitContainer("a", "a1", 0, "Completed")
			time.Sleep(100 * time.Millisecond)
			want(t, "after the list", read(events), "a Died a1")
			time.Sleep(time.Second)
			want(t, "after the old single-pod list", read(events))
		})
	})
}

// Rule 5: a runtime answers concurrent calls in any order, and the one that was made
// later may have read its state earlier. What has died must not start again.
func TestRule5ConcurrentListsInventNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(900 * time.Millisecond)
		// The full list begins at 1 s and reads the state at 1.3 s; the single-pod lists
		// begin at 1.1 s, read it then, and complete at 1.5 s.
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Delay: 300 * time.Millisecond})
		n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 2, Stale: true, Delay: 400 * time.Millisecond})
		time.Sleep(200 * time.Millisecond)
		n.g.RequestRelist("a")
		n.g.RequestRelist("b")
		time.Sleep(50 * time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		n.RemovePod("b")
		time.Sleep(200 * time.Millisecond)
		want(t, "after the list", read(events), "a Died a1", "b Died b1", "b Removed b1")
		time.Sleep(10 * time.Second)
		want(t, "after the single-pod lists", read(events))
		if got := n.PodCalls(plegtest.GetPod, "a"); got != 2 {
			t.Errorf("%d single-pod lists: the conflicting one was not followed by another", got)
		}
	})
}

// Rule 5: where two concurrent lists conflict, a third one resolves it. Until then the
// pod is not fresh, and no reader gets what is older than its minTime.
func TestRule5ConflictingListsAreResolved(t *testing.T) {
	for name, c := range map[string]struct {
		change func(n *node)
		events []string
		check  func(s *pleg.PodStatus) bool
	}{
		"exited": {
			func(n *node) { n.ExitContainer("a", "a1", 1, "Error") }, []string{"a Died a1"},
			func(s *pleg.PodStatus) bool { return s.ContainerStatuses[0].ExitCode == 1 },
		},
		"gone": {
			func(n *node) { n.RemovePod("a") }, []string{"a Died a1", "a Removed a1"},
			func(s *pleg.PodStatus) bool { return len(s.ContainerStatuses) == 0 },
		},
		"unchanged after all": {
			func(n *node) {
				running := n.Pod("a")
				n.ExitContainer("a", "a1", 1, "Error")
				time.AfterFunc(200*time.Millisecond, func() { n.SetPod(running) })
			}, nil,
			func(s *pleg.PodStatus) bool { return s.ContainerStatuses[0].State == pleg.ContainerStateRunning },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(bare("a", plegtest.Running("a1")))
				events := n.g.Watch()
				n.start()
				read(events)
				time.Sleep(950 * time.Millisecond)
				// The single-pod list begins and reads the state at 0.95 s and completes at
				// 1.05 s; the full list at 1 s and 1.1 s.
				n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 1, Stale: true, Delay: 100 * time.Millisecond})
				n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Stale: true, Delay: 100 * time.Millisecond})
				n.g.RequestRelist("a")
				time.Sleep(10 * time.Millisecond)
				c.change(n)
				time.Sleep(10 * time.Millisecond)
				minTime := time.Now()
				n.Delay(plegtest.GetPod, plegtest.AnyPod, 150*time.Millisecond)
				s, err := n.cache.GetNewerThan("a", minTime)
				if err != nil || !c.check(s) {
					t.Errorf("got %v %v", s, err)
				}
				time.Sleep(500 * time.Millisecond)
				want(t, "events", read(events), c.events...)
			})
		})
	}
}

// Rule 5: a conflict is also resolved by a runtime that returns the very pod that is
// in the records.
func TestRule5ConflictingListsAreResolvedByTheSamePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running, exited := bare("a", plegtest.Running("a1")), bare("a", plegtest.Exited("a1"))
		var (
			present            atomic.Pointer[pleg.Pod]
			delay, inspections atomic.Int64
		)
		slowly := func() *pleg.Pod {
			p := present.Load()
			time.Sleep(time.Duration(delay.Load()))
			return p
		}
		rt := &scripted{
			pods: func() ([]*pleg.Pod, error) { return []*pleg.Pod{slowly()}, nil },
			pod:  func(types.UID) (*pleg.Pod, error) { return slowly(), nil },
			status: func(p *pleg.Pod) (*pleg.PodStatus, error) {
				inspections.Add(1)
				return statusOf(p), nil
			},
		}
		present.Store(running)
		n := newNodeOf(t, rt.instead)
		events := n.g.Watch()
		n.start()
		read(events)
		// The single-pod list reads the state at 0.95 s and completes at 1.05 s, the
		// full list at 1 s and 1.1 s; the next full list resolves the conflict.
		time.Sleep(950 * time.Millisecond)
		delay.Store(int64(100 * time.Millisecond))
		n.g.RequestRelist("a")
		time.Sleep(10 * time.Millisecond)
		present.Store(exited)
		time.Sleep(100 * time.Millisecond)
		present.Store(running)
		minTime := time.Now()
		if _, err := n.cache.GetNewerThan("a", minTime); err != nil || time.Since(minTime) > 1100*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(minTime))
		}
		if got := inspections.Load(); got != 1 { // that of the first list: nothing has changed
			t.Errorf("%d inspections", got)
		}
		want(t, "events", read(events))
	})
}

// Rule 5: once a conflict is resolved, by a single-pod list or by the next full list,
// its pod is like any other: fresh with each relist, and not inspected again.
func TestRule5ResolvedConflictLeavesNothingBehind(t *testing.T) {
	for _, byPodList := range []bool{true, false} {
		t.Run(fmt.Sprintf("byPodList=%v", byPodList), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(bare("a", plegtest.Running("a1")))
				events := n.g.Watch()
				n.start()
				read(events)
				time.Sleep(2950 * time.Millisecond)
				// The single-pod lists begin and read the state at 2.95 s and complete at
				// 3.05 s; the full list at 3 s and 3.1 s.
				n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 3, Stale: true, Delay: 100 * time.Millisecond})
				n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Stale: true, Delay: 100 * time.Millisecond})
				for _, uid := range []types.UID{"a", "brief", "empty"} {
					n.g.RequestRelist(uid)
				}
				time.Sleep(10 * time.Millisecond)
				running := n.Pod("a")
				n.ExitContainer("a", "a1", 1, "Error")
				n.SetPod(bare("brief", plegtest.Running("brief-1")))
				n.SetPod(bare("empty"))
				if !byPodList {
					n.Fail(plegtest.GetPod, plegtest.AnyPod, errors.New("broken"))
				}
				time.Sleep(110 * time.Millisecond)
				n.SetPod(running)
				n.RemovePod("brief")
				minTime := time.Now()
				s, err := n.cache.GetNewerThan("a", minTime)
				if err != nil || s.ContainerStatuses[0].State != pleg.ContainerStateRunning {
					t.Errorf("got %v %v", s, err)
				}
				if took := time.Since(minTime); took > time.Second {
					t.Errorf("resolved after %v", took)
				}
				time.Sleep(5 * time.Second)
				inspections := n.Calls(plegtest.GetPodStatus)
				for range 5 {
					for _, uid := range []types.UID{"a", "brief", "empty"} {
						if !fresh(n.cache, uid, time.Now().Add(-1100*time.Millisecond)) {
							t.Errorf("%s is held back", uid)
						}
					}
					time.Sleep(time.Second)
				}
				if got := n.Calls(plegtest.GetPodStatus) - inspections; got != 0 {
					t.Errorf("%d inspections more", got)
				}
				if got := len(n.cache.GetAll()); got != 2 {
					t.Errorf("%d pods in the cache", got)
				}
			})
		})
	}
}

// Rule 5: an inspection that completes during a conflict does not make its pod fresh.
func TestRule5InspectionResolvesNoConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(940 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Times: 1, Stale: true, Delay: 210 * time.Millisecond})
		n.g.RequestReinspect("a") // completes at 1.15 s
		time.Sleep(10 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 1, Stale: true, Delay: 100 * time.Millisecond})
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Stale: true, Delay: 100 * time.Millisecond})
		n.g.RequestRelist("a")
		time.Sleep(10 * time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		time.Sleep(10 * time.Millisecond)
		minTime := time.Now()
		n.Delay(plegtest.GetPod, plegtest.AnyPod, 150*time.Millisecond)
		if s, err := n.cache.GetNewerThan("a", minTime); err != nil || s.ContainerStatuses[0].ExitCode != 1 {
			t.Errorf("got %v %v after %v", s, err, time.Since(minTime))
		}
	})
}

// Rule 5: what a list shows is as new as its beginning, not as its end.
func TestRule5ListIsStampedBeforeItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(900 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Stale: true, Delay: 300 * time.Millisecond})
		time.Sleep(200 * time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		if s, err := n.cache.GetNewerThan("a", time.Now()); err != nil || s.ContainerStatuses[0].ExitCode != 1 {
			t.Errorf("got %v %v", s, err)
		}
	})
}

// asListed is a runtime that inspects the containers of the pod that it is asked about,
// as CRI has it: those of the list that the inspection is made for.
type asListed struct{ *plegtest.Runtime }

func (r asListed) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	status, err := r.Runtime.GetPodStatus(ctx, pod)
	if err != nil {
		return nil, err
	}
	status.ContainerStatuses = slices.DeleteFunc(slices.Clone(status.ContainerStatuses), func(s *pleg.Status) bool {
		return !slices.ContainsFunc(pod.Containers, func(c *pleg.Container) bool { return c.ID.ID == s.ID.ID })
	})
	return status, nil
}

// Rules 5 and 6: an inspection that begins while lists of its pod conflict is made for the
// record, not for the newer list that differs. What it brings is no fresher than the list
// that showed the record: no reader misses a container that ran before its minTime.
func TestRule5InspectionThatBeginsDuringConflict(t *testing.T) {
	for name, c := range map[string]struct {
		opts []pleg.Option
		// asked is when the reinspection is requested; it begins at 1.12 s.
		asked time.Duration
	}{
		"at once":               {nil, 1120 * time.Millisecond},
		"waiting for a worker":  {[]pleg.Option{pleg.WithInspectionWorkers(1)}, 940 * time.Millisecond},
		"requested much before": {[]pleg.Option{pleg.WithInspectionWorkers(1)}, 700 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return asListed{rt} }, c.opts...)
				n.SetPods(bare("a", plegtest.Running("a1")), bare("busy", plegtest.Running("busy-1")))
				n.start()
				began := time.Now()
				until := func(at time.Duration) { time.Sleep(at - time.Since(began)) }
				if c.opts != nil { // the one worker is busy until 1.12 s
					until(500 * time.Millisecond)
					n.Delay(plegtest.GetPodStatus, "busy", 620*time.Millisecond)
					n.g.RequestReinspect("busy")
				}
				time.AfterFunc(c.asked-time.Since(began), func() { n.g.RequestReinspect("a") })
				// The single-pod list begins and reads the state at 0.95 s and completes at 1.05 s,
				// the full list at 1 s and 1.1 s; the one that settles it completes at 1.3 s.
				until(950 * time.Millisecond)
				n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 1, Stale: true, Delay: 100 * time.Millisecond})
				n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Stale: true, Delay: 100 * time.Millisecond})
				n.g.RequestRelist("a")
				until(960 * time.Millisecond)
				n.ExitContainer("a", "a1", 1, "Error")
				n.SetContainer("a", "a2", pleg.ContainerStateRunning)
				until(970 * time.Millisecond)
				minTime := time.Now()
				n.Delay(plegtest.GetPod, plegtest.AnyPod, 250*time.Millisecond)
				s, err := n.cache.GetNewerThan("a", minTime)
				if err != nil || len(s.ContainerStatuses) != 2 {
					t.Errorf("after %v: %d containers, %v", time.Since(began), len(s.ContainerStatuses), err)
				}
				if d := time.Since(began); d < 1200*time.Millisecond || d > 1400*time.Millisecond {
					t.Errorf("answered after %v", d)
				}
				if got := n.PodCalls(plegtest.GetPodStatus, "a"); got < 3 {
					t.Errorf("%d inspections: none began during the conflict", got)
				}
			})
		})
	}
}

// Rule 5: what an older listing led to never replaces what a newer one did.
func TestRule5OlderNeverReplacesNewer(t *testing.T) {
	c := pleg.NewCache()
	if !c.Set("a", status("a", "new"), nil, at(2)) {
		t.Error("the first status was not stored")
	}
	if c.Set("a", status("a", "old"), nil, at(1)) {
		t.Error("an older status was stored")
	}
	if s, _ := c.Get("a"); s.Name != "new" {
		t.Errorf("the cache has the %s status", s.Name)
	}
	if !c.Set("a", status("a", "same time"), nil, at(2)) {
		t.Error("a status of the same stamp was not stored")
	}
}

// Rule 5: a status carries the stamp of the newest list that its inspection is for.
func TestRule5StatusCarriesTheNewestStamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		began := time.Now()
		stamp := func() time.Duration {
			n.g.RequestReinspect("a")
			synctest.Wait()
			s, _ := n.cache.Get("a")
			return s.TimeStamp.Sub(began)
		}
		time.Sleep(5500 * time.Millisecond)
		if got := stamp(); got != 5*time.Second {
			t.Errorf("the stamp is %v", got)
		}
		// A list that is under way does not count yet.
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Delay: 100 * time.Millisecond, Times: 1})
		time.Sleep(550 * time.Millisecond)
		if got := stamp(); got != 5*time.Second {
			t.Errorf("the stamp is %v", got)
		}
		time.Sleep(100 * time.Millisecond)
		// The same object, and another one with the same content.
		for _, pod := range []*pleg.Pod{n.Pod("a"), bare("a", plegtest.Running("a1"))} {
			time.Sleep(100 * time.Millisecond)
			n.SetPod(pod)
			n.g.RequestRelist("a")
			synctest.Wait()
			if got, want := stamp(), time.Since(began); got != want {
				t.Errorf("the stamp is %v at %v", got, want)
			}
		}
	})
}
