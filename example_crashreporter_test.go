package pleg_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// reportCrashes reports how containers end, until the channel is closed. The event of a death has
// the last status of its container. A runtime may learn late why a container died: then a PodSync
// comes, which has it.
func reportCrashes(out io.Writer, events <-chan *pleg.PodLifecycleEvent) {
	for e := range events {
		code, reason, seen := e.Exit()
		switch {
		case e.Pod.Namespace != "shop" || e.Initial || e.IsSandbox() || e.Type == pleg.ContainerRemoved: // skip it
		case e.Type == pleg.ContainerDied && !seen:
			fmt.Fprintln(out, e.Pod.Name, e.Container.Name, "is gone; nobody has seen how it ended")
		case code != 0:
			fmt.Fprintln(out, e.Pod.Name, e.Container.Name, "exited", code, reason, "restarts:", e.Status.RestartCount)
		}
	}
}

// A crash reporter for one namespace. It reads so late that the pods are gone.
func Example_crashReporter() {
	runtime := plegtest.NewRuntime()
	cache := pleg.NewCache()
	generator := pleg.NewGenericPLEG(runtime, 0, time.Second, cache, clocktesting.NewFakeClock(time.Now()))
	events := generator.Subscribe(context.Background(), pleg.WithName("crash-reporter"))

	for _, namespace := range []string{"shop", "jobs"} {
		pod := plegtest.NewPod(types.UID(namespace), plegtest.Running(namespace+"-2"), plegtest.Exited(namespace+"-1"))
		pod.Namespace, pod.Name, pod.Containers[0].Name = namespace, "cart-0", "cart"
		runtime.SetPod(pod)
	}
	_ = generator.Relist(context.Background()) // a program calls Start instead, and the rest happens on the node
	runtime.ExitContainer("shop", "shop-2", 137, "OOMKilled")
	runtime.ExitContainer("jobs", "jobs-2", 1, "Error")
	_ = generator.Relist(context.Background())
	runtime.RestartContainer("shop", "shop-2", "shop-3")
	runtime.RemoveContainer("shop", "shop-2")
	_ = generator.Relist(context.Background())
	runtime.SetPods()
	_ = generator.Relist(context.Background())
	generator.Stop()

	reportCrashes(os.Stdout, events)
	// Output:
	// cart-0 cart exited 137 OOMKilled restarts: 0
	// cart-0 cart is gone; nobody has seen how it ended
}

// The runtime says first that a container failed, and later that it had outgrown its memory.
func TestCrashReporterLateReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := plegtest.NewRuntime()
		cart := plegtest.NewPod("cart", plegtest.Running("app"))
		cart.Namespace = "shop"
		runtime.SetPod(cart)
		cache := pleg.NewCache()
		generator := pleg.NewGenericPLEG(runtime, 0, 0, cache, clock.RealClock{})
		generator.Start(t.Context())
		var reports bytes.Buffer
		go reportCrashes(&reports, generator.Subscribe(t.Context()))
		time.Sleep(time.Second)
		runtime.ExitContainer("cart", "app", 137, "Error")
		time.Sleep(1500 * time.Millisecond)
		runtime.ExitContainer("cart", "app", 137, "OOMKilled")
		time.Sleep(5 * time.Second)
		generator.Stop()
		synctest.Wait()
		const want = "cart app exited 137 Error restarts: 0\ncart app exited 137 OOMKilled restarts: 0\n"
		if got := reports.String(); got != want {
			t.Errorf("reported:\n%s", got)
		}
	})
}
