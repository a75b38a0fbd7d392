package recipes

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// syncPods calls sync for each pod that exists or changes, until ctx ends. Several workers call
// sync, but never for the same pod at the same time. If sync fails, syncPods calls sync again with
// back-off.
func syncPods(ctx context.Context, g *pleg.GenericPLEG, cache *pleg.PodCache, workers int,
	sync func(ctx context.Context, status *pleg.PodStatus, exists bool) error) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.UID]())
	defer inWorkers(workers, func() {
		for uid, ended := queue.Get(); !ended; uid, ended = queue.Get() {
			status, exists, err := cache.Lookup(uid)
			if err == nil { // after a failed inspection, the next successful one sends a PodSync
				err = sync(ctx, status, exists)
				if err != nil {
					queue.AddRateLimited(uid)
				}
			}
			if err == nil {
				queue.Forget(uid)
			}
			queue.Done(uid)
		}
	})()
	defer queue.ShutDown()
	for e := range g.Subscribe(ctx) {
		queue.Add(e.ID)
	}
}

// inWorkers runs a function in several goroutines, and returns a function that waits for them.
func inWorkers(workers int, f func()) (wait func()) {
	var wg sync.WaitGroup
	for range workers {
		wg.Go(f)
	}
	return wg.Wait
}

// In this example, the first call of sync fails, and syncPods repeats it.
func Example_workQueue() {
	runtime, cache := plegtest.NewRuntime(), pleg.NewCache()
	runtime.SetPod(plegtest.NewPod("web", plegtest.Running("nginx")))
	generator := pleg.New(runtime, pleg.WithCache(cache))
	generator.Start(context.Background())
	defer generator.Stop()

	ctx, cancel := context.WithCancel(context.Background())
	failed := false
	syncPods(ctx, generator, cache, 1, func(_ context.Context, status *pleg.PodStatus, exists bool) error {
		if !failed {
			failed = true
			return errors.New("try again")
		}
		fmt.Println(status.Name, exists, status.FindContainerStatusByName("nginx").State)
		cancel()
		return nil
	})
	// Output: web true running
}
