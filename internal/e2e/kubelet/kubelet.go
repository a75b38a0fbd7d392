// Package kubelet runs a released kubelet without an API server. Tests use it if they need a
// kubelet or compare the library with a kubelet. The kubelet runs static pods on a runtime of
// package testnode.
package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
	"github.com/kubepleg/pleg/internal/test/proctest"
)

// patience is how long a test waits for a process to end.
const patience = 2 * time.Minute

// Build builds the kubelet with kubelet/build, and returns its path. It builds once per process.
// The first build on a machine takes minutes.
var Build = sync.OnceValues(func() (string, error) {
	root, err := testnode.Root(context.Background())
	if err != nil {
		return "", err
	}
	program := filepath.Join(root, ".cache", "kubelet", "stock")
	build := exec.Command("go", "run", "./kubelet/build", "-stock", "-o", program)
	build.Dir = root
	build.Env = append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the kubelet: %w\n%s", err, out)
	}
	return program, nil
})

// Config returns the configuration of a kubelet that does not disturb other users of the machine.
// This kubelet needs no API server, cgroup v2, network plug-in or free space. It runs the pods of
// the folder that the argument manifests names, and keeps its own files below dir.
func Config(manifests, endpoint, dir string, port, readOnlyPort int) map[string]any {
	off := map[string]any{"enabled": false}
	return map[string]any{
		"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
		"staticPodPath": manifests, "containerRuntimeEndpoint": endpoint, "imageServiceEndpoint": endpoint,
		"podLogsDir": filepath.Join(dir, "logs"), "volumePluginDir": filepath.Join(dir, "plugins"),
		"address": "127.0.0.1", "port": port, "readOnlyPort": readOnlyPort, "healthzPort": 0,
		"authentication": map[string]any{"anonymous": off, "webhook": off},
		"authorization":  map[string]any{"mode": "AlwaysAllow"},
		"registerNode":   false, "failCgroupV1": false, "failSwapOn": false, "cgroupsPerQOS": false,
		"enforceNodeAllocatable": []string{}, "cgroupDriver": "cgroupfs", "localStorageCapacityIsolation": false,
		"evictionHard": map[string]string{
			"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%",
		},
		"imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
	}
}

// Options configure a kubelet.
type Options struct {
	Program   string // the path of the kubelet; by default, the path that Build returns
	Daemon    *testnode.Daemon
	Client    *testnode.Client
	Manifests string // the folder of the static pods
	Dir       string // a folder for the kubelet's own files
	NodeName  string // the kubelet appends it to the names of static pods
	// Changes replace entries of the configuration that Config returns.
	Changes map[string]any
}

// Start runs a kubelet as Run does. It returns the address at which the kubelet serves its pods.
func Start(t testing.TB, o Options) (address string) {
	t.Helper()
	return Run(t, o).Address
}

// Kubelet is a running kubelet.
type Kubelet struct {
	Address string // where the kubelet serves its pods

	process *proctest.Process
}

// Pid returns the PID of the kubelet.
func (k *Kubelet) Pid() int { return k.process.Pid() }

// Log returns the log of the kubelet.
func (k *Kubelet) Log() string { return k.process.Log.String() }

// PodList contains the fields of the kubelet's answer at /pods that tests use.
type PodList struct {
	Items []struct {
		Metadata struct{ Name string }
		Status   struct {
			Phase                                    string
			InitContainerStatuses, ContainerStatuses []struct {
				ContainerID  string
				RestartCount int
				Ready        bool
				State        struct {
					Running    *struct{}
					Terminated *struct{ ExitCode int }
				}
			}
		}
	}
}

// Pods returns the pods that the kubelet shows.
func (k *Kubelet) Pods(ctx context.Context) (pods PodList, err error) {
	answer, err := k.Get(ctx, "/pods")
	if err == nil {
		err = json.Unmarshal(answer, &pods)
	}
	return pods, err
}

// Get returns the kubelet's answer at a path.
func (k *Kubelet) Get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+k.Address+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// WriteManifest writes the manifest of a static pod into the folder o.Manifests.
func (o Options) WriteManifest(name string, manifest map[string]any) error {
	content, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	// Write a file elsewhere and then move it, so that the kubelet never reads half a manifest.
	part := filepath.Join(o.Dir, name+".part")
	if err := os.WriteFile(part, content, 0o600); err != nil {
		return err
	}
	return os.Rename(part, o.Manifest(name))
}

// Manifest returns the path of a static pod's manifest.
func (o Options) Manifest(name string) string { return filepath.Join(o.Manifests, name+".json") }

// Run starts a kubelet. It builds the kubelet first if necessary. At the end of the test, the
// kubelet is killed and its pods are removed.
func Run(t testing.TB, o Options) *Kubelet {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	program := o.Program
	if program == "" {
		var err error
		program, err = Build()
		must(err)
	}
	port := func() int {
		_, p, err := net.SplitHostPort(proctest.FreeAddress(t))
		must(err)
		n, err := strconv.Atoi(p)
		must(err)
		return n
	}
	readOnly := port()
	config := Config(o.Manifests, o.Daemon.Endpoint(), o.Dir, port(), readOnly)
	maps.Copy(config, o.Changes)
	text, err := json.Marshal(config)
	must(err)
	path := filepath.Join(o.Dir, "kubelet.json")
	must(os.WriteFile(path, text, 0o600))
	k := &Kubelet{Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(readOnly))}
	k.process = proctest.Start(t, exec.Command(program, "--config", path, "--root-dir", filepath.Join(o.Dir, "kubelet"),
		"--cert-dir", filepath.Join(o.Dir, "pki"), "--hostname-override", o.NodeName, "--node-ip", "127.0.0.1", "-v", "2"))
	t.Cleanup(func() {
		k.end(t, syscall.SIGKILL)
		if t.Failed() {
			t.Logf("the log of %s ends:\n%s", program, k.process.Log.Tail(4000))
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		// The pods are not in the daemon's cgroup, so they would outlive the daemon.
		if err := o.Client.RemovePods(ctx); err != nil {
			t.Error(err)
		}
		if err := testnode.UnmountBelow(o.Dir); err != nil {
			t.Error(err)
		}
	})
	return k
}

// Terminate ends the kubelet as an upgrade does. Its pods keep running.
func (k *Kubelet) Terminate(t testing.TB) { k.end(t, syscall.SIGTERM) }

func (k *Kubelet) end(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := k.process.End(s, patience); err != nil {
		t.Error(err)
	}
}
