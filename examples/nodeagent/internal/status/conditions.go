package status

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
)

// conditions returns the conditions of a pod whose phase and containers are in status. Their reasons are the
// kubelet's.
func conditions(pod *v1.Pod, status *v1.PodStatus, sandboxReady bool) []v1.PodCondition {
	sandbox := v1.PodCondition{Type: v1.PodReadyToStartContainers, Status: v1.ConditionFalse}
	if sandboxReady {
		sandbox.Status = v1.ConditionTrue
	}
	ready := containersReady(pod, status)
	podReady := ready
	podReady.Type = v1.PodReady
	return []v1.PodCondition{
		sandbox, initialized(pod, status), podReady, ready, {Type: v1.PodScheduled, Status: v1.ConditionTrue},
	}
}

func initialized(pod *v1.Pod, status *v1.PodStatus) v1.PodCondition {
	cond := v1.PodCondition{Type: v1.PodInitialized, Status: v1.ConditionTrue}
	if status.Phase == v1.PodSucceeded {
		cond.Reason = "PodCompleted"
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
		if started := s.Started != nil && *s.Started; !started && plan.IsSidecar(c) || !s.Ready && !plan.IsSidecar(c) {
			incomplete = append(incomplete, c.Name)
		}
	}
	return withMissing(cond, "ContainersNotInitialized", "incomplete", incomplete)
}

func containersReady(pod *v1.Pod, status *v1.PodStatus) v1.PodCondition {
	cond := v1.PodCondition{Type: v1.ContainersReady, Status: v1.ConditionFalse}
	switch status.Phase {
	case v1.PodSucceeded:
		cond.Reason = "PodCompleted"
		return cond
	case v1.PodFailed:
		cond.Reason = "PodFailed"
		return cond
	default:
		cond.Status = v1.ConditionTrue
	}
	var unready []string
	for i, s := range status.InitContainerStatuses {
		if plan.IsSidecar(&pod.Spec.InitContainers[i]) && !s.Ready {
			unready = append(unready, s.Name)
		}
	}
	for _, s := range status.ContainerStatuses {
		if !s.Ready {
			unready = append(unready, s.Name)
		}
	}
	return withMissing(cond, "ContainersNotReady", "unready", unready)
}

// withMissing returns a condition that is false if any container is missing for it.
func withMissing(cond v1.PodCondition, reason, what string, containers []string) v1.PodCondition {
	if len(containers) > 0 {
		cond.Status, cond.Reason = v1.ConditionFalse, reason
		cond.Message = fmt.Sprintf("containers with %s status: [%s]", what, strings.Join(containers, " "))
	}
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
