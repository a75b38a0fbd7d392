package pleg

import runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

// agrees reports whether a status has the same containers and sandboxes as the list of its
// pod, in the same states. A status without any sandbox is not compared in its sandboxes:
// the runtime inspects none.
func agrees(pod *Pod, status *PodStatus) bool {
	if !paired(pod.Containers, status.ContainerStatuses, func(s *Status) string { return s.ID.ID },
		func(c *Container, s *Status) bool { return plegStateOf(c) == plegStateIn(s.State) }) {
		return false
	}
	return len(status.SandboxStatuses) == 0 ||
		paired(pod.Sandboxes, status.SandboxStatuses, (*runtimeapi.PodSandboxStatus).GetId,
			func(c *Container, s *runtimeapi.PodSandboxStatus) bool {
				ready := s.State == runtimeapi.PodSandboxState_SANDBOX_READY
				return (c.State == ContainerStateRunning) == ready
			})
}

// paired reports whether each of what is listed has one status, which agrees with it, and
// there are no others.
func paired[S any](listed []*Container, statuses []S, id func(S) string, agree func(*Container, S) bool) bool {
	if len(statuses) != len(listed) {
		return false
	}
	find := finderIn(listed)
	taken := make([]bool, len(listed)) // on the stack for an ordinary pod
	for i, s := range statuses {
		at := find.index(i, id(s))
		if at < 0 || taken[at] || !agree(listed[at], s) {
			return false
		}
		taken[at] = true
	}
	return true
}
