package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/test/proctest"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegtest/criserver"
	"github.com/kubepleg/pleg/plegz"
)

// One container ends before an agent runs, and another one between two agents. The second agent and
// the history command each report both ends once, with the final reasons. The history command needs
// no runtime.
func TestHistoryOutlivesTheAgent(t *testing.T) {
	t.Parallel()
	s, dir := proctest.CRIServer(t), t.TempDir()
	sandbox := s.RunPod(criserver.PodConfig{Namespace: "shop", Name: "web"})
	// watched runs an agent until the history has a number of ends, and of conditions.
	watched := func(n int, args ...string) string {
		ctx, signal := context.WithCancel(t.Context())
		defer signal()
		var stdout, stderr console
		args = append([]string{"-r", s.Endpoint(), "-o", "json", "--history", dir}, args...)
		w := startWatch(ctx, args, &stdout, &stderr)
		awaitHistory(t, dir, n, func(l *line) bool { return l != nil && l.Event == pleg.ContainerEnded })
		awaitHistory(t, dir, n, func(l *line) bool { return l == nil })
		signal()
		if code := w.await(t); code != exitOK {
			t.Fatalf("exit code %d; stderr:\n%s", code, &stderr)
		}
		return stdout.String()
	}
	exit := func(name, reason string) {
		id, err := s.RunContainer(sandbox, criserver.ContainerConfig{Name: name})
		if err == nil {
			err = s.ExitContainer(id, 137, reason)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	exit("before", "Error")
	watched(1)
	info, err := os.Stat(filepath.Join(dir, historyFile))
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("not only its owner can read the history: %v", mode)
	}
	exit("between", "OOMKilled")
	again := watched(2, "--since", "1h", "--event", "Ended")
	s.Stop()
	var stdout, stderr console
	if code := run(t.Context(), []string{"history", dir, "--since", "1h", "--event", "Ended", "-o", "json"}, &stdout,
		&stderr); code != exitOK || stderr.String() != "" {
		t.Errorf("exit code %d; stderr:\n%s", code, &stderr)
	}
	for by, out := range map[string]string{"the restarted agent": again, "the history": stdout.String()} {
		var ends []string
		for text := range strings.Lines(out) {
			var l line
			if err := json.Unmarshal([]byte(text), &l); err != nil || l.Event != pleg.ContainerEnded {
				t.Errorf("%v: %s", err, text)
			}
			ends = append(ends, fmt.Sprint(l.Container, " ", *l.ExitCode, " ", l.Reason))
		}
		if got, want := fmt.Sprint(ends), "[before 137 Error between 137 OOMKilled]"; got != want {
			t.Errorf("%s reports %s", by, got)
		}
	}
	var table console
	if code := run(t.Context(), []string{"history", dir}, &table, io.Discard); code != exitOK ||
		strings.Count(table.String(), "  ok ") != 2 || !strings.Contains(table.String(), "Healthy: 1 pod, ") {
		t.Errorf("exit code %d, of two healthy agents:\n%s", code, &table)
	}
}

// awaitHistory waits until n entries of a history are wanted. For a condition, wanted is called with nil.
func awaitHistory(t *testing.T, dir string, n int, wanted func(*line) bool) {
	t.Helper()
	await(t, func() bool {
		p, err := readHistory(dir)
		if err != nil {
			return false // the agent has not begun
		}
		found := 0
		for _, e := range p.entries {
			if wanted(e.event) {
				found++
			}
		}
		return found >= n
	})
}

// If the last agent saw a problem at its end, the next agent's log says so.
func TestHistoryThatEndsInTrouble(t *testing.T) {
	t.Parallel()
	s := proctest.CRIServer(t)
	const ok, bad = `{"time":"2026-01-02T03:04:05Z","level":"ok","sentence":"Healthy."}`,
		`{"time":"2026-01-02T03:05:05Z","level":"warning","sentence":"Degraded: a."}
{"time":"2026-01-02T03:06:05Z","level":"error","sentence":"Not healthy: b."}`
	for _, test := range []struct {
		text string
		want bool
	}{{ok + "\n" + bad, true}, {bad + "\n" + ok, false}} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, historyFile), []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var stderr console
		code := run(t.Context(), []string{"-r", s.Endpoint(), "-f", "1s", "--history", dir}, io.Discard, &stderr)
		const says = `level=WARN msg="An earlier agent saw problems" since=2026-01-02T03:05:05.000Z last="Not healthy: b."`
		if code != exitOK || strings.Contains(stderr.String(), says) != test.want {
			t.Errorf("exit code %d; stderr:\n%s", code, &stderr)
		}
	}
}

