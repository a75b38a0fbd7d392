package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"

	"github.com/kubepleg/pleg/nodeagent/internal/demo"
	"github.com/kubepleg/pleg/nodeagent/internal/manifest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// output is a file that the agent writes while the test reads it.
type output struct{ *os.File }

func newOutput(t *testing.T) output {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return output{file}
}

func (o output) String() string {
	text, err := os.ReadFile(o.Name())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// patience is how long a test waits for an expected result before it fails.
const patience = time.Minute

// await waits until the output matches a pattern.
func (o output) await(t *testing.T, pattern string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !regexp.MustCompile(pattern).MatchString(o.String()) {
		if time.Now().After(deadline) {
			t.Fatalf("%q is not there after %v:\n%s", pattern, patience, o)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// begin starts an agent. The returned function ended stops the agent and waits until it has ended.
func begin(t *testing.T, f flags) (stdout, stderr output, ended func()) {
	t.Helper()
	stdout, stderr = newOutput(t), newOutput(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, f, stdout, stderr) }()
	return stdout, stderr, func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func parsed(t *testing.T, args ...string) flags {
	t.Helper()
	f, err := parseFlags(append([]string{"--listen", "127.0.0.1:0"}, args...), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// get returns the body that an agent serves at a path. It reads the agent's address from stderr.
func get(t *testing.T, stderr output, path string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addressOf(t, stderr)+path, http.NoBody)
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

// served returns the pods that an agent serves, by name.
func served(t *testing.T, stderr output) map[string]v1.Pod {
	t.Helper()
	list := v1.PodList{}
	if err := json.Unmarshal(get(t, stderr, "/pods"), &list); err != nil || list.Kind != "PodList" {
		t.Errorf("/pods: a %q, %v", list.Kind, err)
	}
	pods := map[string]v1.Pod{}
	for _, pod := range list.Items {
		pods[pod.Name] = pod
	}
	return pods
}

// Without arguments, the agent runs its embedded manifests, and one web server becomes ready. The agent
// serves all its pods. When it ends, it leaves no temporary files.
func TestEmbedded(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	began := time.Now()
	stdout, stderr, ended := begin(t, parsed(t))
	stdout.await(t, `shop/web +Running +ready 1/1`)
	t.Logf("a web server is ready after %v", time.Since(began).Round(time.Millisecond))
	stdout.await(t, `jobs/retry +Succeeded .* restarts 1`)
	stdout.await(t, `shop/crash .*CrashLoopBackOff`)
	stdout.await(t, `jobs/report +Succeeded`)
	stdout.await(t, `jobs/sidecar +Succeeded`)
	stdout.await(t, `shop/slow +Running +ready 1/1`)
	if pods := served(t, stderr); len(pods) != 6 {
		t.Errorf("%d pods", len(pods))
	}
	get(t, stderr, "/healthz")
	for _, path := range []string{"/", "/events/"} {
		if page := get(t, stderr, path); !bytes.Contains(page, []byte("shop/web")) {
			t.Errorf("the page %s does not show shop/web:\n%s", path, page)
		}
	}
	metrics := get(t, stderr, "/metrics")
	for _, name := range []string{"kubelet_pleg_relist_duration_seconds",
		"kubelet_runtime_operations_total", "go_goroutines", "process_cpu_seconds_total",
		`kube_pod_container_status_restarts_total{container="job",namespace="jobs",pod="retry",uid="`} {
		if !bytes.Contains(metrics, []byte(name)) {
			t.Errorf("there is no metric %s", name)
		}
	}
	ended()
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// The agent logs a clear error for each bad manifest, and runs the good manifests. While the
// directory of manifests is missing, no pod ends.
func TestBadInput(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	pod := func(name, image, more string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n  containers:\n"+
			"  - {name: c, image: %s, imagePullPolicy: IfNotPresent%s}\n", name, image, more)
	}
	const deadPort = ", readinessProbe: {httpGet: {port: 1, host: 127.0.0.1}, periodSeconds: 1}"
	files := map[string]string{
		"broken.yaml":    "spec: [",
		"dead-port.yaml": pod("dead-port", "localhost/sleep", deadPort),
		"good.yaml":      pod("good", "localhost/sleep", ""),
		"no-image.yaml":  pod("no-image", "localhost/nothing", ""),
		"service.yaml":   "apiVersion: v1\nkind: Service\n",
		"twice.yaml":     pod("good", "localhost/deaf", ""),
		"volume.yaml":    pod("volume", "localhost/sleep", "") + "  volumes: [{name: v, secret: {secretName: s}}]\n",
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stdout, stderr, ended := begin(t, parsed(t, "--manifests", dir, "-v", "1"))
	for _, line := range []string{
		`"A manifest is refused" "error"="is no object in YAML: .*" "file"="broken.yaml"`,
		`"A manifest is refused" "error"=".*kind .*Service.*: only Pods .*" "file"="service.yaml"`,
		`"A manifest is refused" "error"=".*spec.volumes\[0\].secret: Forbidden: this agent .*" "file"="volume.yaml"`,
		`"A pod is refused: another has its name or UID" .*"file"="twice.yaml" "pod"="default/good" "other"="good.yaml"`,
		`"A probe failed" .*dead-port.* dial tcp 127.0.0.1:1: connect: connection refused`,
		`"A pod could not be synced" .*pulling image localhost/nothing: .*"retry"=`,
	} {
		stderr.await(t, line)
	}
	for _, line := range []string{
		`default/good +Running +ready 1/1  c: running`,
		`default/dead-port +Running +ready 0/1  c: running`,
		`default/no-image +Pending +ready 0/1  c: ImagePullBackOff`,
	} {
		stdout.await(t, line)
	}
	before := served(t, stderr)
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	stderr.await(t, `"The manifests cannot be read; what ran goes on"`)
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "new.yaml"), []byte(pod("new", "localhost/sleep", "")), 0o600); err != nil {
		t.Fatal(err)
	}
	stdout.await(t, `default/new +Running +ready 1/1`)
	after := served(t, stderr)
	page := string(get(t, stderr, "/"))
	for name, want := range map[string]string{
		"broken.yaml": "Failed ManifestRefused broken.yaml: is no object in YAML",
		"volume":      "Failed ManifestRefused volume.yaml: spec.volumes[0].secret: Forbidden",
		"good":        "Running ManifestRefused twice.yaml: its name or its UID is taken by the pod of good.yaml",
		"no-image":    "Pending  ",
	} {
		s := before[name].Status
		if got := fmt.Sprint(s.Phase, " ", s.Reason, " ", s.Message); !strings.HasPrefix(got, want) {
			t.Errorf("/pods has %s as %q, want %q", name, got, want)
		}
		if !strings.Contains(page, html.EscapeString(s.Message)) {
			t.Errorf("the page does not say %q:\n%s", s.Message, page)
		}
	}
	if x, y := before["good"].Status.ContainerStatuses[0], after["good"].Status.ContainerStatuses[0]; len(before) != 6 ||
		len(after) != 7 || x.ContainerID != y.ContainerID {
		t.Errorf("%d pods before, with %s, and %d after, with %s", len(before), x.ContainerID, len(after), y.ContainerID)
	}
	ended()
}

// At level 1, the log has the agent's actions, at level 2 the ends of containers, and at level 4 each
// event.
func TestVerbosity(t *testing.T) {
	_, stderr, ended := begin(t, parsed(t, "-v", "4"))
	for _, line := range []string{
		`"level"=1 "msg"="A container was started"`, `"level"=2 "msg"="Container finished"`, `"level"=4 "msg"="Transition"`,
	} {
		stderr.await(t, line)
	}
	ended()
}

// The embedded manifests are valid, and the simulated runtime contains a program for each of their
// images.
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
		pod, err := manifest.Decode(content, "node")
		if err != nil {
			t.Errorf("%s: %v", file.Name(), err)
			continue
		}
		for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
			if _, ok := demo.Programs[c.Image]; !ok {
				t.Errorf("%s: there is no program %s", file.Name(), c.Image)
			}
		}
	}
}

// README's sections "The path of a pod" and "The kubelet's parts" name every Go file except tests,
// and no other Go file. The functions and types after a file's name are in that file.
func TestWalk(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	walk := string(readme)
	walk = walk[strings.Index(walk, "## The path of a pod"):strings.Index(walk, "## Unlike the kubelet")]
	var named, exist []string
	for _, m := range regexp.MustCompile("`([a-z/]+\\.go)`: (`\\w+`(?:, `\\w+`)*)").FindAllStringSubmatch(walk, -1) {
		source, err := os.ReadFile("internal/" + m[1])
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`\w+`).FindAllString(m[2], -1) {
			if !regexp.MustCompile(`(?m)^(func (\(.*?\) )?|type )` + name + `\b`).Match(source) {
				t.Errorf("%s does not define %s", m[1], name)
			}
		}
	}
	for _, m := range regexp.MustCompile("`([a-z/]+\\.go)`").FindAllStringSubmatch(walk, -1) {
		named = append(named, m[1])
	}
	for _, pattern := range []string{"*.go", "internal/*/*.go"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "podtest") {
				exist = append(exist, strings.TrimPrefix(path, "internal/"))
			}
		}
	}
	slices.Sort(named)
	slices.Sort(exist)
	if named = slices.Compact(named); !slices.Equal(named, exist) {
		t.Errorf("README names\n%q\nbut the files are\n%q", named, exist)
	}
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--runtime-endpoint unix:///x":         "--manifests is needed",
		"--node-ip x":                          "unable to parse IP",
		"more":                                 "is no flag",
		"--nothing":                            "not defined",
		"--container-log-max-size 0":           "is out of range",
		"--container-log-max-files 1":          "is out of range",
		"--image-gc-high-threshold-percent 70": "is out of range",
		"--runtime-endpoint unix:///x --manifests /m --node-ip 192.0.2.1": "",
	} {
		var stderr strings.Builder
		f, err := parseFlags(strings.Fields(args), &stderr)
		if (err == nil) != (want == "") || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: %v, %q", args, err, &stderr)
		}
		if err == nil && f.nodeName == "" {
			t.Errorf("%+v", f)
		}
	}
}

// A second agent refuses to start with the same state directory or the same runtime, even if it
// names the runtime's socket differently. Once the first agent has ended, another agent can start.
// An agent waits for a runtime that has not started yet.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	agent := func(stateDir, endpoint string) flags {
		return parsed(t, "--state-dir", filepath.Join(dir, stateDir), "--runtime-endpoint", endpoint, "--manifests", dir)
	}
	_, stderr, ended := begin(t, agent("a", "unix://"+dir+"/cri.sock"))
	stderr.await(t, "Skipping pod synchronization")
	for _, second := range []flags{
		agent("a", "unix://"+dir+"/other.sock"),
		agent("b", "unix://"+dir+"/cri.sock"),
		agent("c", "unix:"+dir+"/./link/cri.sock"),
		agent("d", dir+"/cri.sock"),
	} {
		err := run(t.Context(), second, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "another agent has ") {
			t.Errorf("a second agent with %+v: %v", second, err)
		}
	}
	ended()
	_, stderr, ended = begin(t, agent("b", dir+"/cri.sock"))
	stderr.await(t, "Skipping pod synchronization")
	ended()
}
