package ends_test

import (
	"context"
	"fmt"
	"os"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/ends"
	"github.com/kubepleg/pleg/plegtest"
)

// reportCrashes posts each crash until post returns nil, over restarts of the program.
func reportCrashes(ctx context.Context, g *pleg.GenericPLEG, dir string, post func(crash string) error) error {
	return ends.Follow(ctx, g, dir, func(_ context.Context, e ends.End) error {
		if e.Namespace != "shop" || e.Known && e.ExitCode == 0 {
			return nil
		}
		return post(e.String()) // after an error, the end is reported again later
	})
}

// A container has ended a minute before the program starts for the first time. The program runs until
// it has posted the end, and then for a second, in which it posts nothing.
func ExampleFollow() {
	dir, err := os.MkdirTemp("", "ends")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	runtime := plegtest.NewRuntime(plegtest.WithClock(clocktesting.NewFakeClock(time.Now().Add(-time.Minute))))
	pod := plegtest.NewPod("cart-0", plegtest.Running("cart"))
	pod.Namespace = "shop"
	runtime.SetPod(pod)
	runtime.ExitContainer("cart-0", "cart", 137, "OOMKilled")
	for _, longest := range []time.Duration{time.Minute, time.Second} {
		ctx, cancel := context.WithTimeout(context.Background(), longest)
		generator := pleg.New(runtime)
		generator.Start(ctx)
		err := reportCrashes(ctx, generator, dir, func(crash string) error {
			fmt.Println(crash)
			cancel()
			return nil
		})
		generator.Stop()
		cancel()
		fmt.Println(err)
	}
	// Output:
	// shop/cart-0 cart (cart) exit 137 OOMKilled
	// context canceled
	// context deadline exceeded
}
