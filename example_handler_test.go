package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// A handler instead of a channel: its functions are called one at a time, in the goroutine
// of Handle.
func ExampleGenericPLEG_Handle() {
	runtime := plegtest.NewRuntime()
	runtime.EmitOnChange(true)
	generator := pleg.NewGenericPLEG(runtime, 10, time.Second, pleg.NewCache(), clock.RealClock{})
	generator.Start(context.Background())
	defer generator.Stop()
	runtime.SetPod(plegtest.NewPod("web", plegtest.Running("nginx")))

	done := errors.New("web is gone")
	ctx, cancel := context.WithCancelCause(context.Background())
	err := generator.Handle(ctx, pleg.Handler{
		OnPodAdded: func(pod *pleg.Pod, _ bool) { fmt.Println("added:", pod.Name) },
		OnContainerStarted: func(e *pleg.PodLifecycleEvent) {
			fmt.Println(e)
			runtime.ExitContainer("web", "nginx", 137, "OOMKilled")
		},
		OnContainerDied: func(e *pleg.PodLifecycleEvent) {
			fmt.Println(e)
			runtime.RemovePod("web")
		},
		OnPodRemoved: func(pod *pleg.Pod) {
			fmt.Println("removed:", pod.Name)
			cancel(done)
		},
	})
	fmt.Println(err)
	// Output:
	// added: web
	// default/web nginx (nginx) ContainerStarted
	// default/web nginx (nginx) ContainerDied exit 137 OOMKilled
	// removed: web
	// web is gone
}

// followDeaths reports how containers end, also those that ended while the agent was away: after
// since, the time that the agent before it has stored.
func followDeaths(ctx context.Context, g *pleg.GenericPLEG, since time.Time,
	report func(*pleg.PodLifecycleEvent), store func(time.Time)) error {
	synced, latest := false, since
	return g.Handle(ctx, pleg.Handler{
		OnContainerDied: func(e *pleg.PodLifecycleEvent) {
			_, _, seen := e.Exit()
			if e.Initial && !(seen && e.Status.FinishedAt.After(since)) {
				return // reported before
			}
			report(e)
			if seen && e.Status.FinishedAt.After(latest) {
				latest = e.Status.FinishedAt
			}
			if synced {
				store(latest)
			}
		},
		OnSynced: func() { // what ended meanwhile has been reported, in whatever order
			synced = true
			store(latest)
		},
	})
}

// One container ends while an agent runs, one while none does, and one under the next agent.
func TestDeathsWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := plegtest.NewRuntime()
		runtime.SetPod(plegtest.NewPod("web", plegtest.Running("a"), plegtest.Running("b"), plegtest.Running("c")))
		var stored time.Time
		var reported []string
		agent := func(exits string) {
			g := pleg.NewGenericPLEG(runtime, 0, 0, pleg.NewCache(), clock.RealClock{})
			g.Start(t.Context())
			go func() {
				_ = followDeaths(t.Context(), g, stored,
					func(e *pleg.PodLifecycleEvent) { reported = append(reported, e.Container.Name) },
					func(latest time.Time) { stored = latest })
			}()
			time.Sleep(1500 * time.Millisecond)
			runtime.ExitContainer("web", exits, 1, "Error")
			time.Sleep(1500 * time.Millisecond)
			g.Stop() // ends Handle too
			synctest.Wait()
		}
		agent("a")
		time.Sleep(time.Minute)
		runtime.ExitContainer("web", "b", 1, "Error")
		time.Sleep(time.Minute)
		agent("c")
		if !slices.Equal(reported, []string{"a", "b", "c"}) {
			t.Errorf("reported: %q", reported)
		}
	})
}
