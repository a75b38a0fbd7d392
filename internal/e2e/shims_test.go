package e2e_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// The defaults make a short run.
var (
	shimAgents = flag.Int("shim.agents", 50, "how many agents TestShimsKeepNothing starts and ends")
	shimPods   = flag.Int("shim.pods", 3, "how many pods TestRemovalOfPodsWhoseShimsAreAsked removes, asked and not asked")
)

// shimOf returns the PID of a pod's shim.
func (n *node) shimOf(pod *testnode.Pod) int {
	n.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	n.must(err)
	for _, file := range files {
		args, err := os.ReadFile(file)
		if err == nil && bytes.Contains(args, []byte("containerd-shim")) && bytes.Contains(args, []byte(pod.SandboxID)) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			n.must(err)
			return pid
		}
	}
	n.t.Fatal("no shim of", pod.SandboxID)
	return 0
}

// filesOf returns how many files a process has open.
func (n *node) filesOf(pid int) int {
	n.t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	n.must(err)
	return len(files)
}

// memoryOf returns the anonymous memory of a process in KiB.
func (n *node) memoryOf(pid int) (kib int) {
	n.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	n.must(err)
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "RssAnon: %d kB", &kib) // other lines do not match
	}
	return kib
}

// bareContainerd starts a node with containerd. It skips the test on other runtimes.
func bareContainerd(t *testing.T) *node {
	t.Helper()
	n := newBareNode(t)
	if n.daemon.ExitsDir() != "" {
		t.Skip("only containerd has shims")
	}
	return n
}

// If agents start and end while containerd is down, no file descriptor stays open in a shim. The
// shim still reports each exit to the next agent.
func TestShimsKeepNothing(t *testing.T) {
	n := bareContainerd(t)
	pod := n.runPod("shim")
	mortals := n.runMortals(pod, 1, 1)[0]
	pid := n.shimOf(pod)
	n.must(n.daemon.Kill())
	time.Sleep(time.Second) // by then, the shim has closed its connections to containerd
	files, memory := n.filesOf(pid), n.memoryOf(pid)
	agent := func(until func(r *cri.Runtime, exits chan pleg.ContainerExit)) {
		r, err := cri.Dial(n.daemon.Endpoint(), cri.WithLogger(logr.Discard()))
		n.must(err)
		defer r.Close()
		ctx, cancel := context.WithCancel(n.ctx)
		exits, done := make(chan pleg.ContainerExit, 100), make(chan error, 1)
		go func() {
			done <- r.WatchContainerExits(ctx, func() {}, func(e pleg.ContainerExit) { exits <- e })
		}()
		until(r, exits)
		cancel()
		if err := <-done; err == nil {
			t.Error("the watch ended without an error")
		}
	}
	for range *shimAgents {
		agent(func(r *cri.Runtime, _ chan pleg.ContainerExit) {
			n.eventually("the calls", func() string {
				if text := r.DescribeRuntime(); !strings.Contains(text, fmt.Sprintf("shim (for %d containers)", len(mortals)+1)) {
					return text
				}
				return ""
			})
		})
		n.eventually("the end of the connection", func() string {
			if got := n.filesOf(pid); got > files {
				return fmt.Sprint(got, " files, and before ", files)
			}
			return ""
		})
	}
	t.Logf("%s, %d agents, %d Waits each: %d files, anonymous memory %d KiB, before %d KiB", n.daemon.Runtime().Name,
		*shimAgents, len(mortals)+1, n.filesOf(pid), n.memoryOf(pid), memory)
	n.endAll(mortals, time.Millisecond)
	codes := map[string]int{}
	agent(func(_ *cri.Runtime, exits chan pleg.ContainerExit) {
		for range mortals {
			select {
			case e := <-exits:
				codes[e.ContainerID] = e.ExitCode
			case <-time.After(patience):
				t.Fatal("no exit")
			}
		}
	})
	for _, m := range mortals {
		if code, ok := codes[m.id]; !ok || code != m.code {
			t.Errorf("%d, %t; want %d", code, ok, m.code)
		}
	}
	n.must(n.daemon.Restart(n.ctx))
	n.must(n.client.StopPod(n.ctx, pod))
	n.must(n.client.RemovePod(n.ctx, pod))
	n.awaitGone(pid)
}

// awaitGone waits until a process has ended.
func (n *node) awaitGone(pid int) {
	n.t.Helper()
	n.eventually("the end of the shim", func() string {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || bytes.Contains(stat, []byte(") Z ")) {
			return ""
		}
		return "it runs"
	})
}

