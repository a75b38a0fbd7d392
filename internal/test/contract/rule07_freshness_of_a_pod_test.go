package contract_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 7: what an inspection saw for a moment, and no list ever showed, does not stay in
// the cache: the pod is inspected again at the next list. A runtime whose statuses
// never match its lists is not inspected at every one for ever.
func TestRule7StatusMismatchIsInspectedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		phantom := &pleg.PodStatus{ID: "a", ContainerStatuses: []*pleg.Status{
			{ID: pleg.ContainerID{ID: "a1"}, State: pleg.ContainerStateRunning},
			{ID: pleg.ContainerID{ID: "for a moment"}, State: pleg.ContainerStateRunning},
		}}
		n.SetStatus("a", phantom)
		events := n.g.Watch()
		n.start()
		n.SetStatus("a", nil)
		time.Sleep(500 * time.Millisecond)
		minTime := time.Now()
		if s, err := n.cache.GetNewerThan("a", minTime); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("got %v %v", s, err)
		}
		synctest.Wait()
		want(t, "events", read(events), "a Started a1")
		n.ResetCalls()
		time.Sleep(time.Minute)
		if got := n.Calls(plegtest.GetPodStatus); got != 0 {
			t.Errorf("%d inspections of a pod whose status matches", got)
		}
		n.SetStatus("a", phantom)
		n.g.RequestReinspect("a")
		time.Sleep(10 * time.Minute)
		// A back-off from a second to ten; one more where a list comes while the first is under way.
		if got := n.Calls(plegtest.GetPodStatus); got < 60 || got > 66 {
			t.Errorf("%d inspections in ten minutes of a pod whose status never matches", got)
		}
	})
}

// Rule 7: the same for everything in which a status can differ.
func TestRule7KindsOfStatusMismatch(t *testing.T) {
	container := func(id string, state pleg.State) *pleg.Status {
		return &pleg.Status{ID: pleg.ContainerID{ID: id}, State: state, Reason: "Completed"}
	}
	sandbox := func(id string, state runtimeapi.PodSandboxState) *runtimeapi.PodSandboxStatus {
		return &runtimeapi.PodSandboxStatus{Id: id, State: state}
	}
	ready, down := runtimeapi.PodSandboxState_SANDBOX_READY, runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	for name, given := range map[string]*pleg.PodStatus{
		"a container that is not listed":    {ContainerStatuses: []*pleg.Status{container("a2", pleg.ContainerStateExited)}},
		"a container in another state":      {ContainerStatuses: []*pleg.Status{container("a1", pleg.ContainerStateCreated)}},
		"a sandbox that is not listed":      {SandboxStatuses: []*runtimeapi.PodSandboxStatus{sandbox("other", ready)}},
		"a sandbox that is listed as ready": {SandboxStatuses: []*runtimeapi.PodSandboxStatus{sandbox("a-sandbox", down)}},
		"nothing":                           nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(plegtest.NewPod("a", plegtest.Running("a1")))
				n.start()
				time.Sleep(5500 * time.Millisecond)
				for range 3 { // each time as the first
					n.SetStatus("a", given)
					n.g.RequestReinspect("a")
					synctest.Wait()
					n.SetStatus("a", nil)
					n.ResetCalls()
					time.Sleep(10 * time.Second)
					wanted := 1
					if given == nil {
						wanted = 0
					}
					if got := n.Calls(plegtest.GetPodStatus); got != wanted {
						t.Errorf("%d inspections", got)
					}
					s, err := n.cache.Get("a")
					if err != nil || len(s.ContainerStatuses) != 1 || s.ContainerStatuses[0].State != pleg.ContainerStateRunning {
						t.Errorf("the cache has %v %v", s, err)
					}
				}
			})
		})
	}
}

// Rule 7: a pod whose status never matches its list is inspected ever more rarely, down
// to once in ten seconds, with bad data too.
func TestRule7LastingStatusMismatch(t *testing.T) {
	for _, bad := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var inspections atomic.Int64
			list := func() *pleg.Pod {
				p := bare("a", plegtest.Running("a1"))
				if bad {
					p.Containers = append(p.Containers, nil)
				}
				return p
			}
			rt := &scripted{
				pods: func() ([]*pleg.Pod, error) { return []*pleg.Pod{list()}, nil },
				pod:  func(types.UID) (*pleg.Pod, error) { return list(), nil },
				status: func(*pleg.Pod) (*pleg.PodStatus, error) {
					inspections.Add(1)
					return &pleg.PodStatus{ID: "a", ContainerStatuses: []*pleg.Status{{ID: pleg.ContainerID{ID: "other"}}}}, nil
				},
			}
			n := newNodeOf(t, rt.instead)
			n.start()
			time.Sleep(1000 * time.Second)
			if got := inspections.Load(); got < 100 || got > 106 { // after 1, 3, 7, 15, 25, 35 s ...
				t.Errorf("bad data %v: %d inspections in 1000 s", bad, got)
			}
		})
	}
}

