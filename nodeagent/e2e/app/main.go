// Command app is a server that runs in the pods of the tests. Its arguments control its health.
//
//	app PORT [for=DURATION] [after=DURATION] [flap=DURATION] [grpc]
//
// The server starts when the duration "after" has passed. It stays healthy for the duration "for".
// With "flap", its health changes at that interval.
//
// If the executable is named like a control-plane program of kubeadm, app answers the probes of
// that program instead.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

func main() {
	if name := filepath.Base(os.Args[0]); name != "app" {
		controlPlane(name)
		return
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	var healthyFor, after, flap time.Duration
	useGRPC := false
	for _, arg := range os.Args[2:] {
		key, value, _ := strings.Cut(arg, "=")
		d, _ := time.ParseDuration(value)
		switch key {
		case "for":
			healthyFor = d
		case "after":
			after = d
		case "flap":
			flap = d
		case "grpc":
			useGRPC = true
		}
	}
	select {
	case <-time.After(after):
	case <-ended:
		return
	}
	began := time.Now()
	healthy := func() bool {
		age := time.Since(began)
		return (healthyFor == 0 || age < healthyFor) && (flap == 0 || age/flap%2 == 0)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("", os.Args[1]))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if useGRPC {
		server := grpc.NewServer()
		h := health.NewServer()
		grpc_health_v1.RegisterHealthServer(server, h)
		go func() {
			for range time.Tick(50 * time.Millisecond) {
				status := grpc_health_v1.HealthCheckResponse_NOT_SERVING
				if healthy() {
					status = grpc_health_v1.HealthCheckResponse_SERVING
				}
				h.SetServingStatus("", status)
			}
		}()
		go func() { _ = server.Serve(listener) }()
	} else {
		mux := http.NewServeMux()
		mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
			if !healthy() {
				http.Error(w, "unwell", http.StatusInternalServerError)
			}
		})
		go func() { _ = (&http.Server{Handler: mux, ReadHeaderTimeout: time.Second}).Serve(listener) }()
	}
	<-ended
}
