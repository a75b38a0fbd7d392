// Command attribution prints the pod and the container of each PID on its command line.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := attribute(ctx, "", os.Args[1:]) // "" selects the default sockets
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// attribute prints the pod and container of each process.
func attribute(ctx context.Context, endpoint string, pids []string) error {
	runtime, err := cri.Connect(ctx, endpoint, cri.WithoutExitEvents())
	if err != nil {
		return err
	}
	defer runtime.Close()
	generator := pleg.New(runtime)
	generator.Start(ctx)
	defer generator.Stop()
	if err := generator.WaitForSync(ctx); err != nil {
		return err
	}
	a := newAttributor(generator, "/proc")
	for _, pid := range pids {
		fmt.Println(pid, a.lookUp(ctx, pid))
	}
	return nil
}