// Rule 7: a pod whose every inspection is ahead of its list, because it goes on
// changing, is inspected again at the next list, however often that was so.
func TestRule7PodThatGoesOnChanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a0")))
		last := ""
		i := 0
		heal := n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Do: func(context.Context) error {
			i++
			last = fmt.Sprintf("a%d", i)
			n.SetContainer("a", last, pleg.ContainerStateRunning)
			return nil
		}})
		n.start()
		time.Sleep(6500 * time.Millisecond)
		heal()
		n.RemoveContainer("a", last) // before any list shows it
		before := time.Now()
		s, err := n.cache.GetNewerThan("a", before)
		if got := s.ContainerStatuses[len(s.ContainerStatuses)-1].ID.ID; err != nil || got == last {
			t.Errorf("%s, which is gone, is there after %v: %v", got, time.Since(before), err)
		}
	})
}

// Rule 7: nor do inspections between two lists put that off.
func TestRule7InspectionsBetweenLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a0")))
		n.start()
		time.Sleep(1500 * time.Millisecond)
		n.SetContainer("a", "a1", pleg.ContainerStateRunning)
		for range 7 {
			n.g.RequestReinspect("a")
			synctest.Wait()
		}
		n.RemoveContainer("a", "a1") // before any list shows it
		n.relist()
		if s, err := n.cache.Get("a"); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("%d containers, %v", len(s.ContainerStatuses), err)
		}
	})
}

// Rules 6 and 7: a status that contradicts its list is as fresh as the list that it was
// made for, and not as one that has completed meanwhile: no reader gets a container that
// was gone before its minTime.
func TestRule7StatusMismatchIsNotLifted(t *testing.T) {
	for _, started := range []time.Duration{0, 900 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.SetPods(bare("a", plegtest.Running("a1")))
			n.start()
			time.Sleep(890 * time.Millisecond)
			n.SetContainer("a", "a2", pleg.ContainerStateExited) // no list shows it
			n.Inject(plegtest.Fault{
				Method: plegtest.GetPodStatus, Times: 1, Stale: true, Delay: 1500 * time.Millisecond,
			})
			n.g.RequestReinspect("a") // has read its status, and completes at 2.39 s
			time.Sleep(10 * time.Millisecond)
			n.RemoveContainer("a", "a2")
			time.Sleep(10 * time.Millisecond)
			gone := time.Now()
			time.Sleep(started)
			s, err := n.cache.GetNewerThan("a", gone)
			if err != nil || len(s.ContainerStatuses) != 1 {
				t.Errorf("before the inspection: %d containers, %v", len(s.ContainerStatuses), err)
			}
			for range 30 {
				time.Sleep(100 * time.Millisecond)
				if s, err := n.cache.GetNewerThan("a", gone); err != nil || len(s.ContainerStatuses) != 1 {
					t.Errorf("%v after it was gone: %d containers, %v", time.Since(gone), len(s.ContainerStatuses), err)
				}
			}
		})
	}
}

// Rule 7: a status that lacks what its list shows contradicts it too: the pod is listed and
// inspected again until they agree. Until then it is only as fresh as its inspections' lists.
func TestRule7StatusThatLacksAContainer(t *testing.T) {
	full := &pleg.PodStatus{ID: "a", ContainerStatuses: []*pleg.Status{
		{ID: pleg.ContainerID{ID: "a1"}, State: pleg.ContainerStateRunning},
		{ID: pleg.ContainerID{ID: "a2"}, State: pleg.ContainerStateRunning},
	}}
	sandbox := []*runtimeapi.PodSandboxStatus{{Id: "a-sandbox", State: runtimeapi.PodSandboxState_SANDBOX_READY}}
	lacking := func(containers []*pleg.Status, sandboxes ...*runtimeapi.PodSandboxStatus) *pleg.PodStatus {
		return &pleg.PodStatus{ID: "a", ContainerStatuses: containers, SandboxStatuses: sandboxes}
	}
	for name, c := range map[string]struct {
		wrap   func(*plegtest.Runtime) pleg.Runtime
		status *pleg.PodStatus
	}{
		"one of two":                    {nil, lacking(full.ContainerStatuses[:1], sandbox...)},
		"all":                           {nil, lacking(nil, sandbox...)},
		"one of two, without PodGetter": {polling, lacking(full.ContainerStatuses[:1], sandbox...)},
		"everything, without PodGetter": {polling, lacking(nil)},
		"one of two, and no sandboxes":  {nil, lacking(full.ContainerStatuses[1:])},
		"one container twice, no sandbox": {
			nil, lacking([]*pleg.Status{full.ContainerStatuses[0], full.ContainerStatuses[0]}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wrap := c.wrap
				if wrap == nil {
					wrap = func(rt *plegtest.Runtime) pleg.Runtime { return rt }
				}
				n := newNodeOf(t, wrap)
				n.SetPods(plegtest.NewPod("a", plegtest.Running("a1"), plegtest.Running("a2")))
				n.SetStatus("a", c.status)
				began := time.Now()
				time.AfterFunc(5*time.Second, func() { n.SetStatus("a", nil) })
				n.start()
				time.Sleep(6500 * time.Millisecond) // after 1, 3 and 7 s
				if got := n.Calls(plegtest.GetPodStatus); got != 3 {
					t.Errorf("%d inspections in 6.5 s", got)
				}
				// Not by asking for something newer, which would have the pod listed.
				if s, _ := n.cache.Get("a"); !s.TimeStamp.Equal(began.Add(3 * time.Second)) {
					t.Errorf("the status is as of %v, not of the list that it was made for", s.TimeStamp.Sub(began))
				}
				time.Sleep(600 * time.Millisecond)
				s, err := n.cache.Get("a")
				if err != nil || len(s.ContainerStatuses) != 2 || s.ContainerStatuses[1].ID.ID != "a2" ||
					len(s.SandboxStatuses) != 1 {
					t.Errorf("after %v the cache has %v, %v", time.Since(began), s, err)
				}
				inspections := n.Calls(plegtest.GetPodStatus)
				time.Sleep(time.Hour)
				if got := n.Calls(plegtest.GetPodStatus) - inspections; got != 0 {
					t.Errorf("%d inspections of a pod whose status matches", got)
				}
			})
		})
	}
}