// If one shim is stopped and another shim is killed, only the exits in their two pods are missing.
// The description of the runtime counts the containers of these pods. When the stopped shim
// continues, it reports the exit of its container.
func TestFrozenAndKilledShims(t *testing.T) {
	n := bareContainerd(t)
	reported := n.watchExits(false)
	var pods [3]*testnode.Pod
	var mortals [3]*mortal
	for i := range pods {
		pods[i] = n.runPod(fmt.Sprint("shim", i))
		id := n.run(pods[i], testnode.Container{Name: "app", Command: testnode.ExitOnSignal(i + 3)})
		pid, err := n.client.Pid(n.ctx, id)
		n.must(err)
		mortals[i] = &mortal{id: id, pid: pid, code: i + 3, signal: unix.SIGUSR1}
	}
	good, frozen, killed := mortals[0], mortals[1], mortals[2]
	frozenShim := n.shimOf(pods[1])
	n.must(unix.Kill(frozenShim, unix.SIGSTOP))
	thaw := func() error { return unix.Kill(frozenShim, unix.SIGCONT) }
	t.Cleanup(func() { _ = thaw() })
	n.must(n.daemon.Kill())
	n.must(unix.Kill(n.shimOf(pods[2]), unix.SIGKILL))
	n.must(good.end())
	begun := time.Now()
	n.eventually("the exit beside the others", func() string {
		if exits := reported.of(good.id); len(exits) != 1 || exits[0].ExitCode != good.code {
			return fmt.Sprint(exits)
		}
		return ""
	})
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	n.eventually("the report", func() string {
		// Two of three pods are affected, with a sandbox and a container each.
		if text := reported.witnesses(); !strings.Contains(text, "no shim: 4 of 6 containers: ") {
			return text
		}
		return ""
	})
	n.must(unix.Kill(frozen.pid, unix.SIGUSR1)) // sent once: the stopped shim reaps nothing
	n.must(thaw())
	n.eventually("the exit behind the stopped shim", func() string {
		if exits := reported.of(frozen.id); len(exits) != 1 || exits[0].ExitCode != frozen.code {
			return fmt.Sprint(exits)
		}
		return ""
	})
	if exits := reported.of(killed.id); len(exits) > 0 {
		t.Errorf("%+v of a container whose shim was killed before", exits)
	}
	n.must(n.daemon.Restart(n.ctx))
}

// With an agent connected to the shims, pods are removed and their shims end as quickly as without
// an agent.
func TestRemovalOfPodsWhoseShimsAreAsked(t *testing.T) {
	n := bareContainerd(t)
	removal := func(reported *reportedExits) (took measure.Samples) {
		pods, pids := make([]*testnode.Pod, *shimPods), make([]int, *shimPods)
		for i := range pods {
			pods[i] = n.runPod(fmt.Sprint("removed", i))
			n.run(pods[i], testnode.Container{Name: "app", Command: testnode.ExitOnSignal(0)})
			pids[i] = n.shimOf(pods[i])
		}
		n.must(n.daemon.Kill())
		if reported != nil {
			n.eventually("the calls", func() string {
				if text := reported.witnesses(); !strings.Contains(text, fmt.Sprintf("shim (for %d containers)", 2**shimPods)) {
					return text
				}
				return ""
			})
		}
		n.must(n.daemon.Restart(n.ctx))
		for i, pod := range pods {
			begun := time.Now()
			n.must(n.client.StopPod(n.ctx, pod))
			n.must(n.client.RemovePod(n.ctx, pod))
			n.awaitGone(pids[i])
			took = append(took, time.Since(begun))
		}
		return took
	}
	without := removal(nil)
	// This watcher makes no lists. So it keeps its connections to the shims for more than a minute
	// after the restart.
	with := removal(n.watchExits(false))
	for name, s := range map[string]measure.Samples{"with": with, "without": without} {
		t.Logf("%s, removal of %d pods %s calls to their shims: p50 %s, p90 %s, max %s",
			n.daemon.Runtime().Name, len(s), name,
			measure.Milliseconds(s.Quantile(0.5)), measure.Milliseconds(s.Quantile(0.9)), measure.Milliseconds(s.Quantile(1)))
	}
	// This limit is wide enough for a busy machine.
	if with.Quantile(0.5) > 2*without.Quantile(0.5)+5*time.Second {
		t.Errorf("the median of removals with calls is %v", with.Quantile(0.5))
	}
}
