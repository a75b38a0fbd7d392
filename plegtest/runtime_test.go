package plegtest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

func list(t *testing.T, rt pleg.Runtime) []*pleg.Pod {
	t.Helper()
	pods, err := rt.GetPods(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

// states returns all containers and sandboxes in their order, each as "uid/id=state".
func states(pods []*pleg.Pod) []string {
	var got []string
	for _, p := range pods {
		for _, c := range p.Containers {
			got = append(got, fmt.Sprintf("%s/%s=%s", p.ID, c.ID.ID, c.State))
		}
		for _, c := range p.Sandboxes {
			got = append(got, fmt.Sprintf("%s/%s=%s", p.ID, c.ID.ID, c.State))
		}
	}
	return got
}

func TestRuntimeSnapshots(t *testing.T) {
	rt := plegtest.NewRuntime()
	rt.SetPod(plegtest.NewPod("a", plegtest.Running("a1"), plegtest.Created("a2")))
	rt.SetPod(plegtest.NewPod("b", plegtest.Exited("b1")))
	first := list(t, rt)
	before := fmt.Sprintf("%+v %+v", *first[0], *first[0].Containers[0])

	if again := list(t, rt); &again[0] != &first[0] {
		t.Error("nothing changed, and the list is another slice")
	}
	rt.SetContainer("a", "a1", pleg.ContainerStateRunning) // the container is running already
	if again := list(t, rt); &again[0] != &first[0] {
		t.Error("setting the state it has made another slice")
	}

	rt.ExitContainer("a", "a1", 3, "Error")
	second := list(t, rt)
	if second[0] == first[0] {
		t.Error("a changed pod is the same pointer")
	}
	if second[1] != first[1] {
		t.Error("an unchanged pod is another pointer")
	}
	if after := fmt.Sprintf("%+v %+v", *first[0], *first[0].Containers[0]); after != before {
		t.Errorf("a returned pod changed:\n%s\n%s", before, after)
	}
	want := []string{"a/a1=exited", "a/a2=created", "a/a-sandbox=running", "b/b1=exited", "b/b-sandbox=running"}
	if diff := cmp.Diff(want, states(second)); diff != "" {
		t.Error(diff)
	}
	up, err := rt.GetPods(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a/a-sandbox=running", "b/b-sandbox=running"}, states(up)); diff != "" {
		t.Error(diff)
	}
}

func TestRuntimeIdleListAllocatesNothing(t *testing.T) {
	rt := plegtest.NewRuntime()
	for i := range 1000 {
		rt.SetPod(plegtest.NewPod(types.UID(fmt.Sprint("pod", i)), plegtest.Running(fmt.Sprint("c", i))))
	}
	ctx := t.Context()
	list(t, rt)
	if n := testing.AllocsPerRun(10, func() { _, _ = rt.GetPods(ctx, true) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestRuntimeContainers(t *testing.T) {
	rt := plegtest.NewRuntime()
	rt.SetContainer("a", "init", pleg.ContainerStateRunning)
	rt.ExitContainer("a", "init", 0, "")
	rt.SetContainer("a", "app", pleg.ContainerStateRunning)
	rt.SetIPs("a", "10.0.0.1", "fd00::1")
	rt.RestartContainer("a", "app", "app-1")
	rt.RestartContainer("a", "app-1", "app-2")
	rt.RemoveContainer("a", "app")
	want := []string{"a/app-2=running", "a/app-1=exited", "a/init=exited", "a/a-sandbox=running"} // newest first
	if diff := cmp.Diff(want, states(list(t, rt))); diff != "" {
		t.Error(diff)
	}

	status, err := rt.GetPodStatus(t.Context(), rt.Pod("a"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"10.0.0.1", "fd00::1"}, status.IPs); diff != "" {
		t.Error(diff)
	}
	var got []string
	for _, s := range status.ContainerStatuses {
		got = append(got, fmt.Sprintf("%s %s %s exit=%d %s restarts=%d %t %t", s.ID.ID, s.Name, s.State,
			s.ExitCode, s.Reason,
			s.RestartCount, s.StartedAt.IsZero(), s.FinishedAt.IsZero()))
	}
	want = []string{
		"app-2 app running exit=0  restarts=2 false true",
		"app-1 app exited exit=137 Error restarts=1 false false",
		"init init exited exit=0 Completed restarts=0 false false",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	// If a sandbox is no longer ready, its addresses disappear. The next sandbox starts without
	// addresses.
	rt.SetSandbox("a", "a-sandbox", pleg.ContainerStateExited)
	if status, _ = rt.GetPodStatus(t.Context(), rt.Pod("a")); status.IPs != nil {
		t.Error("the address of a sandbox that is not ready:", status.IPs)
	}
	rt.SetSandbox("a", "a-sandbox-1", pleg.ContainerStateRunning)
	status, _ = rt.GetPodStatus(t.Context(), rt.Pod("a"))
	if status.IPs != nil || len(status.SandboxStatuses) != 2 || status.SandboxStatuses[0].Id != "a-sandbox-1" ||
		len(status.ActiveContainerStatuses) != 0 {
		t.Errorf("a new sandbox: %v", status)
	}
	rt.RemoveSandbox("a", "a-sandbox")
	if diff := cmp.Diff([]string{"a/a-sandbox-1=running"}, states(list(t, rt))); diff != "" {
		t.Error(diff)
	}

	set := &pleg.PodStatus{ID: "a", IPs: []string{"10.9.9.9"}}
	rt.SetStatus("a", set)
	if status, _ = rt.GetPodStatus(t.Context(), rt.Pod("a")); status == set || status.IPs[0] != "10.9.9.9" {
		t.Errorf("a status that was set: %v", status)
	}
	rt.SetStatus("a", nil)
	rt.RemovePod("a")
	if status, err = rt.GetPodStatus(t.Context(), &pleg.Pod{ID: "a", Name: "n"}); err != nil ||
		status.Name != "n" || status.SandboxStatuses != nil {
		t.Errorf("a pod that is gone: %v, %v", status, err)
	}
	if _, err = rt.GetPod(t.Context(), "a"); !errors.Is(err, pleg.ErrPodNotFound) {
		t.Error(err)
	}
}

func TestRuntimeBadData(t *testing.T) {
	rt := plegtest.NewRuntime()
	twin := plegtest.NewPod("a", plegtest.Running("other"))
	raw := []*pleg.Pod{
		nil,
		plegtest.NewPod("a", nil, plegtest.NewContainer("x", "no such state")),
		twin,
		plegtest.NewPod(""),
	}
	rt.SetPods(raw...)
	if diff := cmp.Diff(raw, list(t, rt)); diff != "" {
		t.Error(diff)
	}
	if _, err := rt.GetPods(t.Context(), false); err != nil {
		t.Error(err)
	}
	rt.ExitContainer("a", "x", 1, "Error") // changes the first of the two pods "a"
	if got := list(t, rt); got[2] != twin || got[1].Containers[1].State != pleg.ContainerStateExited {
		t.Errorf("%v", got)
	}
	for _, p := range raw {
		if _, err := rt.GetPodStatus(t.Context(), p); p != nil && err != nil {
			t.Error(err)
		}
	}
	rt.SetPods()
	if got := list(t, rt); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

func TestRuntimeFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPods(plegtest.NewPod("a"), plegtest.NewPod("b"))
		a, b := rt.Pod("a"), rt.Pod("b")
		ctx, cancel := context.WithCancel(t.Context())
		oops := errors.New("oops")

		heal := rt.Fail(plegtest.GetPodStatus, "a", oops)
		if _, err := rt.GetPodStatus(ctx, a); !errors.Is(err, oops) {
			t.Error(err)
		}
		if _, err := rt.GetPodStatus(ctx, b); err != nil {
			t.Error(err)
		}
		heal()
		heal()
		if _, err := rt.GetPodStatus(ctx, a); err != nil {
			t.Error(err)
		}

		rt.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 2, Partial: 1, Err: oops})
		for i := range 3 {
			pods, err := rt.GetPods(ctx, true)
			if want := i < 2; errors.Is(err, oops) != want || want && len(pods) != 1 {
				t.Error(i, pods, err)
			}
		}

		start := time.Now()
		rt.Delay(plegtest.GetPod, plegtest.AnyPod, time.Second)
		if _, err := rt.GetPod(ctx, "b"); err != nil || time.Since(start) != time.Second {
			t.Error(err, time.Since(start))
		}
		short, stop := context.WithTimeout(ctx, time.Millisecond)
		defer stop()
		if _, err := rt.GetPod(short, "b"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		rt.Heal()

		// The call for pod a honours cancellation. The call for pod b ignores it.
		rt.Block(plegtest.GetPodStatus, "a")
		rt.BlockIgnoringCancel(plegtest.GetPodStatus, "b")
		var wg sync.WaitGroup
		errs := make([]error, 2)
		for i, pod := range []*pleg.Pod{a, b} {
			wg.Go(func() { _, errs[i] = rt.GetPodStatus(ctx, pod) })
		}
		synctest.Wait()
		if n := rt.InFlight(plegtest.GetPodStatus); n != 2 {
			t.Error(n, "in flight")
		}
		cancel()
		synctest.Wait()
		if n := rt.InFlight(plegtest.GetPodStatus); n != 1 {
			t.Error(n, "in flight after the context ended")
		}
		rt.Heal()
		wg.Wait()
		if !errors.Is(errs[0], context.Canceled) || !errors.Is(errs[1], context.Canceled) {
			t.Error(errs)
		}
		if n := rt.MaxInFlight(plegtest.GetPodStatus); n != 2 {
			t.Error(n, "at once")
		}
		if got, all := rt.PodCalls(plegtest.GetPodStatus, "b"), rt.Calls(plegtest.GetPodStatus); got != 2 ||
			all != 5 {
			t.Error(got, all)
		}
		rt.ResetCalls()
		if n := rt.Calls(plegtest.GetPodStatus); n != 0 {
			t.Error(n)
		}
	})
}

func TestRuntimeClock(t *testing.T) {
	clk := testingclock.NewFakeClock(time.Unix(1000, 0))
	rt := plegtest.NewRuntime(plegtest.WithClock(clk))
	rt.SetContainer("a", "a1", pleg.ContainerStateRunning)
	clk.Step(time.Minute)
	rt.ExitContainer("a", "a1", 0, "Completed")
	status, err := rt.GetPodStatus(t.Context(), rt.Pod("a"))
	if err != nil {
		t.Fatal(err)
	}
	s := status.ContainerStatuses[0]
	if s.FinishedAt.Sub(s.StartedAt) != time.Minute || !s.CreatedAt.Equal(time.Unix(1000, 0)) {
		t.Errorf("%+v", s)
	}
}

// A method that is called with an unknown ID panics, so that a test with a misspelled ID fails.
func TestRuntimeUnknownIDs(t *testing.T) {
	rt := plegtest.NewRuntime(nil) // a nil option is ignored
	rt.SetPod(plegtest.NewPod("a", plegtest.Running("app")))
	rt.SetPod(&pleg.Pod{ID: "bare"})
	for _, test := range []struct {
		want string
		call func()
	}{
		{`no container "x" in pod "a"`, func() { rt.ExitContainer("a", "x", 1, "Error") }},
		{`no container "a-sandbox" in pod "a"`, func() { rt.ExitContainer("a", "a-sandbox", 1, "Error") }},
		{`no pod "x"`, func() { rt.ExitContainer("x", "app", 1, "Error") }},
		{`no container "x" in pod "a"`, func() { rt.RestartContainer("a", "x", "x-1") }},
		{`no container "x" in pod "a"`, func() { rt.RemoveContainer("a", "x") }},
		{`no sandbox "x" in pod "a"`, func() { rt.RemoveSandbox("a", "x") }},
		{`no pod "x"`, func() { rt.RemovePod("x") }},
		{`no pod "x"`, func() { rt.SetIPs("x", "10.0.0.1") }},
		{`no sandbox in pod "bare"`, func() { rt.SetIPs("bare", "10.0.0.1") }},
	} {
		func() {
			defer func() {
				if p := recover(); p != "plegtest: "+test.want {
					t.Errorf("expected the panic %s, saw %v", test.want, p)
				}
			}()
			test.call()
		}()
	}
	want := []string{"a/app=running", "a/a-sandbox=running"}
	if diff := cmp.Diff(want, states(list(t, rt))); diff != "" {
		t.Error(diff)
	}
}

func TestRuntimeMoreFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPod(plegtest.NewPod("a"))
		over, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		rt.Inject(plegtest.Fault{Method: plegtest.GetPods, Delay: time.Hour, IgnoreCancel: true})
		if _, err := rt.GetPods(over, true); !errors.Is(err, context.Canceled) ||
			time.Since(start) != time.Hour {
			t.Error("a delay that ignores cancellation:", err, time.Since(start))
		}
		rt.Inject(plegtest.Fault{Method: plegtest.GetPod, Do: func(context.Context) error { panic("oops") }})
		func() {
			defer func() {
				if p := recover(); p != "oops" {
					t.Error(p)
				}
			}()
			_, _ = rt.GetPod(t.Context(), "a")
		}()
		if n := rt.InFlight(plegtest.GetPod); n != 0 {
			t.Error(n, "in flight after a panic")
		}
		if n := rt.MaxPodInFlight(plegtest.GetPod, "a"); n != 1 {
			t.Error(n)
		}
		oops := errors.New("oops")
		rt.Inject(plegtest.Fault{Method: plegtest.GetPodStatus,
			Do: func(context.Context) error { return oops }})
		if _, err := rt.GetPodStatus(t.Context(), rt.Pod("a")); !errors.Is(err, oops) {
			t.Error(err)
		}
		if _, err := rt.GetPodStatus(t.Context(), nil); err == nil {
			t.Error("a nil pod has a status")
		}
	})
}

func TestRuntimeStaleAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPod(plegtest.NewPod("a"))
		pod := rt.Pod("a")
		for _, stale := range []bool{false, true} {
			rt.SetPod(pod)
			heal := rt.Inject(plegtest.Fault{Block: true, Stale: stale})
			var listed []*pleg.Pod
			var got *pleg.Pod
			var status *pleg.PodStatus
			var wg sync.WaitGroup
			wg.Go(func() { listed, _ = rt.GetPods(t.Context(), true) })
			wg.Go(func() { got, _ = rt.GetPod(t.Context(), "a") })
			wg.Go(func() { status, _ = rt.GetPodStatus(t.Context(), pod) })
			synctest.Wait()
			rt.RemovePod("a")
			heal()
			wg.Wait()
			if (len(listed) == 1) != stale || (got == pod) != stale ||
				(len(status.SandboxStatuses) == 1) != stale {
				t.Errorf("stale=%t: %v %v %v", stale, listed, got, status)
			}
		}
	})
}

func TestRuntimeEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPod(plegtest.NewPod("a", plegtest.Running("a1")))
		if n := rt.Emit(pleg.ContainerEvent{}); n != 0 {
			t.Error(n, "streams")
		}
		var got []string
		watch := func(ctx context.Context) <-chan error {
			done := make(chan error, 1)
			go func() {
				done <- rt.WatchContainerEvents(ctx,
					func() { got = append(got, "connected") },
					func(e pleg.ContainerEvent) {
						got = append(got, string(e.PodUID)+"/"+e.ContainerID)
					})
			}()
			synctest.Wait()
			return done
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := watch(ctx)
		if n := rt.Streams(); n != 1 {
			t.Error(n, "streams")
		}
		rt.SetContainer("a", "a1", pleg.ContainerStateExited) // no event yet
		rt.EmitOnChange(true)
		rt.RestartContainer("a", "a1", "a2")
		rt.RemovePod("a")
		rt.Emit(pleg.ContainerEvent{ContainerID: "stray"})
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		want := []string{"connected", "a/a2", "a/a2", "a/a1", "a/a-sandbox", "/stray"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}

		oops := errors.New("oops")
		done = watch(t.Context())
		if n := rt.BreakEventStreams(oops); n != 1 {
			t.Error(n)
		}
		if err := <-done; !errors.Is(err, oops) || rt.Streams() != 0 {
			t.Error(err)
		}
		rt.SetEventMode(plegtest.EventsEndAtOnce)
		if err := <-watch(t.Context()); err != nil {
			t.Error(err)
		}
		rt.SetEventMode(plegtest.EventsUnsupported)
		if err := <-watch(t.Context()); !errors.Is(err, pleg.ErrEventsUnsupported) {
			t.Error(err)
		}
		rt.Fail(plegtest.WatchContainerEvents, plegtest.AnyPod, oops)
		if err := <-watch(t.Context()); !errors.Is(err, oops) {
			t.Error(err)
		}
	})
}

