package status

import (
	v1 "k8s.io/api/core/v1"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
)

// phase returns the phase of a pod, from the statuses of its containers. initialized means that a regular container
// exists.
func phase(pod *v1.Pod, status *v1.PodStatus, initialized bool) v1.PodPhase {
	pending, failedForGood := initPhase(pod, status, initialized)
	running, waiting, stopped, ended, succeeded := 0, 0, 0, 0, 0
	for i := range status.InitContainerStatuses {
		if plan.IsSidecar(&pod.Spec.InitContainers[i]) && status.InitContainerStatuses[i].State.Running != nil {
			running++
		}
	}
	for i := range status.ContainerStatuses {
		s := &status.ContainerStatuses[i]
		t := termination(s)
		switch {
		case s.State.Running != nil:
			running++
		case t == nil:
			waiting++
		default:
			stopped++
			if !plan.Restarts(pod, &pod.Spec.Containers[i], int(t.ExitCode)) {
				ended++
			}
			if t.ExitCode == 0 {
				succeeded++
			}
		}
	}
	switch {
	case failedForGood:
		return v1.PodFailed
	case pending || waiting > 0:
		return v1.PodPending
	case running > 0 || stopped != ended:
		return v1.PodRunning // or about to be
	case stopped == succeeded:
		return v1.PodSucceeded
	default:
		return v1.PodFailed
	}
}

// initPhase reports whether the init containers keep the pod pending, and whether one has failed for good. Sidecars
// that restart do not make a pod pending that has run.
func initPhase(pod *v1.Pod, status *v1.PodStatus, initialized bool) (pending, failedForGood bool) {
	for i := range status.InitContainerStatuses {
		c, s := &pod.Spec.InitContainers[i], &status.InitContainerStatuses[i]
		t := termination(s)
		if plan.IsSidecar(c) {
			up := s.State.Running != nil && s.Started != nil && *s.Started
			pending = pending || !up && t == nil && !initialized
			continue
		}
		switch {
		case s.State.Running != nil || t == nil:
			pending = true
		case t.ExitCode != 0 && !plan.Restarts(pod, c, int(t.ExitCode)):
			failedForGood = true
		case t.ExitCode != 0:
			pending = true
		}
	}
	return pending, failedForGood
}

// termination returns how a container ended that does not run, nil if it never ran.
func termination(s *v1.ContainerStatus) *v1.ContainerStateTerminated {
	if s.State.Waiting != nil {
		return s.LastTerminationState.Terminated
	}
	return s.State.Terminated
}
