package nodeagent

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
	"github.com/kubepleg/pleg/internal/test/proctest"
)

// patience limits every wait of a test.
const patience = 2 * time.Minute

// image is the image of most pods. otherImage is another name of the same image.
const (
	image      = testnode.BusyboxImage
	otherImage = "localhost/busybox:other"
)

// node is a container runtime with a directory of manifests.
type node struct {
	t         *testing.T
	daemon    *testnode.Daemon
	client    *testnode.Client
	dir       string
	manifests string
	agents    []*agent // all started agents, the newest last
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir()}
	t.Cleanup(func() { n.must(testnode.UnmountBelow(n.dir)) }) // the agent and the kubelet leave in-memory volumes
	n.manifests = filepath.Join(n.dir, "manifests")
	n.must(os.Mkdir(n.manifests, 0o755))
	n.daemon, n.client = testnode.ForTest(t)
	n.must(n.daemon.ImportBusybox(t.Context(), otherImage))
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// write first writes a manifest outside the directory of manifests and then moves it there, because
// the kubelet also reads unfinished files.
func (n *node) write(name, text string) {
	n.t.Helper()
	path := filepath.Join(n.dir, name+".yaml")
	n.must(os.WriteFile(path, []byte(text), 0o600))
	n.must(os.Rename(path, filepath.Join(n.manifests, name+".yaml")))
}

func (n *node) remove(name string) {
	n.t.Helper()
	n.must(os.Remove(filepath.Join(n.manifests, name+".yaml")))
}

// agent is a process of the agent.
type agent struct {
	*proctest.Process
	n       *node
	address string
}

// startAgent starts the agent on the node. When the test ends, the agent is killed.
func (n *node) startAgent(args ...string) *agent {
	n.t.Helper()
	address := proctest.FreeAddress(n.t)
	cmd := exec.Command(filepath.Join(bin, "nodeagent"), append([]string{
		"--runtime-endpoint", n.daemon.Endpoint(), "--manifests", n.manifests, "--state-dir", filepath.Join(n.dir, "state"),
		"--listen", address, "--node-ip", "127.0.0.1", "--node-name", "live",
		"--cgroup-parent", n.daemon.CgroupParent(), "-v", "1",
	}, args...)...)
	if dir := n.daemon.ExitsDir(); dir != "" {
		cmd.Args = append(cmd.Args, "--exit-events", dir)
	}
	a := &agent{proctest.Start(n.t, cmd), n, address}
	n.agents = append(n.agents, a)
	n.t.Cleanup(func() {
		a.end(syscall.SIGKILL)
		if n.t.Failed() && n.agents[len(n.agents)-1] == a {
			n.t.Logf("the agent's log ends:\n%s", a.Log.Tail(6000))
		}
	})
	return a
}

// said returns the lines of all agents' logs that contain a word.
func (n *node) said(word string) string {
	var said strings.Builder
	for _, a := range n.agents {
		for line := range strings.Lines(a.Log.String()) {
			if strings.Contains(line, word) {
				said.WriteString(line)
			}
		}
	}
	return said.String()
}

// end sends the agent a signal and waits for its end. The exit code does not matter.
func (a *agent) end(s syscall.Signal) {
	if err := a.End(s, patience); err != nil {
		a.n.t.Error(err)
	}
}

// podsAt returns the pods that an agent or a kubelet serves at an address, by name. It returns nil
// if there is no answer.
func podsAt(address string) map[string]*v1.Pod {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/pods", http.NoBody)
	if err != nil {
		return nil
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	list := v1.PodList{}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return nil
	}
	pods := map[string]*v1.Pod{}
	for i := range list.Items {
		pods[list.Items[i].Name] = &list.Items[i]
	}
	return pods
}

func (a *agent) pods() map[string]*v1.Pod { return podsAt(a.address) }

// eventually calls the function missing until it returns "". Any other result describes the
// condition that does not hold yet.
func (n *node) eventually(what string, missing func() string) {
	n.t.Helper()
	last := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if last = missing(); last == "" {
			return
		}
	}
	n.t.Fatalf("%s: not within %v: %s", what, patience, last)
}

// is returns a condition for the function eventually: the pod is in the given phase. In the phase
// Running, the pod must also be ready.
func (a *agent) is(name string, phase v1.PodPhase) func() string {
	return func() string {
		pod := a.pods()[name]
		switch {
		case pod == nil:
			return "there is no pod " + name
		case pod.Status.Phase != phase || phase == v1.PodRunning && !ready(pod):
			return fmt.Sprintf("pod %s: %s", name, brief(pod))
		}
		return ""
	}
}

func ready(pod *v1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

func brief(pod *v1.Pod) string {
	text, _ := json.Marshal(pod.Status.ContainerStatuses)
	return fmt.Sprintf("%s, ready %v: %s", pod.Status.Phase, ready(pod), text)
}

// left returns the sandboxes and containers in the runtime.
func (n *node) left() (sandboxes []*runtimeapi.PodSandbox, containers []*runtimeapi.Container, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := n.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, nil, err
	}
	c, err := n.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{}, grpc.WaitForReady(true))
	return s.GetItems(), c.GetContainers(), err
}

// manifest returns the manifest of a pod on the host's network. spec is the rest of the pod's spec,
// as YAML.
func manifest(name, spec string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  namespace: live
  uid: 11111111-2222-4333-8444-%012[3]x
spec:
  hostNetwork: true
  automountServiceAccountToken: false
%[2]s`, name, spec, sum(name))
}

func sum(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // a hash returns no error
	return h.Sum64() >> 16
}

// shell returns the YAML of one container that runs a shell script.
func shell(script, more string) string {
	return fmt.Sprintf(`  containers:
  - name: main
    image: %s
    imagePullPolicy: Never
    command: ["sh", "-c", %q]
%s`, image, script, more)
}
