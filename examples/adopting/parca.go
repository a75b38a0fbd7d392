package adopting

import (
	"io/fs"
	"strconv"
	"strings"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

// MetadataProvider gives parca-agent the labels of a process.
type MetadataProvider interface {
	// AddMetadata adds labels of a process, and reports whether the agent may cache them.
	AddMetadata(pid int, labels map[string]string) bool
}

// PodMetadata is a MetadataProvider. It adds labels of the pod and the container of a process. It
// makes no calls to the runtime.
type PodMetadata struct {
	Cache *pleg.PodCache
	Proc  fs.FS // the node's /proc, such as os.DirFS("/proc")
}

// AddMetadata implements MetadataProvider. If the container is not known yet, AddMetadata returns
// false, so that the agent asks again for the next sample of the process.
func (m PodMetadata) AddMetadata(pid int, labels map[string]string) bool {
	containerID, err := containerOf(m.Proc, pid)
	if err != nil {
		return false // the process has ended
	}
	if containerID == "" {
		return true // the process is in no container, and this does not change
	}
	pod, found := m.Cache.ByContainerID(containerID)
	if !found {
		return false
	}
	labels["container_id"], labels["namespace"], labels["pod"] = containerID, pod.Namespace, pod.Name
	for name, value := range pod.Labels {
		if !strings.HasPrefix(name, "io.kubernetes.") { // skip the kubelet's labels for CRI
			labels["pod_label_"+name] = value
		}
	}
	if c := pod.FindContainerStatusByID(containerID); c != nil { // nil for a sandbox
		labels["container"], labels["image"] = c.Name, c.Image
	}
	return true
}

// containerOf returns the ID of a process's container, or "" if the process is in no container.
func containerOf(proc fs.FS, pid int) (string, error) {
	cgroups, err := fs.ReadFile(proc, strconv.Itoa(pid)+"/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(cgroups)) { // only one line on cgroup v2
		if id, ok := cri.ContainerIDFromCgroup(strings.TrimSpace(line)); ok {
			return id, nil
		}
	}
	return "", nil
}
