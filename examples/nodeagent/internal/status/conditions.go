package status

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
)

// The reasons of conditions, as the kubelet has them.
const (
	containersNotReady       = "ContainersNotReady"
	containersNotInitialized = "ContainersNotInitialized"
	podCompleted             = "PodCompleted"
	podFailed                = "PodFailed"
)

// conditions returns the conditions of a pod whose phase and containers are in status.
func conditions(pod *v1.Pod, status *v1.PodStatus, sandboxReady bool) []v1.PodCondition {
	ready := containersReady(pod, status)
	podReady := ready
	podReady.Type = v1.PodReady
	sandbox := v1.PodCondition{Type: v1.PodReadyToStartContainers, Status: v1.ConditionFalse}
	if sandboxReady {
		sandbox.Status = v1.ConditionTrue
	}
	return []v1.PodCondition{
		sandbox, initialized(pod, status), podReady, ready,
		{Type: v1.PodScheduled, Status: v1.ConditionTrue},
	}
}

func initialized(pod *v1.Pod, status *v1.PodStatus) v1.PodCondition {
	cond := v1.PodCondition{Type: v1.PodInitialized, Status: v1.ConditionTrue}
	if status.Phase == v1.PodSucceeded {
		cond.Reason = podCompleted
		return cond
	}
	for i := range status.ContainerStatuses {
		s := &status.ContainerStatuses[i]
		if s.State.Running != nil || termination(s) != nil {
			return cond // it has started, so the init containers have run
		}
	}
	var incomplete []string
	for i := range status.InitContainerStatuses {
		c, s := &pod.Spec.InitContainers[i], &status.InitContainerStatuses[i]
		done := s.Ready
		if plan.IsSidecar(c) {
			done = s.Started != nil && *s.Started
		}
		if !done {
			incomplete = append(incomplete, c.Name)
		}
	}
	if len(incomplete) > 0 {
		cond.Status, cond.Reason = v1.ConditionFalse, containersNotInitialized
		cond.Message = fmt.Sprintf("containers with incomplete status: [%s]", strings.Join(incomplete, " "))
	}
	return cond
}

func containersReady(pod *v1.Pod, status *v1.PodStatus) v1.PodCondition {
	cond := v1.PodCondition{Type: v1.ContainersReady, Status: v1.ConditionFalse}
	switch status.Phase {
	case v1.PodSucceeded:
		cond.Reason = podCompleted
		return cond
	case v1.PodFailed:
		cond.Reason = podFailed
		return cond
	default:
	}
	var unready []string
	for i := range status.InitContainerStatuses {
		if s := &status.InitContainerStatuses[i]; plan.IsSidecar(&pod.Spec.InitContainers[i]) && !s.Ready {
			unready = append(unready, s.Name)
		}
	}
	for i := range status.ContainerStatuses {
		if s := &status.ContainerStatuses[i]; !s.Ready {
			unready = append(unready, s.Name)
		}
	}
	if len(unready) == 0 {
		cond.Status = v1.ConditionTrue
		return cond
	}
	cond.Reason = containersNotReady
	cond.Message = fmt.Sprintf("containers with unready status: [%s]", strings.Join(unready, " "))
	return cond
}

// keepTransitionTimes sets the transition times of conditions: those of before, where the status is as before.
func keepTransitionTimes(status *v1.PodStatus, before []v1.PodCondition) {
	now := metav1.Now().Rfc3339Copy()
	for i := range status.Conditions {
		c := &status.Conditions[i]
		c.LastTransitionTime = now
		for _, b := range before {
			if b.Type == c.Type && b.Status == c.Status {
				c.LastTransitionTime = b.LastTransitionTime
			}
		}
	}
}
