package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// The Go blocks of docs/ADOPTING.md are copied from this file, so that they compile and are tested.
// TestSnippetsAreOfExamples compares the document with this file.

// This example is for programs with koordlet's handlers for pods and containers that appear and
// disappear.
func Example_adoptingFromKoordlet() {
	runtime := plegtest.NewRuntime()
	runtime.EmitOnChange(true)
	runtime.SetPod(plegtest.NewPod("web-0", plegtest.Running("nginx")))
	generator := pleg.New(runtime)
	generator.Start(context.Background())
	defer generator.Stop()
	ctx, cancel := context.WithCancelCause(context.Background())
	addCgroup := func(pod types.UID, container string) {
		fmt.Println("added", pod, container)
		runtime.RemovePod(pod)
	}
	forget := func(pod types.UID) {
		fmt.Println("deleted", pod)
		cancel(errors.New("done"))
	}

	err := generator.Handle(ctx, pleg.Handler{
		OnPodAdded:         func(pod *pleg.Pod, _ bool) { fmt.Println("added", pod.Namespace+"/"+pod.Name) },
		OnContainerStarted: func(e *pleg.PodLifecycleEvent) { addCgroup(e.ID, e.Container.ID.ID) },
		OnPodRemoved:       func(pod *pleg.Pod) { forget(pod.ID) },
	})
	fmt.Println(err)
	// Output:
	// added default/web-0
	// added web-0 nginx
	// deleted web-0
	// done
}

// recreate stops a container and returns the status of its successor.
func recreate(
	ctx context.Context, g *pleg.GenericPLEG, pod types.UID, was pleg.ContainerID, name string, stop func() error,
) (*pleg.Status, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := g.Subscribe(ctx)
	if err := stop(); err != nil {
		return nil, err
	}
	for e := range events {
		if e.ID == pod && e.Type == pleg.ContainerStarted && e.Container.Name == name && e.Container.ID != was {
			return e.Status, nil
		}
	}
	return nil, fmt.Errorf("waiting for the successor of %s: %w", was, context.Cause(ctx))
}

// This example is for controllers like kruise-daemon's, which act on a container and wait for its
// successor.
func Example_adoptingFromKruise() {
	runtime, cache := plegtest.NewRuntime(), pleg.NewCache()
	runtime.EmitOnChange(true)
	nginx := plegtest.Running("nginx")
	runtime.SetPod(plegtest.NewPod("web-0", nginx))
	generator := pleg.New(runtime, pleg.WithCache(cache))
	generator.Start(context.Background())
	defer generator.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	restart := func(id, successor string) {
		runtime.ExitContainer("web-0", id, 137, "Error")
		runtime.RestartContainer("web-0", id, successor)
	}

	successor, err := recreate(ctx, generator, "web-0", nginx.ID, "nginx", func() error {
		restart("nginx", "nginx-2") // a real program calls CRI's StopContainer, and the kubelet starts the successor
		return nil
	})
	fmt.Println(successor.ID.ID, successor.State, err)

	stopped := time.Now()
	status, _, err := cache.LookupNewerThan(ctx, "web-0", stopped) // instead of GetPodStatus of the runtime
	fmt.Println(status.FindContainerStatusByName("nginx").RestartCount, err)
	// Output:
	// nginx-2 running <nil>
	// 1 <nil>
}

// This example is for programs with a store of pods by container ID, such as Datadog's
// workloadmeta.
func Example_adoptingFromDatadog() {
	runtime, cache := plegtest.NewRuntime(), pleg.NewCache()
	pod := plegtest.NewPod("uid-1", plegtest.Running("3f2a"))
	pod.Namespace, pod.Name, pod.Labels = "shop", "cart-0", map[string]string{"team": "checkout"}
	runtime.SetPod(pod)
	generator := pleg.New(runtime, pleg.WithCache(cache), pleg.WithClock(clocktesting.NewFakeClock(time.Now())))
	_ = generator.Relist(context.Background()) // a real program calls Start instead

	tags := func(containerID string) []string {
		status, found := cache.ByContainerID(containerID)
		if !found {
			return nil
		}
		return []string{"kube_namespace:" + status.Namespace, "pod_name:" + status.Name, "team:" + status.Labels["team"]}
	}
	fmt.Println(tags("containerd://3f2a"))
	fmt.Println(tags("containerd://unknown"))
	// Output:
	// [kube_namespace:shop pod_name:cart-0 team:checkout]
	// []
}
