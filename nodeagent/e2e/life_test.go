package nodeagent

import (
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// The agent runs a pod until its manifest is removed. If the agent ends or is killed, the pod keeps
// running, and the next agent adopts the pod.
func TestLife(t *testing.T) {
	n := newNode(t)
	n.write("steady", manifest("steady", "  terminationGracePeriodSeconds: 2\n"+shell("sleep 100000", `    readinessProbe:
      exec: {command: ["true"]}
      periodSeconds: 1
`)))
	n.write("job", manifest("job", "  restartPolicy: Never\n"+shell("exit 0", "")))
	a := n.startAgent()
	n.eventually("running", a.is("steady", v1.PodRunning))
	n.eventually("completing", a.is("job", v1.PodSucceeded))
	before := a.pods()["steady"].Status

	for _, s := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		a.end(s)
		if _, containers, err := n.left(); err != nil || len(containers) != 2 {
			t.Fatalf("after %v: %d containers, %v", s, len(containers), err)
		}
		a = n.startAgent()
		n.eventually("adopting", a.is("steady", v1.PodRunning))
		n.eventually("adopting", a.is("job", v1.PodSucceeded))
		after := a.pods()["steady"].Status
		if x, y := before.ContainerStatuses[0], after.ContainerStatuses[0]; x.ContainerID != y.ContainerID ||
			y.RestartCount != 0 {
			t.Errorf("after %v: %v, before %v", s, y, x)
		}
	}
	n.remove("steady")
	n.remove("job")
	n.eventually("going", func() string {
		sandboxes, containers, err := n.left()
		if err != nil || len(sandboxes)+len(containers) > 0 || len(a.pods()) > 0 {
			return "something is left"
		}
		return ""
	})
}

// A second agent on the same runtime refuses to start, even with another state directory.
func TestSecondAgent(t *testing.T) {
	n := newNode(t)
	n.write("steady", manifest("steady", "  terminationGracePeriodSeconds: 2\n"+shell("sleep 100000", "")))
	a := n.startAgent()
	n.eventually("running", a.is("steady", v1.PodRunning))
	for _, args := range [][]string{nil, {"--state-dir", t.TempDir()}} {
		second := n.startAgent(args...)
		if code := second.ExitCode(); code != 1 || !strings.Contains(second.Log.String(), "another agent") {
			t.Errorf("a second agent with %q ends with %d: %s", args, code, second.Log.String())
		}
	}
}
