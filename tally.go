package pleg

import "slices"

// tally counts what runs.
type tally struct {
	// runningPods are the pods that have a running sandbox.
	runningPods int
	// containers are the containers by state, sandboxes not among them.
	created, running, exited, unknown int
	// unsettledPods are those of which isUnsettled.
	unsettledPods int
}

// count adds a pod to the tally n times.
func (t *tally) count(pod *Pod, n int) {
	if pod == nil {
		return
	}
	for _, c := range pod.Containers {
		switch c.State {
		case ContainerStateCreated:
			t.created += n
		case ContainerStateRunning:
			t.running += n
		case ContainerStateExited:
			t.exited += n
		case ContainerStateUnknown:
			t.unknown += n
		}
	}
	if slices.ContainsFunc(pod.Sandboxes, func(s *Container) bool { return s.State == ContainerStateRunning }) {
		t.runningPods += n
	}
	if isUnsettled(pod) {
		t.unsettledPods += n
	}
}

// isUnsettled reports whether a pod has a sandbox that is not ready, or a container that is created
// and not started: of such pods runtimes do not announce every change. containerd says nothing of
// a start that fails, and CRI-O nothing of the removal of a sandbox.
func isUnsettled(pod *Pod) bool {
	return slices.ContainsFunc(pod.Containers, func(c *Container) bool { return c.State == ContainerStateCreated }) ||
		slices.ContainsFunc(pod.Sandboxes, func(s *Container) bool { return s.State != ContainerStateRunning })
}
