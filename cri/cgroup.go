package cri

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// ContainerIDFromCgroup returns the ID of the container that a process is in, from the path of its
// cgroup or a line of /proc/<pid>/cgroup. It knows the forms of containerd, CRI-O, cri-dockerd and
// kata, with the systemd and the cgroupfs driver. If containers are nested, it returns the
// outermost, which is the pod's. For kata it is the sandbox. ok is false for a process in no
// container of a pod, such as CRI-O's conmon.
//
// The kernel shows paths relative to the reader's cgroup namespace. On cgroup v2, an unprivileged
// container has a namespace of its own. In it, the paths of the reader's own container have no ".."
// and do not name the container, so ok is false. Other containers have paths such as
// "/../../pod1f2e/3a4b…", which name them. A container whose cgroup has the same parent as the
// reader's is taken to be in the reader's pod. So the reader must be in a pod.
//
// Paths below user@N.service name nothing, because user N can create them. Rootless Kubernetes has
// its containers there, and is not supported.
func ContainerIDFromCgroup(path string) (id string, ok bool) {
	_, id = fromCgroup(path)
	return id, id != ""
}

// PodUIDFromCgroup returns the UID of the pod that a process is in, from the path of its cgroup or
// a line of /proc/<pid>/cgroup. With the UID, a pod list finds a container that the cache does not
// have yet: see examples/attribution. ok is false if the process is in no pod or if the path has no
// UID. Paths have none in the reader's own pod, if the reader has a cgroup namespace of its own,
// and in pods without a kubelet. See ContainerIDFromCgroup. For a static pod, it is the UID in the
// sandbox's labels, not the UID of the mirror pod.
func PodUIDFromCgroup(path string) (uid types.UID, ok bool) {
	uid, _ = fromCgroup(path)
	return uid, uid != ""
}

// fromCgroup returns the outermost pod and container of a path; either may be empty.
func fromCgroup(path string) (uid types.UID, id string) {
	// The kernel adds " (deleted)" if the process is a zombie and its cgroup was removed.
	path = strings.TrimSuffix(strings.TrimSuffix(path, "\n"), " (deleted)")
	inPods := false // true below a cgroup of the kubelet
	next := false   // true if the previous element means that this one is a pod or a container
	for element := range strings.SplitSeq(path, "/") {
		if strings.HasPrefix(element, "user@") && strings.HasSuffix(element, ".service") {
			break
		}
		// The kubelet's: kubepods or kubepods-burstable-pod….slice, below other elements in a
		// nested node.
		inPods = inPods || strings.Contains(element, "kubepods")
		if uid == "" && (inPods || next) {
			uid = podUIDOf(element, inPods)
		}
		if id = containerOf(element, inPods || next); id != "" {
			break
		}
		switch element {
		case "..", "k8s.io": // k8s.io is containerd's cgroup for pods without a parent
			next = true
		case "burstable", "besteffort": // seen from a pod: /../../../burstable/pod…
		default:
			next = uid != ""
		}
	}
	return uid, id
}

// podUIDOf returns the UID that an element of a path names; empty if it names no pod.
func podUIDOf(element string, inPods bool) types.UID {
	name, _, _ := strings.Cut(element, ":") // slice:cri-containerd:id, where the drivers differ
	// kubepods-burstable-pod1f2e_3a4b.slice, or below kubepods: pod1f2e-3a4b
	if slice, systemd := strings.CutSuffix(name, ".slice"); systemd {
		name = slice[strings.LastIndexByte(slice, '-')+1:]
	}
	uid, is := strings.CutPrefix(strings.ReplaceAll(name, "_", "-"), "pod")
	if !is || !inPods && strings.Trim(uid, "0123456789abcdef-") != "" { // podman, podruntime.slice
		return ""
	}
	return types.UID(uid)
}

// containerOf returns the ID that an element of a path names; empty if it names no container of a pod.
// expected is true where such a container may have a name without prefix.
func containerOf(element string, expected bool) string {
	// cri-containerd-id.scope, crio-id, kata_id, or slice:cri-containerd:id, where the drivers differ
	name := strings.TrimSuffix(element, ".scope")
	i := strings.LastIndexAny(name, "-_:")
	prefix, id := name[:max(i, 0)], name[i+1:]
	expected = expected || strings.HasSuffix(prefix, "cri-containerd") || strings.HasSuffix(prefix, "crio")
	if !expected || strings.HasSuffix(prefix, "conmon") || !isContainerID(id) {
		return ""
	}
	return id
}

// isContainerID reports whether a name is an ID as containerd, CRI-O and Docker make them: 64
// hexadecimal digits.
func isContainerID(name string) bool {
	return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == ""
}