// Bad arguments for a history, and a directory that cannot be opened, are errors.
func TestHistoryFlags(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"history"}, exitUsage, "one directory is needed"},
		{[]string{"history", "a", "b"}, exitUsage, "one directory is needed"},
		{[]string{"history", "a", "--listen", "1"}, exitUsage, "unknown flag: --listen"},
		{[]string{"history", "/no/such"}, exitFailed, "/no/such: no such file or directory"},
		{[]string{"--history", file}, exitFailed, "not a directory"},
		{[]string{"--history", file, "--history-size", "1"}, exitUsage, "--history-size 1 is less than 2"},
	} {
		var stdout, stderr console
		code := run(t.Context(), append(tt.args, "--output=none"), &stdout, &stderr)
		if code != tt.code || !strings.Contains(stderr.String(), tt.says) {
			t.Errorf("%v: exit code %d, want %d and %q; stderr:\n%s", tt.args, code, tt.code, tt.says, &stderr)
		}
	}
}

// Torn lines, and lines that this version does not understand, are counted. All other lines are
// read.
func TestHistoryWithLinesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, historyFile)
	if err := os.WriteFile(file, []byte(`{"event":{"v2":1},"time":"2026-01-02T03:04:05Z"}
{"time":"2026-01-02T03:04:05Z","level":"ok","sentence":"Healthy."}
{"time":"2026-01-02T03:04:05Z","namespace":"shop","pod":"web","event":"ContainerDi`), 0o600); err != nil {
		t.Fatal(err)
	}
	h, earlier, err := openHistory(dir, defaultHistorySize)
	if err != nil {
		t.Fatal(err)
	}
	if len(earlier.entries) != 1 || earlier.unreadable != 2 {
		t.Errorf("%d entries, %d unreadable", len(earlier.entries), earlier.unreadable)
	}
	died := line{Time: someTime, Namespace: "shop", Pod: "web", Event: pleg.ContainerDied, Reason: "OOM\x1bKilled"}
	full := &fullDisk{WriteCloser: h.w}
	h.w = full
	for range 3 { // during the second call, the disk is full
		err = errors.Join(err, h.add(died))
		full.isFull = !full.isFull
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
	if err := h.close(); err != nil {
		t.Error(err)
	}
	var stdout, stderr console
	if code := run(t.Context(), []string{"history", dir}, &stdout, &stderr); code != exitOK ||
		strings.Count(stdout.String(), "Died") != 2 ||
		!strings.Contains(stderr.String(), " 3 lines are torn, or of another version") {
		t.Errorf("exit code %d; stderr %s; stdout:\n%s", code, &stderr, &stdout)
	}
}

// fullDisk writes only half of the bytes, and returns an error, while isFull is true.
type fullDisk struct {
	io.WriteCloser
	isFull bool
}

func (w *fullDisk) Write(b []byte) (int, error) {
	if !w.isFull {
		return w.WriteCloser.Write(b)
	}
	n, err := w.WriteCloser.Write(b[:len(b)/2])
	return n, errors.Join(err, syscall.ENOSPC)
}

var kills = flag.Int("kills", 20, "how often TestHistoryOfKilledAgents kills a writer")

// historyWriter is an environment variable with a directory. If it is set, the test program writes
// a history into the directory until the program is killed.
const historyWriter = "PLEGWATCH_TEST_HISTORY"

func writeHistory(dir string) {
	h, _, err := openHistory(dir, 2)
	for i, end := 0, time.Now().Add(patience); err == nil && time.Now().Before(end); i++ {
		err = h.add(line{Time: time.Now(), Pod: strings.Repeat("p", i%1000), Event: pleg.ContainerDied})
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(exitFailed)
}

// A writer may be killed at any moment. The history can then be read and continued. Each kill
// leaves at most one torn line, and the size of the files is limited.
func TestHistoryOfKilledAgents(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, entries := t.TempDir(), 0
	for n := range *kills {
		writer := exec.Command(self)
		writer.Env = append(os.Environ(), historyWriter+"="+dir)
		writer.Stderr = os.Stderr
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		for begun := time.Now(); !grows(dir) && time.Since(begun) < patience; {
			time.Sleep(time.Millisecond) // the writer is another process, so it has no fake clock
		}
		time.Sleep(time.Duration(n%10) * time.Millisecond)
		_ = writer.Process.Kill()
		_ = writer.Wait()
		p, err := readHistory(dir)
		if err != nil || p.unreadable > n+1 {
			t.Fatalf("after %d kills: %v; %d unreadable", n+1, err, p.unreadable)
		}
		entries += len(p.entries)
		if n%1000 == 999 {
			t.Logf("%d kills", n+1)
		}
		var size int64
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, f := range files {
			if info, err := os.Stat(f); err == nil {
				size += info.Size()
			}
		}
		if size > 6<<20 { // a writer may be killed before it has removed the oldest file
			t.Fatalf("after %d kills: %d bytes in %v", n+1, size, files)
		}
	}
	if entries == 0 {
		t.Error("nothing was written")
	}
}

// grows reports whether a history was written to in the last 5 ms.
func grows(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, historyFile))
	return err == nil && time.Since(info.ModTime()) < 5*time.Millisecond
}

