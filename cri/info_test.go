package cri_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// infoNode is a runtime that returns the given info in its verbose statuses.
func infoNode(info string) *cri.Runtime {
	verbose := map[string]string{"info": info}
	if info == "" {
		verbose = nil
	}
	return newRuntime(&stub{chunk: 100,
		containerStatus: func(_ context.Context, req *statusRequest) (*statusResponse, error) {
			if !req.GetVerbose() {
				return nil, errors.New("the call is not verbose")
			}
			return &statusResponse{Info: verbose}, nil
		},
		sandboxStatus: func(_ context.Context, req *sandboxStatusRequest) (*sandboxStatusResponse, error) {
			if !req.GetVerbose() {
				return nil, errors.New("the call is not verbose")
			}
			return &sandboxStatusResponse{Info: verbose}, nil
		}})
}

const (
	containerdSpec = `{"ociVersion":"1.3.0","process":{"args":["sh"],"env":["PATH=/bin","HOSTNAME=web-0"],` +
		`"apparmorProfile":"cri-containerd.apparmor.d"},"root":{"path":"rootfs"},"linux":{"cgroupsPath":` +
		`"kubepods-burstable-pod1f2e_3a4b.slice:cri-containerd:c1",` +
		`"namespaces":[{"type":"pid"},{"type":"mount"},{"type":"network","path":"/proc/4000/ns/net"}]}}`
	containerdInfo = `{"sandboxID":"s1","pid":4711,"removing":false,"snapshotKey":"c1","snapshotter":"overlayfs",` +
		`"runtimeType":"io.containerd.runc.v2","config":{"metadata":{"name":"app"},"linux":{"security_context":` +
		`{"privileged":true,"namespace_options":{"pid":1}}}},"runtimeSpec":` + containerdSpec + `}`
	crioSpec = `{"root":{"path":"/var/lib/containers/storage/overlay/c2/merged"},"linux":{"cgroupsPath":` +
		`"/kubepods/pod1f2e-3a4b/crio-s2","namespaces":[{"type":"mount"},{"type":"network","path":"/run/netns/1b2c"}]}}`
)

