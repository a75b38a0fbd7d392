// Command deaths prints how the containers of a node end. It is the first program of
// docs/GUIDE.md.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	endpoint := "" // tries the default sockets
	if len(os.Args) > 1 {
		endpoint = os.Args[1]
	}
	err := deaths(ctx, endpoint, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// deaths prints how containers end, until ctx ends.
func deaths(ctx context.Context, endpoint string, out io.Writer) error {
	runtime, err := cri.Connect(ctx, endpoint)
	if err != nil {
		return err
	}
	defer runtime.Close()
	generator := pleg.New(runtime)
	generator.Start(ctx)
	defer generator.Stop()

	_ = generator.Handle(ctx, pleg.Handler{ // until ctx ends
		OnContainerEnded: func(e *pleg.PodLifecycleEvent) {
			if !e.Initial {
				fmt.Fprintln(out, e)
			}
		},
	})
	return nil
}
