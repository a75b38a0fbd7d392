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

// podWorker keeps the container of a pod running. Each of its syncs begins with a status that
// was observed after the last sync ended, so that it sees what it has done.
func podWorker(
	ctx context.Context, g *pleg.GenericPLEG, cache *pleg.PodCache, uid types.UID, restart func(*pleg.Status),
) {
	var synced time.Time
	for e := range g.Subscribe(ctx) {
		if e.ID != uid {
			continue
		}
		status, _, err := cache.LookupNewerThan(ctx, uid, synced)
		if err != nil {
			continue // ctx has ended, or the inspection failed: a PodSync comes when one succeeds
		}
		if len(status.ContainerStatuses) == 0 {
			return // the pod is gone
		}
		if last := status.ContainerStatuses[0]; last.State == pleg.ContainerStateExited {
			fmt.Printf("%s exited with %d: restarting\n", last.Name, last.ExitCode)
			restart(last)
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
	generator.Start(context.Background())
	defer generator.Stop()
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	go podWorker(ctx, generator, cache, "shop", func(dead *pleg.Status) { // a program calls CRI
		runtime.RestartContainer("shop", dead.ID.ID, fmt.Sprintf("app-%d", dead.RestartCount+2))
	})

	runtime.ExitContainer("shop", "app-1", 137, "OOMKilled")
	for e := range generator.Subscribe(ctx) {
		if e.Type == pleg.ContainerStarted && e.Data == "app-2" {
			fmt.Println(e.Pod.Containers[0].State, "again")
			break
		}
	}
	// Output:
	// app-1 exited with 137: restarting
	// running again
}
