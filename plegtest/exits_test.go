package plegtest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

func TestRuntimeExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPod(plegtest.NewPod("a", plegtest.Running("a1"), plegtest.Running("a2"), plegtest.Created("a3")))
		if n := rt.EmitExit(pleg.ContainerExit{}); n != 0 {
			t.Error(n, "streams")
		}
		began := time.Now()
		var got []string
		watch := func(ctx context.Context) <-chan error {
			done := make(chan error, 1)
			go func() {
				done <- rt.WatchContainerExits(ctx,
					func() { got = append(got, "connected") },
					func(e pleg.ContainerExit) {
						got = append(got, fmt.Sprintf("%s/%s %d after %v", e.PodUID, e.ContainerID, e.ExitCode,
							e.FinishedAt.Sub(began)))
					})
			}()
			synctest.Wait()
			return done
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := watch(ctx)

		// The test itself sends exits: early, twice, and of no container.
		early := pleg.ContainerExit{PodUID: "a", ContainerID: "a1", ExitCode: 3, FinishedAt: began}
		if n := rt.EmitExit(early); n != 1 {
			t.Error(n, "streams")
		}
		rt.EmitExit(early)
		rt.EmitExit(pleg.ContainerExit{ContainerID: "an exec's", ExitCode: 1, FinishedAt: began})
		rt.ExitContainer("a", "a1", 3, "Error") // not sent

		// From here on the runtime sends each exit.
		rt.EmitOnExit(true)
		time.Sleep(time.Second)
		rt.ExitContainer("a", "a2", 137, "OOMKilled")
		rt.ExitContainer("a", "a2", 137, "OOMKilled") // not sent: the container has exited already
		rt.SetContainer("a", "a3", pleg.ContainerStateRunning)
		rt.RestartContainer("a", "a3", "a4")
		rt.SetSandbox("a", "a-sandbox", pleg.ContainerStateExited)
		rt.SetPod(plegtest.NewPod("b", plegtest.Exited("b1")))
		rt.RemovePod("a")
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		want := []string{
			"connected", "a/a1 3 after 0s", "a/a1 3 after 0s", "/an exec's 1 after 0s",
			"a/a2 137 after 1s", "a/a3 137 after 1s", "a/a-sandbox 0 after 1s", "b/b1 0 after 1s",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}

		// Event streams and streams of exits are separate.
		oops := errors.New("oops")
		done = watch(t.Context())
		if n := rt.BreakEventStreams(oops); n != 0 || rt.Streams() != 0 {
			t.Error(n, "event streams")
		}
		if n := rt.BreakExitStreams(oops); n != 1 {
			t.Error(n, "streams")
		}
		if err := <-done; !errors.Is(err, oops) {
			t.Error(err)
		}
		rt.Fail(plegtest.WatchContainerExits, plegtest.AnyPod, pleg.ErrEventsUnsupported)
		if err := <-watch(t.Context()); !errors.Is(err, pleg.ErrEventsUnsupported) {
			t.Error(err)
		}
	})
}

// A container that exits before it was started has no StartedAt. If it runs later, it has one.
func TestContainerThatNeverRan(t *testing.T) {
	rt := plegtest.NewRuntime()
	rt.SetPods(plegtest.NewPod("a", plegtest.Created("a1")))
	status := func() *pleg.Status {
		t.Helper()
		pods, err := rt.GetPods(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		s, err := rt.GetPodStatus(t.Context(), pods[0])
		if err != nil {
			t.Fatal(err)
		}
		return s.ContainerStatuses[0]
	}
	rt.ExitContainer("a", "a1", 128, "StartError")
	if s := status(); !s.StartedAt.IsZero() || s.FinishedAt.IsZero() || s.ExitCode != 128 {
		t.Errorf("%+v", s)
	}
	rt.SetContainer("a", "a1", pleg.ContainerStateRunning)
	rt.ExitContainer("a", "a1", 1, "Error")
	if s := status(); s.StartedAt.IsZero() {
		t.Errorf("%+v", s)
	}
}
