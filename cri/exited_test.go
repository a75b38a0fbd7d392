package cri_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

// exitNode is a stub with one exited container. The test sets the reason of the exit. asked is the
// number of ContainerStatus calls.
type exitNode struct {
	*stub
	reason string
	asked  int
}

func newExitNode() *exitNode {
	n := &exitNode{stub: &stub{containers: []*runtimeapi.Container{exited("c")}}, reason: "Error"}
	n.containerStatus = func(context.Context, *statusRequest) (*statusResponse, error) {
		n.asked++
		return &statusResponse{Status: exitedStatus("c", n.reason)}, nil
	}
	return n
}

// exited returns an exited container of the pod "uid".
func exited(id string) *runtimeapi.Container {
	c := container(id, "uid")
	c.State = runtimeapi.ContainerState_CONTAINER_EXITED
	return c
}

func exitedStatus(id, reason string) *runtimeapi.ContainerStatus {
	return &runtimeapi.ContainerStatus{
		Id: id, State: runtimeapi.ContainerState_CONTAINER_EXITED,
		StartedAt: 1, FinishedAt: 2, ExitCode: 137, Reason: reason,
	}
}

// A runtime may learn of an OOM kill after the exit (containerd#12372, containerd#12260: TaskOOM
// arrives after TaskExit). Later inspections then return the reason "OOMKilled".
func TestLateOOMKilled(t *testing.T) {
	n := newExitNode()
	start := time.Unix(1000, 0)
	clock := clocktesting.NewFakePassiveClock(start)
	r := newRuntime(n, cri.WithClock(clock))
	pod := getPods(t, r)[0]
	reasonAt := func(after time.Duration) string {
		clock.SetTime(start.Add(after))
		return getPodStatus(t, r, pod).ContainerStatuses[0].Reason
	}
	if got := reasonAt(0); got != "Error" {
		t.Error(got)
	}
	n.reason = "OOMKilled"
	for _, after := range []time.Duration{0, time.Second, 9 * time.Second, time.Minute, time.Hour} {
		if got := reasonAt(after); got != "OOMKilled" {
			t.Errorf("after %v: %s", after, got)
		}
	}
}

// GetPodStatus asks for an exited container's status again until it has asked 10 s or more after a
// status first showed the exit. The Runtime's clock measures this time. Later inspections do not
// ask.
func TestStatusOfExitedContainerSettles(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		name        string
		inspections []time.Duration // when each inspection begins, by the Runtime's clock
		asked       []bool
	}{
		{"again and again", []time.Duration{0, s, 9 * s, 10*s - 1, 10 * s, 10*s + 1, 3600 * s},
			[]bool{true, true, true, true, true, false, false}},
		{"once, and late again", []time.Duration{0, 3600 * s, 3601 * s}, []bool{true, true, false}},
		{"a clock that is set back", []time.Duration{3600 * s, 0, 5 * s, 9 * s, 10 * s, 11 * s},
			[]bool{true, true, true, true, true, false}},
		{"a clock that is set back when it has settled", []time.Duration{0, 10 * s, -3600 * s, 5 * s},
			[]bool{true, true, false, false}},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newExitNode()
			start := time.Unix(1_000_000, 0)
			clock := clocktesting.NewFakePassiveClock(start)
			r := newRuntime(n, cri.WithClock(clock))
			pod := getPods(t, r)[0]
			for i, at := range test.inspections {
				clock.SetTime(start.Add(at))
				before := n.asked
				if got := getPodStatus(t, r, pod).ContainerStatuses[0]; got.Reason != "Error" ||
					got.ExitCode != 137 {
					t.Errorf("%+v", got)
				}
				if got := n.asked > before; got != test.asked[i] {
					t.Errorf("at %v: asked %v, want %v", at, got, test.asked[i])
				}
			}
		})
	}
}

// Docker can start an exited container again. GetPodStatus asks about the second exit as often as
// about the first. A full list or only a pod list has shown the container running in between.
func TestSecondExitOfAContainer(t *testing.T) {
	for _, test := range []struct {
		name string
		list func(*testing.T, *cri.Runtime) *pleg.Pod
	}{
		{"full lists", func(t *testing.T, r *cri.Runtime) *pleg.Pod { return getPods(t, r)[0] }},
		{"lists of the pod", func(t *testing.T, r *cri.Runtime) *pleg.Pod {
			pod, err := r.GetPod(t.Context(), "uid")
			must(t, err)
			return pod
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newExitNode()
			clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
			r := newRuntime(n, cri.WithClock(clock))
			getPods(t, r)
			inspect := func() *pleg.Status {
				t.Helper()
				clock.SetTime(clock.Now().Add(10 * time.Second))
				return getPodStatus(t, r, test.list(t, r)).ContainerStatuses[0]
			}
			for range 3 {
				inspect()
			}
			if n.asked != 2 {
				t.Fatalf("asked %d times before the status had settled", n.asked)
			}

			exitedAnswer := n.containerStatus
			n.containers = []*runtimeapi.Container{container("c", "uid")}
			n.containers[0].State = runtimeapi.ContainerState_CONTAINER_RUNNING
			n.containerStatus = func(context.Context, *statusRequest) (*statusResponse, error) {
				return &statusResponse{Status: &runtimeapi.ContainerStatus{
					Id: "c", State: runtimeapi.ContainerState_CONTAINER_RUNNING, StartedAt: 3}}, nil
			}
			if got := inspect(); got.State != pleg.ContainerStateRunning {
				t.Errorf("%+v", got)
			}

			n.containers, n.containerStatus = []*runtimeapi.Container{exited("c")}, exitedAnswer
			n.reason = "second, early"
			if got := inspect(); got.Reason != "second, early" {
				t.Errorf("after the second exit: %+v", got)
			}
			n.reason = "second"
			for range 3 {
				if got := inspect(); got.Reason != "second" {
					t.Errorf("after the second exit: %+v", got)
				}
			}
			if n.asked != 4 {
				t.Errorf("asked %d times about two exits", n.asked)
			}
		})
	}
}

