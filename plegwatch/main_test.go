package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/test/proctest"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(historyWriter); dir != "" {
		writeHistory(dir)
	}
	var err error
	if dir, err = os.MkdirTemp("", "plegwatch-"); err == nil {
		// The tests must not find a runtime of this machine.
		err = errors.Join(os.Unsetenv("CONTAINER_RUNTIME_ENDPOINT"), os.Setenv("CRI_CONFIG_FILE", os.DevNull))
	}
	if err != nil {
		panic(err)
	}
	rotation := goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun") // it never ends
	goleak.VerifyTestMain(m, rotation, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// dir is a temporary directory for the tests, removed when they have ended.
var dir string

// built builds the program once and returns its path.
var built = sync.OnceValues(func() (path string, err error) {
	path = filepath.Join(dir, program)
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// patience is how long a test waits for an expected result before it fails.
const patience = 30 * time.Second

func TestText(t *testing.T) {
	t.Parallel()
	ctx, signal := context.WithCancel(t.Context())
	defer signal()
	var stdout, stderr console
	w := startWatch(ctx, nil, &stdout, &stderr)
	stdout.await(t, regexp.MustCompile(`(?s)(\n.*){3} hint\n`)) // so the stream is connected
	signal()
	if code := w.await(t); code != exitOK {
		t.Fatalf("exit code %d, want %d; stderr:\n%s", code, exitOK, &stderr)
	}
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	if len(lines) < 4 || !strings.HasPrefix(lines[0], "TIME ") {
		t.Fatalf("want a heading and events, got:\n%s", &stdout)
	}
	for _, l := range lines {
		if n := utf8.RuneCountInString(l); n > 120 {
			t.Errorf("%d columns: %s", n, l)
		}
		if strings.ContainsRune(l, '\x1b') {
			t.Errorf("colour although this is no terminal: %q", l)
		}
	}
	want := regexp.MustCompile(`(?m)^time=\S+ level=INFO msg=Done events=\d+ took=\S+ healthy=true .*` +
		`stream=connected runtime="simulated-containerd `)
	if !want.MatchString(stderr.String()) {
		t.Errorf("no summary like %v in:\n%s", want, &stderr)
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	ctx, signal := context.WithCancel(t.Context())
	defer signal()
	var stdout, stderr console
	w := startWatch(ctx, []string{"--output", "json"}, &stdout, &stderr)
	stdout.await(t, regexp.MustCompile(`"lagSeconds":\S+"cause":"hint"`))
	signal()
	if code := w.await(t); code != exitOK {
		t.Fatalf("exit code %d, want %d; stderr:\n%s", code, exitOK, &stderr)
	}
	var hinted int
	for dec := json.NewDecoder(strings.NewReader(stdout.String())); ; {
		var l line
		err := dec.Decode(&l)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in:\n%s", err, &stdout)
		}
		if l.Time.IsZero() || l.Pod == "" || l.PodUID == "" || l.Event == "" || l.ContainerID == "" || l.Cause == "" {
			t.Errorf("something is missing in %+v", l)
		}
		if l.LagSeconds != nil && (*l.LagSeconds < 0 || *l.LagSeconds > patience.Seconds()) {
			t.Errorf("lag of %v s in %+v", *l.LagSeconds, l)
		}
		if l.LagSeconds != nil && l.Cause == pleg.CauseHint {
			hinted++
		}
	}
	if hinted == 0 {
		t.Errorf("no event with a lag that came of a hint in:\n%s", &stdout)
	}
}

// With an endpoint, plegwatch runs until a signal. Here the end of the context stands for the
// signal.
func TestEndpointUntilSignal(t *testing.T) {
	t.Parallel()
	s := proctest.CRIServer(t)
	sandbox := s.RunPod(criserver.PodConfig{Name: "web"})
	if _, err := s.RunContainer(sandbox, criserver.ContainerConfig{Name: "nginx"}); err != nil {
		t.Fatal(err)
	}
	ctx, signal := context.WithCancel(t.Context())
	defer signal()
	var stdout, stderr console
	w := startWatch(ctx, []string{"--runtime-endpoint", s.Endpoint(), "--listen", "0",
		"--node-name", "node-7", "--initial"}, &stdout, &stderr)
	stdout.await(t, regexp.MustCompile(`default/web +nginx +Started +running`))

	address := stderr.await(t, regexp.MustCompile(`address=http://(127\.0\.0\.1:\d+)/`))[1]
	if code, body := get(t, "http://"+address+"/metrics"); code != http.StatusOK ||
		!strings.Contains(body, "kubelet_pleg_relist_duration_seconds_count") ||
		!strings.Contains(body, `kubelet_node_name{node="node-7"} 1`) ||
		!strings.Contains(body, `kubelet_runtime_operations_total{operation_type="version"}`) {
		t.Errorf("/metrics: %d\n%s", code, body)
	}
	// The page's data is refreshed once a second and after events.
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		code, body := get(t, "http://"+address+"/")
		if code == http.StatusOK && strings.Contains(body, "node-7, plegwatch devel") &&
			regexp.MustCompile(`default/web +running +nginx `).MatchString(body) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("/: %d\n%s", code, body)
		}
	}
	stream, err := http.Get("http://" + address + "/?format=stream") // this stream is still open when the signal comes
	if err != nil || stream.StatusCode != http.StatusOK {
		t.Fatal(stream, err)
	}
	defer stream.Body.Close()
	var report pleg.HealthReport
	code, body := get(t, "http://"+address+"/healthz")
	if err := json.Unmarshal([]byte(body), &report); err != nil || code != http.StatusOK || !report.Healthy ||
		report.Pods != 1 {
		t.Errorf("/healthz: %d, %v\n%s", code, err, body)
	}

	signal()
	if code := w.await(t); code != exitOK {
		t.Errorf("exit code %d, want %d", code, exitOK)
	}
	if !strings.Contains(stderr.String(), "msg=Done events=2 ") {
		t.Errorf("no summary in:\n%s", &stderr)
	}
}

func TestMissingSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "no.sock")
	var stdout, stderr console
	code := run(t.Context(), []string{"--runtime-endpoint", "unix://" + path}, &stdout, &stderr)
	if code != exitFailed || !strings.Contains(stderr.String(), path) ||
		!strings.Contains(stderr.String(), "no such file") {
		t.Errorf("exit code %d, want %d; stderr:\n%s", code, exitFailed, &stderr)
	}
}

