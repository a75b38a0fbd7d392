package deploy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/internal/test/proctest"
	"github.com/kubepleg/pleg/internal/timetable"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

func unitPath() string {
	return filepath.Join(Root(), "plegwatch", "deploy", "systemd", "plegwatch.service")
}

// unit returns the settings of the systemd unit: for each name, its values in order. Continued
// lines are joined.
func unit(t *testing.T) map[string][]string {
	t.Helper()
	content, err := os.ReadFile(unitPath())
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string][]string{}
	for line := range strings.Lines(strings.ReplaceAll(string(content), "\\\n", " ")) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			settings[name] = append(settings[name], value)
		}
	}
	return settings
}

// unitAddress returns the first address on which the unit's agent listens.
func unitAddress(t *testing.T) string {
	t.Helper()
	found := regexp.MustCompile(`--listen (\S+)`).FindStringSubmatch(unit(t)["ExecStart"][0])
	if found == nil {
		t.Fatal("the unit does not say where it listens")
	}
	return found[1]
}

// tool runs a command and returns its output. It fails the test if the command is not installed.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v (the tests need Debian's packages systemd and strace)\n%s", name, args, err, out)
	}
	return string(out)
}

// systemd knows each setting of the unit, and rates the service as well protected.
func TestUnit(t *testing.T) {
	content, err := os.ReadFile(unitPath())
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), filepath.Base(unitPath()))
	text := strings.ReplaceAll(string(content), "/usr/local/bin/plegwatch", program)
	if err := os.WriteFile(copied, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	// For unknown settings, systemd-analyze prints a warning but exits with 0.
	if out := tool(t, "systemd-analyze", "verify", "--man=no", "--recursive-errors=no", copied); out != "" {
		t.Errorf("systemd-analyze verify:\n%s", out)
	}
	out := tool(t, "systemd-analyze", "security", "--offline=true", "--no-pager", copied)
	found := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`).FindStringSubmatch(out)
	if found == nil {
		t.Fatalf("no exposure level in\n%s", out)
	}
	if level, err := strconv.ParseFloat(found[1], 64); err != nil || level > 2 {
		t.Errorf("the exposure level is %v, %v; want 2.0 at most\n%s", level, err, out)
	}
	readme, err := os.ReadFile(filepath.Join(Root(), "plegwatch", "deploy", "README.md"))
	claim(t, err == nil && strings.Contains(string(readme), "rates it "+found[1]+"."), "the README has the level")

	u := unit(t)
	claim(t, u["CapabilityBoundingSet"][0] == "CAP_DAC_OVERRIDE" && u["AmbientCapabilities"][0] == "",
		"it has one capability, for containerd's shims")
	claim(t, strings.HasPrefix(unitAddress(t), "unix:///run/"+u["RuntimeDirectory"][0]+"/") &&
		u["RuntimeDirectoryMode"][0] == "0700", "its first address is a socket that only root can make or open")
	limit, isLimit := strings.CutPrefix(u["Environment"][0], "GOMEMLIMIT=")
	claim(t, isLimit && below(t, limit, memoryLimit), "Go's limit of memory is below the kernel's")
	claim(t, u["TimeoutStopSec"][0] == "10s", "it has time to end")
	claim(t, u["MemoryMax"][0] == strings.TrimSuffix(memoryLimit, "i"), "its memory is limited as in the manifests")
	claim(t, u["SystemCallErrorNumber"][0] == "EPERM", "a call that it may not make fails, and does not end it")
	claim(t, len(u["Requires"])+len(u["BindsTo"])+len(u["PartOf"]) == 0, "it outlives the runtime")
}

// The unit's system call filter allows each call that the program makes while it serves and watches
// a busy node. The test needs a Debian with the same systemd.
func TestUnitAllowsItsSystemCalls(t *testing.T) {
	s := proctest.CRIServer(t)
	plans := timetable.New(s, clock.RealClock{})
	t.Cleanup(plans.Stop)
	plans.Play(timetable.PodPlan{
		PodConfig: criserver.PodConfig{Name: "crash"},
		Containers: []timetable.ContainerPlan{{
			ContainerConfig: criserver.ContainerConfig{Name: "app"}, RunFor: 200 * time.Millisecond, ExitCode: 1,
			Restarts: timetable.Forever, BackOff: 200 * time.Millisecond, MaxBackOff: 200 * time.Millisecond,
		}},
	})
	dir := t.TempDir()
	log, address := filepath.Join(dir, "strace"), proctest.FreeAddress(t)
	traced := startAgent(t, "strace", "-f", "-qq", "-o", log, program, "--runtime-endpoint", s.Endpoint(), "--wait",
		"--listen", "unix://"+filepath.Join(dir, "plegwatch.sock"), "--listen", address, "--output", "json")
	eventually(t, func() string {
		if _, err := health(address); err != nil {
			return err.Error()
		}
		return ""
	})
	eventually(t, func() string {
		if n := count(t, address, `pleg_container_exits_total{reason="Error"}`); !(n >= 3) {
			return fmt.Sprintf("%v crashes seen", n)
		}
		return ""
	})
	for _, path := range []string{"/", "/?format=json", "/metrics"} {
		resp, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	s.Down() // the program now tries to reconnect repeatedly
	time.Sleep(time.Second)
	if err := s.Up(); err != nil {
		t.Fatal(err)
	}
	// strace itself ignores this signal, and ends with the program.
	if err := errors.Join(syscall.Kill(-traced.Pid(), syscall.SIGTERM), traced.Wait()); err != nil {
		t.Fatal("strace:", err)
	}

	trace, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	allowed := filtered(t, unit(t)["SystemCallFilter"])
	made := map[string]int{}
	for _, call := range regexp.MustCompile(`(?m)^\d+ +([a-z0-9_]+)\(`).FindAllStringSubmatch(string(trace), -1) {
		made[call[1]]++
	}
	t.Logf("%d system calls of %d kinds", len(strings.Split(string(trace), "\n")), len(made))
	if made["epoll_pwait"] == 0 || made["connect"] == 0 || len(made) < 20 {
		t.Fatalf("this is not the program's trace: %v", made)
	}
	for call, n := range made {
		if !allowed[call] {
			t.Errorf("%s, made %d times, is not allowed", call, n)
		}
	}
}

// filtered returns the system calls that a list of systemd's filters allows. A filter that begins
// with ~ removes calls; other filters add calls.
func filtered(t *testing.T, filters []string) map[string]bool {
	t.Helper()
	calls := map[string]bool{}
	for _, filter := range append([]string{"@default"}, filters...) {
		names, taken := strings.CutPrefix(filter, "~")
		for name := range strings.FieldsSeq(names) {
			for _, call := range members(t, name) {
				calls[call] = !taken
			}
		}
	}
	return calls
}

// members returns the system calls in one of systemd's sets. For a name without @, it returns the
// name.
func members(t *testing.T, name string) (calls []string) {
	t.Helper()
	if !strings.HasPrefix(name, "@") {
		return []string{name}
	}
	for line := range strings.Lines(tool(t, "systemd-analyze", "--no-pager", "syscall-filter", name)) {
		if line = strings.TrimSpace(line); line != name && line != "" && !strings.HasPrefix(line, "#") {
			calls = append(calls, members(t, line)...)
		}
	}
	return calls
}
