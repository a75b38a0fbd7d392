// Package status makes the API status of pods out of what the library has inspected, keeps it, and writes what
// changed to a sink.
package status

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/runtime"
)

// The reasons of containers that have not been created yet.
const (
	containerCreating = "ContainerCreating"
	podInitializing   = "PodInitializing"
)

// Readiness sets Started and Ready of the container statuses of a pod.
type Readiness interface {
	SetReadiness(pod *v1.Pod, status *v1.PodStatus)
}

// Generate returns the status of a pod. previous is the one before, reasons say why containers that should run do
// not, nodeIP is the address of the node.
func Generate(pod *v1.Pod, seen *pleg.PodStatus, previous v1.PodStatus, reasons map[string]v1.ContainerStateWaiting,
	readiness Readiness, nodeIP string) v1.PodStatus {
	g := generator{pod: pod, seen: seen, reasons: reasons, previous: map[string]v1.ContainerStatus{}}
	for _, list := range [][]v1.ContainerStatus{previous.InitContainerStatuses, previous.ContainerStatuses} {
		for _, s := range list {
			g.previous[s.Name] = s
		}
	}
	status := v1.PodStatus{StartTime: previous.StartTime, HostIP: nodeIP}
	if status.StartTime == nil {
		now := metav1.Now().Rfc3339Copy()
		status.StartTime = &now
	}
	if nodeIP != "" {
		status.HostIPs = []v1.HostIP{{IP: nodeIP}}
	}
	ips := seen.IPs
	if pod.Spec.HostNetwork && len(seen.SandboxStatuses) > 0 && nodeIP != "" {
		ips = []string{nodeIP}
	}
	for i, ip := range ips {
		if i == 0 {
			status.PodIP = ip
		}
		status.PodIPs = append(status.PodIPs, v1.PodIP{IP: ip})
	}
	for i := range pod.Spec.InitContainers {
		status.InitContainerStatuses = append(status.InitContainerStatuses, g.container(&pod.Spec.InitContainers[i], true))
	}
	for i := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, g.container(&pod.Spec.Containers[i], false))
	}
	readiness.SetReadiness(pod, &status)
	status.Phase = phase(pod, &status, plan.HasRegularContainer(pod, seen))
	if previous.Phase == v1.PodSucceeded || previous.Phase == v1.PodFailed {
		status.Phase = previous.Phase // a pod that has ended has ended
	}
	changed, _ := plan.SandboxChanged(pod, runtime.SandboxHash(pod), seen)
	status.Conditions = conditions(pod, &status, !changed)
	keepTransitionTimes(&status, previous.Conditions)
	return status
}

// generator makes the statuses of a pod's containers.
type generator struct {
	pod      *v1.Pod
	seen     *pleg.PodStatus
	reasons  map[string]v1.ContainerStateWaiting
	previous map[string]v1.ContainerStatus
}

func (g *generator) container(c *v1.Container, isInit bool) v1.ContainerStatus {
	s := v1.ContainerStatus{Name: c.Name, Image: c.Image}
	var runs []*pleg.Status // the present one and the one before, newest first
	for _, r := range g.seen.ContainerStatuses {
		if r.Name == c.Name && len(runs) < 2 {
			runs = append(runs, r)
		}
	}
	previous, known := g.previous[c.Name]
	switch {
	case len(runs) > 0:
		convert(&s, runs[0])
		switch {
		case len(runs) > 1:
			s.LastTerminationState = stateOf(runs[1])
		case previous.ContainerID != s.ContainerID && previous.State.Terminated != nil:
			s.LastTerminationState = previous.State // which the runtime has no more
		default:
			s.LastTerminationState = previous.LastTerminationState
		}
		if t := s.LastTerminationState.Terminated; t != nil && t.ContainerID == s.ContainerID {
			s.LastTerminationState.Terminated = nil // it was waiting to be restarted
		}
	case isInit && !plan.IsSidecar(c) && plan.HasRegularContainer(g.pod, g.seen):
		// It has run, and the runtime has nothing of it any more.
		s.State.Terminated = &v1.ContainerStateTerminated{Reason: "Completed"}
		if previous.State.Terminated != nil {
			s = previous
		}
		return s
	case known && previous.State.Terminated != nil:
		return previous
	default:
		s.RestartCount, s.LastTerminationState = previous.RestartCount, previous.LastTerminationState
		if previous.ContainerID != "" {
			// It ran, and the runtime has lost it.
			s.RestartCount++
			s.LastTerminationState.Terminated = &v1.ContainerStateTerminated{
				ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "The runtime no longer knows the container.",
			}
		}
		s.State.Waiting = &v1.ContainerStateWaiting{Reason: containerCreating}
		if len(g.pod.Spec.InitContainers) > 0 {
			s.State.Waiting.Reason = podInitializing
		}
	}
	if isInit && len(runs) > 0 && runs[0].State == pleg.ContainerStateExited && runs[0].ExitCode == 0 &&
		!plan.IsSidecar(c) {
		return s
	}
	// A container that is to run and does not is waiting, if it is known for what.
	if why, ok := g.reasons[c.Name]; ok && plan.ShouldRun(g.pod, c, g.seen) {
		if s.State.Terminated != nil {
			s.LastTerminationState = s.State
		}
		s.State = v1.ContainerState{Waiting: &why}
	}
	return s
}

func convert(s *v1.ContainerStatus, seen *pleg.Status) {
	s.ContainerID = seen.ID.String()
	s.Image, s.ImageID = seen.Image, seen.ImageRef
	s.RestartCount = int32(seen.RestartCount) //nolint:gosec // it was an int32
	s.State = stateOf(seen)
}

func stateOf(s *pleg.Status) v1.ContainerState {
	switch s.State {
	case pleg.ContainerStateRunning:
		return v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(s.StartedAt)}}
	case pleg.ContainerStateExited:
		return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			ExitCode: int32(s.ExitCode), //nolint:gosec // it was an int32
			Reason:   s.Reason, Message: s.Message,
			StartedAt: metav1.NewTime(s.StartedAt), FinishedAt: metav1.NewTime(s.FinishedAt),
			ContainerID: s.ID.String(),
		}}
	default:
		return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{}}
	}
}
