package cri

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// ErrNoInfo is wrapped by the error of ContainerInfo and SandboxInfo if the runtime's verbose
// status contains no info. cri-dockerd never returns info.
var ErrNoInfo = errors.New("the runtime's verbose status has no info")

// InfoOf returns the Info of a container or sandbox from the pod's last inspection. It returns nil
// without WithInfo, or if the runtime has reported no info. The ID is the full ID, with or without a
// prefix such as "containerd://".
func InfoOf(pod *pleg.PodStatus, id string) *Info {
	if pod == nil {
		return nil
	}
	if c := pod.FindContainerStatusByID(id); c != nil {
		info, _ := c.Source.(*Info)
		return info
	}
	sandboxes, _ := pod.Source.(map[string]*Info)
	return sandboxes[withoutType(id)]
}

// Info is the information about a container or a sandbox for which CRI has no fields. Fields that
// the runtime does not report are empty.
type Info struct {
	// ID is the ID of the container or sandbox.
	ID string
	// SandboxID is the ID of the sandbox that the container is in. For a sandbox, it equals ID.
	SandboxID string
	// PID is the process ID of the first process, in the runtime's PID namespace; 0 if no process
	// is running. With CRI-O, a created container has one too: its process waits for the start. A sandbox of
	// CRI-O runs a process only if its pod has a PID namespace of its own, or drop_infra_ctr is off.
	PID int
	// CgroupPath is the path of the cgroup below the mount point of the hierarchy, such as
	// "/kubepods.slice/kubepods-pod1f2e.slice/cri-containerd-3f2a.scope". Processes of the
	// container may be in cgroups below it. The path is computed from the specification. The path
	// may be missing on the host: with kata, or if the kubelet uses the systemd driver and
	// containerd does not. /proc/PID/cgroup contains the real path.
	CgroupPath string
	// Namespaces are the paths of the namespaces by their type in the OCI specification: "network",
	// "pid", "mount", "ipc", "uts", "cgroup", "user", "time". A path comes from the specification,
	// such as "/run/netns/cni-1b2c". If the specification has no path, the path comes from the
	// first process, such as "/proc/4711/ns/net". Without a process, only paths from the
	// specification are present.
	Namespaces map[string]string
	// RootFS is the path of the root file system in the OCI specification. With containerd it is
	// relative to the container's bundle.
	RootFS string
	// SnapshotKey and Snapshotter name the root file system in containerd's snapshotter.
	SnapshotKey string
	Snapshotter string
	// Env is the environment of the first process, as NAME=value. It often contains secrets, and so do
	// Spec and Raw. JSON contains none of the three.
	Env []string `json:"-"`
	// Privileged is true for a privileged container, and for a privileged sandbox of containerd.
	Privileged bool
	// AppArmorProfile is the name of the AppArmor profile in the OCI specification; empty for none.
	AppArmorProfile string
	// Spec is the OCI runtime specification, which unmarshals into the type Spec of
	// github.com/opencontainers/runtime-spec/specs-go.
	Spec json.RawMessage `json:"-"`
	// Raw is everything that the runtime reports, as JSON in the runtime's own form. There, newer
	// versions of containerd write the values of config.envs in base64.
	Raw json.RawMessage `json:"-"`
}

// ContainerInfo asks the runtime for a container's PID, cgroup, namespaces, OCI specification and
// more. It makes one verbose ContainerStatus call, whose answer takes 10 to 50 KiB, and caches
// nothing. The ID is the runtime's ID, with or without a prefix such as "containerd://". containerd
// and CRI-O also accept the unique beginning of an ID. ctx should have a deadline, because a
// runtime may never answer for a stuck container.
//
// Each runtime reports this information in its own form. ContainerInfo knows the forms of
// containerd and CRI-O; with another runtime, fields may be empty. If the runtime reports nothing,
// the error wraps ErrNoInfo. If the container does not exist, the error has the code NotFound.
func (r *Runtime) ContainerInfo(ctx context.Context, id string) (*Info, error) {
	id = withoutType(id)
	return r.askInfo(ctx, rpcContainerStatus, target{kind: "container", id: id}, func() (*Info, error) {
		resp, err := r.client.containerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true},
			infoOptions()...)
		if err != nil {
			return nil, err
		}
		return parseInfo(cmp.Or(resp.GetStatus().GetId(), id), resp.GetInfo())
	})
}

// SandboxInfo returns the same information as ContainerInfo, but for a sandbox. It makes one
// verbose PodSandboxStatus call.
func (r *Runtime) SandboxInfo(ctx context.Context, id string) (*Info, error) {
	id = withoutType(id)
	return r.askInfo(ctx, rpcPodSandboxStatus, target{kind: "sandbox", id: id}, func() (*Info, error) {
		resp, err := r.client.podSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true},
			infoOptions()...)
		if err != nil {
			return nil, err
		}
		info, err := parseInfo(cmp.Or(resp.GetStatus().GetId(), id), resp.GetInfo())
		if err != nil {
			return nil, err
		}
		info.SandboxID = info.ID
		return info, nil
	})
}

// fetchStateDir asks containerd for the state directory of its CRI plugin.
func (r *Runtime) fetchStateDir(ctx context.Context) (string, error) {
	resp, err := r.client.status(ctx, &runtimeapi.StatusRequest{Verbose: true}, infoOptions()...)
	if err != nil {
		return "", err
	}
	var config struct {
		StateDir string `json:"stateDir"`
	}
	err = json.Unmarshal([]byte(resp.GetInfo()["config"]), &config)
	return config.StateDir, err
}

func infoOptions() []grpc.CallOption {
	return []grpc.CallOption{grpc.ForceCodecV2(&utf8Codec{}), grpc.MaxCallRecvMsgSize(maxReceivedBytes)}
}