func TestSilentSocket(t *testing.T) {
	t.Parallel()
	s := proctest.CRIServer(t)
	s.Freeze()
	var stdout, stderr console
	w := startWatch(t.Context(), []string{"--runtime-endpoint", s.Endpoint()}, &stdout, &stderr)
	if code := w.await(t); code != exitFailed || !strings.Contains(stderr.String(), s.Endpoint()) {
		t.Errorf("exit code %d, want %d; stderr:\n%s", code, exitFailed, &stderr)
	}
}

// If a signal comes while plegwatch is still connecting to the runtime, the exit code is 0.
func TestSignalWhileConnecting(t *testing.T) {
	t.Parallel()
	s := proctest.CRIServer(t)
	s.Freeze()
	ctx, signal := context.WithCancel(t.Context())
	defer signal()
	var stdout, stderr console
	w := startWatch(ctx, []string{"--runtime-endpoint", s.Endpoint()}, &stdout, &stderr)
	signal()
	if code := w.await(t); code != exitOK {
		t.Errorf("exit code %d, want %d; stderr:\n%s", code, exitOK, &stderr)
	}
}

// With --wait, plegwatch can start before the runtime. It prints the pods once the runtime is
// there.
func TestWait(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "later.sock")
	ctx, signal := context.WithCancel(t.Context())
	defer signal()
	var stdout, stderr console
	w := startWatch(ctx, []string{"--wait", "--initial", "--runtime-endpoint", path}, &stdout, &stderr)
	stderr.await(t, regexp.MustCompile(`msg=Watching runtime="a CRI runtime that has not answered yet at unix://`+path))
	stderr.await(t, regexp.MustCompile(`level=ERROR msg="Not healthy: .*`+path+`: the runtime has not answered yet`))
	if stdout.String() != "" {
		t.Errorf("events of no runtime:\n%s", &stdout)
	}
	s := proctest.CRIServer(t)
	s.RunPod(criserver.PodConfig{Name: "web"})
	if err := os.Symlink(strings.TrimPrefix(s.Endpoint(), "unix://"), path); err != nil {
		t.Fatal(err)
	}
	stdout.await(t, regexp.MustCompile(`default/web +sandbox +Started +ready`))
	stderr.await(t, regexp.MustCompile(`msg="Healthy: `))
	signal()
	if code := w.await(t); code != exitOK {
		t.Errorf("exit code %d, want %d; stderr:\n%s", code, exitOK, &stderr)
	}
}

