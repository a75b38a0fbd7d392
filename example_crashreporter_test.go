package pleg_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// reportCrashes reports once how each container ended, until ctx ends.
func reportCrashes(ctx context.Context, out io.Writer, g *pleg.GenericPLEG) error {
	return g.Handle(ctx, pleg.Handler{
		Want: func(pod *pleg.Pod) bool { return pod.Namespace == "shop" },
		OnContainerEnded: func(e *pleg.PodLifecycleEvent) {
			code, reason, seen := e.Exit()
			switch {
			case e.Initial: // it ended before this program began
			case !seen:
				fmt.Fprintln(out, e.Pod.Name, e.Container.Name, "is gone; nobody has seen how it ended")
			case code != 0:
				fmt.Fprintln(out, e.Pod.Name, e.Container.Name, "exited", code, reason, "restarts:", e.Status.RestartCount)
			}
		},
	})
}

// A crash reporter for one namespace reports each end once, with the runtime's final reason,
// although the runtime learns the reason late. The reporter needs no timer of its own.
func TestCrashReporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := plegtest.NewRuntime()
		for _, namespace := range []string{"shop", "jobs"} {
			pod := plegtest.NewPod(types.UID(namespace), plegtest.Running(namespace+"-2"), plegtest.Exited(namespace+"-1"))
			pod.Namespace, pod.Name, pod.Containers[0].Name = namespace, "cart-0", "cart"
			runtime.SetPod(pod)
		}
		generator := pleg.New(runtime)
		generator.Start(t.Context())
		defer generator.Stop()
		var reports bytes.Buffer
		go func() { _ = reportCrashes(t.Context(), &reports, generator) }()
		time.Sleep(time.Second)
		runtime.ExitContainer("shop", "shop-2", 137, "Error")
		runtime.ExitContainer("jobs", "jobs-2", 1, "Error")
		time.Sleep(1500 * time.Millisecond)
		runtime.ExitContainer("shop", "shop-2", 137, "OOMKilled")
		time.Sleep(5 * time.Second)
		runtime.RestartContainer("shop", "shop-2", "shop-3")
		time.Sleep(5 * time.Second)
		runtime.SetPods()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		const want = `cart-0 cart exited 137 OOMKilled restarts: 0
cart-0 cart is gone; nobody has seen how it ended
`
		if got := reports.String(); got != want {
			t.Errorf("reported:\n%s", got)
		}
	})
}
