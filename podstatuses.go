package pleg

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// FindContainerStatusByName returns the newest status of a container with a name, nil if
// there is none. A container that was restarted has an older one too.
func (s *PodStatus) FindContainerStatusByName(containerName string) *Status {
	if s == nil {
		return nil
	}
	for _, status := range s.ContainerStatuses {
		if status != nil && status.Name == containerName {
			return status
		}
	}
	return nil
}

// GetRunningContainerStatuses returns the statuses of the running containers, newest
// first, in a new slice.
func (s *PodStatus) GetRunningContainerStatuses() []*Status {
	if s == nil {
		return nil
	}
	var running []*Status
	for _, status := range s.ContainerStatuses {
		if status != nil && status.State == ContainerStateRunning {
			running = append(running, status)
		}
	}
	return running
}

// SortContainerStatusesByCreationTime sorts statuses by CreatedAt, oldest first, with the
// functions of package sort. Statuses are shared: sort a copy of the slice, or, better,
// rely on the order that they come in, newest first.
type SortContainerStatusesByCreationTime []*Status

// Len implements sort.Interface.
func (s SortContainerStatusesByCreationTime) Len() int { return len(s) }

// Swap implements sort.Interface.
func (s SortContainerStatusesByCreationTime) Swap(i, j int) { s[i], s[j] = s[j], s[i] }

// Less implements sort.Interface.
func (s SortContainerStatusesByCreationTime) Less(i, j int) bool {
	return s[i].CreatedAt.Before(s[j].CreatedAt)
}

// SandboxToContainerState returns the state that a sandbox has as a container: running if
// it is ready, exited if it is not, else unknown.
func SandboxToContainerState(state runtimeapi.PodSandboxState) State {
	if state == runtimeapi.PodSandboxState_SANDBOX_READY {
		return ContainerStateRunning
	}
	if state == runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		return ContainerStateExited
	}
	return ContainerStateUnknown
}

// ConvertPodStatusToRunningPod returns a pod as a list would show it, with its running
// containers and all its sandboxes, newest first: what has to be stopped to stop the pod.
// The IDs of the sandboxes get the runtime's name as their type, since the status has
// none. A container has no PodSandboxID and no labels, for the same reason. Source is that
// of the status.
func ConvertPodStatusToRunningPod(runtimeName string, podStatus *PodStatus) Pod {
	if podStatus == nil {
		return Pod{}
	}
	pod := Pod{ID: podStatus.ID, Name: podStatus.Name, Namespace: podStatus.Namespace, Source: podStatus.Source}
	for _, s := range podStatus.GetRunningContainerStatuses() {
		c := &Container{
			ID: s.ID, State: s.State, Name: s.Name, Image: s.Image, ImageID: s.ImageID, ImageRef: s.ImageRef,
			ImageRuntimeHandler: s.ImageRuntimeHandler, Hash: s.Hash, Source: s.Source,
		}
		if !s.CreatedAt.IsZero() {
			c.CreatedAt = s.CreatedAt.UnixNano()
		}
		pod.Containers = append(pod.Containers, c)
	}
	for _, s := range podStatus.SandboxStatuses {
		if s == nil {
			continue
		}
		pod.Sandboxes = append(pod.Sandboxes, &Container{
			ID: BuildContainerID(runtimeName, s.GetId()), State: SandboxToContainerState(s.GetState()),
			CreatedAt: s.GetCreatedAt(), Attempt: s.GetMetadata().GetAttempt(),
			Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
		})
		if len(pod.Sandboxes) == 1 { // the newest
			pod.Labels, pod.Annotations, pod.RuntimeHandler = s.GetLabels(), s.GetAnnotations(), s.GetRuntimeHandler()
		}
		pod.CreatedAt = max(pod.CreatedAt, uint64(max(0, s.GetCreatedAt()))) //nolint:gosec // not negative
	}
	return pod
}
