package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// agent is a running plegwatch.
type agent struct {
	cmd     *exec.Cmd
	metrics string // the URL of its metrics
}

// startAgent starts plegwatch on a runtime. The agent runs until the context ends or stop is
// called.
func startAgent(ctx context.Context, program, endpoint string, args ...string) (*agent, error) {
	args = append(args, "--runtime-endpoint", endpoint, "--listen", "127.0.0.1:0")
	cmd := exec.CommandContext(ctx, program, args...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	a := &agent{cmd: cmd}
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		if _, rest, found := strings.Cut(lines.Text(), "http://"); found {
			a.metrics = "http://" + strings.FieldsFunc(rest, func(r rune) bool { return r == ' ' || r == '/' })[0] + "/metrics"
			go func() { _, _ = io.Copy(io.Discard, stderr) }() // until the agent ends
			return a, nil
		}
	}
	return nil, errors.Join(errors.New("the agent says no address"), a.stop())
}

// stop ends the agent and waits for it.
func (a *agent) stop() error {
	if err := a.cmd.Process.Signal(unix.SIGTERM); err != nil {
		return err
	}
	return a.cmd.Wait()
}

// cpu returns the CPU time of the agent. It adds up the CPU times of the agent's threads, in
// nanoseconds, because /proc/PID/stat shows only hundredths of a second. No thread is missing in
// the sum, because threads of a Go program do not end.
func (a *agent) cpu() (sum time.Duration, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", a.cmd.Process.Pid))
	if err != nil || len(files) == 0 {
		return 0, errors.Join(errors.New("the agent has no threads"), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		first, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// memory returns the agent's resident memory in bytes, and the part of it that is not backed by
// files.
func (a *agent) memory() (rss, anonymous float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		var kB float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f kB", &kB); n == 1 {
			rss = kB * 1024
		}
		if n, _ := fmt.Sscanf(line, "RssAnon: %f kB", &kB); n == 1 {
			anonymous = kB * 1024
		}
	}
	return rss, anonymous, nil
}

// scraped is the result of one scrape of the agent.
type scraped struct {
	took           time.Duration
	plain, gzipped float64 // size of the answer in bytes
	series         int
	calls          float64 // calls to the runtime since the start of the agent
}

// scrape requests the metrics as Prometheus does, compressed.
func (a *agent) scrape(ctx context.Context) (scraped, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.metrics, nil)
	if err != nil {
		return scraped{}, err
	}
	req.Header.Set("Accept-Encoding", "gzip")
	began := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return scraped{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return scraped{}, err
	}
	s := scraped{took: time.Since(began), gzipped: float64(len(body))}
	unpacked, err := gzip.NewReader(strings.NewReader(string(body)))
	if err != nil {
		return scraped{}, err
	}
	text, err := io.ReadAll(unpacked)
	if err != nil {
		return scraped{}, err
	}
	s.plain = float64(len(text))
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		s.series++
		if name, value, found := strings.Cut(strings.TrimSpace(line), "} "); found &&
			strings.HasPrefix(name, "kubelet_runtime_operations_total{") {
			calls, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return scraped{}, err
			}
			s.calls += calls
		}
	}
	return s, nil
}
