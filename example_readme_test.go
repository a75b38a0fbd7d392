package pleg_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

// The Go block of docs/REFERENCE.md and some blocks of docs/GUIDE.md are copied from this file.
// TestSnippetsAreOfExamples compares the documents with this file.

// hack/compat.sh runs this test in modules that pin the dependency versions of other projects.
func TestWebStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := plegtest.NewRuntime()
		generator := pleg.New(runtime)
		generator.Start(t.Context())
		defer generator.Stop()
		runtime.SetPod(plegtest.NewPod("web", plegtest.Running("nginx")))
		e := <-generator.Watch() // nginx has started; the event of its sandbox comes next
		if e.Type != pleg.ContainerStarted || e.Data != "nginx" {
			t.Error(e)
		}
	})
}

func Example_readmePage() {
	mux := http.NewServeMux()
	generator := pleg.New(plegtest.NewRuntime())
	generator.Start(context.Background())
	defer generator.Stop()

	mux.Handle("/debug/plegz/", plegz.Handler(generator)) // github.com/kubepleg/pleg/plegz

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

// endsAgent prints how containers end, until ctx ends. It may start before the runtime.
func endsAgent(ctx context.Context, endpoint string, serve func(http.Handler)) error {
	runtime, err := cri.Dial(endpoint) // fails only if no runtime can ever exist at this endpoint
	if err != nil {
		return err
	}
	defer runtime.Close()
	cache, registry := pleg.NewCache(), prometheus.NewRegistry()
	generator := pleg.New(runtime, pleg.WithCache(cache),
		pleg.WithRegisterer(registry))
	generator.Start(ctx)
	defer generator.Stop()
	serve(operatorsHandler(generator, registry)) // returns at once

	_ = generator.Handle(ctx, pleg.Handler{OnContainerEnded: func(e *pleg.PodLifecycleEvent) { fmt.Println(e) }})
	return nil
}

// operatorsHandler serves the agent's health, its metrics and the page of the node.
func operatorsHandler(g *pleg.GenericPLEG, metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/healthz", plegz.Healthz(g)) // for readiness; see below
	mux.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.Handle("/debug/plegz/", plegz.Handler(g))
	return mux
}

// This agent serves its health, its metrics and a page. In this example, no runtime listens at its
// socket.
func Example_agent() {
	ctx, cancel := context.WithCancel(context.Background())
	err := endsAgent(ctx, "unix:///nowhere.sock", func(h http.Handler) {
		for _, path := range []string{"/healthz", "/metrics", "/debug/plegz/"} {
			answer := httptest.NewRecorder()
			request := httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil)
			request.RemoteAddr = "127.0.0.1:50000"
			h.ServeHTTP(answer, request)
			fmt.Println(path, answer.Code)
		}
		cancel()
	})
	fmt.Println(err)
	// Output:
	// /healthz 503
	// /metrics 200
	// /debug/plegz/ 200
	// <nil>
}

func TestStuckPodIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := plegtest.NewRuntime()
		runtime.SetPods(plegtest.NewPod("web", plegtest.Running("nginx")), plegtest.NewPod("cart", plegtest.Running("app")))
		generator := pleg.New(runtime)
		generator.Start(t.Context())
		defer generator.Stop()
		runtime.Block(plegtest.GetPodStatus, "web")
		runtime.ExitContainer("web", "nginx", 137, "OOMKilled")
		time.Sleep(10 * time.Second) // takes no real time
		failing := generator.HealthReport().FailingPods
		if healthy, err := generator.Healthy(); !healthy || len(failing) != 1 || failing[0].Name != "web" {
			t.Error(err, failing)
		}
	})
}
