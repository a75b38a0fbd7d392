package plan

import (
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// leftovers returns what a pod leaves behind. Of each container the newest dead instance is kept, for its exit code and
// its restart count; older ones are left over, and so are containers that were replaced before they were started, and
// dead sandboxes without a container. Of a pod that is no longer wanted all is left over.
func (v View) leftovers() (containers []*pleg.Status, sandboxes []string) {
	kept, replaced := map[string]bool{}, map[string]bool{}
	for _, s := range v.Seen.ContainerStatuses { // newest first
		exited := s.State == pleg.ContainerStateExited
		if exited && kept[s.Name] || s.State == pleg.ContainerStateCreated && replaced[s.Name] || v.Unwanted {
			containers = append(containers, s)
		}
		kept[s.Name] = kept[s.Name] || exited
		replaced[s.Name] = true
	}
	for i, s := range v.Seen.SandboxStatuses {
		dead := s.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY
		of := func(c *pleg.Container) bool { return c.PodSandboxID == s.GetId() }
		if i > 0 && dead && v.Listed != nil && !slices.ContainsFunc(v.Listed.Containers, of) || v.Unwanted {
			sandboxes = append(sandboxes, s.GetId())
		}
	}
	return containers, sandboxes
}
