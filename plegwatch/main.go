// Command plegwatch prints the lifecycle of a node's pods as it happens. It can also serve a page,
// metrics and the health of the node:
//
//	plegwatch
//	plegwatch --runtime-endpoint unix:///run/containerd/containerd.sock
//
// If it finds no endpoint, it watches a simulated node, which needs no runtime and no privileges.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/grpclog"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/healthreport"
	"github.com/kubepleg/pleg/internal/printable"
)

const program = "plegwatch"

// The exit codes of a watch. The codes of --check are in check.go.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// endGrace is how long the program may take to end after a signal. It is longer than closeGrace, so
// that requests in progress can finish.
const endGrace = 3 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		stop() // from now on, a signal ends the program at once
		// If nobody reads stdout or stderr, a write can block for ever. So exit after endGrace.
		time.AfterFunc(endGrace, func() { os.Exit(exitFailed) })
	})
	// If the reader of stdout closes the pipe, as head does, the write fails and the watch ends in
	// order. SIGPIPE would kill the program and leave the simulated node's socket behind.
	signal.Ignore(syscall.SIGPIPE)
	// gRPC would log texts of the runtime to stderr, unescaped. The errors of calls include these
	// texts anyway.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run executes the command line until ctx ends, and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == historyCommand {
		return printHistory(args[1:], stdout, stderr)
	}
	f, err := parseFlags(args, stderr)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprint(stdout, usage())
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "%s: %s (%s --help lists the flags)\n", program, printable.Text(err.Error()), program)
		return exitUsage
	case f.version:
		fmt.Fprintln(stdout, buildOf().text())
		return exitOK
	case f.check:
		return check(ctx, f, stdout)
	}
	if err := watch(ctx, f, stdout, stderr); err != nil && !errors.Is(err, syscall.EPIPE) {
		fmt.Fprintf(stderr, "%s: %s\n", program, printable.Lines(err.Error()))
		return exitFailed
	}
	return exitOK
}

// watch prints events to stdout until ctx ends, and logs to stderr.
func watch(ctx context.Context, f flags, stdout, stderr io.Writer) error {
	endpoint, stopNode, err := f.node()
	if err != nil {
		return err
	}
	defer stopNode()

	log, logger := newLoggers(f.logFormat, f.verbosity, stderr)
	var written *history
	earlier := new(past)
	if f.history != "" {
		if written, earlier, err = openHistory(f.history, f.size); err != nil {
			return err
		}
		defer func() { _ = written.close() }()
		if earlier.unreadable > 0 {
			log.Warn("The history contains lines that are torn, or of another version", "lines", earlier.unreadable)
		}
		if t := earlier.trouble(); len(t) > 0 {
			log.Warn("An earlier agent saw problems", "since", t[0].Time,
				"last", healthreport.WithoutAges(t[len(t)-1].Sentence))
		}
	}
	// Nothing here shows annotations, and tenants may give each pod 256 KiB of them.
	runtime, err := connect(ctx, f.wait, endpoint, cri.WithLogger(logger), cri.WithAnnotations(), f.exits.option())
	if err != nil {
		if ctx.Err() != nil {
			return nil // a signal came before the watch began
		}
		return f.explain(err)
	}
	defer runtime.Close()
	cache, registry := pleg.NewCache(), prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildOf().gauge(), nodeNameGauge(f.nodeName))
	generator := pleg.New(runtime, pleg.WithCache(cache), pleg.WithRegisterer(registry), pleg.WithLogger(logger))

	log.Info("Watching", "runtime", runtime.DescribeRuntime(), "node", f.nodeName, "version", buildOf().version)
	if f.endpoint == demoEndpoint {
		log.Info("This node is simulated; for a real one, name its runtime's socket with --runtime-endpoint")
	}
	if f.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.duration)
		defer cancel()
	}
	// The generator runs until Stop, even after ctx ends: the summary describes a running generator.
	generator.Start(context.WithoutCancel(ctx))
	defer generator.Stop()
	if len(f.listen) > 0 {
		served, err := serve(f.listen, f.wait, newHandler(ctx, f, generator, registry, earlier), log)
		if err != nil {
			return err
		}
		defer served.close()
	}
	follower := newFollower(generator, cache, f, newPrinter(f.output, stdout), written, log)
	if !f.since.isZero() {
		if err := earlier.print(follower.printer, &f, follower.began); err != nil {
			return err
		}
	}
	err = follower.follow(ctx)
	follower.summarize()
	return err
}

// connect returns the runtime at an endpoint. If wait is false, it fails if the runtime does not
// answer. If wait is true, it returns at once, and the runtime may appear later.
func connect(ctx context.Context, wait bool, endpoint string, opts ...cri.Option) (*cri.Runtime, error) {
	if wait {
		return cri.Dial(endpoint, opts...)
	}
	return cri.Connect(ctx, endpoint, opts...)
}
