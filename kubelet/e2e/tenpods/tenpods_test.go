package tenpods

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/e2e/kubelet"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

var programs = flag.String("programs", "", "the folder of the programs kubelet and stock; by default .cache/kubelet")

func init() { testnode.RegisterFlags() }

func TestMain(m *testing.M) {
	testnode.ExitWithoutRoot("of kubelets")
	os.Exit(m.Run())
}

const (
	nodeName = "node"
	patience = time.Minute
	// settle is how long the test watches containers after a kubelet has taken them over. If a
	// kubelet restarts containers, it does so with its first syncs.
	settle = 5 * time.Second
)

// state is a pod's container in the kubelet's status.
type state struct {
	id       string
	restarts int
	ready    bool
}

// node is a runtime with ten static pods.
type node struct {
	t       *testing.T
	options kubelet.Options
	kubelet *kubelet.Kubelet
	names   []string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := newEmptyNode(t)
	for i := range 10 {
		n.names = append(n.names, fmt.Sprintf("pod%d", i))
		probe := "readinessProbe"
		if i >= 5 {
			probe = "livenessProbe"
		}
		n.add(n.names[i], probe)
	}
	return n
}

func newEmptyNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t}
	root, err := testnode.Root(t.Context())
	n.must(err)
	if *programs == "" {
		*programs = filepath.Join(root, ".cache", "kubelet")
	}
	daemon, client := testnode.ForTest(t)
	dir := t.TempDir()
	n.options = kubelet.Options{
		Daemon: daemon, Client: client, Manifests: filepath.Join(dir, "manifests"), Dir: dir, NodeName: nodeName,
		Changes: map[string]any{"fileCheckFrequency": "1s"},
	}
	n.must(os.Mkdir(n.options.Manifests, 0o755))
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// add writes the manifest of a pod. The pod's probe fails while the file /sick exists.
func (n *node) add(name, probe string) {
	n.t.Helper()
	n.must(n.options.WriteManifest(name, testnode.StaticPod(name, map[string]any{probe: map[string]any{
		"exec":          map[string]any{"command": []string{"sh", "-c", "! test -e /sick"}},
		"periodSeconds": 2, "failureThreshold": 1, "timeoutSeconds": 20, // long, for busy machines
	}})))
}

// run replaces the kubelet by another one.
func (n *node) run(program string) {
	n.t.Helper()
	if n.kubelet != nil {
		n.kubelet.Terminate(n.t)
	}
	n.options.Program = filepath.Join(*programs, program)
	n.kubelet = kubelet.Run(n.t, n.options)
}

// pods returns the running containers in the kubelet's status, by pod.
func (n *node) pods(ctx context.Context) (map[string]state, error) {
	list, err := n.kubelet.Pods(ctx)
	if err != nil {
		return nil, err
	}
	pods := make(map[string]state)
	for _, p := range list.Items {
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Running != nil {
				_, id, _ := strings.Cut(s.ContainerID, "://")
				pods[strings.TrimSuffix(p.Metadata.Name, "-"+nodeName)] = state{id, s.RestartCount, s.Ready}
			}
		}
	}
	return pods, nil
}

// await waits until the function wanted accepts the pods, and returns the pods. It fails the test
// after the duration patience.
func (n *node) await(what string, wanted func(map[string]state) bool) map[string]state {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	began := time.Now()
	for {
		pods, err := n.pods(ctx)
		if err == nil && wanted(pods) {
			n.t.Logf("%s, after %.1f s", what, time.Since(began).Seconds())
			return pods
		}
		select {
		case <-ctx.Done():
			n.t.Fatalf("%s: not within the limit; the pods are %+v, %v", what, pods, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// awaitReady waits until all pods run and are ready, and each pod i has restarts(i) restarts. It
// returns the pods.
func (n *node) awaitReady(what string, restarts func(i int) int) map[string]state {
	n.t.Helper()
	return n.await(what, func(pods map[string]state) bool {
		for i, name := range n.names {
			if s, found := pods[name]; !found || !s.ready || s.restarts != restarts(i) {
				return false
			}
		}
		return true
	})
}

func (n *node) pid(s state) int {
	n.t.Helper()
	pid, err := n.options.Client.Pid(n.t.Context(), s.id)
	n.must(err)
	return pid
}

// sick returns the path of the file that makes a container's probe fail.
func (n *node) sick(s state) string {
	n.t.Helper()
	return fmt.Sprintf("/proc/%d/root/sick", n.pid(s))
}

// TestTenPods runs ten pods with a kubelet on the library. The pods' containers crash or fail their
// probes. Twice, the released kubelet takes the pods over and hands them back. Then the pods are
// removed.
func TestTenPods(t *testing.T) {
	n := newNode(t)
	n.run("kubelet")
	pods := n.awaitReady("ten pods run and are ready", func(int) int { return 0 })

	for _, name := range n.names[:5] {
		n.must(syscall.Kill(n.pid(pods[name]), syscall.SIGKILL))
	}
	once := func(below int) func(int) int {
		return func(i int) int {
			if i < below {
				return 1
			}
			return 0
		}
	}
	n.awaitReady("five that were killed have successors", once(5))
	for _, name := range n.names[5:] {
		n.must(os.WriteFile(n.sick(pods[name]), nil, 0o600))
	}
	pods = n.awaitReady("five whose liveness probe failed have successors", once(10))
	n.must(os.WriteFile(n.sick(pods["pod0"]), nil, 0o600))
	n.await("one whose readiness probe fails is not ready", func(p map[string]state) bool { return !p["pod0"].ready })
	n.must(os.Remove(n.sick(pods["pod0"])))
	pods = n.awaitReady("it is ready again", once(10))

	for _, program := range []string{"stock", "kubelet", "stock", "kubelet"} {
		n.run(program)
		n.awaitReady(program+" has taken the pods over", once(10))
		select {
		case <-t.Context().Done():
		case <-time.After(settle):
		}
		if got := n.awaitReady("they are ready still", once(10)); !maps.Equal(got, pods) {
			t.Fatalf("%s has taken over %+v, and there are %+v", program, pods, got)
		}
	}

	for _, name := range n.names {
		n.must(os.Remove(n.options.Manifest(name)))
	}
	n.await("no pod is left", func(map[string]state) bool {
		list, err := n.options.Client.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
		n.must(err)
		running := 0
		for _, c := range list.Containers {
			if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
				running++
			}
		}
		return running == 0
	})
}
