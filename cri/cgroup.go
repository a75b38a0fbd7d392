package cri

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// ContainerIDFromCgroup returns the ID of the container that a process is in, from the path of its
// cgroup or a line of /proc/<pid>/cgroup. It knows the forms of containerd, CRI-O and cri-dockerd,
// with the systemd and the cgroupfs driver. If containers are nested, it returns the outermost,
// which is the pod's. ok is false for a process in no container of a pod, such as CRI-O's conmon.
func ContainerIDFromCgroup(path string) (id string, ok bool) {
	// The kernel marks the cgroup that is gone of a process that nobody has waited for.
	path = strings.TrimSuffix(strings.TrimSuffix(path, "\n"), " (deleted)")
	inPod := false
	for element := range strings.SplitSeq(path, "/") {
		// The kubelet's: kubepods, kubepods-burstable-pod….slice, below another in a nested node.
		inPod = inPod || strings.Contains(element, "kubepods")
		if inPod {
			name := strings.TrimSuffix(element, ".scope")
			if i := strings.LastIndexByte(name, ':'); i >= 0 { // slice:cri-containerd:id, where the drivers differ
				name = name[i+1:]
			}
			if i := strings.LastIndexByte(name, '-'); i >= 0 && !strings.HasSuffix(name[:i], "conmon") {
				name = name[i+1:]
			}
			if isContainerID(name) {
				return name, true
			}
		}
	}
	return "", false
}

// PodUIDFromCgroup returns the UID of the pod that a process is in, from the path of its cgroup or
// a line of /proc/<pid>/cgroup. With the UID, a pod list finds a container that the cache does not
// have yet: see examples/attribution. ok is false for a process in no pod. The UID of a static pod
// is that of its sandbox's labels, not that of its mirror pod in the API server.
func PodUIDFromCgroup(path string) (uid types.UID, ok bool) {
	inPod := false
	for element := range strings.SplitSeq(strings.TrimSuffix(path, "\n"), "/") {
		inPod = inPod || strings.Contains(element, "kubepods")
		if !inPod {
			continue
		}
		name, _, _ := strings.Cut(element, ":") // slice:cri-containerd:id, where the drivers differ
		// kubepods-burstable-pod1f2e_3a4b.slice, or below kubepods: pod1f2e-3a4b
		if slice, systemd := strings.CutSuffix(name, ".slice"); systemd {
			name = strings.ReplaceAll(slice[strings.LastIndexByte(slice, '-')+1:], "_", "-")
		}
		if uid, is := strings.CutPrefix(name, "pod"); is && uid != "" {
			return types.UID(uid), true
		}
	}
	return "", false
}

// isContainerID reports whether a name is an ID as containerd, CRI-O and Docker make them: 64
// hexadecimal digits.
func isContainerID(name string) bool {
	return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == ""
}
