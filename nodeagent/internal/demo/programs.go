// Package demo lets the agent run without a runtime: its images are programs in this process. A real agent does not
// need it.
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

// Programs are the images of the runtime in this process.
var Programs = map[string]criserver.Program{
	"localhost/web":   {Main: web, Exec: shell},
	"localhost/sleep": {Main: sleep, Exec: shell},
	"localhost/exit":  {Main: exit},
	"localhost/flaky": {Main: flaky},
	"localhost/deaf":  {Main: func(ctx context.Context, _ *criserver.Process) int { <-ctx.Done(); return 0 }},
}

// web answers GET /healthz on port PORT, after DELAY, until it is asked to end.
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

// sleep does nothing for the time in its argument, or until it is asked to end.
func sleep(ctx context.Context, p *criserver.Process) int {
	d := forever
	if len(p.Args) > 0 {
		d, _ = time.ParseDuration(p.Args[0])
	}
	wait(ctx, p, d)
	return 0
}

// exit exits with the code in its first argument, after the time in its second.
func exit(ctx context.Context, p *criserver.Process) int {
	code, _ := strconv.Atoi(p.Args[0])
	d, _ := time.ParseDuration(p.Args[1])
	wait(ctx, p, d)
	return code
}

// flaky fails until it has been restarted as often as its argument says.
func flaky(ctx context.Context, p *criserver.Process) int {
	wait(ctx, p, 500*time.Millisecond)
	if n, err := strconv.Atoi(p.Args[0]); err == nil && int(p.Attempt) < n {
		return 1
	}
	return 0
}

// shell is the only command in the images: "exit CODE".
func shell(_ context.Context, p *criserver.Process) int {
	if len(p.Args) == 2 && p.Args[0] == "exit" {
		code, _ := strconv.Atoi(p.Args[1])
		return code
	}
	fmt.Fprintln(p.Stderr, "the only command is: exit CODE")
	return 127
}

const forever = time.Duration(1<<63 - 1)

// wait waits for a time and reports whether it has passed.
func wait(ctx context.Context, p *criserver.Process, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
	case <-p.Terminate:
	}
	return false
}
