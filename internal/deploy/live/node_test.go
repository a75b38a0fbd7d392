package live

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubepleg/pleg/internal/deploy"
	"github.com/kubepleg/pleg/internal/e2e/containerd"
)

// patience is how long a test waits for something that must come.
const patience = 2 * time.Minute

// node is a containerd and a stock kubelet on it, without an API server.
type node struct {
	t         *testing.T
	daemon    *containerd.Daemon
	client    *containerd.Client
	dir       string
	manifests string
	address   string // the kubelet's, for /pods
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir()}
	n.manifests = filepath.Join(n.dir, "manifests")
	n.must(os.Mkdir(n.manifests, 0o755))
	daemon, err := containerd.Start(t.Context())
	n.must(err)
	n.daemon = daemon
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("containerd's log ends:\n%s", daemon.Log(20))
		}
		if err := daemon.Close(); err != nil {
			t.Error("taking containerd down:", err)
		}
	})
	n.client, err = daemon.Client()
	n.must(err)
	t.Cleanup(func() { n.client.Close() })
	program, err := deploy.Build(t.Context(), n.dir)
	n.must(err)
	n.must(daemon.ImportProgram(t.Context(), image, program))
	n.startKubelet()
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// kubeletModule is the module that pins a stock kubelet, seen from the root.
const kubeletModule = "examples/nodeagent/live/kubelet"

// buildKubelet returns a stock kubelet. It is below .cache, where the tests of the node agent
// have it too, and used again until the pinned versions change.
func (n *node) buildKubelet() string {
	n.t.Helper()
	module := filepath.Join(deploy.Root(), kubeletModule)
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(module, name))
		n.must(err)
		h.Write(b)
	}
	path := filepath.Join(deploy.Root(), ".cache", fmt.Sprintf("kubelet-%x", h.Sum(nil)[:6]), "kubelet")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	n.t.Log("building the kubelet, which takes some minutes")
	n.must(os.MkdirAll(filepath.Dir(path), 0o755))
	cmd := exec.CommandContext(n.t.Context(), "go", "build", "-o", path+".new", "k8s.io/kubernetes/cmd/kubelet")
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("building the kubelet: %v\n%s", err, out)
	}
	n.must(os.Rename(path+".new", path))
	return path
}

// kubeletConfig is that of a kubelet without an API server, on a machine that others use.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: %[1]s
containerRuntimeEndpoint: %[2]s
podLogsDir: %[3]s/logs
volumePluginDir: %[3]s/plugins
address: 127.0.0.1
port: %[4]s
readOnlyPort: %[5]s
healthzPort: 0
fileCheckFrequency: 1s
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
registerNode: false
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {imagefs.available: "0%%", memory.available: "0%%", nodefs.available: "0%%", nodefs.inodesFree: "0%%"}
`

// startKubelet starts a kubelet. With the test it ends, and so do its pods.
func (n *node) startKubelet() {
	n.t.Helper()
	binary := n.buildKubelet()
	readOnly := freePort(n.t)
	n.address = net.JoinHostPort("127.0.0.1", readOnly)
	config := filepath.Join(n.dir, "kubelet.yaml")
	n.must(os.WriteFile(config, fmt.Appendf(nil, kubeletConfig, n.manifests, n.daemon.Endpoint(), n.dir, freePort(n.t),
		readOnly), 0o600))
	log := &syncBuffer{}
	cmd := exec.Command(binary, "--config", config, "--root-dir", filepath.Join(n.dir, "kubelet"),
		"--cert-dir", filepath.Join(n.dir, "pki"), "--hostname-override", nodeName, "--node-ip", "127.0.0.1", "-v", "2")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	n.must(cmd.Start())
	n.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if n.t.Failed() {
			text := log.String()
			n.t.Logf("the kubelet's log ends:\n%s", text[max(0, len(text)-4000):])
		}
		n.removeAll()
		n.unmount()
	})
}

// removeAll removes what runs.
func (n *node) removeAll() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	list, err := n.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}, grpc.WaitForReady(true))
	if err != nil {
		n.t.Error(err)
	}
	for _, s := range list.GetItems() {
		if _, err := n.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.Id}); err != nil {
			n.t.Error(err)
		}
		if _, err := n.client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.Id}); err != nil {
			n.t.Error(err)
		}
	}
}

// unmount ends the mounts below the node's directory, which the kubelet leaves.
func (n *node) unmount() {
	for _, at := range mounts(n.t, "self") {
		if strings.HasPrefix(at, n.dir+"/") {
			if err := syscall.Unmount(at, syscall.MNT_DETACH); err != nil {
				n.t.Error(err)
			}
		}
	}
}

// mounts returns where the mounts are that a process sees.
func mounts(t *testing.T, pid string) (at []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/" + pid + "/mountinfo")
	if err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			at = append(at, fields[4])
		}
	}
	return at
}

// run has the kubelet run a static pod.
func (n *node) run(pod *corev1.Pod) {
	n.t.Helper()
	pod.TypeMeta.APIVersion, pod.TypeMeta.Kind = "v1", "Pod"
	text, err := yaml.Marshal(pod)
	n.must(err)
	path := filepath.Join(n.dir, pod.Name+".yaml")
	n.must(os.WriteFile(path, text, 0o600))
	n.must(os.Rename(path, n.manifest(pod.Name)))
}

func (n *node) manifest(name string) string { return filepath.Join(n.manifests, name+".yaml") }

// runShell has the kubelet run a pod of one container, which runs a shell script.
func (n *node) runShell(name, script string) {
	n.t.Helper()
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace = name, "default"
	pod.Spec = corev1.PodSpec{
		HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(bool),
		TerminationGracePeriodSeconds: new(int64),
		Containers: []corev1.Container{{
			Name: "main", Image: containerd.BusyboxImage, ImagePullPolicy: corev1.PullNever,
			Command: []string{"sh", "-c", script},
		}},
	}
	n.run(pod)
}

// pod returns a static pod as the kubelet sees it, or an empty one.
func (n *node) pod(name string) corev1.Pod {
	list := corev1.PodList{}
	_ = get("http://"+n.address+"/pods", &list) // the kubelet may not be up yet
	for i := range list.Items {
		if list.Items[i].Name == name+"-"+nodeName {
			return list.Items[i]
		}
	}
	return corev1.Pod{}
}

// get decodes what is at an address, whatever the code of the answer.
func get(url string, into any) error {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(into)
}

// ready says what is missing until a pod runs and is ready.
func (n *node) ready(name string) func() string {
	return func() string {
		pod := n.pod(name)
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return ""
			}
		}
		return fmt.Sprintf("pod %s: %s %s", name, pod.Status.Phase, describe(pod.Status.ContainerStatuses))
	}
}

func describe(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

// eventually waits until nothing is missing.
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

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
