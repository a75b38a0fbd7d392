package nodeagent

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	cpu "github.com/kubepleg/pleg/internal/e2e/measure"
)

// The defaults are for short runs. The figures in nodeagent/README.md come from "make live" on an
// idle machine, with 20 samples and one minute of idling.
var (
	samples = flag.Int("latency.samples", 3, "how often TestLatency measures each time")
	idleFor = flag.Duration("idle.for", 2*time.Second, "how long TestIdle measures")
)

// TestIdle measures the CPU time of the agent and of the kubelet with 30 idle pods.
func TestIdle(t *testing.T) {
	t.Parallel()
	buildKubelet(t)
	idle(t, "the agent", func(n *node) runner { return n.startAgent() })
	idle(t, "the kubelet", func(n *node) runner { return n.startKubelet() })
}

func idle(t *testing.T, who string, start func(*node) runner) {
	n := newNode(t)
	for i := range 30 {
		name := fmt.Sprint("pod-", i)
		n.write(name, manifest(name, "  terminationGracePeriodSeconds: 1\n"+shell("sleep 100000", "")))
	}
	r := start(n)
	n.eventually("pods that run", func() string {
		running := 0
		for _, pod := range r.pods() {
			if pod.Status.Phase == v1.PodRunning {
				running++
			}
		}
		if running < 30 {
			return fmt.Sprintf("%d run", running)
		}
		return ""
	})
	time.Sleep(*idleFor / 10) // until the start is over
	before, err := cpu.CPUOf(r.Pid())
	n.must(err)
	time.Sleep(*idleFor)
	after, err := cpu.CPUOf(r.Pid())
	n.must(err)
	used := (after - before).Seconds() / idleFor.Seconds()
	t.Logf("%s: %.1f ms of CPU time a second with 30 pods", who, used*1000)
	if used > 0.5 {
		t.Errorf("%s is busy without work: %.0f ms a second", who, used*1000)
	}
}

// TestLatency measures the agent and the kubelet. It measures the time from a manifest to a running
// pod, and from a crash to the successor's start. It fails only if a pod or a successor never runs.
func TestLatency(t *testing.T) {
	t.Parallel()
	buildKubelet(t)
	measure(t, "the agent", func(n *node) runner { return n.startAgent() })
	measure(t, "the kubelet", func(n *node) runner { return n.startKubelet() })
}

func measure(t *testing.T, who string, start func(*node) runner) {
	n := newNode(t)
	n.write("first", manifest("first", shell("sleep 100000", "")))
	r := start(n)
	n.awaitPods(r, 1)
	var running, served, successor []time.Duration
	for i := range *samples {
		name := fmt.Sprint("pod-", i)
		began := time.Now()
		n.write(name, manifest(name, "  terminationGracePeriodSeconds: 1\n"+shell("sleep 3; exit 1", "")))
		n.eventually(name, func() string {
			if pod := r.pods()[name]; pod == nil || pod.Status.Phase != v1.PodRunning {
				return "does not run"
			}
			return ""
		})
		served = append(served, time.Since(began))
		// The container crashes. The runtime's timestamps show when its successor started.
		var runs []*runtimeapi.ContainerStatus
		n.eventually("the successor of "+name, func() string {
			runs = n.runs(string(r.pods()[name].UID))
			if len(runs) < 2 || runs[1].StartedAt == 0 {
				return "is not there"
			}
			return ""
		})
		running = append(running, time.Unix(0, runs[0].StartedAt).Sub(began))
		successor = append(successor, time.Duration(runs[1].StartedAt-runs[0].FinishedAt))
		n.remove(name)
		n.awaitPods(r, 1)
	}
	for what, d := range map[string][]time.Duration{"manifest to start": running, "manifest to Running in /pods": served,
		"crash to successor": successor} {
		slices.Sort(d)
		at := func(percent int) time.Duration { return d[(len(d)-1)*percent/100].Round(time.Millisecond) }
		t.Logf("%s: %s: median %v, 10th to 90th percentile %v to %v, longest %v, n = %d", who, what, at(50), at(10),
			at(90), at(100), len(d))
	}
}

// runs returns the statuses of all instances of a pod's container, oldest first.
func (n *node) runs(uid string) (runs []*runtimeapi.ContainerStatus) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, containers, err := n.left()
	n.must(err)
	for _, c := range containers {
		if c.Labels[labelUID] != uid {
			continue
		}
		s, err := n.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.Id})
		if err != nil {
			if strings.Contains(err.Error(), "not found") {
				continue
			}
			n.must(err)
		}
		runs = append(runs, s.Status)
	}
	slices.SortFunc(runs, func(a, b *runtimeapi.ContainerStatus) int {
		return int(a.Metadata.Attempt) - int(b.Metadata.Attempt)
	})
	return runs
}
