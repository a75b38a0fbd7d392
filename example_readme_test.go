package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegtest/criserver"
	"github.com/kubepleg/pleg/plegz"
)

// The snippets of README.md are in this file (TestSnippetsAreOfExamples).

func watchPods(
	ctx context.Context, endpoint string, handle func(*pleg.PodLifecycleEvent, *pleg.PodStatus, error),
) error {
	runtime, err := cri.Connect(ctx, endpoint) // "" tries the default sockets
	if err != nil {
		return err
	}
	defer runtime.Close()
	cache := pleg.NewCache()
	generator := pleg.NewGenericPLEG(
		runtime, pleg.DefaultChannelCapacity, pleg.DefaultRelistPeriod, cache, clock.RealClock{})
	generator.Start()
	defer generator.Stop()

	for e := range generator.Subscribe(ctx, 100) { // first what exists, marked as Initial; then what happens
		status, err := cache.Get(e.ID) // at least as new as the event
		handle(e, status, err)
	}
	return context.Cause(ctx)
}

func Example_readme() {
	server, err := criserver.Start() // in place of a containerd
	if err != nil {
		panic(err)
	}
	defer server.Stop()
	server.RunPod(criserver.PodConfig{UID: "uid-1", Namespace: "shop", Name: "web-0"})
	ctx, cancel := context.WithCancelCause(context.Background())
	err = watchPods(ctx, server.Endpoint(), func(e *pleg.PodLifecycleEvent, status *pleg.PodStatus, err error) {
		fmt.Println(e.Pod.Name, e.Type, e.Initial, status.ID, err)
		cancel(errors.New("enough"))
	})
	fmt.Println(err)
	// Output:
	// web-0 ContainerStarted true uid-1 <nil>
	// enough
}

func Example_readmeTest() {
	now := clocktesting.NewFakeClock(time.Now()) // k8s.io/utils/clock/testing
	runtime := plegtest.NewRuntime(plegtest.WithClock(now))
	generator := pleg.NewGenericPLEG(runtime, 10, time.Second, pleg.NewCache(), now)
	events := generator.Watch()
	runtime.SetPod(plegtest.NewPod("web", plegtest.Running("nginx")))
	generator.Relist() // synchronous and complete
	e := <-events      // nginx has started; the pod's sandbox is next

	fmt.Println(e)
	// Output:
	// default/web nginx (nginx) ContainerStarted
}

func Example_readmePage() {
	cache, mux := pleg.NewCache(), http.NewServeMux()
	generator := pleg.NewGenericPLEG(plegtest.NewRuntime(), 10, time.Second, cache, clock.RealClock{})
	generator.Start()
	defer generator.Stop()

	mux.Handle("/debug/plegz/", plegz.Handler(generator, cache)) // github.com/kubepleg/pleg/plegz

	server := httptest.NewServer(mux)
	defer server.Close()
	resp, err := http.Get(server.URL + "/debug/plegz/")
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, strings.HasPrefix(resp.Header.Get("Content-Type"), "text/"))
	// Output:
	// 200 true
}