// With --wait and no runtime, plegwatch ends when --for is over.
func TestWaitInVain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "never.sock")
	var stdout, stderr console
	code := run(t.Context(), []string{"--wait", "--runtime-endpoint", path, "--for", "100ms"}, &stdout, &stderr)
	if code != exitOK || !strings.Contains(stderr.String(), "msg=Done events=0 ") {
		t.Errorf("exit code %d, want %d and a summary; stderr:\n%s", code, exitOK, &stderr)
	}
	var refused console
	code = run(t.Context(), []string{"--wait", "--runtime-endpoint", "tcp://127.0.0.1:1"}, &stdout, &refused)
	if code != exitFailed || !strings.Contains(refused.String(), "plegwatch: cri: dial: ") {
		t.Errorf("exit code %d, want %d; stderr:\n%s", code, exitFailed, &refused)
	}
}

// Events that the filter leaves out are not printed. The summary counts them.
func TestFiltered(t *testing.T) {
	t.Parallel()
	s := proctest.CRIServer(t)
	runPod := func(name string) {
		sandbox := s.RunPod(criserver.PodConfig{Namespace: "shop", Name: name, UID: types.UID(name)})
		if _, err := s.RunContainer(sandbox, criserver.ContainerConfig{Name: "app"}); err != nil {
			t.Fatal(err)
		}
	}
	runPod("db")
	ctx, signal := context.WithCancel(t.Context())
	defer signal()
	var stdout, stderr console
	w := startWatch(ctx, []string{"--runtime-endpoint", s.Endpoint(), "--pod", "shop/web", "--event", "Started,Died"},
		&stdout, &stderr)
	stderr.await(t, regexp.MustCompile(`msg="Healthy: `)) // the event of pod db has been read and counted
	runPod("web")
	stdout.await(t, regexp.MustCompile(`shop/web +app +Started`))
	stdout.await(t, regexp.MustCompile(`shop/web +sandbox +Started`))
	signal()
	w.await(t)
	if strings.Contains(stdout.String(), "shop/db") ||
		!regexp.MustCompile(`msg=Done events=2 .* filtered=\d `).MatchString(stderr.String()) {
		t.Errorf("stdout:\n%s\nstderr:\n%s", &stdout, &stderr)
	}
}

// Control characters in names from the runtime are escaped everywhere: in the table, in the JSON,
// and in the logs of the program and the library.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	const hostile = "\x1b[2J\r\n\u009b31m\u202e"
	s := proctest.CRIServer(t, criserver.WithVersion("run"+hostile, "1"+hostile))
	sandbox := s.RunPod(criserver.PodConfig{Namespace: "ns" + hostile, Name: "pod" + hostile, UID: "uid" + hostile})
	id, err := s.RunContainer(sandbox, criserver.ContainerConfig{Name: "container" + hostile})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ExitContainer(id, 1, "reason"+hostile); err != nil {
		t.Fatal(err)
	}
	for method, health := range map[string]string{"": "Healthy: ", "ContainerStatus": "Degraded: "} {
		for _, output := range []string{"text", "json"} {
			heal := func() {}
			if method != "" {
				heal = s.Fail(method, "", errors.New("no"+hostile))
			}
			ctx, signal := context.WithCancel(t.Context())
			defer signal()
			var stdout, stderr console
			w := startWatch(ctx, []string{"--runtime-endpoint", s.Endpoint(), "--initial", "--output", output,
				"--log-format", output, "-v=4", "--node-name", "node" + hostile}, &stdout, &stderr)
			stdout.await(t, regexp.MustCompile("container"))
			stderr.await(t, regexp.MustCompile(health))
			signal()
			w.await(t)
			heal()
			said := stdout.String() + stderr.String()
			if !strings.Contains(stdout.String(), "container") || !strings.Contains(stderr.String(), "Done") {
				t.Errorf("%s %s: no events in:\n%q", method, output, said)
			}
			if i := strings.IndexFunc(strings.ReplaceAll(said, "\n", ""), isHidden); i >= 0 ||
				strings.Contains(said, "\nm") {
				t.Errorf("%s %s: the terminal would obey:\n%q", method, output, said)
			}
			if n := strings.Count(said, "\n"); n > 16 {
				t.Errorf("%s %s: %d lines:\n%q", method, output, n, said)
			}
		}
	}
}

