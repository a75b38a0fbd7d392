package cri_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// A runtime that does not know an end has words of its own for it. A program's own 255 is a known end.
func TestEndUnknown(t *testing.T) {
	for _, test := range []struct {
		code       int32
		reason     string
		finishedAt int64
		unknown    bool
	}{
		{255, "Unknown", 2, true},                       // containerd
		{-1, "Error", 0, true},                          // CRI-O
		{-1, "Error", time.Time{}.UnixNano(), true},     // CRI-O, in Go's zero time
		{-1, "Error", 2, false},                         // a program on Windows
		{255, "Error", 2, false},                        // a program
		{255, "Error", 0, false},                        // a program whose exit the runtime still handles
		{1, "Unknown", 2, false},                        // a code is known
		{0, "Completed", time.Time{}.UnixNano(), false}, // as above
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

// While CRI-O has no exit file, it shows -1 with FinishedAt zero. The code that a witness has reported stays; without
// a witness nobody has seen the end.
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
				if code, _, ok := e.Exit(); ok != witness || ok && code != 7 {
					t.Errorf("%v: %+v", e.Type, e.Status)
				}
			}
		}
		t.Run(fmt.Sprint("witness=", witness), func(t *testing.T) {
			inBubble(t, test, criserver.WithConfig(serverconfig.Config{NoTaskExits: !witness}))
		})
	}
}
