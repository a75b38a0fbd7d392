package live

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// buildKubelet returns a stock kubelet, built from the module in kubelet/. It is below .cache
// at the root of the repository, and used again until the pinned versions change.
func buildKubelet(t *testing.T) string {
	t.Helper()
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join("kubelet", name))
		if err != nil {
			t.Fatal(err)
		}
		h.Write(b)
	}
	dir, err := filepath.Abs(filepath.Join("..", "..", "..", ".cache", fmt.Sprintf("kubelet-%x", h.Sum(nil)[:6])))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kubelet")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	t.Log("building the kubelet, which takes some minutes")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := build("kubelet", path+".new", "k8s.io/kubernetes/cmd/kubelet"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// kubeletConfig is that of a kubelet without an API server.
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

// kubelet is a stock kubelet on a node.
type kubelet struct {
	n       *node
	address string
}

// startKubelet starts a kubelet on the node. With the test it ends, and so do its pods.
func (n *node) startKubelet() *kubelet {
	n.t.Helper()
	binary := buildKubelet(n.t)
	port := func() string {
		_, p, err := net.SplitHostPort(freeAddress(n.t))
		n.must(err)
		return p
	}
	k := &kubelet{n: n}
	readOnly := port()
	k.address = net.JoinHostPort("127.0.0.1", readOnly)
	config := filepath.Join(n.dir, "kubelet.yaml")
	n.must(os.WriteFile(config, fmt.Appendf(nil, kubeletConfig, n.manifests, n.daemon.Endpoint(), n.dir, port(),
		readOnly), 0o600))
	log := &syncBuffer{}
	cmd := exec.Command(binary, "--config", config, "--root-dir", filepath.Join(n.dir, "kubelet"),
		"--cert-dir", filepath.Join(n.dir, "pki"), "--hostname-override", "live", "--node-ip", "127.0.0.1", "-v", "2")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	n.must(cmd.Start())
	n.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if n.t.Failed() {
			n.t.Logf("the kubelet's log ends:\n%s", tail(log.String(), 3000))
		}
		n.removeAll()
		n.unmount()
	})
	return k
}

// unmount ends the mounts below the node's directory, which the kubelet leaves.
func (n *node) unmount() {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		n.t.Error(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], n.dir+"/") {
			if err := syscall.Unmount(fields[4], syscall.MNT_DETACH); err != nil {
				n.t.Error(err)
			}
		}
	}
}

// removeAll removes what runs, which lies in no cgroup of the daemon's own.
func (n *node) removeAll() {
	sandboxes, _, err := n.left()
	if err != nil {
		n.t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, s := range sandboxes {
		if _, err := n.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.Id}); err != nil {
			n.t.Error(err)
		}
		if _, err := n.client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.Id}); err != nil {
			n.t.Error(err)
		}
	}
}

// pods returns the kubelet's pods by the names in their manifests: it appends the node's.
func (k *kubelet) pods() map[string]*v1.Pod {
	pods := map[string]*v1.Pod{}
	for name, pod := range podsAt(k.address) {
		pods[name[:len(name)-len("-live")]] = pod
	}
	return pods
}

// runner is the agent or the kubelet.
type runner interface{ pods() map[string]*v1.Pod }

// awaitPods waits until a runner serves as many pods.
func (n *node) awaitPods(r runner, count int) {
	n.t.Helper()
	n.eventually("the pods", func() string {
		if got := len(r.pods()); got != count {
			return fmt.Sprintf("%d pods, want %d", got, count)
		}
		return ""
	})
}