// Rule 7 through the generator: one stuck pod holds back its own readers only.
func TestRule7StuckPodHoldsBackItsOwnReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(pods(3)...)
		n.start()
		heal := n.BlockIgnoringCancel(plegtest.GetPodStatus, "pod-00001")
		n.ExitContainer("pod-00001", "pod-00001-a", 1, "Error")
		time.Sleep(10 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		minTime := time.Now()
		for _, uid := range []types.UID{"pod-00000", "pod-00002", "absent"} {
			if _, _, err := n.cache.LookupNewerThan(ctx, uid, minTime); err != nil {
				t.Error(err)
			}
		}
		soon := time.Now().Add(time.Millisecond) // the list at this moment does not answer it
		if _, _, err := n.cache.LookupNewerThan(t.Context(), "nobody", soon); err != nil || time.Since(soon) > time.Second {
			t.Errorf("a reader of an unknown pod waits for %v: %v", time.Since(soon), err)
		}
		if _, _, err := n.cache.LookupNewerThan(ctx, "pod-00001", minTime); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the stuck pod looks fresh: %v", err)
		}
		heal()
		s, err := n.cache.GetNewerThan("pod-00001", minTime)
		if err != nil || s.ContainerStatuses[0].State != pleg.ContainerStateExited {
			t.Errorf("after healing: %v %v", s, err)
		}
	})
}

// Rule 7: a status that agrees is as fresh as the pod's newest list, even if that is a pod list that
// completed during the inspection.
func TestRule7InspectionIsAsFreshAsTheLastList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(500 * time.Millisecond)
		n.Delay(plegtest.GetPodStatus, "a", 300*time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		time.Sleep(600 * time.Millisecond) // the list of 1 s has shown it
		began := time.Now()
		s, err := n.cache.GetNewerThan("a", began.Add(-1))
		if err != nil || s.ContainerStatuses[0].ExitCode != 1 || time.Since(began) != 200*time.Millisecond {
			t.Errorf("%v %v after %v", s, err, time.Since(began))
		}
	})
}

// Rule 7: the inspection for a former list makes nothing fresh that a later list showed
// changed.
func TestRule7FormerInspectionMakesNothingFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(200 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Stale: true, Delay: 100 * time.Millisecond})
		n.ExitContainer("a", "a1", 1, "")
		n.g.RequestRelist("a")
		time.Sleep(50 * time.Millisecond)
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		minTime := time.Now()
		s, err := n.cache.GetNewerThan("a", minTime)
		if err != nil || len(s.ContainerStatuses) != 2 {
			t.Errorf("got %v %v after %v", s, err, time.Since(minTime))
		}
	})
}

// Rule 7: two lists at one instant of a clock that stands still are two.
func TestRule7ListsAtOneInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(999 * time.Millisecond)
		heal1 := n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Times: 1, Stale: true, Block: true})
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		synctest.Wait() // list 1 shows a2; its inspection is stuck
		heal2 := n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Block: true})
		n.SetContainer("a", "a3", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		synctest.Wait() // list 2, at the same instant, shows a3
		at := time.Now()
		heal1() // inspection 1 completes, without a3
		synctest.Wait()
		time.Sleep(500 * time.Millisecond) // a full relist that shows no change
		done := make(chan int, 1)
		go func() {
			s, _ := n.cache.GetNewerThan("a", at)
			done <- len(s.ContainerStatuses)
		}()
		synctest.Wait()
		select {
		case got := <-done:
			t.Errorf("%d containers, observed after a list had shown three", got)
			heal2()
		default:
			heal2()
			<-done
		}
	})
}
