package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// This example prints how containers end. On a node, the endpoint is the socket of containerd or
// CRI-O. If the endpoint is empty, cri.Connect finds the socket.
func Example() {
	node, err := criserver.Start()
	if err != nil {
		panic(err)
	}
	defer node.Stop()
	sandbox := node.RunPod(criserver.PodConfig{Namespace: "shop", Name: "report"})
	job, err := node.RunContainer(sandbox, criserver.ContainerConfig{Name: "job"})
	if err != nil {
		panic(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	runtime, err := cri.Connect(ctx, node.Endpoint())
	if err != nil {
		panic(err)
	}
	defer runtime.Close()
	generator := pleg.New(runtime)
	generator.Start(ctx)
	defer generator.Stop()

	_ = generator.Handle(ctx, pleg.Handler{ // until ctx ends
		OnSynced: func() { _ = node.ExitContainer(job, 0, "") },
		OnContainerEnded: func(e *pleg.PodLifecycleEvent) {
			code, reason, _ := e.Exit()
			fmt.Println(e.Pod.Namespace, e.Pod.Name, e.Container.Name, code, reason)
			cancel()
		},
	})
	// Output:
	// shop report job 0 Completed
}

// In this unit test, nothing runs in the background, and time passes only when the test steps the
// clock.
func ExampleGenericPLEG_Relist() {
	runtime := plegtest.NewRuntime()
	now := clocktesting.NewFakeClock(time.Now())
	cache := pleg.NewCache()
	generator := pleg.New(runtime, pleg.WithCache(cache), pleg.WithClock(now))
	events := generator.Watch()

	runtime.SetPod(plegtest.NewPod("job", plegtest.Running("work")))
	_ = generator.Relist(context.Background())
	runtime.ExitContainer("job", "work", 3, "Error")
	_ = generator.Relist(context.Background())

	for len(events) > 0 {
		e := <-events
		fmt.Println(e.Type, e.Data)
	}
	status, err := cache.Get("job")
	fmt.Println(status.ContainerStatuses[0].ExitCode, status.ContainerStatuses[0].Reason, err)
	// Output:
	// ContainerStarted work
	// ContainerStarted job-sandbox
	// ContainerDied work
	// 3 Error <nil>
}

// Subscribe returns a channel for one subscriber. The subscription ends with its context.
func ExampleGenericPLEG_Subscribe() {
	runtime := plegtest.NewRuntime()
	runtime.SetPod(plegtest.NewPod("web", plegtest.Running("nginx")))
	generator := pleg.New(runtime)
	generator.Start(context.Background())
	defer generator.Stop()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for e := range generator.Subscribe(ctx, pleg.WithCapacity(1)) {
		fmt.Println(e.Type, e.Data)
		if e.IsSandbox() {
			cancel()
		}
	}
	// Output:
	// ContainerStarted nginx
	// ContainerStarted web-sandbox
}

// This worker waits until the cache shows the result of the worker's last action. The generator
// then lists the pod at once, and does not wait for the next period.
func ExamplePodCache_LookupNewerThan() {
	runtime := plegtest.NewRuntime()
	cache := pleg.NewCache()
	generator := pleg.New(runtime, pleg.WithCache(cache))
	generator.Start(context.Background())
	defer generator.Stop()

	runtime.SetPod(plegtest.NewPod("web", plegtest.Running("nginx")))
	done := time.Now()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	status, _, err := cache.LookupNewerThan(ctx, "web", done)
	fmt.Println(status.ContainerStatuses[0].State, err)
	// Output:
	// running <nil>
}

// The error of Healthy says what is wrong. It wraps the error of the last list.
func ExampleGenericPLEG_Healthy() {
	runtime := plegtest.NewRuntime()
	now := clocktesting.NewFakeClock(time.Now())
	generator := pleg.New(runtime, pleg.WithClock(now), pleg.WithLogger(logr.Discard()))
	fmt.Println(generator.Healthy())
	_ = generator.Relist(context.Background())
	fmt.Println(generator.Healthy())

	away := errors.New("connection refused")
	runtime.Fail(plegtest.GetPods, plegtest.AnyPod, away)
	now.Step(3*time.Minute + 5*time.Second)
	_ = generator.Relist(context.Background())
	healthy, err := generator.Healthy() // "pleg was last seen active 3m5s ago; threshold is 3m0s: …: connection refused"
	fmt.Println(healthy, errors.Is(err, away))
	// Output:
	// false pleg has yet to be successful: the generator is not running
	// true <nil>
	// false true
}

// ByContainerID finds the pod of a container. Security and observability agents know a container
// ID, an address or a name, and look for the pod.
func ExamplePodCache_ByContainerID() {
	runtime := plegtest.NewRuntime()
	runtime.SetPod(plegtest.NewPod("uid-1", plegtest.Running("nginx")))
	runtime.UpdatePod("uid-1", func(pod *pleg.Pod) { pod.Namespace, pod.Name = "shop", "web-0" })
	runtime.SetIPs("uid-1", "10.0.0.7")
	cache := pleg.NewCache()
	_ = pleg.New(runtime, pleg.WithCache(cache)).Relist(context.Background())

	if pod, found := cache.ByContainerID("containerd://nginx"); found {
		fmt.Println(pod.Namespace + "/" + pod.Name)
	}
	for _, pod := range cache.ByIP("10.0.0.7") {
		fmt.Println(pod.ID, pod.FindContainerStatusByName("nginx").State)
	}
	_, exists, err := cache.Lookup("uid-2")
	fmt.Println(exists, err)
	// Output:
	// shop/web-0
	// uid-1 running
	// false <nil>
}
