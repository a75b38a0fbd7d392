package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// ContainerInfo and SandboxInfo return the same facts about a process as the kernel does, and so do
// inspections with WithInfo.
func TestInfo(t *testing.T) {
	n := newNode(t)
	n.addNetwork()
	var pod *testnode.Pod
	// The first calls may fail: the runtime must first read the configuration of the network.
	n.eventually("a pod with a network", func() string {
		var err error
		pod, err = n.client.RunPodIn(n.ctx, "e2e", "info", &runtimeapi.NamespaceOption{
			Network: runtimeapi.NamespaceMode_POD, Pid: runtimeapi.NamespaceMode_POD,
		})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	id := n.run(pod, testnode.Container{Name: "app", Command: testnode.Sleep()})
	ctx, cancel := context.WithTimeout(n.ctx, patience)
	defer cancel()
	container, err := n.runtime.ContainerInfo(ctx, id[:13]) // a prefix of the ID is enough
	n.must(err)
	sandbox, err := n.runtime.SandboxInfo(ctx, pod.SandboxID[:13])
	n.must(err)

	runtime, err := cri.Connect(ctx, n.daemon.Endpoint(), cri.WithoutExitEvents(), cri.WithInfo("PATH"))
	n.must(err)
	defer runtime.Close()
	listed, err := runtime.GetPod(ctx, pod.UID)
	n.must(err)
	inspected, err := runtime.GetPodStatus(ctx, listed)
	n.must(err)

	for what, info := range map[string]*cri.Info{id: container, pod.SandboxID: sandbox} {
		paths := slices.DeleteFunc(slices.Clone(info.Env), func(v string) bool { return !strings.HasPrefix(v, "PATH=") })
		if of := cri.InfoOf(inspected, what); of == nil || of.PID != info.PID || of.CgroupPath != info.CgroupPath ||
			!maps.Equal(of.Namespaces, info.Namespaces) || len(paths) == 0 || !slices.Equal(of.Env, paths) {
			t.Errorf("the inspection has %+v, want %+v", of, info)
		}
		if info.ID != what || info.SandboxID != pod.SandboxID || info.PID <= 0 || info.Privileged {
			t.Fatalf("%s: %+v", what, info)
		}
		proc := fmt.Sprintf("/proc/%d/", info.PID)
		cgroups, err := os.ReadFile(proc + "cgroup")
		n.must(err)
		if !strings.Contains(string(cgroups), ":"+info.CgroupPath+"\n") {
			t.Errorf("the cgroup %s is not among %s", info.CgroupPath, cgroups)
		}
		for namespace, name := range map[string]string{"network": "net", "pid": "pid", "mount": "mnt", "ipc": "ipc",
			"uts": "uts"} {
			if err := sameFile(info.Namespaces[namespace], proc+"ns/"+name); err != nil {
				t.Errorf("%s: the namespace %s: %v", what, namespace, err)
			}
		}
		var spec struct {
			Version string `json:"ociVersion"`
			Process struct{ Args, Env []string }
		}
		n.must(json.Unmarshal(info.Spec, &spec))
		environ, err := os.ReadFile(proc + "environ")
		n.must(err)
		if spec.Version == "" || len(spec.Process.Args) == 0 || !slices.Equal(spec.Process.Env, info.Env) ||
			!strings.Contains(string(environ), info.Env[len(info.Env)-1]) {
			t.Errorf("%s: specification %+v, environment %q", what, spec, info.Env)
		}
	}
	if err := sameFile(container.Namespaces["network"], "/proc/self/ns/net"); err == nil {
		t.Error("the pod has the host's network")
	}
	if container.SnapshotKey == "" && !filepath.IsAbs(container.RootFS) {
		t.Errorf("neither a snapshot nor a root file system: %+v", container)
	}
}

// sameFile returns nil if two paths lead to the same file.
func sameFile(a, b string) error {
	one, err := os.Stat(a)
	other, err2 := os.Stat(b)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	if !os.SameFile(one, other) {
		return fmt.Errorf("%s is not %s", a, b)
	}
	return nil
}

// addNetwork configures a network for pods. Its CNI plugin only returns an address.
func (n *node) addNetwork() {
	n.t.Helper()
	const script = `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
ADD) echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"'"$CNI_NETNS"'"}],
	"ips":[{"address":"10.88.0.2/16","interface":0}]}' ;;
esac
`
	dir := filepath.Join(n.daemon.Dir(), "cni")
	n.must(os.MkdirAll(dir, 0o755))
	for _, plugin := range []string{"nothing", "loopback"} {
		n.must(os.WriteFile(filepath.Join(dir, plugin), []byte(script), 0o755))
	}
	n.must(os.WriteFile(filepath.Join(dir, "10-test.conflist"),
		[]byte(`{"cniVersion":"1.0.0","name":"test","plugins":[{"type":"nothing"}]}`), 0o644))
}