// isHidden reports whether a character is not printable. Such a character could control a terminal.
func isHidden(r rune) bool { return !unicode.IsPrint(r) }

func TestAddressInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var stdout, stderr console
	code := run(t.Context(), []string{"--metrics-address", l.Addr().String()}, &stdout, &stderr)
	if code != exitFailed ||
		!strings.Contains(stderr.String(), "--metrics-address has been deprecated, it is called --listen") ||
		!strings.Contains(stderr.String(), "address already in use") {
		t.Errorf("exit code %d, want %d; stderr:\n%s", code, exitFailed, &stderr)
	}
}

// If the reader of stdout closes the pipe, the watch ends without an error. If the disk is full,
// the watch continues. Any other write error ends the watch and is reported.
func TestCannotWrite(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want int
		says string
	}{
		{syscall.EPIPE, exitOK, ""},
		{syscall.ENOSPC, exitOK, `msg="Events are lost" error="write: no space left on device" events=1`},
		{syscall.EIO, exitFailed, "printing an event: write: input/output error"},
	} {
		ctx, signal := context.WithCancel(t.Context())
		defer signal()
		var stderr console
		w := startWatch(ctx, nil, brokenWriter{tt.err}, &stderr)
		if errors.Is(tt.err, syscall.ENOSPC) {
			stderr.await(t, regexp.MustCompile(regexp.QuoteMeta(tt.says)))
			signal()
		}
		if code := w.await(t); code != tt.want ||
			!strings.Contains(stderr.String(), tt.says) {
			t.Errorf("%v: exit code %d, want %d; stderr:\n%s", tt.err, code, tt.want, &stderr)
		}
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"--no-such-flag", exitUsage, "unknown flag: --no-such-flag"},
		{"-x", exitUsage, "unknown shorthand flag: 'x'"},
		{"--output xml", exitUsage, "must be text, json or none"},
		{"--log-format xml", exitUsage, "must be text or json"},
		{"--for soon", exitUsage, `"soon"`},
		{"--for -1s", exitUsage, "negative"},
		{"-v=-1", exitUsage, "negative"},
		{"--runtime-endpoint=", exitUsage, "it is empty"},
		{"web", exitUsage, `unexpected argument "web"`},
		{"--namespace UP", exitUsage, `"UP" is not the name of a namespace`},
		{"--event Stopped", exitUsage, `there is no event "Stopped"`},
		{"--since yesterday", exitUsage, "neither a time"},
		{"--wait --runtime-endpoint auto", exitUsage, "name the socket"},
		{"--pprof", exitUsage, "--pprof needs --listen"},
		{"--check", exitUsage, "asks an agent"},
		{"--check --listen 1 --listen 2", exitUsage, "asks one agent"},
		{"--check --wait --runtime-endpoint /run/a.sock", exitUsage, "does not wait"},
	} {
		var stdout, stderr console
		code := run(t.Context(), strings.Fields(tt.args), &stdout, &stderr)
		if code != tt.code || !strings.Contains(stderr.String(), tt.says) || strings.Count(stderr.String(), "\n") != 1 ||
			stdout.String() != "" {
			t.Errorf("%s: exit code %d, want %d and a line with %q; stderr:\n%s", tt.args, code, tt.code, tt.says, &stderr)
		}
	}
	for args, says := range map[string]string{
		"--help": "Usage: plegwatch", "-h": "Usage: plegwatch", "--version": "plegwatch devel (revision ",
	} {
		var stdout, stderr console
		if code := run(t.Context(), []string{args}, &stdout, &stderr); code != exitOK || stderr.String() != "" ||
			!strings.HasPrefix(stdout.String(), says) {
			t.Errorf("%s: exit code %d; stdout:\n%s\nstderr:\n%s", args, code, &stdout, &stderr)
		}
	}
}