func TestContainerInfo(t *testing.T) {
	got, err := infoNode(containerdInfo).ContainerInfo(t.Context(), "containerd://c1")
	must(t, err)
	want := &cri.Info{
		ID: "c1", SandboxID: "s1", PID: 4711, Privileged: true,
		CgroupPath: "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f2e_3a4b.slice/cri-containerd-c1.scope",
		Namespaces: map[string]string{
			"network": "/proc/4000/ns/net", "pid": "/proc/4711/ns/pid", "mount": "/proc/4711/ns/mnt",
			"ipc": "/proc/4711/ns/ipc", "uts": "/proc/4711/ns/uts", "cgroup": "/proc/4711/ns/cgroup",
			"user": "/proc/4711/ns/user", "time": "/proc/4711/ns/time",
		},
		RootFS: "rootfs", SnapshotKey: "c1", Snapshotter: "overlayfs",
		Env: []string{"PATH=/bin", "HOSTNAME=web-0"}, AppArmorProfile: "cri-containerd.apparmor.d",
		Spec: []byte(containerdSpec), Raw: []byte(containerdInfo),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// If a sandbox of CRI-O has no process, all its information comes from the OCI specification.
func TestSandboxInfo(t *testing.T) {
	info := `{"runtimeSpec":` + crioSpec + `}`
	got, err := infoNode(info).SandboxInfo(t.Context(), "s2")
	must(t, err)
	want := &cri.Info{
		ID: "s2", SandboxID: "s2", CgroupPath: "/kubepods/pod1f2e-3a4b/crio-s2",
		Namespaces: map[string]string{"network": "/run/netns/1b2c"},
		RootFS:     "/var/lib/containers/storage/overlay/c2/merged",
		Spec:       []byte(crioSpec), Raw: []byte(info),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCgroupPathOfInfo(t *testing.T) {
	for spec, want := range map[string]string{
		"":                          "",
		"/kubepods/pod1f2e/c1":      "/kubepods/pod1f2e/c1",
		"a.slice:crio:c1":           "/a.slice/crio-c1.scope",
		"a-b-c.slice:crio:c1":       "/a.slice/a-b.slice/a-b-c.slice/crio-c1.scope",
		":crio:c1":                  "/crio-c1.scope",
		"a.slice::c1":               "/a.slice/c1.scope",
		"-.slice:cri-containerd:c1": "/cri-containerd-c1.scope",
	} {
		got, err := infoNode(`{"runtimeSpec":{"linux":{"cgroupsPath":"`+spec+`"}}}`).ContainerInfo(t.Context(), "c1")
		must(t, err)
		if got.CgroupPath != want {
			t.Errorf("%q: %q, want %q", spec, got.CgroupPath, want)
		}
	}
}

// If a runtime returns no info, or info that cannot be parsed, the error names the container.
func TestInfoThatIsMissing(t *testing.T) {
	for info, want := range map[string]string{
		"":                         "no info",
		"no JSON":                  "reading the info of a verbose status",
		`{"pid":"4711"}`:           "reading the info of a verbose status",
		`{"runtimeSpec":"config"}`: "reading the info of a verbose status",
	} {
		r := infoNode(info)
		for of, ask := range map[string]func(context.Context, string) (*cri.Info, error){
			"ContainerStatus of container (c1)": r.ContainerInfo, "PodSandboxStatus of sandbox (c1)": r.SandboxInfo,
		} {
			got, err := ask(t.Context(), "c1")
			if got != nil || err == nil || errors.Is(err, cri.ErrNoInfo) != (info == "") ||
				!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), of) {
				t.Errorf("%q: %v, %v", info, got, err)
			}
		}
	}
	// Missing fields are empty.
	got, err := infoNode("{}").ContainerInfo(t.Context(), "c1")
	if err != nil || got.PID != 0 || got.Spec != nil || string(got.Raw) != "{}" {
		t.Errorf("%+v, %v", got, err)
	}
}

// The test server's info has containerd's fields, also those of the configuration that a client sent.
func TestInfoOfAClientsContainer(t *testing.T) {
	s, r := serverAndRuntime(t, criserver.WithPrograms(map[string]criserver.Program{"app": {}}))
	client := runtimeapi.NewRuntimeServiceClient(r.Conn())
	sandbox := s.RunPod(criserver.PodConfig{Name: "web"})
	binary := &runtimeapi.KeyValue{Key: "KEY"}
	setBytes(&binary.Value, "v\xff")
	made, err := client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "app"}, Image: &runtimeapi.ImageSpec{Image: "app"},
			Command: []string{"serve"}, Args: []string{"--all"},
			Envs:   []*runtimeapi.KeyValue{binary},
			Mounts: []*runtimeapi.Mount{{ContainerPath: "/data", HostPath: "/srv", Readonly: true}},
			Linux: &runtimeapi.LinuxContainerConfig{
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{Privileged: true},
			},
		},
	})
	must(t, err)
	got, err := r.ContainerInfo(t.Context(), made.ContainerId)
	must(t, err)
	type mount struct{ Destination, Source string }
	var spec struct {
		Process struct{ Args []string }
		Mounts  []mount
	}
	must(t, json.Unmarshal(got.Spec, &spec))
	if !got.Privileged || !slices.Contains(got.Env, "KEY=v\ufffd") || !slices.Contains(got.Env, "HOSTNAME=web") ||
		!slices.Equal(spec.Process.Args, []string{"serve", "--all"}) ||
		!slices.Contains(spec.Mounts, mount{"/data", "/srv"}) {
		t.Errorf("%+v", got)
	}
	var raw struct {
		Config struct{ Metadata struct{ Name string } }
	}
	if must(t, json.Unmarshal(got.Raw, &raw)); raw.Config.Metadata.Name != "app" {
		t.Errorf("%s", got.Raw)
	}
}

// setBytes sets a field that is a string in older versions of cri-api, and bytes in newer ones.
func setBytes[T string | []byte](field *T, to string) { *field = T(to) }

// ContainerInfo and SandboxInfo can read the info of the test server.
func TestInfoOfTheServer(t *testing.T) {
	for _, model := range []criserver.Model{criserver.Containerd2, criserver.CRIO} {
		s, r := serverAndRuntime(t, criserver.WithModel(model))
		sandbox := s.RunPod(criserver.PodConfig{UID: "uid"})
		id := runProcess(t, s, sandbox, "app", 4711)
		c, err := r.ContainerInfo(t.Context(), id)
		must(t, err)
		p, err := r.SandboxInfo(t.Context(), sandbox)
		must(t, err)
		uid, _ := cri.PodUIDFromCgroup(c.CgroupPath)
		if c.PID != 4711 || c.SandboxID != sandbox || p.PID == 0 || uid != "uid" || len(c.Spec) == 0 ||
			c.Namespaces["network"] == "" || c.Namespaces["network"] != p.Namespaces["network"] ||
			len(c.Env) == 0 || c.RootFS == "" || (c.SnapshotKey == "") != (model == criserver.CRIO) {
			t.Errorf("container %+v, sandbox %+v", c, p)
		}
		created, err := s.CreateContainer(sandbox, criserver.ContainerConfig{Name: "later", PID: 4712})
		must(t, err)
		if c, err = r.ContainerInfo(t.Context(), created); err != nil || (c.PID == 4712) != (model == criserver.CRIO) {
			t.Errorf("created: %+v, %v", c, err)
		}
		must(t, s.ExitContainer(id, 0, ""))
		if c, err = r.ContainerInfo(t.Context(), id); err != nil || c.PID != 0 {
			t.Errorf("exited: %+v, %v", c, err)
		}
		_, err = r.ContainerInfo(t.Context(), "nobody")
		_, err2 := r.SandboxInfo(t.Context(), "nobody")
		if status.Code(err) != codes.NotFound || status.Code(err2) != codes.NotFound {
			t.Errorf("%v, %v", err, err2)
		}
	}
}

