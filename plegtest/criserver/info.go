package criserver

import (
	"encoding/json"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// verboseInfo is the info of a verbose status. Only CRI-O reports Privileged; only containerd
// reports what follows it.
type verboseInfo struct {
	SandboxID   string  `json:"sandboxID,omitempty"`
	PID         uint32  `json:"pid"`
	RuntimeSpec ociSpec `json:"runtimeSpec"`
	Privileged  *bool   `json:"privileged,omitempty"`

	SnapshotKey string `json:"snapshotKey,omitempty"`
	Snapshotter string `json:"snapshotter,omitempty"`
	RuntimeType string `json:"runtimeType,omitempty"`
	Config      any    `json:"config,omitempty"` // CRI's own message
}

// ociSpec is a part of the OCI runtime specification.
type ociSpec struct {
	Version string     `json:"ociVersion"`
	Process ociProcess `json:"process"`
	Root    ociRoot    `json:"root"`
	Mounts  []ociMount `json:"mounts"`
	Linux   ociLinux   `json:"linux"`
}

type ociProcess struct {
	Args []string `json:"args"`
	Env  []string `json:"env"`
}

type ociRoot struct {
	Path string `json:"path"`
}

type ociMount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options,omitempty"`
}

type ociLinux struct {
	CgroupsPath string         `json:"cgroupsPath"`
	Namespaces  []ociNamespace `json:"namespaces"`
}

type ociNamespace struct {
	Type string `json:"type"`
	Path string `json:"path,omitempty"`
}

// containerInfoLocked returns the info of a container's verbose status.
func (n *node) containerInfoLocked(c *simContainer) map[string]string {
	config := c.config.given
	if config == nil {
		config = &runtimeapi.ContainerConfig{
			Metadata: c.item.Metadata, Image: &runtimeapi.ImageSpec{Image: c.item.ImageId},
			Command: []string{"/" + c.config.Name}, Labels: c.item.Labels, Annotations: c.item.Annotations,
			LogPath: fmt.Sprintf("%s/%d.log", c.config.Name, c.attempt),
		}
	}
	info := n.infoLocked(c.sandbox, c.item.Id, config.GetLinux().GetSecurityContext().GetPrivileged(), config)
	info.SandboxID = c.sandbox.item.Id
	// A created container of CRI-O has a process, which waits for the start.
	if c.state == runtimeapi.ContainerState_CONTAINER_RUNNING ||
		n.crio && c.state == runtimeapi.ContainerState_CONTAINER_CREATED {
		info.PID = c.pid()
	}
	spec := &info.RuntimeSpec
	spec.Process.Args = append(config.GetCommand(), config.GetArgs()...)
	for _, kv := range config.GetEnvs() {
		spec.Process.Env = append(spec.Process.Env, kv.GetKey()+"="+string(kv.GetValue()))
	}
	for _, m := range config.GetMounts() {
		access := "rw"
		if m.GetReadonly() {
			access = "ro"
		}
		spec.Mounts = append(spec.Mounts, ociMount{m.GetContainerPath(), "bind", m.GetHostPath(), []string{"rbind", access}})
	}
	return encodeInfo(info)
}

// sandboxInfoLocked returns the info of a sandbox's verbose status.
func (n *node) sandboxInfoLocked(s *simSandbox) map[string]string {
	config := s.config.given
	if config == nil {
		config = &runtimeapi.PodSandboxConfig{
			Metadata: s.item.Metadata, Labels: s.item.Labels, Annotations: s.item.Annotations,
			LogDirectory: fmt.Sprintf("/var/log/pods/%s_%s_%s", s.config.Namespace, s.config.Name, s.config.UID),
		}
	}
	info := n.infoLocked(s, s.item.Id, config.GetLinux().GetSecurityContext().GetPrivileged(), config)
	if s.ready {
		info.PID = madeUpPID(s.item.Id)
	}
	info.RuntimeSpec.Process.Args = []string{"/pause"}
	return encodeInfo(info)
}

// infoLocked returns what the info of a container and of a sandbox have in common.
func (n *node) infoLocked(s *simSandbox, id string, privileged bool, config any) verboseInfo {
	info := verboseInfo{RuntimeSpec: ociSpec{
		Version: "1.2.0",
		Process: ociProcess{Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME=" + s.config.Name}},
		Mounts:  []ociMount{{"/proc", "proc", "proc", []string{"nosuid", "noexec", "nodev"}}},
		Linux: ociLinux{Namespaces: []ociNamespace{{Type: "pid"}, {Type: "mount"},
			{Type: "network", Path: fmt.Sprintf("/run/netns/%.8s", s.item.Id)}}},
	}}
	cgroup := id
	if n.crio {
		cgroup = "crio-" + id
		info.RuntimeSpec.Root.Path = "/var/lib/containers/storage/overlay/" + id + "/merged"
		info.Privileged = &privileged
	} else {
		info.RuntimeSpec.Root.Path = "rootfs"
		info.SnapshotKey, info.Snapshotter, info.RuntimeType = id, "overlayfs", "io.containerd.runc.v2"
		info.Config = config
	}
	info.RuntimeSpec.Linux.CgroupsPath = fmt.Sprintf("/kubepods/besteffort/pod%s/%s", s.config.UID, cgroup)
	return info
}

func encodeInfo(info verboseInfo) map[string]string {
	encoded, err := json.Marshal(info)
	if err != nil {
		return nil // not with these fields
	}
	return map[string]string{"info": string(encoded)}
}