// Two inspections run concurrently. If only one of them asked late enough, the Runtime holds its
// status. If both did, the Runtime holds the status of the inspection that began last. The order of
// the answers does not matter.
func TestTwoInspectionsOfAnExitedContainer(t *testing.T) {
	for _, test := range []struct {
		name  string
		asked [2]time.Duration // when each inspection asks, after the first status
		held  bool
	}{
		{"the first too early", [2]time.Duration{9 * time.Second, 10 * time.Second}, true},
		{"both too early", [2]time.Duration{8 * time.Second, 9 * time.Second}, false},
		{"neither too early", [2]time.Duration{10 * time.Second, 11 * time.Second}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newExitNode()
				slow := make(chan struct{})
				var hang bool
				n.containerStatus = func(context.Context, *statusRequest) (*statusResponse, error) {
					n.asked++
					reason := n.reason
					if hang {
						hang = false
						<-slow
					}
					return &statusResponse{Status: exitedStatus("c", reason)}, nil
				}
				r := newRuntime(n)
				pod := getPods(t, r)[0]
				getPodStatus(t, r, pod)

				time.Sleep(test.asked[0])
				hang = true
				first := make(chan *pleg.PodStatus, 1)
				go func() {
					s, _ := r.GetPodStatus(t.Context(), pod)
					first <- s
				}()
				synctest.Wait()
				time.Sleep(test.asked[1] - test.asked[0])
				n.reason = "OOMKilled"
				if got := getPodStatus(t, r, pod).ContainerStatuses[0].Reason; got != "OOMKilled" {
					t.Error(got)
				}
				time.Sleep(time.Minute)
				close(slow)
				if got := (<-first).ContainerStatuses[0].Reason; got != "Error" {
					t.Errorf("the first, which asked before: %s", got)
				}
				before := n.asked
				if got := getPodStatus(t, r, pod).ContainerStatuses[0].Reason; got != "OOMKilled" {
					t.Errorf("afterwards: %s", got)
				}
				if held := n.asked == before; held != test.held {
					t.Errorf("held %v, want %v", held, test.held)
				}
			})
		})
	}
}

// A status without FinishedAt never settles, so each inspection asks again.
func TestStatusWithoutFinishedAtIsNotHeld(t *testing.T) {
	for _, finishedAt := range []int64{0, time.Time{}.UnixNano()} {
		n := newExitNode()
		answer := n.containerStatus
		n.containerStatus = func(ctx context.Context, req *statusRequest) (*statusResponse, error) {
			resp, err := answer(ctx, req)
			resp.Status.FinishedAt = finishedAt
			return resp, err
		}
		clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
		r := newRuntime(n, cri.WithClock(clock))
		pod := getPods(t, r)[0]
		for i := range 5 {
			getPodStatus(t, r, pod)
			if n.asked != i+1 {
				t.Errorf("finished at %d: asked %d times in %d inspections", finishedAt, n.asked, i+1)
			}
			clock.SetTime(clock.Now().Add(time.Minute))
		}
	}
}

// While full lists fail, containers are created, inspected and removed. The Runtime keeps no data
// of containers that no full list has shown.
func TestStatusesOfExitedContainersAreBoundedWhileListsFail(t *testing.T) {
	client := &stub{batch: 1}
	client.containerStatus = func(_ context.Context, req *statusRequest) (*statusResponse, error) {
		return &statusResponse{Status: exitedStatus(req.ContainerId, "Completed")}, nil
	}
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	r := newRuntime(client, cri.WithClock(clock))
	client.containers = []*runtimeapi.Container{exited("listed")}
	getPods(t, r)
	client.hook = func(_ context.Context, method string) error {
		if strings.HasPrefix(method, "Stream") {
			return errors.New("too slow")
		}
		return nil
	}
	for i := range 500 {
		client.containers = []*runtimeapi.Container{exited(fmt.Sprint("c", i))}
		if _, err := r.GetPods(t.Context(), true); err == nil {
			t.Fatal("no error")
		}
		pod, err := r.GetPod(t.Context(), "uid")
		must(t, err)
		for range 3 {
			getPodStatus(t, r, pod)
			clock.SetTime(clock.Now().Add(time.Minute))
		}
	}
	if items, pods, statuses := cri.Held(r); items != 1 || pods != 1 || statuses > 1 {
		t.Errorf("%d items, %d pods, %d statuses are held", items, pods, statuses)
	}
}
