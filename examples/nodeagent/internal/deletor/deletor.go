// Package deletor removes what a pod leaves behind in the runtime while it goes on: of each container the newest dead
// instance is kept, for its exit code and its restart count, and older ones are removed; so are containers that were
// replaced before they were started, and dead sandboxes that have no container any more.
package deletor

import (
	"context"
	"errors"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/runtime"
)

// Tidy removes what a pod has too much. listed is the pod as it was listed, for the sandboxes of its containers; nil
// if it was not.
func Tidy(ctx context.Context, client *runtime.Client, listed *pleg.Pod, seen *pleg.PodStatus) (err error) {
	kept, replaced := map[string]bool{}, map[string]bool{}
	for _, s := range seen.ContainerStatuses { // newest first
		exited := s.State == pleg.ContainerStateExited
		if exited && kept[s.Name] || s.State == pleg.ContainerStateCreated && replaced[s.Name] {
			err = errors.Join(err, client.RemoveContainer(ctx, s.ID.ID))
		}
		kept[s.Name] = kept[s.Name] || exited
		replaced[s.Name] = true
	}
	for i, s := range seen.SandboxStatuses {
		of := func(c *pleg.Container) bool { return c.PodSandboxID == s.GetId() }
		if i > 0 && s.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY && listed != nil &&
			!slices.ContainsFunc(listed.Containers, of) {
			err = errors.Join(err, client.RemovePodSandbox(ctx, s.GetId()))
		}
	}
	return err
}
