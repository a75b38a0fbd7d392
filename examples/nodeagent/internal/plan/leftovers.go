package plan

import (
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// Leftovers returns what a pod leaves behind while it goes on. Of each container the newest dead instance is kept, for
// its exit code and its restart count; older ones are left over, and so are containers that were replaced before they
// were started, and dead sandboxes without a container. listed is the pod as it was listed, nil if it was not.
func Leftovers(listed *pleg.Pod, seen *pleg.PodStatus) (containers []*pleg.Status, sandboxes []string) {
	kept, replaced := map[string]bool{}, map[string]bool{}
	for _, s := range seen.ContainerStatuses { // newest first
		exited := s.State == pleg.ContainerStateExited
		if exited && kept[s.Name] || s.State == pleg.ContainerStateCreated && replaced[s.Name] {
			containers = append(containers, s)
		}
		kept[s.Name] = kept[s.Name] || exited
		replaced[s.Name] = true
	}
	for i, s := range seen.SandboxStatuses {
		dead := s.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY
		of := func(c *pleg.Container) bool { return c.PodSandboxID == s.GetId() }
		if i > 0 && dead && listed != nil && !slices.ContainsFunc(listed.Containers, of) {
			sandboxes = append(sandboxes, s.GetId())
		}
	}
	return containers, sandboxes
}
