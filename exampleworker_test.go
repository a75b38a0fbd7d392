package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/podworkers"
)

// keepRunning restarts dead containers, with one goroutine for each pod, until ctx ends. Each Sync
// sees the effects of the Sync before it. If restart fails, Sync is called again.
func keepRunning(ctx context.Context, g *pleg.GenericPLEG, restart func(*pleg.Status) error) error {
	workers := podworkers.New(g, podworkers.Options{
		Sync: func(_ context.Context, status *pleg.PodStatus, exists bool) (podworkers.Result, error) {
			if !exists || len(status.ContainerStatuses) == 0 {
				return podworkers.Result{}, nil // the pod is gone, so its worker ends
			}
			last := status.ContainerStatuses[0]
			if last.State != pleg.ContainerStateExited {
				return podworkers.Result{}, nil // the next event of the pod wakes its worker
			}
			fmt.Printf("%s exited with %d: restarting\n", last.Name, last.ExitCode)
			return podworkers.Result{Acted: true}, restart(last)
		},
		OnError: func(_ types.UID, err error, retry time.Duration) { fmt.Printf("%v: again in %v\n", err, retry) },
	})
	return workers.Run(ctx, nil)
}

// A pod worker needs neither polling nor its own store of statuses: an event wakes the worker, and
// the cache returns the status.
func Example_podWorkers() {
	runtime, cache := plegtest.NewRuntime(), pleg.NewCache()
	runtime.SetPod(plegtest.NewPod("shop", plegtest.Running("app-1")))
	generator := pleg.New(runtime, pleg.WithCache(cache))
	generator.Start(context.Background())
	defer generator.Stop()
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	failed, ended := false, make(chan struct{})
	go func() {
		defer close(ended)
		_ = keepRunning(ctx, generator, func(dead *pleg.Status) error { // a real program calls CRI
			if !failed {
				failed = true
				return errors.New("the runtime is busy")
			}
			runtime.RestartContainer("shop", dead.ID.ID, fmt.Sprintf("app-%d", dead.RestartCount+2))
			return nil
		})
	}()

	runtime.ExitContainer("shop", "app-1", 137, "OOMKilled")
	for e := range generator.Subscribe(ctx) {
		if e.Type == pleg.ContainerStarted && e.Data == "app-2" {
			fmt.Println(e.Pod.Containers[0].State, "again")
			break
		}
	}
	stop()
	<-ended
	// Output:
	// app-1 exited with 137: restarting
	// the runtime is busy: again in 100ms
	// app-1 exited with 137: restarting
	// running again
}
