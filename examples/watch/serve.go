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
	"github.com/kubepleg/pleg/plegz"
)

// closeGrace is how long answers that are under way may take at the end.
const closeGrace = time.Second

// healthReporter is what /healthz needs of a generator.
type healthReporter interface {
	HealthReport() pleg.HealthReport
}

// server serves the page, /metrics and /healthz.
type server struct {
	address string
	http    *http.Server
	end     context.CancelFunc // ends the page's streams
	done    chan struct{}      // closed when the serving goroutine has ended
}

// serve begins to serve what a generator and its cache know on an address.
func serve(address, nodeName string, metrics prometheus.Gatherer, generator *pleg.GenericPLEG,
	cache *pleg.PodCache) (*server, error) {
	l, err := net.Listen("tcp", listenAddress(address))
	if err != nil {
		return nil, fmt.Errorf("serving: %w", err)
	}
	streams, end := context.WithCancel(context.Background())
	page := plegz.Handler(generator, cache, plegz.WithGatherer(metrics), plegz.WithNodeName(nodeName))
	s := &server{
		address: l.Addr().String(),
		http: &http.Server{
			Handler:           newHandler(page, metrics, generator),
			ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
			BaseContext: func(net.Listener) context.Context { return streams },
		},
		end:  end,
		done: make(chan struct{}),
	}
	go func() {
		defer close(s.done)
		_ = s.http.Serve(l) // ends with close, and by nothing else
	}()
	return s, nil
}

// close ends the server and returns when it has ended.
func (s *server) close() {
	s.end()
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

func newHandler(page http.Handler, metrics prometheus.Gatherer, health healthReporter) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/{$}", page)
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
