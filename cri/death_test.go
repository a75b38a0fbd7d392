package cri_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// announced is a Runtime that closes the channel connected when the event stream has connected.
type announced struct {
	*cri.Runtime
	connected chan struct{}
}

func (r announced) WatchContainerEvents(
	ctx context.Context, connected func(), observe func(pleg.ContainerEvent),
) error {
	return r.Runtime.WatchContainerEvents(ctx, func() {
		connected()
		close(r.connected)
	}, observe)
}

// Without exit events, a container's death is delivered after one list of its pod and one
// inspection. No delay is involved, because the clock stands still until the death is delivered.
// A second list follows, and causes no inspection. (The Relist at the end of the test may overlap
// with the second list, and repeat it.)
func TestDeathCostsOneListAndOneInspection(t *testing.T) {
	s, _ := serverAndRuntime(t)
	r := connect(t, s, cri.WithoutExitEvents())
	sandbox := s.RunPod(criserver.PodConfig{UID: "uid"})
	dying := runContainer(t, s, sandbox, "dying")
	runContainer(t, s, sandbox, "other")

	first := watch(t, r) // receives the events that the server has kept: two for each sandbox and container
	for range 6 {
		<-first.events
	}

	clock := clocktesting.NewFakeClock(time.Now())
	runtime := announced{r, make(chan struct{})}
	g := pleg.NewGenericPLEG(runtime, 0, pleg.DefaultRelistPeriod, pleg.NewCache(), clock,
		pleg.WithLogger(logr.Discard()))
	g.Start(t.Context())
	defer g.Stop()
	must(t, g.WaitForSync(t.Context())) // the periodic list is complete
	<-runtime.connected
	waitFor(t, func() bool { return serverconfig.Of(s).EventStats().Readers == 2 })
	_ = g.Relist(t.Context()) // serves the list that the connection has requested
	events := g.Subscribe(t.Context(), pleg.WithCapacity(10))
	for range 3 {
		if e := <-events; e.Type != pleg.ContainerStarted {
			t.Fatalf("%v before the death", e)
		}
	}

	calls := func(when string, want map[string]int) {
		t.Helper()
		for method, n := range want {
			if got := s.Calls(method); got != n {
				t.Errorf("%s: %d %s, want %d", when, got, method, n)
			}
		}
	}
	serverconfig.Of(s).ResetCalls()
	must(t, s.ExitContainer(dying, 137, "Error"))
	select {
	case e := <-events:
		if e.Type != pleg.ContainerDied || e.Data != dying || e.Cause != pleg.CauseHint {
			t.Errorf("%v because of %s", e, e.Cause)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the death was not delivered")
	}
	calls("with the event", map[string]int{
		"ListPodSandbox": 1, "ListContainers": 1, "PodSandboxStatus": 1, "ContainerStatus": 2,
	})

	clock.Step(pleg.DefaultRelistPeriod / 20)
	waitFor(t, func() bool { return s.Calls("ListContainers") == 2 && s.Calls("ListPodSandbox") == 2 })
	_ = g.Relist(t.Context())
	waitFor(t, func() bool { return len(inFlight(r)) == 0 })
	calls("with the list that follows", map[string]int{"PodSandboxStatus": 1, "ContainerStatus": 2})
}
