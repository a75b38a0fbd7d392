package nodeagent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// longestRestart limits the time from a container's end to its successor's start while another pod
// is stuck. It is enough for ten restarts at once on a busy machine, and less than the agent's
// back-offs.
const longestRestart = 5 * time.Second

// While the inspection of one pod is stuck, the agent restarts the containers of other pods within
// longestRestart. TestStuckInspection tests the same behavior in a bubble.
func TestStuckPod(t *testing.T) {
	const others = 10
	n := newNode(t)
	p, err := n.daemon.StartProxy()
	n.must(err)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	n.write("stuck", manifest("stuck", "  terminationGracePeriodSeconds: 1\n"+shell("sleep 100000", "")))
	for i := range others {
		name := fmt.Sprint("other-", i)
		n.write(name, manifest(name, "  terminationGracePeriodSeconds: 1\n"+shell("sleep 100000", "")))
	}
	a := n.startAgent("--runtime-endpoint", p.Endpoint)
	for i := range others {
		n.eventually("running", a.is(fmt.Sprint("other-", i), v1.PodRunning))
	}
	n.eventually("running", a.is("stuck", v1.PodRunning))
	container := func(name string) string {
		_, id, _ := strings.Cut(a.pods()[name].Status.ContainerStatuses[0].ContainerID, "://")
		return id
	}
	stuck := container("stuck")
	p.Block(stuck)
	n.must(n.client.Stop(t.Context(), stuck))
	for i := range others {
		n.must(n.client.Stop(t.Context(), container(fmt.Sprint("other-", i))))
	}
	longest := time.Duration(0)
	for i := range others {
		name := fmt.Sprint("other-", i)
		n.eventually("a successor", func() string {
			if pod := a.pods()[name]; pod == nil || !ready(pod) || pod.Status.ContainerStatuses[0].RestartCount != 1 {
				return name + " was not restarted"
			}
			return ""
		})
		runs := n.runs(string(a.pods()[name].UID))
		longest = max(longest, time.Duration(runs[1].StartedAt-runs[0].FinishedAt))
	}
	if longest > longestRestart { // a stuck inspection lasts two minutes
		t.Errorf("a container was restarted %v after its end", longest)
	}
	if c := a.pods()["stuck"].Status.ContainerStatuses[0]; c.RestartCount != 0 {
		t.Errorf("the stuck pod was restarted: %v", c)
	}
	p.Release()
	t.Logf("%d pods were restarted within %v while one inspection was stuck", others, longest.Round(time.Millisecond))
	n.eventually("the pod that stuck, now that it does not", func() string {
		if pod := a.pods()["stuck"]; pod == nil || !ready(pod) || pod.Status.ContainerStatuses[0].RestartCount != 1 {
			return "it was not restarted"
		}
		return ""
	})
}
