package main

import (
	"context"
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

// server serves the page, /metrics and /healthz.
type server struct {
	address string
	http    *http.Server
	end     context.CancelFunc // ends the page's streams
	done    chan struct{}      // closed when the serving goroutine has ended
}

// serve begins to serve what a generator knows on an address.
func serve(address, nodeName string, generator *pleg.GenericPLEG, metrics prometheus.Gatherer) (*server, error) {
	l, err := net.Listen("tcp", listenAddress(address))
	if err != nil {
		return nil, fmt.Errorf("serving: %w", err)
	}
	streams, end := context.WithCancel(context.Background())
	s := &server{
		address: l.Addr().String(),
		http: &http.Server{
			Handler:           newHandler(nodeName, generator, metrics),
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

func newHandler(nodeName string, generator *pleg.GenericPLEG, metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/{$}", plegz.Handler(generator, plegz.WithNodeName(nodeName)))
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.Handle("GET /healthz", plegz.Healthz(generator))
	return mux
}

// nodeNameGauge is the kubelet's metric by which the rules of kubernetes-mixin name the node.
func nodeNameGauge(name string) prometheus.Collector {
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kubelet_node_name", Help: "The node's name. The count is always 1.",
		ConstLabels: prometheus.Labels{"node": strings.ToValidUTF8(name, "\uFFFD")},
	})
	gauge.Set(1)
	return gauge
}
