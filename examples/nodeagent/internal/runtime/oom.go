package runtime

import (
	"syscall"

	v1 "k8s.io/api/core/v1"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
)

// QOS returns the quality of service of a pod, by what its containers ask for.
func QOS(pod *v1.Pod) v1.PodQOSClass {
	class := v1.PodQOSBestEffort
	guaranteed := true
	for _, c := range plan.Containers(pod) {
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			request, limit := c.Resources.Requests[name], c.Resources.Limits[name]
			if !request.IsZero() || !limit.IsZero() {
				class = v1.PodQOSBurstable
			}
			guaranteed = guaranteed && !limit.IsZero() && request.Equal(limit)
		}
	}
	if guaranteed {
		return v1.PodQOSGuaranteed
	}
	return class
}

// oomScoreAdj returns what the kernel is to add to the score of a container's processes when memory runs out, as the
// kubelet: what asks for less of the node's memory, and uses more than it asks for, ends first.
func oomScoreAdj(pod *v1.Pod, c *v1.Container, memory int64) int64 {
	const guaranteed, bestEffort = -997, 1000
	class := QOS(pod)
	switch {
	case class == v1.PodQOSGuaranteed || pod.Spec.PriorityClassName == "system-node-critical":
		return guaranteed
	case class == v1.PodQOSBestEffort:
		return bestEffort
	}
	request := c.Resources.Requests.Memory().Value()
	if plan.IsSidecar(c) { // it ends no sooner than the containers that need it
		least := pod.Spec.Containers[0].Resources.Requests.Memory().Value()
		for i := range pod.Spec.Containers {
			least = min(least, pod.Spec.Containers[i].Resources.Requests.Memory().Value())
		}
		request = max(request, least)
	}
	return min(max(bestEffort-1000*request/memory, bestEffort+guaranteed), bestEffort-1)
}

// nodeMemory returns the bytes of memory of the node.
func nodeMemory() int64 {
	var info syscall.Sysinfo_t
	_ = syscall.Sysinfo(&info)                           // it fails only for a bad address
	return max(int64(info.Totalram)*int64(info.Unit), 1) //nolint:gosec // it is less than 8 EiB
}