// With WithInfo, each inspection returns the info of the pod's containers and sandboxes. It contains
// only the environment variables that the option names. JSON contains none of them.
func TestInfoOfAnInspection(t *testing.T) {
	containerStatus := exitedStatus("c1", "Error")
	containerStatus.State = runtimeapi.ContainerState_CONTAINER_RUNNING
	long := strings.Repeat("x", 5000)
	for _, tt := range []struct {
		name, info string
		bad        float64
		want       *cri.Info
	}{
		{name: "none"},
		{name: "no JSON", info: "{", bad: 2},
		{name: "containerd's", info: containerdInfo, want: &cri.Info{
			SandboxID: "s1", PID: 4711, Privileged: true, RootFS: "rootfs", SnapshotKey: "c1", Snapshotter: "overlayfs",
			CgroupPath: "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f2e_3a4b.slice/cri-containerd-c1.scope",
			Namespaces: map[string]string{
				"network": "/proc/4000/ns/net", "pid": "/proc/4711/ns/pid", "mount": "/proc/4711/ns/mnt",
				"ipc": "/proc/4711/ns/ipc", "uts": "/proc/4711/ns/uts", "cgroup": "/proc/4711/ns/cgroup",
				"user": "/proc/4711/ns/user", "time": "/proc/4711/ns/time",
			},
			Env: []string{"HOSTNAME=web-0"}, AppArmorProfile: "cri-containerd.apparmor.d",
		}},
		{
			name: "long texts",
			info: `{"snapshotKey":"` + long + `","runtimeSpec":{"process":{"env":["HOSTNAME=` + long + `"],` +
				`"apparmorProfile":"` + long + `"},` +
				`"linux":{"namespaces":[{"type":"` + long + `","path":"/x"},{"type":"pid","path":"/` + long + `"}]}}}`,
			want: &cri.Info{Namespaces: map[string]string{}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			verbose := map[string]string{"info": tt.info}
			client := &stub{containers: []*runtimeapi.Container{container("c1", "uid")},
				sandboxes: []*runtimeapi.PodSandbox{sandbox("s1", "uid")}}
			client.containerStatus = func(_ context.Context, req *statusRequest) (*statusResponse, error) {
				if !req.GetVerbose() {
					return nil, errors.New("the call is not verbose")
				}
				return &statusResponse{Status: containerStatus, Info: verbose}, nil
			}
			client.sandboxStatus = func(_ context.Context, req *sandboxStatusRequest) (*sandboxStatusResponse, error) {
				if !req.GetVerbose() {
					return nil, errors.New("the call is not verbose")
				}
				return &sandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{Id: "s1"}, Info: verbose}, nil
			}
			r := newRuntime(client, cri.WithInfo("HOME"), cri.WithInfo("HOSTNAME"))
			pod := getPodStatus(t, r, getPods(t, r)[0])
			for _, id := range []string{"c1", "s1"} {
				want := tt.want
				if want != nil {
					of := *want
					of.ID, want = id, &of
					if id == "s1" {
						of.SandboxID = id
					}
				}
				got := cri.InfoOf(pod, "containerd://"+id)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s: %s", id, diff)
				}
				if text, _ := json.Marshal(got); strings.Contains(string(text), "HOSTNAME") {
					t.Errorf("in JSON: %s", text)
				}
			}
			if bad := metric(t, r, "pleg_cri_bad_items_total", "unreadable_info"); bad != tt.bad {
				t.Errorf("%v are bad, want %v", bad, tt.bad)
			}
			if cri.InfoOf(pod, "c2") != nil || cri.InfoOf(nil, "c1") != nil {
				t.Error("an unknown container has info")
			}
		})
	}
}

// If WithInfo is not given, inspections are not verbose.
func TestInspectionWithoutInfo(t *testing.T) {
	n := newExitNode()
	n.containerStatus = func(_ context.Context, req *statusRequest) (*statusResponse, error) {
		if req.GetVerbose() {
			return nil, errors.New("the call is verbose")
		}
		return &statusResponse{Status: exitedStatus("c", "Error"), Info: map[string]string{"info": containerdInfo}}, nil
	}
	r := newRuntime(n)
	if info := cri.InfoOf(getPodStatus(t, r, getPods(t, r)[0]), "c"); info != nil {
		t.Errorf("%+v", info)
	}
}
