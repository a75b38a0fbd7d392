package cri_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// EndUnknown is true for each form in which a runtime reports an unknown end.
func TestEndUnknown(t *testing.T) {
	for _, test := range []struct {
		code       int32
		reason     string
		finishedAt int64
		unknown    bool
	}{
		{255, "Unknown", 2, true},                       // from containerd
		{-1, "Error", 0, true},                          // from CRI-O
		{-1, "Error", time.Time{}.UnixNano(), true},     // from CRI-O, with Go's zero time
		{-1, "Error", 2, false},                         // the code of a program on Windows
		{255, "Error", 2, false},                        // the code of a program
		{255, "Error", 0, false},                        // the runtime is still handling the exit
		{1, "Unknown", 2, false},                        // the code is known
		{0, "Completed", time.Time{}.UnixNano(), false}, // the code is known
	} {
		n := newExitNode()
		n.containerStatus = func(context.Context, *statusRequest) (*statusResponse, error) {
			s := exitedStatus("c", test.reason)
			s.ExitCode, s.FinishedAt = test.code, test.finishedAt
			return &statusResponse{Status: s}, nil
		}
		r := newRuntime(n)
		got := getPodStatus(t, r, getPods(t, r)[0]).ContainerStatuses[0]
		died := pleg.PodLifecycleEvent{Type: pleg.ContainerDied, Status: got}
		if _, _, ok := died.Exit(); ok == test.unknown || got.EndUnknown != test.unknown ||
			got.ExitCode != int(test.code) || got.Reason != test.reason {
			t.Errorf("%+v: ok is %v, the status %+v", test, ok, got)
		}
	}
}

// If CRI-O finds no exit file, it shows code -1 and no FinishedAt. If a witness has reported the
// exit code, the generator keeps that code. Without a witness, the code stays unknown.
func TestEndUnknownToCRIO(t *testing.T) {
	for _, witness := range []bool{true, false} {
		test := func(t *testing.T, s *criserver.Server, g *pleg.GenericPLEG) {
			var deaths []*pleg.PodLifecycleEvent
			go func() {
				take := func(e *pleg.PodLifecycleEvent) { deaths = append(deaths, e) }
				_ = g.Handle(t.Context(), pleg.Handler{OnContainerDied: take, OnContainerEnded: take})
			}()
			app := runContainer(t, s, s.RunPod(criserver.PodConfig{UID: "uid"}), "app")
			time.Sleep(2 * time.Second)
			s.Inject(criserver.Fault{Method: "ContainerStatus", Edit: func(answer any) {
				of := answer.(*runtimeapi.ContainerStatusResponse).Status
				of.ExitCode, of.Reason, of.FinishedAt = -1, "Error", 0
			}})
			must(t, s.ExitContainer(app, 7, ""))
			time.Sleep(15 * time.Second)
			synctest.Wait()
			status, err := g.Cache().Get("uid")
			must(t, err)
			if len(deaths) != 2 {
				t.Fatalf("%v", deaths)
			}
			cached := &pleg.PodLifecycleEvent{Type: pleg.PodSync, Status: status.ContainerStatuses[0]}
			for _, e := range append(deaths, cached) {
				code, _, ok := e.Exit()
				late := e.Type == pleg.ContainerDied && !ok // a list may be faster than the witness
				if ok != witness && !late || ok && code != 7 {
					t.Errorf("%v: %+v", e.Type, e.Status)
				}
			}
		}
		t.Run(fmt.Sprint("witness=", witness), func(t *testing.T) {
			inBubble(t, test, serverconfig.With[criserver.Option](serverconfig.Config{NoTaskExits: !witness}))
		})
	}
}

// CRI-O shows code 255 and reason Error until it has read conmon's exit file. If a witness then
// reports another code, the generator keeps that code, even if no full list has shown the
// container.
func TestWitnessAfter255(t *testing.T) {
	for name, wait := range map[string]time.Duration{"listed": 2 * time.Second, "not yet listed": 0} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *criserver.Server, g *pleg.GenericPLEG) {
				app := runContainer(t, s, s.RunPod(criserver.PodConfig{UID: "uid"}), "app")
				time.Sleep(wait)
				noticed := time.Now().Add(time.Second).UnixNano()
				s.Inject(criserver.Fault{Edit: func(answer any) {
					switch a := answer.(type) {
					case *runtimeapi.ListContainersResponse:
						a.Containers[0].State = runtimeapi.ContainerState_CONTAINER_EXITED
					case *runtimeapi.ContainerStatusResponse:
						a.Status.State, a.Status.FinishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, noticed
						a.Status.ExitCode, a.Status.Reason = 255, "Error"
					}
				}})
				g.RequestRelist("uid")
				time.Sleep(20 * time.Millisecond)
				must(t, s.ExitContainer(app, 0, ""))
				time.Sleep(time.Minute)
				status, err := g.Cache().Get("uid")
				must(t, err)
				if c := status.ContainerStatuses[0]; c.ExitCode != 0 || c.Reason != "Completed" {
					t.Errorf("the cache has %+v", c)
				}
			})
		})
	}
}

// After a restart, CRI-O may report a container that is long dead as running. In the cache, it
// stays exited.
func TestRunningAgainSinceTheSameStart(t *testing.T) {
	inBubble(t, func(t *testing.T, s *criserver.Server, g *pleg.GenericPLEG) {
		app := runContainer(t, s, s.RunPod(criserver.PodConfig{UID: "uid"}), "app")
		time.Sleep(2 * time.Second)
		events := g.Watch()
		for len(events) > 0 {
			<-events
		}
		must(t, s.ExitContainer(app, 3, ""))
		time.Sleep(20 * time.Second)
		s.Inject(criserver.Fault{Edit: func(answer any) {
			switch a := answer.(type) {
			case *runtimeapi.ListContainersResponse:
				a.Containers[0].State = runtimeapi.ContainerState_CONTAINER_RUNNING
			case *runtimeapi.ContainerStatusResponse:
				a.Status.State, a.Status.FinishedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, 0
			}
		}})
		time.Sleep(time.Minute)
		for len(events) > 0 {
			if e := <-events; e.Type != pleg.ContainerDied || !e.IsSandbox() && e.Status.ExitCode != 3 {
				t.Errorf("%v", e)
			}
		}
		status, err := g.Cache().Get("uid")
		must(t, err)
		if c := status.ContainerStatuses[0]; c.State != pleg.ContainerStateExited || c.ExitCode != 3 {
			t.Errorf("the cache has %+v", c)
		}
	})
}

// If the inspection of a container's pod fails because of another container, the cache still
// contains the container's exit code.
func TestExitBesideAContainerThatCannotBeInspected(t *testing.T) {
	inBubble(t, func(t *testing.T, s *criserver.Server, g *pleg.GenericPLEG) {
		sandbox := s.RunPod(criserver.PodConfig{UID: "uid"})
		app, other := runContainer(t, s, sandbox, "app"), runContainer(t, s, sandbox, "other")
		time.Sleep(2 * time.Second)
		s.Fail("ContainerStatus", other, errors.New("broken"))
		must(t, s.ExitContainer(app, 3, ""))
		time.Sleep(15 * time.Second)
		status, err := g.Cache().Get("uid")
		if c := status.FindContainerStatusByName("app"); err == nil || c.ExitCode != 3 || c.Unconfirmed {
			t.Errorf("the cache has %+v, %v", c, err)
		}
	}, serverconfig.With[criserver.Option](serverconfig.Config{NoTaskExits: true}))
}
