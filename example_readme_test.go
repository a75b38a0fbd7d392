package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegtest/criserver"
	"github.com/kubepleg/pleg/plegz"
)

// The snippets of README.md and docs/REFERENCE.md are in this file (TestSnippetsAreOfExamples).

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

func TestWebStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := plegtest.NewRuntime()
		generator := pleg.NewGenericPLEG(runtime, 10, time.Second, pleg.NewCache(), clock.RealClock{})
		generator.Start()
		defer generator.Stop()
		runtime.SetPod(plegtest.NewPod("web", plegtest.Running("nginx")))
		e := <-generator.Watch() // nginx has started; the pod's sandbox is next
		if e.Type != pleg.ContainerStarted || e.Data != "nginx" {
			t.Error(e)
		}
	})
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
