package runtime

import (
	"encoding/json"
	"hash/fnv"
	"strconv"

	v1 "k8s.io/api/core/v1"
)

// ContainerHash returns the hash of a container's specification. A container with another hash is replaced. The
// kubelet hashes only name and image, because the API server lets nothing else be changed; a manifest file can be
// changed anywhere, and no change may be without effect.
func ContainerHash(c *v1.Container) uint64 { return hashOf(c) }

// SandboxHash returns the hash of what a sandbox is made from, but for labels and annotations, which are not worth a
// restart. A pod with a sandbox of another hash gets a new one.
func SandboxHash(pod *v1.Pod) string {
	return strconv.FormatUint(hashOf([]any{
		pod.Spec.Hostname, pod.Spec.HostNetwork, pod.Spec.HostPID, pod.Spec.HostIPC, hasPrivileged(pod),
		pod.Spec.SecurityContext,
	}), 16)
}

// hashOf hashes the JSON of a value: 32 bits, as the kubelet's.
func hashOf(v any) uint64 {
	h := fnv.New32a()
	_ = json.NewEncoder(h).Encode(v) // no type that is hashed here fails, and a hash takes everything
	return uint64(h.Sum32())
}
