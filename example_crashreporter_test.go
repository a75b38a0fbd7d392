package pleg_test

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// reportCrashes reports how containers end, until the channel is closed. It keeps no list of
// containers and no statuses: the event has the last status of its container.
func reportCrashes(deaths <-chan *pleg.PodLifecycleEvent) {
	for e := range deaths {
		switch s := e.Status; {
		case e.Pod.Namespace != "shop" || e.Type != pleg.ContainerDied || e.Initial || e.IsSandbox(): // skip it
		case s == nil || s.State != pleg.ContainerStateExited:
			fmt.Println(e.Pod.Name, e.Container.Name, "is gone; nobody has seen how it ended")
		case s.ExitCode != 0:
			fmt.Println(e.Pod.Name, s.Name, "exited", s.ExitCode, s.Reason, "restarts:", s.RestartCount)
		}
	}
}

// A crash reporter for one namespace. It reads so late that the pods are gone.
func Example_crashReporter() {
	runtime := plegtest.NewRuntime()
	clock := clocktesting.NewFakeClock(time.Now())
	generator := pleg.NewGenericPLEG(runtime, 0, time.Second, pleg.NewCache(), clock)
	events := generator.Subscribe(context.Background(), pleg.DefaultChannelCapacity,
		pleg.WithName("crash-reporter"))

	for _, namespace := range []string{"shop", "jobs"} {
		pod := plegtest.NewPod(types.UID(namespace), plegtest.Running(namespace+"-2"), plegtest.Exited(namespace+"-1"))
		pod.Namespace, pod.Name, pod.Containers[0].Name = namespace, "cart-0", "cart"
		runtime.SetPod(pod)
	}
	generator.Relist() // a program calls Start instead, and the rest happens on the node
	runtime.ExitContainer("shop", "shop-2", 137, "OOMKilled")
	runtime.ExitContainer("jobs", "jobs-2", 1, "Error")
	generator.Relist()
	runtime.RestartContainer("shop", "shop-2", "shop-3")
	runtime.RemoveContainer("shop", "shop-2")
	generator.Relist()
	runtime.SetPods()
	generator.Relist()
	generator.Stop()

	reportCrashes(events)
	// Output:
	// cart-0 cart exited 137 OOMKilled restarts: 0
	// cart-0 cart is gone; nobody has seen how it ended
}
