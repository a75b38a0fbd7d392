package contract_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// states returns the states of pod a's containers in the cache.
func states(t *testing.T, cache *pleg.PodCache) map[string]pleg.State {
	t.Helper()
	status := mustGet(t, cache)
	states := make(map[string]pleg.State)
	for _, s := range status.ContainerStatuses {
		states[s.ID.ID] = s.State
	}
	return states
}

// exitOf returns an exit event of a container.
func exitOf(id string, code int) pleg.ContainerExit {
	return pleg.ContainerExit{ContainerID: id, ExitCode: code, FinishedAt: time.Now()}
}

// watch starts a node with the given pods, and returns the events that follow the start.
func watch(t *testing.T, pods ...*pleg.Pod) (*node, <-chan *pleg.PodLifecycleEvent) {
	t.Helper()
	n := newNode(t)
	return n, n.watch(pods...)
}

// listing is a runtime that reports exits, lists single pods, and has no event stream.
func listing(rt *plegtest.Runtime) pleg.Runtime {
	return struct {
		pleg.Runtime
		pleg.PodGetter
		pleg.ExitSource
	}{rt.Plain(), rt, rt}
}

// watchListing is like watch, but its node has the runtime that listing returns. It also returns a
// registry with the metrics.
func watchListing(t *testing.T, pods ...*pleg.Pod) (*node, <-chan *pleg.PodLifecycleEvent, *prometheus.Registry) {
	t.Helper()
	n, reg := newNodeWithMetricsOf(t, listing)
	return n, n.watch(pods...), reg
}

// watch starts the generator with the given pods, and returns the events that follow the start.
func (n *node) watch(pods ...*pleg.Pod) <-chan *pleg.PodLifecycleEvent {
	n.SetPods(pods...)
	events := n.g.Watch()
	n.start()
	read(events)
	return events
}

// mustGet returns the cached status of pod a.
func mustGet(t *testing.T, cache *pleg.PodCache) *pleg.PodStatus {
	t.Helper()
	status, err := cache.Get("a")
	if err != nil {
		t.Error(err)
	}
	return status
}

// counted returns the number of counted deaths for each reason.
func counted(t *testing.T, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	counted := make(map[string]float64)
	for _, reason := range []string{
		"Completed", "ContainerCannotRun", "Error", "OOMKilled", "StartError", "Unknown", "seccomp killed", "other", "unseen",
	} {
		if n := metric(t, reg, "pleg_container_exits_total", "reason", reason); n > 0 {
			counted[reason] = n
		}
	}
	return counted
}

// countedTransitions returns the number of counted transitions of all causes.
func countedTransitions(t *testing.T, reg prometheus.Gatherer) (n float64) {
	t.Helper()
	for _, cause := range []pleg.Cause{pleg.CausePeriod, pleg.CauseHint, pleg.CauseExit, pleg.CauseDemand} {
		n += metric(t, reg, "pleg_transitions_total", "cause", string(cause))
	}
	return n
}

// wantExits compares the deaths counted so far with the expected ones.
func wantExits(t *testing.T, reg prometheus.Gatherer, what string, want map[string]float64) {
	t.Helper()
	if diff := gocmp.Diff(want, counted(t, reg)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// lives records the calls of a handler in order, with exit codes and reasons.
type lives struct{ lines []string }

func (l *lives) handler() pleg.Handler {
	note := func(what string) func(*pleg.PodLifecycleEvent) {
		return func(e *pleg.PodLifecycleEvent) {
			line := fmt.Sprintf("%s %s", what, e.Data)
			if e.Initial {
				line = "initially " + line
			}
			if what == "ended" || what == "died" {
				switch code, reason, seen := e.Exit(); {
				case !seen:
					line += " unseen"
				case e.Status.Unconfirmed:
					line += fmt.Sprintf(" %d?", code)
				default:
					line += fmt.Sprintf(" %d %s", code, reason)
				}
			}
			l.lines = append(l.lines, line)
		}
	}
	return pleg.Handler{
		OnContainerStarted: note("started"), OnContainerDied: note("died"),
		OnContainerEnded: note("ended"), OnContainerRemoved: note("removed"),
	}
}

// follow calls Handle with the handler for the events of a node.
func (l *lives) follow(t *testing.T, n *node) (want func(what string, lines ...string)) {
	go func() { _ = n.g.Handle(t.Context(), l.handler()) }()
	return func(what string, lines ...string) {
		t.Helper()
		synctest.Wait()
		if diff := gocmp.Diff(lines, l.lines); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		l.lines = nil
	}
}

// shortLived returns pod a with one container, and its status. In the status, the start is the end
// plus skew.
func shortLived(state pleg.State, finished time.Time, skew time.Duration) (*pleg.Pod, *pleg.PodStatus) {
	pod := bare("a", plegtest.NewContainer("a1", state))
	status := statusOf(pod)
	s := status.ContainerStatuses[0]
	if state != pleg.ContainerStateCreated {
		s.StartedAt = finished.Add(skew)
	}
	if state == pleg.ContainerStateExited {
		s.FinishedAt, s.ExitCode, s.Reason = finished, 3, "Error"
	}
	return pod, status
}

// startedAfterItsEnd contains amounts by which a status shows a start after the end of the same
// life. The start is late if the runtime was short of CPU, or if the clock was set back.
var startedAfterItsEnd = map[string]time.Duration{
	"starved": 2 * time.Second, "clock set back": time.Hour, "at once": 100 * time.Millisecond,
}