// The page shows the history of an earlier agent: events, and changes of level. The time of a death
// is when the container ended, even if an agent read the event later.
func TestPastOfThePage(t *testing.T) {
	p := new(past)
	for _, text := range []string{
		`{"time":"2026-01-02T03:05:00Z","event":"ContainerDied","pod":"a","initial":true,` +
			`"finishedAt":"2026-01-02T03:04:00Z"}`,
		`{"time":"2026-01-02T03:04:30Z","event":"ContainerStarted","pod":"b"}`,
		`{"time":"2026-01-02T03:04:40Z","event":"ContainerEnded","pod":"b"}`,
		`{"time":"2026-01-02T03:04:30Z","level":"error","sentence":"Not healthy."}`,
	} {
		p.add([]byte(text))
	}
	if len(p.entries) != 4 {
		t.Fatalf("%d entries, %d unreadable", len(p.entries), p.unreadable)
	}
	g := pleg.New(plegtest.NewRuntime())
	defer g.Stop()
	page := plegz.Handler(g, p.option())
	request := httptest.NewRequest(http.MethodGet, "http://localhost/?format=json", nil)
	request.RemoteAddr = "127.0.0.1:1"
	answer := httptest.NewRecorder()
	page.ServeHTTP(answer, request)
	var got struct {
		Events     []plegz.Event
		Conditions []plegz.PastCondition
	}
	if err := json.Unmarshal(answer.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Events) != 2 || got.Events[0].Pod != "a" || got.Events[0].Time.Minute() != 4 || got.Events[1].Pod != "b" {
		t.Errorf("events %+v", got.Events)
	}
	if len(got.Conditions) == 0 || got.Conditions[0].Sentence != "Not healthy." {
		t.Errorf("conditions %+v", got.Conditions)
	}
}

// An end that an earlier agent wrote is not written again, unless it has been corrected since, or is of
// another life. If the runtime has forgotten the code, that is no correction: the end is as in the history.
func TestEndsAreWrittenOnce(t *testing.T) {
	t.Parallel()
	code := 137
	ended := line{
		Time: someTime, ContainerID: "c", Event: pleg.ContainerEnded, StartedAt: someTime, ExitCode: &code, Reason: "Error",
	}
	oomKilled := ended // the earlier agent did not live to write the end
	oomKilled.ContainerID, oomKilled.Event, oomKilled.Reason = "o", pleg.PodSync, "OOMKilled"
	dir := t.TempDir()
	earlier, _, err := openHistory(dir, defaultHistorySize)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(earlier.add(ended), earlier.add(oomKilled), earlier.close()); err != nil {
		t.Fatal(err)
	}
	h, _, err := openHistory(dir, defaultHistorySize)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.close() }()
	corrected, other, sync := ended, ended, line{Time: someTime, Event: pleg.PodSync}
	corrected.Reason, other.ContainerID = "OOMKilled", "d"
	forgotten := ended
	forgotten.StartedAt, forgotten.State, forgotten.ExitCode, forgotten.Reason = time.Time{}, "exited", nil, "Unknown"
	if !h.has(&ended) || !h.has(&forgotten) || h.has(&corrected) || h.has(&other) || h.has(&sync) {
		t.Error(h.has(&ended), h.has(&forgotten), h.has(&corrected), h.has(&other), h.has(&sync))
	}
	died := oomKilled
	died.Event = pleg.ContainerDied
	again := forgotten
	again.StartedAt = someTime.Add(time.Hour)
	h.recall(&again)
	if !h.has(&died) || h.has(&again) || again.ExitCode != nil {
		t.Error(h.has(&died), h.has(&again), again)
	}
	lost := forgotten
	lost.ContainerID, lost.StartedAt = "o", someTime
	if h.recall(&lost); h.has(&lost) || lost.ExitCode == nil || *lost.ExitCode != code || lost.Reason != "OOMKilled" {
		t.Errorf("%+v", lost)
	}
}
