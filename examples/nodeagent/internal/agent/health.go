package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/runtime"
)

// readiness is what the runtime says of itself.
type readiness struct {
	mu sync.Mutex
	// Guarded by mu.
	last time.Time // when the runtime was ready last
	err  error     // of the last time that it was asked
}

// watch asks the runtime now and then until ctx ends, and calls changed after each answer.
func (r *readiness) watch(ctx context.Context, runtime *runtime.Client, changed func()) {
	ticker := time.NewTicker(readyPeriod)
	defer ticker.Stop()
	for {
		asked := time.Now()
		err := runtime.Ready(ctx)
		r.mu.Lock()
		r.err = err
		if err == nil {
			r.last = asked
		}
		r.mu.Unlock()
		changed()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// sick returns why the runtime cannot be used, nil if it can.
func (r *readiness) sick() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	age := time.Since(r.last)
	switch {
	case age <= readyTimeout:
		return nil
	case r.err != nil:
		return r.err
	case r.last.IsZero():
		return errors.New("the runtime has not said yet that it is ready")
	default:
		return fmt.Errorf("the runtime has not answered for %v whether it is ready", age.Round(time.Second))
	}
}

// sick returns why pods cannot be synced, in the words of the health check; nil if they can.
func (a *Agent) sick() error {
	if healthy, why := a.generator.Healthy(); !healthy {
		return why
	}
	return a.ready.sick()
}

// Handler serves /pods, /healthz and /metrics.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /pods", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, a.Status()) })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		code, report := http.StatusOK, struct {
			Reason string `json:"reason,omitempty"`
			PLEG   any    `json:"pleg"`
		}{PLEG: a.generator.HealthReport()}
		if why := a.sick(); why != nil {
			code, report.Reason = http.StatusInternalServerError, why.Error()
		}
		answer(w, code, report)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.config.Registry, promhttp.HandlerOpts{}))
	return mux
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // the client may be gone
}