// watching is the program, which runs in a goroutine. code receives its exit code.
type watching struct{ code chan int }

func startWatch(ctx context.Context, args []string, stdout, stderr io.Writer) watching {
	w := watching{make(chan int, 1)}
	go func() { w.code <- run(ctx, args, stdout, stderr) }()
	return w
}

// await waits for the end of the run and returns its exit code.
func (w watching) await(t *testing.T) int {
	t.Helper()
	select {
	case code := <-w.code:
		return code
	case <-time.After(patience):
		t.Fatal("the watch does not end")
		return 0
	}
}

func get(t *testing.T, url string) (code int, body string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// console collects what the program writes.
type console struct{ proctest.Buffer }

// await waits until the output matches a pattern, and returns the match.
func (b *console) await(t *testing.T, want *regexp.Regexp) []string {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if m := want.FindStringSubmatch(b.String()); m != nil {
			return m
		}
	}
	t.Fatalf("nothing like %v within %v in:\n%s", want, patience, b.String())
	return nil
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, fmt.Errorf("write: %w", w.err) }

// Events from before the watch are printed only with --initial or --since. They are then marked as
// initial and have no lag.
func TestInitial(t *testing.T) {
	t.Parallel()
	s := proctest.CRIServer(t)
	sandbox := s.RunPod(criserver.PodConfig{Name: "web"})
	old, err := s.RunContainer(sandbox, criserver.ContainerConfig{Name: "old"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ExitContainer(old, 3, "Error"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RunContainer(sandbox, criserver.ContainerConfig{Name: "running"}); err != nil {
		t.Fatal(err)
	}
	watched := func(args ...string) (lines []line, stderr string) {
		t.Helper()
		ctx, signal := context.WithCancel(t.Context())
		defer signal()
		var stdout, log console
		dir := t.TempDir()
		args = append([]string{"-r", s.Endpoint(), "-o", "json", "--node-name", "node-7", "--history", dir}, args...)
		w := startWatch(ctx, args, &stdout, &log)
		awaitHistory(t, dir, 4, func(l *line) bool { return l != nil }) // it has what is not printed, too
		awaitHistory(t, dir, 1, func(l *line) bool { return l == nil })
		signal()
		if code := w.await(t); code != exitOK {
			t.Fatalf("exit code %d; stderr:\n%s", code, &log)
		}
		for text := range strings.Lines(stdout.String()) {
			var l line
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				t.Fatal(err)
			}
			lines = append(lines, l)
		}
		return lines, log.String()
	}

	lines, stderr := watched()
	if len(lines) != 0 || !strings.Contains(stderr, " initial=4 ") {
		t.Errorf("%+v; stderr:\n%s", lines, stderr)
	}
	for _, args := range [][]string{{"--initial"}, {"--since", "1h"}} {
		lines, _ = watched(args...)
		seen := map[string]bool{}
		for _, l := range lines {
			seen[l.containerText()] = true
			if !l.Initial || l.LagSeconds != nil || l.Node != "node-7" {
				t.Errorf("%v: %+v", args, l)
			}
			if l.Sandbox != l.StartedAt.IsZero() || l.FinishedAt.IsZero() != (l.ExitCode == nil) {
				t.Errorf("%v: its times: %+v", args, l)
			}
		}
		if len(lines) != 4 || !seen["sandbox"] || !seen["old"] || !seen["running"] {
			t.Errorf("%v: %+v", args, lines)
		}
	}
	if lines, _ = watched("--since", time.Now().Add(time.Minute).Format(time.RFC3339)); len(lines) != 0 {
		t.Errorf("all of this was before: %+v", lines)
	}
}

// If only an exit event has reported a death, the line is marked as unconfirmed, and only that of
// ContainerEnded has the reason. If the end of the container was not seen, the line has no exit code.
func TestDescribeDeath(t *testing.T) {
	pod := &pleg.Pod{ID: "web", Namespace: "shop", Name: "web"}
	e := &pleg.PodLifecycleEvent{
		ID: "web", Type: pleg.ContainerDied, Pod: pod, Container: &pleg.Container{Name: "app"},
		Status: &pleg.Status{State: pleg.ContainerStateExited, ExitCode: 137, Reason: "Error", Unconfirmed: true},
	}
	if l := describe(e, pleg.NewCache(), someTime); !l.Unconfirmed || l.ExitCode == nil || *l.ExitCode != 137 ||
		l.stateText() != "exited 137 unconfirmed" {
		t.Errorf("%+v", l)
	}
	e.Type = pleg.ContainerEnded
	if l := describe(e, pleg.NewCache(), someTime); l.stateText() != "exited 137 Error unconfirmed" {
		t.Errorf("%+v", l)
	}
	e.Status = &pleg.Status{State: pleg.ContainerStateExited, ExitCode: 255, Reason: "Unknown", EndUnknown: true}
	if l := describe(e, pleg.NewCache(), someTime); l.ExitCode != nil ||
		l.stateText() != "exited, code unknown" {
		t.Errorf("%+v", l)
	}
}

// With --output none, plegwatch prints no events. It still writes the log.
func TestOutputNone(t *testing.T) {
	t.Parallel()
	var stdout, stderr console
	code := run(t.Context(), []string{"-o", "none", "-f", "2s", "--log-format", "json"}, &stdout, &stderr)
	if code != exitOK || stdout.String() != "" {
		t.Errorf("exit code %d; stdout:\n%s", code, &stdout)
	}
	last := ""
	for text := range strings.Lines(stderr.String()) {
		var record struct {
			Time       time.Time
			Level, Msg string
		}
		if err := json.Unmarshal([]byte(text), &record); err != nil || record.Time.IsZero() || record.Level == "" {
			t.Errorf("%v in %s", err, text)
		}
		last = record.Msg
	}
	if last != "Done" {
		t.Errorf("the last message is %q in\n%s", last, &stderr)
	}
}

// startProcess runs the program as a process, with the Go memory limit (GOMEMLIMIT) of the
// manifests.
func startProcess(t *testing.T, stdout *os.File, args ...string) *proctest.Process {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "GRPC_GO_LOG_SEVERITY_LEVEL=info", "GOMEMLIMIT=100MiB")
	if stdout != nil {
		cmd.Stdout = stdout
	}
	return proctest.Start(t, cmd)
}

// A signal ends the program even if nobody reads its output and a write is blocked.
func TestSignalWithBlockedStdout(t *testing.T) {
	t.Parallel()
	reads, writes, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reads.Close()
	defer writes.Close()
	if err := writes.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	for err == nil { // fills the pipe
		_, err = writes.Write(make([]byte, 4096))
	}
	s := proctest.CRIServer(t)
	s.RunPod(criserver.PodConfig{Name: "web"})
	p := startProcess(t, writes, "-r", s.Endpoint(), "--initial", "--listen", "0")
	address := served(t, p.Log)
	await(t, func() bool { code, _ := get(t, "http://"+address+"/healthz"); return code == http.StatusOK })
	if err := p.End(syscall.SIGTERM, endGrace+patience); err != nil {
		t.Error(err)
	}
}

// served waits until the log contains the address that the program serves, and returns the address.
func served(t *testing.T, log interface{ String() string }) (address string) {
	t.Helper()
	await(t, func() bool {
		m := regexp.MustCompile(`address=http://([^/]+)/`).FindStringSubmatch(log.String())
		if m != nil {
			address = m[1]
		}
		return m != nil
	})
	return address
}

// await waits until the function holds returns true.
func await(t *testing.T, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v", patience)
		}
	}
}

// gRPC's own logger does not write a runtime's bytes to the terminal.
func TestGRPCIsSilent(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "runtime.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // answers every connection with text that is not HTTP/2
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("\x1b[2Jno runtime\n"))
			conn.Close()
		}
	}()
	p := startProcess(t, nil, "-r", path, "--wait", "-f", "1s", "-o", "none")
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
	for text := range strings.Lines(p.Log.String()) {
		if !strings.HasPrefix(text, "time=") {
			t.Errorf("a line that is not the program's: %s", text)
		}
	}
}