func (r *Runtime) askInfo(ctx context.Context, made rpc, of target, ask func() (*Info, error)) (info *Info, err error) {
	err = r.do(ctx, made, of, func() (err error) {
		info, err = ask()
		return err
	})
	return info, err
}

// parseInfo parses the info of a verbose status.
func parseInfo(id string, verbose map[string]string) (*Info, error) {
	raw := verbose["info"]
	if raw == "" {
		return nil, ErrNoInfo
	}
	// First the fields that containerd and CRI-O share, then the fields of each runtime.
	var of struct {
		PID         int             `json:"pid"`
		SandboxID   string          `json:"sandboxID"`
		RuntimeSpec json.RawMessage `json:"runtimeSpec"`

		// Fields of containerd only.
		SnapshotKey string `json:"snapshotKey"`
		Snapshotter string `json:"snapshotter"`
		Config      struct {
			Linux struct {
				SecurityContext struct {
					Privileged bool `json:"privileged"`
				} `json:"security_context"`
			} `json:"linux"`
		} `json:"config"`

		// Fields of CRI-O only.
		Privileged bool `json:"privileged"`
	}
	var spec struct {
		Process struct {
			Env             []string `json:"env"`
			AppArmorProfile string   `json:"apparmorProfile"`
		} `json:"process"`
		Root struct {
			Path string `json:"path"`
		} `json:"root"`
		Linux struct {
			CgroupsPath string `json:"cgroupsPath"`
			Namespaces  []struct {
				Type string `json:"type"`
				Path string `json:"path"`
			} `json:"namespaces"`
		} `json:"linux"`
	}
	err := json.Unmarshal([]byte(raw), &of)
	if err == nil && len(of.RuntimeSpec) > 0 {
		err = json.Unmarshal(of.RuntimeSpec, &spec)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the info of a verbose status: %w", err)
	}
	info := &Info{
		ID: id, SandboxID: of.SandboxID, PID: max(of.PID, 0),
		CgroupPath:  cgroupPath(spec.Linux.CgroupsPath),
		Namespaces:  make(map[string]string),
		RootFS:      spec.Root.Path,
		SnapshotKey: of.SnapshotKey, Snapshotter: of.Snapshotter,
		Env:             spec.Process.Env,
		Privileged:      of.Privileged || of.Config.Linux.SecurityContext.Privileged,
		AppArmorProfile: spec.Process.AppArmorProfile,
		Spec:            of.RuntimeSpec,
		Raw:             json.RawMessage(raw),
	}
	if info.PID > 0 {
		for namespace, name := range procNames {
			info.Namespaces[namespace] = fmt.Sprintf("/proc/%d/ns/%s", info.PID, name)
		}
	}
	for _, namespace := range spec.Linux.Namespaces {
		if namespace.Path != "" {
			info.Namespaces[namespace.Type] = namespace.Path
		}
	}
	return info, nil
}

// inspectedInfo returns the info in an inspection's verbose status, or nil without WithInfo. It keeps
// only the environment variables that the option names, and no text longer than maxText.
func (o *options) inspectedInfo(id string, verbose map[string]string) (*Info, badSet) {
	if !o.info {
		return nil, 0
	}
	all, err := parseInfo(id, verbose)
	if errors.Is(err, ErrNoInfo) {
		return nil, 0
	}
	if err != nil {
		return nil, badSet(0).with(badInfo)
	}
	short := func(text string) string {
		if len(text) > maxText {
			return ""
		}
		return text
	}
	kept := &Info{
		ID: id, SandboxID: short(all.SandboxID), PID: all.PID, CgroupPath: short(all.CgroupPath),
		Namespaces: make(map[string]string), RootFS: short(all.RootFS), SnapshotKey: short(all.SnapshotKey),
		Snapshotter: short(all.Snapshotter), Privileged: all.Privileged, AppArmorProfile: short(all.AppArmorProfile),
	}
	for namespace := range procNames {
		if path := short(all.Namespaces[namespace]); path != "" {
			kept.Namespaces[namespace] = path
		}
	}
	for _, variable := range all.Env {
		name, _, _ := strings.Cut(variable, "=")
		if slices.Contains(o.infoEnv, name) && short(variable) != "" {
			kept.Env = append(kept.Env, variable)
		}
	}
	return kept, 0
}

// procNames are the names of the namespace types in /proc/PID/ns.
var procNames = map[string]string{
	"network": "net", "mount": "mnt", "pid": "pid", "ipc": "ipc", "uts": "uts", "cgroup": "cgroup", "user": "user",
	"time": "time",
}

// cgroupPath returns the path of a cgroup from an OCI specification. For the systemd driver, the
// specification contains slice:prefix:name. The name of a slice contains its parents:
// kubepods-burstable.slice is below kubepods.slice.
func cgroupPath(spec string) string {
	parts := strings.Split(spec, ":")
	if len(parts) != 3 {
		return spec
	}
	slice, prefix, name := strings.TrimSuffix(parts[0], ".slice"), parts[1], parts[2]
	if slice == "-" { // "-" is the root
		slice = ""
	}
	var path strings.Builder
	for at := range slice {
		if slice[at] == '-' {
			path.WriteString("/" + slice[:at] + ".slice")
		}
	}
	if slice != "" {
		path.WriteString("/" + slice + ".slice")
	}
	if prefix != "" {
		name = prefix + "-" + name
	}
	return path.String() + "/" + name + ".scope"
}

// withoutType returns an ID without a prefix such as "containerd://".
func withoutType(id string) string {
	if _, bare, prefixed := strings.Cut(id, "://"); prefixed {
		return bare
	}
	return id
}
