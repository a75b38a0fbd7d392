package main

import (
	"bytes"
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
	"time"

	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// result is what was seen on one runtime.
type result struct {
	Date    string
	Runtime string `json:",omitempty"` // what it says it is
	Lists   string `json:",omitempty"`
	Stream  string `json:",omitempty"`
	// Tests are those that are not named below; Failed are those of all that failed.
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

// try runs the tests and the measurement on a runtime. What it saw is returned with an error
// too.
func try(ctx context.Context, name string) (*result, error) {
	r := &result{Date: time.Now().UTC().Format(time.DateOnly)}
	fmt.Fprintf(os.Stderr, "%s: tests, %d lives, %d restarts\n", name, *lives, *restarts)
	tested := r.test(ctx, name)
	fmt.Fprintf(os.Stderr, "%s: latency\n", name)
	out, err := output(ctx, name, "go", "run", "./cmd/latency", "-json", "-deaths", strconv.Itoa(*deaths), "-idle", "20")
	if err == nil {
		err = json.Unmarshal(out, &r.Latency)
	}
	if err != nil {
		err = fmt.Errorf("cmd/latency: %w", err)
	}
	return r, errors.Join(tested, err)
}

func (r *result) test(ctx context.Context, name string) error {
	out, err := output(ctx, name, "go", "test", "-count=1", "-json", "-timeout=60m", ".",
		"-soak.lives="+strconv.Itoa(*lives), "-restarts="+strconv.Itoa(*restarts))
	var log bytes.Buffer
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var e event
		if derr := d.Decode(&e); derr != nil {
			if !errors.Is(derr, io.EOF) {
				err = errors.Join(err, fmt.Errorf("reading what go test says: %w", derr))
			}
			break
		}
		log.WriteString(e.Output)
		r.take(e)
	}
	root, rerr := testnode.Root(ctx)
	if rerr != nil {
		return errors.Join(err, rerr)
	}
	path := filepath.Join(root, ".cache", "runtimes-"+name+".log")
	if err := os.WriteFile(path, log.Bytes(), 0o600); err != nil {
		return fmt.Errorf("keeping what the tests print: %w", err)
	}
	if err != nil {
		return fmt.Errorf("failed tests: %s; see %s: %w", strings.Join(r.Failed, ", "), path, err)
	}
	return nil
}

// event is one of those that "go test -json" prints.
type event struct {
	Action, Test, Output, Key, Value string
	Elapsed                          float64
}

// take takes an event in.
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

// output runs a command for a runtime and returns what it prints.
func output(ctx context.Context, name, command string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, command, args...)
	cmd.Env = append(os.Environ(), "PLEG_RUNTIME="+name)
	cmd.Stderr = os.Stderr
	return cmd.Output()
}
