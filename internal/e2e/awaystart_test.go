package e2e_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubepleg/pleg"
)

// If containers end while the runtime is down, the last agent reports each end once, with its exit
// code and time. Some containers end before the first agent starts, or while an earlier agent runs.
// Others end between two agents, or while the last agent runs. The rest end when the runtime
// runs again, in one case containerd upgraded from 1.7 to 2.4.
func TestExitsOfAnAgentThatStartsWhileTheRuntimeIsAway(t *testing.T) {
	for _, test := range []struct {
		name     string
		restarts bool   // true if an earlier agent stops during the outage
		upgrade  string // the version that is started after the outage; empty for the same version
	}{
		{"start", false, ""},
		{"restart", true, ""},
		{"restart and upgrade", true, "containerd-2.4"},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newBareNode(t)
			runtime, dir := n.daemon.Runtime(), n.daemon.ExitsDir()
			if test.upgrade != "" && runtime.Name != "containerd-1.7" {
				t.Skip("only containerd 1.7 is upgraded")
			}
			config := watcherConfig{Endpoint: n.daemon.Endpoint(), ExitsDir: dir}
			pod := n.runPod("away")
			phases := n.runMortals(pod, 4, 1)
			var before *awayWatcher
			if test.restarts {
				before = n.startWatcher("before", config)
				before.ask("")
			}
			n.must(n.daemon.Kill())
			n.endAll(phases[0], 100*time.Millisecond)
			if before != nil {
				before.stop()
			}
			n.endAll(phases[1], 100*time.Millisecond)
			w := n.startWatcher("agent", config)
			time.Sleep(time.Second)
			n.endAll(phases[2], 100*time.Millisecond)
			time.Sleep(time.Second)
			latest := time.Now()
			if test.upgrade != "" {
				n.must(n.daemon.Replace(n.ctx, test.upgrade))
			}
			n.must(n.daemon.Restart(n.ctx))
			n.eventually("the start", func() string {
				if !w.has(phases[3][0].id, pleg.ContainerStarted) {
					return "not reported"
				}
				return ""
			})
			n.endAll(phases[3], 100*time.Millisecond)
			for i, phase := range phases {
				for _, m := range phase {
					if m.latest = latest; i == 3 {
						m.latest = m.gone.Add(lateTime)
					}
				}
			}
			all := slices.Concat(phases...)
			for _, m := range all {
				n.awaitExit(m.id)
			}
			time.Sleep(3 * time.Second) // the runtime's own statuses and reasons may be late
			t.Log(w.ask(pod.UID))
			n.eventually("the end of the calls to shims", func() string {
				if text := w.ask(""); dir == "" && (strings.Contains(text, "shim (for") ||
					!strings.Contains(text, "exits by events, shim")) {
					return text
				}
				return ""
			})
			right := 0
			for i, m := range all {
				if m.byRuntime {
					t.Logf("the runtime has ended %.12s", m.id)
					right++
					continue
				}
				if wrong, _, _ := w.judge(m, runtime.EarlyBy); wrong == "" {
					right++
				} else {
					t.Errorf("%.12s, of phase %d: %s", m.id, i/len(phases[0]), wrong)
				}
			}
			t.Logf("%d of %d right", right, len(all))
		})
	}
}
