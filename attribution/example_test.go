package attribution_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/attribution"
	"github.com/kubepleg/pleg/plegtest"
)

// whereIs describes where a process runs.
func whereIs(ctx context.Context, attributor *attribution.Attributor, pid int) string {
	where, err := attributor.Process(ctx, pid, 0) // pass the start time if you have it
	switch {
	case errors.Is(err, attribution.ErrNoContainer):
		return "on the host"
	case err != nil: // it has ended, or its container is unknown
		return err.Error()
	case where.Container == nil: // gVisor and Kata run all processes of a pod in its sandbox
		return where.Pod.Namespace + "/" + where.Pod.Name
	}
	return where.Pod.Namespace + "/" + where.Pod.Name + ", " + where.Container.Name
}

// A real program passes a cri.Runtime to pleg.New.
func Example() {
	const id = "3f2a6b1c3f2a6b1c3f2a6b1c3f2a6b1c3f2a6b1c3f2a6b1c3f2a6b1c3f2a6b1c"
	runtime := plegtest.NewRuntime()
	runtime.SetPod(plegtest.NewPod("cart-0", plegtest.Running(id)))
	ctx := context.Background()
	generator := pleg.New(runtime)
	generator.Start(ctx)
	defer generator.Stop()
	if err := generator.WaitForSync(ctx); err != nil {
		fmt.Println(err)
	}
	attributor := attribution.New(generator, "")

	where, err := attributor.Cgroup(ctx, "0::/kubepods/podcart-0/"+id)
	fmt.Println(where.Pod.Name, where.Container.State, err)
	fmt.Println(whereIs(ctx, attributor, -1))
	// Output:
	// cart-0 running <nil>
	// process -1: no such process: open /proc/-1: no such file or directory
}
