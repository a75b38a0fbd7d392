package cri

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// ContainerIDFromCgroup returns the ID of the container that a process runs in, from the path of
// its cgroup or a line of /proc/<pid>/cgroup. It knows the path formats of containerd, CRI-O,
// cri-dockerd and kata, with the systemd and the cgroupfs driver. If containers are nested, it
// returns the ID of the outermost, which is the pod's container. For kata, it returns the ID of the
// sandbox. ok is false if the process is not in a pod's container. CRI-O's conmon is an example.
//
// The kernel shows paths relative to the reader's cgroup namespace. On cgroup v2, an unprivileged
// container has its own namespace. A reader in such a namespace sees paths of its own container
// without ".." and without the container's ID, so ok is false. The path of any other container,
// such as "/../../pod1f2e/3a4b…", contains that container's ID. If a container's cgroup has the
// same parent as the reader's cgroup, the container counts as part of the reader's pod. So the
// reader must be in a pod.
//
// Paths below user@N.service are ignored, because user N can create them. Rootless Kubernetes runs
// its containers below such a path, so it is not supported.
func ContainerIDFromCgroup(path string) (id string, ok bool) {
	_, id = fromCgroup(path)
	return id, id != ""
}

// PodUIDFromCgroup returns the UID of the pod that a process runs in, from the path of its cgroup
// or a line of /proc/<pid>/cgroup. With the UID, a pod list finds a container that is not in the
// cache yet: see package attribution. ok is false if the process is in no pod or if the path
// contains no UID. A path in a pod without a kubelet contains no UID. If the reader has its own
// cgroup namespace, the paths of its own pod contain no UID either: see ContainerIDFromCgroup. For
// a static pod, the result is the UID in the sandbox's labels, not the UID of the mirror pod.
func PodUIDFromCgroup(path string) (uid types.UID, ok bool) {
	uid, _ = fromCgroup(path)
	return uid, uid != ""
}

// fromCgroup returns the outermost pod and container in a path; either may be empty.
func fromCgroup(path string) (uid types.UID, id string) {
	// The kernel adds " (deleted)" if the process is a zombie and its cgroup was removed.
	path = strings.TrimSuffix(strings.TrimSuffix(path, "\n"), " (deleted)")
	inPods := false // true once an element of the kubelet has been found
	next := false   // true if a pod or a container may follow the previous element
	for element := range strings.SplitSeq(path, "/") {
		if strings.HasPrefix(element, "user@") && strings.HasSuffix(element, ".service") {
			break
		}
		// The kubelet's elements are kubepods or kubepods-burstable-pod….slice. In a nested node,
		// they are below other elements.
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
		case "burstable", "besteffort": // keep the value of next, as in /../../../burstable/pod…
		default:
			next = uid != ""
		}
	}
	return uid, id
}

// podUIDOf returns the UID in an element of a path, or "" if the element is not a pod's.
func podUIDOf(element string, inPods bool) types.UID {
	name, _, _ := strings.Cut(element, ":") // for the form slice:cri-containerd:id
	// With systemd: kubepods-burstable-pod1f2e_3a4b.slice. With cgroupfs: pod1f2e-3a4b.
	if slice, systemd := strings.CutSuffix(name, ".slice"); systemd {
		name = slice[strings.LastIndexByte(slice, '-')+1:]
	}
	uid, is := strings.CutPrefix(strings.ReplaceAll(name, "_", "-"), "pod")
	if !is || !inPods && strings.Trim(uid, "0123456789abcdef-") != "" { // such as podman, podruntime.slice
		return ""
	}
	return types.UID(uid)
}

// containerOf returns the ID in an element of a path, or "" if the element is not a pod's
// container. expected is true if the element may be a pod's container even without a known prefix.
func containerOf(element string, expected bool) string {
	// The name is cri-containerd-id.scope, crio-id, kata_id or, if the drivers differ,
	// slice:cri-containerd:id.
	name := strings.TrimSuffix(element, ".scope")
	i := strings.LastIndexAny(name, "-_:")
	prefix, id := name[:max(i, 0)], name[i+1:]
	expected = expected || strings.HasSuffix(prefix, "cri-containerd") || strings.HasSuffix(prefix, "crio")
	if !expected || strings.HasSuffix(prefix, "conmon") || !isContainerID(id) {
		return ""
	}
	return id
}

// isContainerID reports whether a name looks like an ID of containerd, CRI-O or Docker: 64
// hexadecimal digits.
func isContainerID(name string) bool {
	return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == ""
}
