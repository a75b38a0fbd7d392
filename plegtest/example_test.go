package plegtest_test

import (
	"context"
	"fmt"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// A unit test sets pods, relists and reads the events. It needs no node, no goroutine and no
// waiting.
func Example() {
	rt := plegtest.NewRuntime()
	g := pleg.New(rt)
	events := g.Watch()

	rt.SetPod(plegtest.NewPod("web", plegtest.Running("nginx")))
	_ = g.Relist(context.Background())
	rt.ExitContainer("web", "nginx", 137, "OOMKilled")
	_ = g.Relist(context.Background())

	for len(events) > 0 {
		e := <-events
		fmt.Println(e.ID, e.Type, e.Data)
	}
	// Output:
	// web ContainerStarted nginx
	// web ContainerStarted web-sandbox
	// web ContainerDied nginx
}

// A fault blocks an inspection until the fault is healed.
func ExampleRuntime_Inject() {
	rt := plegtest.NewRuntime()
	rt.SetPod(plegtest.NewPod("web"))
	defer rt.Heal()

	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	heal := rt.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, PodUID: "web", Block: true})
	_, err := rt.GetPodStatus(ctx, rt.Pod("web"))
	fmt.Println(err)

	heal()
	status, err := rt.GetPodStatus(context.Background(), rt.Pod("web"))
	fmt.Println(status.ID, err, rt.PodCalls(plegtest.GetPodStatus, "web"))
	// Output:
	// context deadline exceeded
	// web <nil> 2
}

// One call in your test runs the conformance test of an adapter. The error lists every problem:
//
//	if err := plegtest.TestRuntime(runtime, "web"); err != nil {
//		t.Error(err)
//	}
func ExampleTestRuntime() {
	server, err := criserver.Start() // stands for your runtime on a quiet node
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Stop()
	sandbox := server.RunPod(criserver.PodConfig{UID: "web"})
	for code, name := range []string{"ok", "failed"} {
		id, err := server.RunContainer(sandbox, criserver.ContainerConfig{Name: name})
		if err == nil {
			err = server.ExitContainer(id, code, "")
		}
		if err != nil {
			fmt.Println(err)
		}
	}

	runtime, err := cri.Connect(context.Background(), server.Endpoint()) // the adapter under test
	if err != nil {
		fmt.Println(err)
		return
	}
	defer runtime.Close()
	fmt.Println(plegtest.TestRuntime(runtime, "web"))
	// Output:
	// <nil>
}

// The report of a problem states the expected result, the actual result and why it matters.
func ExampleTestRuntime_problems() {
	rt := plegtest.NewRuntime()
	rt.SetPods(plegtest.NewPod("web"), plegtest.NewPod("web"))
	fmt.Println(plegtest.TestRuntime(rt.Plain(), "web"))
	// Output:
	// plegtest.TestRuntime found 2 problem(s) with plegtest.plainRuntime:
	//   GetPods(all=true): expected each UID once, saw "web" again at index 1: only the first is used
	//   GetPods(all=false): expected each UID once, saw "web" again at index 1: only the first is used
}
