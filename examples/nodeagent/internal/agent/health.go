package agent

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kubepleg/pleg/plegz"
)

// watchRuntime asks the runtime now and then whether it is ready, until ctx ends.
func (a *Agent) watchRuntime(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		err := a.Runtime.Ready(ctx)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.notReady = err
	}, readyPeriod)
}

// sick returns why pods cannot be synced, in the words of the health check; nil if they can.
func (a *Agent) sick() error {
	if healthy, why := a.generator.Healthy(); !healthy {
		return why
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.notReady
}

// Pods returns the pods with their statuses.
func (a *Agent) Pods() *v1.PodList {
	return &v1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: a.status.list()}
}

// Handler serves /healthz, /metrics and, at /, the library's page of the node.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if why := a.sick(); why != nil {
			http.Error(w, why.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.Registry, promhttp.HandlerOpts{}))
	mux.Handle("/", plegz.Handler(a.generator))
	return mux
}
