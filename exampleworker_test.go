package pleg_test

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// podWorker keeps the container of a pod running: each sync begins with a status that was
// observed after the last one ended.
func podWorker(ctx context.Context, g *pleg.GenericPLEG, cache *pleg.PodCache, rt *plegtest.Runtime, uid types.UID) {
	events := g.Subscribe(ctx, 1)
	var synced time.Time
	for e := range events {
		if e.ID != uid {
			continue
		}
		status, err := cache.GetNewerThanContext(ctx, uid, synced)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			continue // the inspection failed: a PodSync comes when one succeeds
		}
		if last := status.ContainerStatuses[0]; last.State == pleg.ContainerStateExited {
			fmt.Printf("%s exited with %d: restarting\n", last.Name, last.ExitCode)
			rt.RestartContainer(uid, last.ID.ID, fmt.Sprintf("app-%d", len(status.ContainerStatuses)+1))
		}
		synced = time.Now()
	}
}

// A pod worker needs no polling and no store of statuses: events say when to look, the
// cache what there is.
func Example_podWorker() {
	runtime, cache := plegtest.NewRuntime(), pleg.NewCache()
	runtime.SetPod(plegtest.NewPod("shop", plegtest.Running("app-1")))
	generator := pleg.NewGenericPLEG(runtime, 10, time.Second, cache, clock.RealClock{})
	generator.Start()
	defer generator.Stop()
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	go podWorker(ctx, generator, cache, runtime, "shop")

	runtime.ExitContainer("shop", "app-1", 137, "OOMKilled")
	for e := range generator.Subscribe(ctx, 10) {
		if e.Type == pleg.ContainerStarted && e.Data == "app-2" {
			fmt.Println(e.Pod.Containers[0].State, "again")
			break
		}
	}
	// Output:
	// app-1 exited with 137: restarting
	// running again
}
