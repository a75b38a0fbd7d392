// Command nodeagent runs pods from manifest files on a container runtime, and keeps them running.
// It is a small example of a node agent that uses the library:
//
//	go run .
//	go run . --runtime-endpoint unix:///run/containerd/containerd.sock --manifests DIR
//
// The first command runs the embedded manifests on a simulated runtime inside the process. It needs
// no privileges. See README.md.
package main

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/nodeagent/internal/agent"
	"github.com/kubepleg/pleg/nodeagent/internal/demo"
	"github.com/kubepleg/pleg/nodeagent/internal/images"
	"github.com/kubepleg/pleg/nodeagent/internal/logs"
	"github.com/kubepleg/pleg/nodeagent/internal/manifest"
	"github.com/kubepleg/pleg/nodeagent/internal/page"
	"github.com/kubepleg/pleg/nodeagent/internal/runtime"
	"github.com/kubepleg/pleg/nodeagent/internal/status"
)

//go:embed manifests
var shipped embed.FS

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	f, err := parseFlags(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		os.Exit(2)
	}
	if err := run(ctx, f, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "nodeagent:", err)
		os.Exit(1)
	}
}

// run runs the agent until ctx ends.
func run(ctx context.Context, f flags, stdout, stderr io.Writer) error {
	logger := funcr.New(func(_, text string) {
		fmt.Fprintf(stderr, "%s  %s\n", time.Now().Format(page.TimeLayout), text)
	}, funcr.Options{Verbosity: f.verbosity})
	inProcess := f.endpoint == ""
	if inProcess {
		node, err := demo.Start(shipped)
		if err != nil {
			return err
		}
		defer node.Stop()
		f.endpoint, f.stateDir = node.Endpoint, cmp.Or(f.stateDir, node.Dir)
		f.manifests = cmp.Or(f.manifests, filepath.Join(node.Dir, "manifests"))
	}
	// The library uses a separate connection, so that the agent's calls never delay the library's
	// lists.
	reader, err := cri.Dial(f.endpoint, cri.WithLogger(logger), cri.WithExitsDir(f.exitEvents))
	if err != nil {
		return err
	}
	defer reader.Close()
	socket := strings.TrimPrefix(strings.TrimPrefix(f.endpoint, "unix:"), "//")
	conn, err := dial(socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	stateDir, err := filepath.Abs(cmp.Or(f.stateDir, "/var/lib/nodeagent"))
	if err != nil {
		return err
	}
	inState := func(name string) string { return filepath.Join(stateDir, name) }
	if err := makePrivate(stateDir, inState("pods"), inState("logs"), inState("status")); err != nil {
		return err
	}
	for _, path := range []string{inState("lock"), socket + ".nodeagent.lock"} {
		held, err := lock(path)
		if err != nil {
			return err
		}
		defer held.Close()
	}
	sink := status.Directory(inState("status"))
	adopted, err := sink.Read()
	if err != nil {
		logger.Error(err, "Some statuses from before are lost")
	}
	source, registry := manifest.NewSource(f.manifests, f.nodeName, adopted, logger), prometheus.NewRegistry()
	client := runtime.New(conn, stateDir, f.cgroupParent)
	a := agent.New(agent.Config{
		Reader: reader, Runtime: client, NodeName: f.nodeName, NodeIP: f.nodeIP.String(), Sink: sink, Adopted: adopted,
		OnStatus: page.Printer(stdout), Registry: registry, Logger: logger, Clock: clock.RealClock{},
	})
	served := page.Pods{Running: a.Pods, Refused: source.Refused}
	registry.MustRegister(prometheus.CollectorFunc(served.Restarts), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	fmt.Fprintf(stderr, "Running the pods of %s on %s. Ctrl-C ends it.\n", f.manifests, socket)

	var joined sync.WaitGroup
	joined.Go(func() { a.Run(ctx) })
	if !inProcess { // the simulated runtime writes no logs and uses no disk
		rotation := logs.Manager{Limits: f.logs, Pods: a.Pods, Dir: client.LogDir, Reopen: client.ReopenContainerLog,
			Logger: logger}
		joined.Go(func() { rotation.Run(ctx) })
		joined.Go(func() { images.NewGarbageCollector(conn, f.images, logger).Run(ctx) })
	}
	joined.Go(func() { page.Serve(ctx, f.listen, served.Handler(a.Handler()), stderr, logger) })
	source.Run(ctx, a.SetPods) // returns when ctx ends
	joined.Wait()
	return nil
}

// dial connects to a runtime that may not have started yet.
func dial(socket string) (*grpc.ClientConn, error) {
	retry := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second}
	return grpc.NewClient("unix:"+socket,
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 5 * time.Second, Backoff: retry}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20))) // 16 MiB, for a command's output
}

// makePrivate creates directories that only the agent's user may enter, and restricts directories
// that an earlier version left open. Otherwise, host users could run setuid programs that a
// container's root left in a volume.
func makePrivate(dirs ...string) error {
	for _, dir := range dirs {
		err := os.MkdirAll(dir, 0o700)
		info, missing := os.Stat(dir)
		if err = errors.Join(err, missing); err != nil {
			return fmt.Errorf("making a private directory: %w", err)
		}
		owner := int(info.Sys().(*syscall.Stat_t).Uid)
		if !info.IsDir() || owner != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
			return fmt.Errorf("%s cannot be private: it is %v of user %d", dir, info.Mode(), owner)
		}
		if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a directory
			return fmt.Errorf("making a directory private: %w", err)
		}
	}
	return nil
}

// lock locks a state directory or a runtime, because two agents would remove each other's pods. The
// kernel releases the lock when the process ends. The lock file stays: if it were removed, two
// agents could lock two different files. Only the agent's user may open the file.
func lock(path string) (held io.Closer, err error) {
	_ = os.MkdirAll(filepath.Dir(path), 0o755) // if this fails, opening the file fails too
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err == nil {
		err = file.Chmod(0o600) // an earlier version let every user open the file
	}
	if err != nil {
		return nil, fmt.Errorf("opening the lock file: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another agent has %s: %w", path, err), file.Close())
	}
	return file, nil
}
