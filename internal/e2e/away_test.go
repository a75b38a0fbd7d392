package e2e_test

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// The defaults make a short run. docs/RUNTIMES.md has a table of 10 rounds, with long outages.
var (
	awayRounds   = flag.Int("away.rounds", 1, "rounds of nine containers of TestExitsWhileTheRuntimeIsAway, by outage")
	awayTogether = flag.Int("away.together", 10, "how many of them share an outage")
	awayLong     = flag.Bool("away.long", false, "with outages of 20 seconds, too")
)

// outage is a way to interrupt the runtime.
type outage struct {
	name  string
	begin func(*testnode.Daemon) error
	away  time.Duration
	end   func(*node) error
}

func outages() []outage {
	restart := func(n *node) error { return n.daemon.Restart(n.ctx) }
	all := []outage{
		{"SIGKILL, 2 s", (*testnode.Daemon).Kill, 2 * time.Second, restart},
		{"SIGTERM, 2 s", (*testnode.Daemon).Terminate, 2 * time.Second, restart},
		{"SIGSTOP, 5 s", (*testnode.Daemon).Freeze, 5 * time.Second, func(n *node) error { return n.daemon.Thaw() }},
	}
	if *awayLong {
		all = append(all,
			outage{"SIGKILL, 20 s", (*testnode.Daemon).Kill, 20 * time.Second, restart},
			outage{"SIGTERM, 20 s", (*testnode.Daemon).Terminate, 20 * time.Second, restart})
	}
	return all
}

// mortal is a container that the test will end.
type mortal struct {
	id        string
	pid, code int
	signal    unix.Signal

	// The first signal was sent at begun, and the process had ended at gone. byRuntime is true if
	// the process had ended before the first signal.
	begun, gone time.Time
	byRuntime   bool
	// latest is the latest end time that a correct status may show. It is the time when the runtime
	// came back, or later if the container ended after the outage.
	latest time.Time
}

// end ends a container by a signal, without the runtime.
func (m *mortal) end() error {
	m.begun = time.Now()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err := unix.Kill(m.pid, m.signal); errors.Is(err, unix.ESRCH) {
			m.byRuntime, m.gone = m.gone.IsZero(), time.Now()
			return nil
		}
		m.gone = time.Now()
	}
	return fmt.Errorf("process %d does not go", m.pid)
}

// endAll ends containers and waits until all have ended. The argument within is the time over which
// the ends are spread.
func (n *node) endAll(some []*mortal, within time.Duration) {
	n.t.Helper()
	var joined sync.WaitGroup
	for i, m := range some {
		joined.Go(func() {
			time.Sleep(within * time.Duration(i) / time.Duration(len(some)))
			if err := m.end(); err != nil {
				n.t.Error(err)
			}
		})
	}
	joined.Wait()
}

// tally counts the correct reports of container ends by one watcher.
type tally struct {
	watcher  *awayWatcher
	required bool
	// right counts the correct reports for outages of the current kind; sum counts reports for
	// earlier kinds.
	right, sum int
	// after is the time from the end of a container to the watcher's first report of its death.
	after measure.Samples
	// late is the end time in the status minus the time when the process had ended; at least 0.
	late measure.Samples
}

// lateTime is how late the end time of a container that ended after the outage may be. A shim
// records the end time when it handles the exit. On a busy machine, that is up to a second late.
const lateTime = 10 * time.Second

