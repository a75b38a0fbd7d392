package plan

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg"
)

// Grace returns the grace period of a pod, or of a container that is ended because of a probe.
func Grace(pod *v1.Pod, c *v1.Container, probe ProbeKind) time.Duration {
	seconds := *pod.Spec.TerminationGracePeriodSeconds
	if probe != "" {
		seconds = ptr.Deref(Probe(c, probe).TerminationGracePeriodSeconds, seconds)
	}
	return time.Duration(seconds) * time.Second
}

// KillOrder returns the containers of a pod that may run, in the order of their end: those in one step end at once. The
// sidecars come after the others, the last that started first.
func KillOrder(pod *v1.Pod, seen *pleg.PodStatus) (steps [][]*pleg.Status) {
	place := func(s *pleg.Status) int {
		return slices.IndexFunc(pod.Spec.InitContainers,
			func(c v1.Container) bool { return c.Name == s.Name && IsSidecar(&c) })
	}
	steps = make([][]*pleg.Status, 1+len(pod.Spec.InitContainers))
	for _, s := range seen.ContainerStatuses {
		if Lives(s) {
			step := (len(pod.Spec.InitContainers) - place(s)) % len(steps)
			steps[step] = append(steps[step], s)
		}
	}
	return steps
}

// Sandboxes returns the sandboxes of a pod that are ready.
func Sandboxes(seen *pleg.PodStatus) (ready []string) {
	for _, s := range seen.SandboxStatuses {
		if s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			ready = append(ready, s.GetId())
		}
	}
	return ready
}

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
	ready := Sandboxes(seen)
	for i, s := range seen.SandboxStatuses {
		of := func(c *pleg.Container) bool { return c.PodSandboxID == s.GetId() }
		if i > 0 && !slices.Contains(ready, s.GetId()) && listed != nil && !slices.ContainsFunc(listed.Containers, of) {
			sandboxes = append(sandboxes, s.GetId())
		}
	}
	return containers, sandboxes
}
