package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// If a process is in a new container, lookUp finds its pod with one list. If a container is
// unknown, lookUp searches for it only once.
func TestLookUp(t *testing.T) {
	server, err := criserver.Start(criserver.WithModel(criserver.CRIOWithoutEvents))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	runtime, err := cri.Connect(t.Context(), server.Endpoint(), cri.WithoutExitEvents())
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.Close()
	// Without periodic lists and events, only requested lists find containers.
	generator := pleg.New(runtime, pleg.WithRelistPeriod(time.Hour))
	generator.Start(t.Context())
	defer generator.Stop()
	// When the runtime refuses the event stream, the generator makes one more full list.
	for generator.HealthReport().Stream.State != pleg.StreamUnsupported {
		time.Sleep(time.Millisecond)
	}
	if err := generator.Relist(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := newAttributor(generator, t.TempDir())
	process := func(pid, cgroup string) {
		t.Helper()
		dir := filepath.Join(a.proc, pid)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup"), []byte("0::"+cgroup+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sandbox := server.RunPod(criserver.PodConfig{UID: "1f2e-3a4b", Namespace: "shop", Name: "cart-0"})
	container, err := server.RunContainer(sandbox, criserver.ContainerConfig{Name: "cart"})
	if err != nil {
		t.Fatal(err)
	}
	unknown := strings.Repeat("0a", 32)
	process("1", "/init.scope")
	process("2", "/kubepods.slice/kubepods-pod1f2e_3a4b.slice/cri-containerd-"+container+".scope")
	process("3", "/kubepods/burstable/pod1f2e-3a4b/"+sandbox)
	process("4", "/kubepods/pod5d4f/"+unknown)

	for _, step := range []struct {
		pid, want string
		lists     int // calls of ListContainers so far
	}{
		{"1", "is in no pod", 0},
		{"2", "is in shop/cart-0, cart", 1},
		{"2", "is in shop/cart-0, cart", 1},
		{"3", "is in shop/cart-0, its sandbox", 1},
		{"4", "is in the unknown container 0a0a0a0a0a0a0", 2},
		{"4", "is in the unknown container 0a0a0a0a0a0a0", 2},
		{"2", "is in shop/cart-0, cart", 2},
	} {
		if got := a.lookUp(t.Context(), step.pid); got != step.want || server.Calls("ListContainers") != step.lists {
			t.Errorf("process %s %s after %d lists; want %s, %d", step.pid, got, server.Calls("ListContainers"), step.want,
				step.lists)
		}
	}

	// If a program runs in its own cgroup namespace, the cgroups of processes look like this.
	sidecar, err := server.RunContainer(sandbox, criserver.ContainerConfig{Name: "sidecar"})
	if err != nil {
		t.Fatal(err)
	}
	process("6", "/")
	process("7", "/../../../../system.slice/kubelet.service")
	process("8", "/../crio-"+sidecar+".scope")
	process("9", "/init.scope")
	for _, self := range []string{"", "/"} {
		if self != "" {
			process("self", self)
		}
		for pid, want := range map[string]string{
			"6": "may be in this program's own container",
			"7": "is in no pod",
			"8": "is in shop/cart-0, sidecar",
			"9": map[string]string{"": "is in no pod", "/": "may be in this program's own container"}[self],
		} {
			if got := a.lookUp(t.Context(), pid); got != want {
				t.Errorf("own cgroup %q: process %s %s; want %s", self, pid, got, want)
			}
		}
	}
	if got := a.lookUp(t.Context(), "5"); !strings.Contains(got, "no such file") {
		t.Error(got)
	}
}

// If there is no runtime at the socket, the error names the socket.
func TestNoRuntime(t *testing.T) {
	if err := attribute(t.Context(), "/nowhere.sock", nil); err == nil || !strings.Contains(err.Error(), "/nowhere.sock") {
		t.Error(err)
	}
}
