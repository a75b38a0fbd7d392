package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

type result struct {
	Date    string
	Runtime string `json:",omitempty"` // the version that the runtime reports
	Lists   string `json:",omitempty"`
	Stream  string `json:",omitempty"`
	// Tests counts the passed tests that have no field in this struct. Failed lists every failed
	// test.
	Tests    int
	Failed   []string `json:",omitempty"`
	Soak     verdict
	Lost     int `json:",omitempty"` // exits that the runtime lost in the soak
	Adapter  verdict
	Restarts []string         `json:",omitempty"`
	Latency  *measure.Latency `json:",omitempty"`
}

// verdict is the result of one test.
type verdict struct {
	Passed bool
	Took   time.Duration
}

// try runs the tests and the measurement on a runtime. After a failure, it returns the results so
// far together with the error.
func try(ctx context.Context, name string) (*result, error) {
	r := &result{Date: time.Now().UTC().Format(time.DateOnly)}
	fmt.Fprintf(os.Stderr, "%s: tests, %d lives, %d restarts\n", name, *lives, *restarts)
	tested := r.test(ctx, name)
	fmt.Fprintf(os.Stderr, "%s: latency\n", name)
	out, err := command(ctx, name, "go", "run", "./cmd/latency", "-json", "-deaths", strconv.Itoa(*deaths),
		"-idle", "20").Output()
	if err == nil {
		err = json.Unmarshal(out, &r.Latency)
	}
	if err != nil {
		err = fmt.Errorf("cmd/latency: %w", err)
	}
	return r, errors.Join(tested, err)
}

// test runs the tests and copies their output to a file.
func (r *result) test(ctx context.Context, name string) (err error) {
	root, err := testnode.Root(ctx)
	if err != nil {
		return err
	}
	path := filepath.Join(root, ".cache", "runtimes-"+name+".log")
	log, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("keeping what the tests print: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	cmd := command(ctx, name, "go", "test", "-count=1", "-json", "-timeout=60m", ".",
		"-each=30m", "-soak.lives="+strconv.Itoa(*lives), "-restarts="+strconv.Itoa(*restarts))
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var read error
	for d := json.NewDecoder(out); read == nil; {
		var e event
		if read = d.Decode(&e); read == nil {
			_, read = log.WriteString(e.Output)
			r.take(e)
		}
	}
	// The loop has ended, because the output ended or could not be read any more.
	if err := cmd.Wait(); err != nil || !errors.Is(read, io.EOF) {
		return fmt.Errorf("failed tests: %s; see %s: %w", strings.Join(r.Failed, ", "), path, errors.Join(err, read))
	}
	return nil
}

// event is an event that "go test -json" prints.
type event struct {
	Action, Test, Output, Key, Value string
	Elapsed                          float64
}

// take adds an event to the result.
func (r *result) take(e event) {
	if e.Test == "" || strings.Contains(e.Test, "/") {
		return
	}
	switch e.Action {
	case "attr":
		switch e.Key {
		case "runtime":
			r.Runtime = e.Value
		case "lists":
			r.Lists = e.Value
		case "stream":
			r.Stream = e.Value
		case "restarts":
			r.Restarts = append(r.Restarts, e.Value)
		case "lost":
			r.Lost, _ = strconv.Atoi(e.Value)
		}
	case "pass", "fail":
		passed := e.Action == "pass"
		v := verdict{passed, time.Duration(e.Elapsed * float64(time.Second)).Round(time.Second)}
		if !passed {
			r.Failed = append(r.Failed, e.Test)
		}
		switch e.Test {
		case "TestSoak":
			r.Soak = v
		case "TestAdapterConforms":
			r.Adapter = v
		default:
			if passed {
				r.Tests++
			}
		}
	}
}

// command returns a command that runs on the named runtime. If the context ends, the command and
// its child processes are interrupted. Killing only "go test" would leave its test process running.
func command(ctx context.Context, name, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "PLEG_RUNTIME="+name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	return cmd
}
