// Package demo simulates a container runtime, so that the agent can run without a real runtime. Its
// images are programs in this process. A real agent does not need this package.
package demo

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/kubepleg/pleg/plegtest/criserver"
)

// Programs maps the images of the simulated runtime to their programs.
var Programs = map[string]criserver.Program{
	"localhost/web":   {Main: web, Exec: shell},
	"localhost/sleep": {Main: sleep, Exec: shell},
	"localhost/exit":  {Main: exit},
	"localhost/flaky": {Main: flaky},
	"localhost/deaf":  {Main: func(ctx context.Context, _ *criserver.Process) int { <-ctx.Done(); return 0 }},
}

// web waits for the duration DELAY, and then answers GET /healthz on the port PORT until it is
// asked to end.
func web(ctx context.Context, p *criserver.Process) int {
	delay, _ := time.ParseDuration(p.Env["DELAY"])
	if !wait(ctx, p, delay) {
		return 0
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", p.Env["PORT"]))
	if err != nil {
		return 1
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() {
		wait(ctx, p, forever)
		_ = server.Close() // drops requests in progress
	}()
	_ = server.Serve(listener) // returns when the server is closed
	return 0
}

// sleep waits for the duration in its argument, or until it is asked to end.
func sleep(ctx context.Context, p *criserver.Process) int {
	d := forever
	if len(p.Args) > 0 {
		d, _ = time.ParseDuration(p.Args[0])
	}
	wait(ctx, p, d)
	return 0
}

// exit waits for the duration in its second argument, and then exits with the code in its first
// argument.
func exit(ctx context.Context, p *criserver.Process) int {
	code, _ := strconv.Atoi(p.Args[0])
	d, _ := time.ParseDuration(p.Args[1])
	wait(ctx, p, d)
	return code
}

// flaky fails until the number of restarts has reached the number in its argument.
func flaky(ctx context.Context, p *criserver.Process) int {
	wait(ctx, p, 500*time.Millisecond)
	if n, err := strconv.Atoi(p.Args[0]); err == nil && int(p.Attempt) < n {
		return 1
	}
	return 0
}

// shell runs the only command in the images, "exit CODE".
func shell(_ context.Context, p *criserver.Process) int {
	if len(p.Args) == 2 && p.Args[0] == "exit" {
		code, _ := strconv.Atoi(p.Args[1])
		return code
	}
	fmt.Fprintln(p.Stderr, "the only command is: exit CODE")
	return 127
}

const forever = time.Duration(1<<63 - 1)

// wait waits for a duration and returns true. If the program is asked to end or is killed earlier,
// wait returns false at once.
func wait(ctx context.Context, p *criserver.Process, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
	case <-p.Terminate:
	}
	return false
}
