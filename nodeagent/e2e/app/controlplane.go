package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// controlPlane answers every request at the address and port of a control-plane program, until the
// process receives a signal.
func controlPlane(name string) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	flags := map[string]string{}
	for _, arg := range os.Args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		flags[key] = value
	}
	address := map[string]string{
		"etcd":                    strings.TrimPrefix(flags["--listen-metrics-urls"], "http://"),
		"kube-apiserver":          net.JoinHostPort(flags["--advertise-address"], flags["--secure-port"]),
		"kube-controller-manager": net.JoinHostPort(flags["--bind-address"], "10257"),
		"kube-scheduler":          net.JoinHostPort(flags["--bind-address"], "10259"),
	}[name]
	listener, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// The certificate of a test server suffices, because probes accept any certificate.
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	_ = server.Listener.Close() // the listener above replaces this one
	server.Listener = listener
	if name == "etcd" {
		server.Start()
	} else {
		server.StartTLS()
	}
	<-ended
}
