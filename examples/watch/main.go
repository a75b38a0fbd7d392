// Command watch prints the lifecycle of a node's pods as it happens:
//
//	go run ./examples/watch
//	go run ./examples/watch --runtime-endpoint unix:///run/containerd/containerd.sock
//	go build -o plegwatch ./examples/watch
//
// The first watches a small node of its own, which needs no runtime and no rights. The last
// builds the program under a name that procps does not have.
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
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/printable"
)

// Exit codes; check has its own.
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
	case f.check:
		return check(ctx, f, stdout)
	}
	if err := watch(ctx, f, stdout, stderr); err != nil && !errors.Is(err, syscall.EPIPE) {
		fmt.Fprintf(stderr, "%s: %s\n", program, printable.Lines(err.Error()))
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
	logger := newLogger(stderr)
	runtime, err := connect(ctx, f.wait, endpoint, cri.WithLogger(logger), f.exits.option())
	if err != nil {
		if ctx.Err() != nil {
			return nil // told to end before it began
		}
		return err
	}
	defer runtime.Close()
	cache, registry := pleg.NewCache(), prometheus.NewRegistry()
	nodeName := f.nodeName
	if nodeName == "" {
		nodeName, _ = os.Hostname() // without it, metrics and page name no node
	}
	registry.MustRegister(nodeNameGauge(nodeName))
	generator := pleg.NewGenericPLEG(runtime, pleg.DefaultChannelCapacity, pleg.DefaultRelistPeriod,
		cache, clock.RealClock{}, pleg.WithRegisterer(registry), pleg.WithLogger(logger))

	fmt.Fprintf(stderr, "Watching %s. Ctrl-C ends it.\n", printable.Text(runtime.DescribeRuntime()))
	if f.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.duration)
		defer cancel()
	}
	generator.Start(context.WithoutCancel(ctx)) // until Stop: what is said at the end is of one that runs
	defer generator.Stop()
	if f.listen != "" {
		served, err := serve(f.listen, nodeName, generator, registry)
		if err != nil {
			return err
		}
		defer served.close()
		fmt.Fprintf(stderr, "Serving http://%[1]s/, /metrics and /healthz.\n", served.address)
	}
	follower := newFollower(generator, cache, f.filter, newPrinter(f.output, stdout), stderr)
	err = follower.follow(ctx)
	follower.summarize()
	return err
}

// connect returns the runtime at an endpoint: one that answers, or one to wait for.
func connect(ctx context.Context, wait bool, endpoint string, opts ...cri.Option) (*cri.Runtime, error) {
	if wait {
		return cri.Dial(endpoint, opts...)
	}
	return cri.Connect(ctx, endpoint, opts...)
}

// newLogger returns a logger whose lines are safe on a terminal.
func newLogger(w io.Writer) klog.Logger {
	return funcr.New(func(_, text string) {
		fmt.Fprintf(w, "%s  %s\n", time.Now().Format(timeLayout), printable.Text(text))
	}, funcr.Options{})
}
