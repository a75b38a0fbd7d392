package pleg_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Handle replaces a channel: it calls the functions of the handler one at a time, in the goroutine
// that called Handle.
func ExampleGenericPLEG_Handle() {
	runtime := plegtest.NewRuntime()
	runtime.EmitOnChange(true)
	generator := pleg.New(runtime)
	generator.Start(context.Background())
	defer generator.Stop()
	runtime.SetPod(plegtest.NewPod("web", plegtest.Running("nginx")))

	done := errors.New("web is gone")
	ctx, cancel := context.WithCancelCause(context.Background())
	err := generator.Handle(ctx, pleg.Handler{
		OnPodAdded: func(pod *pleg.Pod, _ bool) { fmt.Println("added:", pod.Name) },
		OnContainerStarted: func(e *pleg.PodLifecycleEvent) {
			fmt.Println(e)
			runtime.ExitContainer("web", "nginx", 137, "OOMKilled")
		},
		OnContainerDied: func(e *pleg.PodLifecycleEvent) {
			fmt.Println(e)
			runtime.RemovePod("web")
		},
		OnPodRemoved: func(pod *pleg.Pod) {
			fmt.Println("removed:", pod.Name)
			cancel(done)
		},
	})
	fmt.Println(err)
	// Output:
	// added: web
	// default/web nginx (nginx) ContainerStarted
	// default/web nginx (nginx) ContainerDied exit 137 OOMKilled
	// removed: web
	// web is gone
}
