package deploy

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/test/proctest"
	"github.com/kubepleg/pleg/internal/timetable"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// The resources in the manifests. TestResources compares them with the manifests, and TestFootprint
// with its measurements.
const (
	requestedCPU    = "20m"
	requestedMemory = "48Mi"
	memoryLimit     = "128Mi"
)

// By default, TestFootprint is short and only checks the manifests' resources. The figures in
// plegwatch/deploy/README.md were measured with -footprint.for=60s.
var (
	footprintFor     = flag.Duration("footprint.for", 8*time.Second, "how long TestFootprint measures in each state")
	footprintHistory = flag.Bool("footprint.history", true, "TestFootprint's agent keeps a history, as the manifests do")
	footprintPods    = flag.Int("footprint.pods", 110, "the pods of TestFootprint, of two containers each")
)

// crashing is the number of pods on the busy node that crash and restart every second.
const crashing = 5

// TestFootprint measures the program on a node of 110 pods, which is a kubelet's default limit. It
// measures an idle node, a busy node, and a busy node with a viewer of the page.
func TestFootprint(t *testing.T) {
	s := proctest.CRIServer(t)
	for i := range *footprintPods {
		sandbox := s.RunPod(criserver.PodConfig{
			Namespace: "production", Name: fmt.Sprintf("frontend-6d4cf56db6-%05d", i), Labels: ordinaryLabels(i),
		})
		for _, name := range []string{"server", "sidecar"} {
			if _, err := s.RunContainer(sandbox, criserver.ContainerConfig{Name: name, Labels: ordinaryLabels(i)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	address := proctest.FreeAddress(t)
	args := []string{"--runtime-endpoint", s.Endpoint(), "--wait", "--output", "json", "--initial", "--listen", address}
	history := filepath.Join(t.TempDir(), "history.jsonl")
	if *footprintHistory {
		args = append(args, "--history", filepath.Dir(history))
	}
	agent := startAgent(t, program, args...)
	eventually(t, func() string {
		if r, err := health(address); err != nil || r.Pods < *footprintPods {
			return fmt.Sprintf("%v, %v", r, err)
		}
		return ""
	})
	pid := agent.Pid()
	span := func(state string) float64 {
		began, before := cpuSeconds(t, pid), sizeOf(history)
		time.Sleep(*footprintFor)
		cores := (cpuSeconds(t, pid) - began) / footprintFor.Seconds()
		t.Logf("%d pods, %-21s %5.1f millicores, RSS %4.1f MiB, its highest %4.1f MiB, history %4.2f MiB an hour",
			*footprintPods, state+":", cores*1000, status(t, pid, "VmRSS"), status(t, pid, "VmHWM"),
			float64(sizeOf(history)-before)/(1<<20)/footprintFor.Hours())
		return cores
	}
	idle := span("idle")
	plans := timetable.New(s, clock.RealClock{})
	t.Cleanup(plans.Stop)
	for i := range crashing {
		plans.Play(timetable.PodPlan{
			PodConfig: criserver.PodConfig{Namespace: "production", Name: fmt.Sprintf("crash-%d", i)},
			Containers: []timetable.ContainerPlan{{
				ContainerConfig: criserver.ContainerConfig{Name: "app"}, RunFor: 500 * time.Millisecond, ExitCode: 1,
				Restarts: timetable.Forever, BackOff: 500 * time.Millisecond, MaxBackOff: 500 * time.Millisecond,
			}},
		})
	}
	span(fmt.Sprintf("%d crash loops", crashing))
	viewer := http.Client{}
	stream, err := viewer.Get("http://" + address + "/?format=stream")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	go func() { _, _ = io.Copy(io.Discard, stream.Body) }() // ends when the agent ends
	span("crash loops, a viewer")
	if got := count(t, address, `pleg_container_exits_total{reason="Error"}`); got < crashing {
		t.Errorf("%v containers have crashed: the busy node was not busy", got)
	}

	if asked := quantity(requestedCPU); idle > asked {
		t.Errorf("idle, it takes %.1f millicores, more than the %s requested", idle*1000, requestedCPU)
	}
	if got, asked := status(t, pid, "VmHWM"), quantity(requestedMemory)/(1<<20); got > asked {
		t.Errorf("its resident memory was %.1f MiB, more than the %s requested", got, requestedMemory)
	}
}

// sizeOf returns the size of a file; 0 if it does not exist.
func sizeOf(name string) int64 {
	info, err := os.Stat(name)
	if err != nil {
		return 0
	}
	return info.Size()
}

func quantity(text string) float64 {
	q := resource.MustParse(text)
	return q.AsApproximateFloat64()
}

func ordinaryLabels(i int) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name": "frontend", "app.kubernetes.io/instance": "frontend-production",
		"app.kubernetes.io/version": "1.2.3", "pod-template-hash": "6d4cf56db6", "topology.kubernetes.io/zone": "zone-a",
		"apps.kubernetes.io/pod-index": strconv.Itoa(i),
	}
}

func health(address string) (r pleg.HealthReport, err error) {
	resp, err := http.Get("http://" + address + "/healthz")
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	return r, json.NewDecoder(resp.Body).Decode(&r)
}

// count returns the value of a series in the agent's metrics.
func count(t *testing.T, address, series string) float64 {
	t.Helper()
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindSubmatch(text)
	if found == nil {
		return math.NaN()
	}
	value, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// cpuSeconds returns the CPU time that a process has used, in steps of 0.01 s.
func cpuSeconds(t *testing.T, pid int) float64 {
	t.Helper()
	used, err := measure.CPUOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	return used.Seconds()
}

// status returns a field of /proc/PID/status in MiB.
func status(t *testing.T, pid int, field string) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, field+": %f kB", &kb); n == 1 {
			return kb / 1024
		}
	}
	t.Fatalf("there is no %s in\n%s", field, text)
	return 0
}