// judge returns what is wrong with the reports of a container's end, or "" if they are correct. It
// also returns the time of the first report, and the latest end time in a status.
func (w *awayWatcher) judge(m *mortal, early time.Duration) (wrong string, first, end time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	died := 0
	statuses := []*pleg.Status{w.answers[m.id]}
	for _, l := range w.events[m.id] {
		if l.Event == pleg.ContainerDied {
			died++
			first = l.At
		}
		if l.Status == nil {
			if l.Event == pleg.ContainerDied {
				return "no status with the death", first, end
			}
			continue
		}
		if l.Status.State == pleg.ContainerStateExited {
			statuses = append(statuses, l.Status)
		}
	}
	if died != 1 {
		return fmt.Sprintf("died %d times", died), first, end
	}
	for i, s := range statuses {
		switch {
		case s == nil || s.State != pleg.ContainerStateExited:
			return fmt.Sprintf("the cache has %+v", s), first, end
		case s.ExitCode != m.code || s.Reason == "Unknown":
			return fmt.Sprintf("status %d has %d %s, want %d; events%s", i, s.ExitCode, s.Reason, m.code,
				w.journalLocked(m)), first, end
		case s.FinishedAt.Before(m.begun.Add(-early)) || s.FinishedAt.After(m.latest):
			return fmt.Sprintf("status %d has an end %v after it", i, s.FinishedAt.Sub(m.gone)), first, end
		case s.FinishedAt.After(end):
			end = s.FinishedAt
		}
	}
	return "", first, end
}

// journalLocked lists the events of a container, each with the time since the container's end.
func (w *awayWatcher) journalLocked(m *mortal) (text string) {
	for _, l := range w.events[m.id] {
		text += fmt.Sprintf(" %s after %v", l.Event, l.At.Sub(m.gone).Round(time.Millisecond))
		if l.Status != nil {
			text += fmt.Sprintf(" (%d %s)", l.Status.ExitCode, l.Status.Reason)
		}
	}
	return text
}

// If containers end before, during or after an outage of the runtime, each end is reported once,
// with its exit code and time. The exit code does not change if the runtime later shows 255
// "Unknown". The watchers cannot see the node's PIDs, and have only the capability of the
// DaemonSet.
func TestExitsWhileTheRuntimeIsAway(t *testing.T) {
	n := newBareNode(t)
	r, dir := n.daemon.Runtime(), n.daemon.ExitsDir()
	proxy, err := n.daemon.StartProxy() // no bundles are in the folder of this socket
	n.must(err)
	t.Cleanup(func() { n.must(proxy.Close()) })
	n.reconnect = proxy.Reconnect
	watchers := []*tally{
		{watcher: n.startWatcher("all", watcherConfig{Endpoint: n.daemon.Endpoint(), ExitsDir: dir}), required: true},
		{watcher: n.startWatcher("by a link", watcherConfig{Endpoint: n.link(), ExitsDir: dir}), required: true},
		{watcher: n.startWatcher("by its status", watcherConfig{Endpoint: proxy.Endpoint, ExitsDir: dir}), required: true},
		{watcher: n.startWatcher("the runtime's own", watcherConfig{Endpoint: n.daemon.Endpoint(), WithoutState: true})},
		{watcher: n.startWatcher("none", watcherConfig{Endpoint: n.daemon.Endpoint(), WithoutExits: true})},
	}
	for _, w := range watchers {
		w.watcher.ask("")
	}
	lost, total := 0, 0
	for _, o := range outages() {
		var phases [3]int // lost exit codes by phase: before, during and after the outage
		before := total
		for left := *awayRounds; left > 0; left -= *awayTogether {
			l, n := n.survive(o, min(left, *awayTogether), watchers, total == 0)
			total += n
			for i := range phases {
				phases[i] += l[i]
				lost += l[i]
			}
		}
		cells := []string{r.Name, o.name, fmt.Sprintf("%d of %d", phases, total-before)}
		for _, w := range watchers {
			cells = append(cells, fmt.Sprintf("%s %d of %d, p50 %s, max %s, stamped late by %s", w.watcher.name, w.right,
				total-before, measure.Milliseconds(w.after.Quantile(0.5)), measure.Milliseconds(w.after.Quantile(1)),
				measure.Milliseconds(w.late.Quantile(1))))
			w.sum, w.right, w.after, w.late = w.sum+w.right, 0, nil, nil
		}
		t.Logf("| %s |", strings.Join(cells, " | "))
	}
	cells := []string{r.Name, "all", fmt.Sprintf("%d of %d", lost, total)}
	for _, w := range watchers {
		cells = append(cells, fmt.Sprintf("%s %d of %d", w.watcher.name, w.sum, total))
	}
	t.Logf("| %s |", strings.Join(cells, " | "))
}

