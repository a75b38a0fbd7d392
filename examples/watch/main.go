// Command watch prints the lifecycle of a node's pods as it happens:
//
//	go run ./examples/watch
//	go run ./examples/watch --runtime-endpoint unix:///run/containerd/containerd.sock
//
// The first watches a small node of its own, which needs no runtime and no rights.
// What a program of yours would need of this one is the function watch, below.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second signal does not wait for a clean end
	// Piped into head, a write fails and the watch ends as it should, rather than
	// by a signal that leaves the node's socket behind.
	signal.Ignore(syscall.SIGPIPE)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run watches until ctx ends and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f, err := parseFlags(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	}
	if err := watch(ctx, f, stdout, stderr); err != nil && !errors.Is(err, syscall.EPIPE) {
		fmt.Fprintln(stderr, "watch:", err)
		return exitFailed
	}
	return exitOK
}

// watch prints events to stdout until ctx ends, and what else there is to say to
// stderr.
func watch(ctx context.Context, f flags, stdout, stderr io.Writer) error {
	endpoint, stopNode, err := f.node()
	if err != nil {
		return err
	}
	defer stopNode()

	// A runtime, a generator on it, and a cache that the generator fills: that is
	// all the wiring there is.
	runtime, err := cri.Connect(ctx, endpoint)
	if err != nil {
		if ctx.Err() != nil {
			return nil // told to end before it began
		}
		return err
	}
	defer runtime.Close()
	cache, registry := pleg.NewCache(), prometheus.NewRegistry()
	generator := pleg.NewGenericPLEG(runtime, pleg.DefaultChannelCapacity, pleg.DefaultRelistPeriod,
		cache, clock.RealClock{}, pleg.WithRegisterer(registry))

	fmt.Fprintf(stderr, "Watching %s. Ctrl-C ends it.\n", runtime.DescribeRuntime())
	if f.metricsAddress != "" {
		served, err := serve(f.metricsAddress, registry, generator)
		if err != nil {
			return err
		}
		defer served.close()
		fmt.Fprintf(stderr, "Serving http://%[1]s/metrics and http://%[1]s/healthz.\n", served.address)
	}

	if f.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.duration)
		defer cancel()
	}
	generator.Start()
	defer generator.Stop()
	follower := newFollower(generator, cache, newPrinter(f.output, stdout), stderr)
	err = follower.follow(ctx)
	follower.summarize()
	return err
}