func TestRuntimePlain(t *testing.T) {
	rt := plegtest.NewRuntime()
	rt.SetPod(plegtest.NewPod("a"))
	plain := rt.Plain()
	if _, ok := plain.(pleg.PodGetter); ok {
		t.Error("Plain is a PodGetter")
	}
	if _, ok := plain.(pleg.EventSource); ok {
		t.Error("Plain is an EventSource")
	}
	if _, ok := plain.(pleg.ExitSource); ok {
		t.Error("Plain is an ExitSource")
	}
	if _, err := plain.GetPodStatus(t.Context(), list(t, plain)[0]); err != nil || rt.Calls(plegtest.GetPods) != 1 {
		t.Error(err)
	}
}

// Concurrent calls cause no data race, and every list contains all pods.
func TestRuntimeConcurrency(t *testing.T) {
	rt := plegtest.NewRuntime()
	rt.EmitOnChange(true)
	uids := []types.UID{"pod0", "pod1", "pod2", "pod3"}
	for _, uid := range uids {
		rt.SetPod(plegtest.NewPod(uid))
	}
	var wg sync.WaitGroup
	for _, uid := range uids {
		wg.Go(func() {
			for n := range 100 {
				id := fmt.Sprint(uid, "-", n)
				rt.SetContainer(uid, id, pleg.ContainerStateRunning)
				rt.ExitContainer(uid, id, 0, "Completed")
				rt.Fail(plegtest.GetPodStatus, uid, nil)()
				rt.RemoveContainer(uid, id)
			}
		})
		wg.Go(func() {
			for range 100 {
				if pods, err := rt.GetPods(t.Context(), true); err != nil || len(pods) != 4 {
					t.Error(pods, err)
				}
				pod, err := rt.GetPod(t.Context(), uid)
				if err != nil {
					t.Error(err)
				}
				if _, err := rt.GetPodStatus(t.Context(), pod); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
