package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/manifest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// output is a buffer that is written and read at once.
type output struct {
	mu sync.Mutex
	b  strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// The one command shows the node alive within three seconds, serves its pods, and leaves
// nothing behind.
func TestEmbedded(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	var stdout, stderr output
	f, err := parseFlags([]string{"--listen", "127.0.0.1:0", "--drain"}, &stderr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	began := time.Now()
	go func() { done <- run(ctx, f, &stdout, &stderr) }()
	await := func(what string, limit time.Duration) {
		t.Helper()
		for !regexp.MustCompile(what).MatchString(stdout.String()) {
			if time.Since(began) > limit {
				t.Fatalf("%q is not there after %v:\n%s\n%s", what, limit, &stdout, &stderr)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	await(`shop/web +Running +ready 1/1`, 3*time.Second)
	await(`jobs/retry +Succeeded .* restarts 1`, 10*time.Second)
	await(`shop/crash .*CrashLoopBackOff`, 10*time.Second)
	await(`jobs/report +Succeeded`, 20*time.Second)
	await(`jobs/sidecar +Succeeded`, 20*time.Second)
	await(`shop/slow +Running +ready 1/1`, 20*time.Second)

	address := regexp.MustCompile(`http://[^/]+`).FindString(stderr.String())
	get := func(path string) []byte {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Close = true
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s, %v: %s", path, resp.Status, err, body)
		}
		return body
	}
	list := v1.PodList{}
	if err := json.Unmarshal(get("/pods"), &list); err != nil || list.Kind != "PodList" || len(list.Items) != 6 {
		t.Errorf("%d pods, %v", len(list.Items), err)
	}
	get("/healthz")
	for _, name := range []string{"kubelet_pleg_relist_duration_seconds", "prober_probe_total",
		"kubelet_runtime_operations_total"} {
		if !strings.Contains(string(get("/metrics")), name) {
			t.Errorf("there is no metric %s", name)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// The manifests that come with the agent are good, and a pod each.
func TestShippedManifests(t *testing.T) {
	files, err := shipped.ReadDir("manifests")
	if err != nil || len(files) < 6 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		content, err := shipped.ReadFile("manifests/" + file.Name())
		if err != nil {
			t.Fatal(err)
		}
		pods, err := manifest.Decode(content, "node")
		if err != nil || len(pods) != 1 {
			t.Errorf("%s: %v, %v", file.Name(), pods, err)
			continue
		}
		for _, c := range append(pods[0].Spec.InitContainers, pods[0].Spec.Containers...) {
			if _, ok := programs[c.Image]; !ok {
				t.Errorf("%s: there is no program %s", file.Name(), c.Image)
			}
		}
	}
}

// The agent is small enough to be read: less than 4,000 lines, with comments and blank ones, without tests and their
// helpers.
func TestSize(t *testing.T) {
	lines := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "live" || entry.Name() == "podtest"):
			return fs.SkipDir
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		lines += bytes.Count(source, []byte("\n"))
		return err
	})
	if err != nil || lines >= 4000 || lines < 1000 {
		t.Errorf("%d lines, %v", lines, err)
	}
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--runtime-endpoint unix:///x": "--manifests is needed",
		"--node-ip x":                  "is no address",
		"--manifests m --runtime-endpoint tcp://127.0.0.1:1": "is no unix:///path",
		"more":      "is no flag",
		"--nothing": "not defined",
		"--runtime-endpoint unix:///x --manifests /m --node-ip 192.0.2.1": "",
	} {
		var stderr output
		f, err := parseFlags(strings.Fields(args), &stderr)
		if (err == nil) != (want == "") || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: %v, %q", args, err, &stderr)
		}
		if err == nil && (f.stateDir != "/var/lib/nodeagent" || f.nodeName == "") {
			t.Errorf("%+v", f)
		}
	}
}

// Of two agents on one node the second refuses: with the same state directory, and with the same runtime by whatever
// name. The lock ends with its holder.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	agent := func(stateDir, endpoint string) flags {
		f, err := parseFlags([]string{"--state-dir", filepath.Join(dir, stateDir), "--runtime-endpoint", endpoint,
			"--manifests", dir, "--listen", "127.0.0.1:0"}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := begin(ctx, t, agent("a", "unix://"+dir+"/cri.sock"))
	for _, second := range []flags{
		agent("a", "unix://"+dir+"/other.sock"),
		agent("b", "unix://"+dir+"/cri.sock"),
		agent("c", "unix:"+dir+"/./link/cri.sock"),
		agent("d", dir+"/cri.sock"),
	} {
		err := run(t.Context(), second, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("another agent (process %d) has ", os.Getpid())) {
			t.Errorf("a second agent with %+v: %v", second, err)
		}
	}
	cancel()
	ended()
	ctx, cancel = context.WithCancel(t.Context())
	ended = begin(ctx, t, agent("b", dir+"/cri.sock"))
	cancel()
	ended()
}

// begin runs an agent whose runtime is not there. It returns once the agent waits for it; ended waits for its end.
func begin(ctx context.Context, t *testing.T, f flags) (ended func()) {
	t.Helper()
	var stderr output
	done := make(chan error, 1)
	go func() { done <- run(ctx, f, io.Discard, &stderr) }()
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(stderr.String(),
		"Pods are not synced"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s", &stderr)
		}
	}
	return func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// An agent whose runtime is not there yet waits for it, and ends when it is told to.
func TestWithoutRuntime(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	ended := begin(ctx, t, flags{stateDir: dir, endpoint: dir + "/cri.sock", manifests: dir, listen: "127.0.0.1:0",
		nodeName: "n"})
	cancel()
	ended()
}
