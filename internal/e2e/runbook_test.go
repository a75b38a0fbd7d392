package e2e_test

import (
	"encoding/json"
	"net/http/httptest"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
	"github.com/kubepleg/pleg/plegz"
)

// healthz contains the fields of an agent's answer at /healthz that the runbooks use.
type healthz struct {
	Sentence    string
	StuckRelist struct {
		Answered int
		Frozen   bool
		Suspects []struct{ Name, Container, ContainerID, SandboxID string }
	}
}

// askHealthz returns the answer at /healthz of an agent that uses this node's generator.
func (n *node) askHealthz() (h healthz) {
	n.t.Helper()
	w := httptest.NewRecorder()
	plegz.Healthz(n.pleg).ServeHTTP(w, httptest.NewRequest("GET", "/healthz", nil))
	n.must(json.Unmarshal(w.Body.Bytes(), &h))
	return h
}

// lateAgent starts another generator on the node. It does not wait for the runtime.
func (n *node) lateAgent() *pleg.GenericPLEG {
	n.t.Helper()
	runtime, err := cri.Dial(n.daemon.Endpoint(), cri.WithoutExitEvents())
	n.must(err)
	g := pleg.New(runtime, pleg.WithLogger(testLogger(n.t)))
	g.Start(n.ctx)
	n.t.Cleanup(func() {
		g.Stop()
		runtime.Close()
	})
	return g
}

// shell returns the output of a command. In the command, /run/containerd is replaced by this
// containerd's state folder.
func (n *node) shell(command string) string {
	n.t.Helper()
	state := filepath.Dir(n.daemon.Socket())
	command = strings.ReplaceAll(command, "/run/containerd/", state+"/")
	out, err := osexec.CommandContext(n.ctx, "sh", "-c", command).Output()
	if err != nil {
		n.t.Fatalf("%s: %v", command, err)
	}
	return strings.TrimSpace(string(out))
}

// If one pod blocks the runtime's lists, the commands of docs/OPERATING.md lead from an agent's
// answer to the shim of this pod. If the shim is then killed, only this pod ends.
func TestRunbookOfBlockedLists(t *testing.T) {
	n := newNode(t)
	if !n.daemon.Runtime().LocksStatuses {
		t.Skip("lists do not wait for the status of a container")
	}
	pod, other := n.runPod("blocking"), n.runPod("well")
	sleep := func(p *testnode.Pod, name string) string {
		return n.run(p, testnode.Container{Name: name, Command: testnode.Sleep()})
	}
	id, neighbour, well := sleep(pod, "stuck"), sleep(pod, "neighbour"), sleep(other, "app")
	stuck := n.blockRunc("update", id)
	updated := make(chan error, 1)
	go func() {
		_, err := n.client.UpdateContainerResources(n.ctx, &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 512},
		})
		updated <- err
	}()
	n.awaitMet(stuck)
	var h healthz
	n.eventually("the agent names the container", func() string {
		h = n.askHealthz()
		if len(h.StuckRelist.Suspects) != 1 || h.StuckRelist.Answered == 0 {
			return h.Sentence
		}
		return ""
	})
	suspect := h.StuckRelist.Suspects[0]
	if suspect.Name != "blocking" || suspect.ContainerID != id || suspect.SandboxID != pod.SandboxID {
		t.Errorf("%+v, want container %s of sandbox %s", suspect, id, pod.SandboxID)
	}
	found := n.shell(`grep -ho '"io.kubernetes.cri.sandbox-id": *"[0-9a-f]*"' ` +
		"/run/containerd/io.containerd.runtime.v2.task/k8s.io/" + id[:13] + `*/config.json | grep -o '[0-9a-f]\{64\}'`)
	if found != pod.SandboxID {
		t.Errorf("config.json: %s", found)
	}
	late := n.lateAgent()
	n.eventually("an agent that starts now names the container", func() string {
		names := "/blocking/stuck (" + id[:13] + "…) has blocked the lists since "
		if c := plegz.NewCondition(late.HealthReport(), time.Now()); !strings.Contains(c.Sentence, names) {
			return c.Sentence
		}
		return ""
	})
	pid, err := strconv.Atoi(n.shell(`pgrep -d, -f "[c]ontainerd-shim.* -id ` + suspect.SandboxID + `"`))
	n.must(err)
	n.must(unix.Kill(pid, unix.SIGKILL))
	if err := <-updated; err == nil {
		t.Error("the call that was stuck succeeded")
	}
	n.awaitExit(id)
	n.awaitExit(neighbour)
	n.eventually("the agent is healthy again", func() string {
		if h := n.askHealthz(); !strings.HasPrefix(h.Sentence, "Healthy: ") {
			return h.Sentence
		}
		return ""
	})
	n.must(late.WaitForSync(n.ctx))
	if !n.daemon.Alive(well) {
		t.Error("the other pod has ended too")
	}
}

// If the runtime answers no call, the sentence in the agent's answer asks for a restart of the
// runtime, and names no pod.
func TestRunbookOfFrozenRuntime(t *testing.T) {
	n := newNode(t)
	n.run(n.runPod("a"), testnode.Container{Name: "app", Command: testnode.Sleep()})
	n.must(n.daemon.Freeze())
	thaw := sync.OnceFunc(func() { n.must(n.daemon.Thaw()) })
	defer thaw()
	n.eventually("the sentence", func() string {
		if h := n.askHealthz(); !strings.HasPrefix(h.Sentence, "Degraded: nothing has been answered since ") ||
			!strings.HasSuffix(h.Sentence, ": restart the runtime.") || !h.StuckRelist.Frozen ||
			len(h.StuckRelist.Suspects) > 0 {
			return h.Sentence
		}
		return ""
	})
	late := n.lateAgent()
	n.eventually("the sentence of an agent that starts now", func() string {
		c := plegz.NewCondition(late.HealthReport(), time.Now())
		if !strings.HasPrefix(c.Sentence, "Not healthy: nothing has been answered since ") {
			return c.Sentence
		}
		return ""
	})
	thaw()
	n.awaitHealthy()
}
