package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kubepleg/pleg"
)

// closeGrace is how long answers that are under way may take at the end.
const closeGrace = time.Second

// healthReporter is what /healthz needs of a generator.
type healthReporter interface {
	HealthReport() pleg.HealthReport
}

// server serves /metrics and /healthz.
type server struct {
	address string
	http    *http.Server
	done    chan struct{} // closed when the serving goroutine has ended
}

// serve begins to serve on an address.
func serve(address string, metrics prometheus.Gatherer, health healthReporter) (*server, error) {
	l, err := net.Listen("tcp", listenAddress(address))
	if err != nil {
		return nil, fmt.Errorf("serving metrics: %w", err)
	}
	s := &server{
		address: l.Addr().String(),
		http:    &http.Server{Handler: newHandler(metrics, health), ReadHeaderTimeout: 5 * time.Second},
		done:    make(chan struct{}),
	}
	go func() {
		defer close(s.done)
		_ = s.http.Serve(l) // ends with close, and by nothing else
	}()
	return s, nil
}

// close ends the server and returns when it has ended.
func (s *server) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close()
	}
	<-s.done
}

// listenAddress is address, on the loopback interface if it is a port alone: the
// metrics of a node are nobody else's business unless somebody says so.
func listenAddress(address string) string {
	if !strings.Contains(address, ":") {
		address = ":" + address
	}
	if port, alone := strings.CutPrefix(address, ":"); alone {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}

func newHandler(metrics prometheus.Gatherer, health healthReporter) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		report := health.HealthReport()
		w.Header().Set("Content-Type", "application/json")
		if !report.Healthy {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(report) // fails only when the client has gone
	})
	return mux
}
