package contract_test

import (
	"context"
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

// Rule 7: if a status differs from the list in any of these ways, the pod is inspected again.
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
				for range 3 { // the back-off starts anew each time
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

// Rule 7: if the status of a pod never matches its list, the pod is inspected more and more rarely,
// down to once in ten seconds. This also holds for bad data.
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
			if got := inspections.Load(); got < 100 || got > 106 { // retries after 1, 3, 7, 15, 25, 35 s ...
				t.Errorf("bad data %v: %d inspections in 1000 s", bad, got)
			}
		})
	}
}

// Rule 7: a pod changes during each of its inspections, so every status is newer than its list.
// After each list, the pod is inspected again, however often this happens.
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

// Rule 7: the pod is inspected again after the next list, even if it was inspected several times
// since the last list.
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

// Rule 7: a status that lacks a listed container contradicts the list. The pod is listed and
// inspected again until the status and the list agree. Until then, newer lists make the pod no
// fresher; only its inspections do.
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
				time.Sleep(6500 * time.Millisecond) // retries begin after 1, 3 and 7 s
				if got := n.Calls(plegtest.GetPodStatus); got != 3 {
					t.Errorf("%d inspections in 6.5 s", got)
				}
				// A read with a newer minTime would request a list of the pod, so the test uses Get.
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

// Rule 7: two lists at the same time of a stopped clock still count as two lists.
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