// runMortals runs 3 × rounds containers in a pod for each phase, one after another: a shim of
// containerd 1.7 on a slow machine may not answer several starts in time.
func (n *node) runMortals(pod *testnode.Pod, phases, rounds int) [][]*mortal {
	n.t.Helper()
	all := make([][]*mortal, phases)
	for phase := range all {
		for i := range 3 * rounds {
			m := &mortal{code: []int{0, 42, 137}[i%3], signal: unix.SIGUSR1}
			if m.code == 137 {
				m.signal = unix.SIGKILL
			}
			m.id = n.run(pod, testnode.Container{Name: fmt.Sprintf("c%d-%d", phase, i), Command: testnode.ExitOnSignal(m.code)})
			var err error
			m.pid, err = n.client.Pid(n.ctx, m.id)
			n.must(err)
			all[phase] = append(all[phase], m)
		}
	}
	return all
}

// survive ends containers before, during and after an outage. It returns how many exit codes the
// runtime lost in each phase, and how many containers ended.
func (n *node) survive(o outage, rounds int, watchers []*tally, first bool) (lost [3]int, total int) {
	n.t.Helper()
	pod := n.runPod("away")
	phases := n.runMortals(pod, 3, rounds)
	all := slices.Concat(phases...)
	n.eventually("the starts", func() string {
		for _, w := range watchers {
			for _, m := range all {
				if !w.watcher.has(m.id, pleg.ContainerStarted) {
					return w.watcher.name + " has not reported " + m.id
				}
			}
		}
		return ""
	})
	for _, w := range watchers {
		if witnesses := w.watcher.ask(""); first {
			n.t.Logf("%s: %s", w.watcher.name, witnesses)
		}
	}
	n.endAll(phases[0], 100*time.Millisecond)
	n.must(o.begin(n.daemon))
	back := time.Now().Add(o.away)
	n.endAll(phases[1], o.away/2)
	time.Sleep(time.Until(back))
	latest := time.Now()
	n.must(o.end(n))
	n.reconnect()
	n.endAll(phases[2], 100*time.Millisecond)
	for _, m := range all {
		m.latest = latest
	}
	for _, m := range phases[2] {
		m.latest = m.gone.Add(lateTime)
	}
	deadline := time.Now().Add(patience) // a runtime that has just started may be slow
	for _, m := range all {
		if s := n.lastStatus(m.id, deadline); s.State != runtimeapi.ContainerState_CONTAINER_EXITED {
			if !n.daemon.Runtime().LosesExits {
				n.t.Fatalf("%s: the runtime shows container %s as %s", o.name, m.id, s.State)
			}
			n.t.Logf("%s: the runtime has lost %.12s, and shows it as %s", o.name, m.id, s.State)
		}
	}
	time.Sleep(3 * time.Second) // the runtime's own statuses and reasons may be late
	for _, w := range watchers {
		w.watcher.ask(pod.UID)
	}
	for i, m := range all {
		phase := i / len(phases[0])
		if m.byRuntime {
			n.t.Logf("%s: the runtime has ended %.12s", o.name, m.id)
			continue
		}
		total++
		shown, err := n.client.ContainerStatus(n.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: m.id})
		n.must(err)
		if shown.Status.State != runtimeapi.ContainerState_CONTAINER_EXITED || int(shown.Status.ExitCode) != m.code {
			lost[phase]++
		}
		for _, w := range watchers {
			wrong, first, end := w.watcher.judge(m, n.daemon.Runtime().EarlyBy)
			if !first.IsZero() {
				w.after = append(w.after, max(0, first.Sub(m.gone)))
			}
			if wrong == "" {
				w.right++
				w.late = append(w.late, max(0, end.Sub(m.gone)))
			} else if w.required {
				n.t.Errorf("%s, %s: %.12s, which ended %s the outage: %s", o.name, w.watcher.name, m.id,
					[]string{"before", "during", "after"}[phase], wrong)
			}
		}
	}
	n.must(n.client.StopPod(n.ctx, pod))
	n.must(n.client.RemovePod(n.ctx, pod))
	return lost, total
}
