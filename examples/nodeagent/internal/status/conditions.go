package status

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
)

// phase returns the phase of a pod, from the statuses of its containers.
func phase(view plan.View, status *v1.PodStatus) v1.PodPhase {
	var failed, pending, running, crashed bool
	pod, hasRun := view.Pod, view.HasRun()
	for i, s := range status.InitContainerStatuses {
		c, t, up := &pod.Spec.InitContainers[i], termination(&s), s.State.Running != nil
		switch {
		case plan.IsSidecar(c): // one that restarts does not make a pod pending that has run
			running = running || up
			pending = pending || t == nil && !hasRun && !(up && ptr.Deref(s.Started, false))
		case t != nil && view.Initialized():
			// It has ended well, or nothing else would exist: containerd forgets an exit that it was killed over.
		case up || t == nil || void(view, c) || t.ExitCode != 0 && plan.Restarts(pod, c, int(t.ExitCode)):
			pending = true
		default:
			failed = failed || t.ExitCode != 0
		}
	}
	for i, s := range status.ContainerStatuses {
		switch t := termination(&s); {
		case s.State.Running != nil:
			running = true
		case t == nil:
			pending = true
		case void(view, &pod.Spec.Containers[i]) || plan.Restarts(pod, &pod.Spec.Containers[i], int(t.ExitCode)):
			running = true // or about to be
		default:
			crashed = crashed || t.ExitCode != 0
		}
	}
	switch {
	case failed:
		return v1.PodFailed
	case pending:
		return v1.PodPending
	case running:
		return v1.PodRunning
	case crashed:
		return v1.PodFailed
	default:
		return v1.PodSucceeded
	}
}

// void reports whether how a container has ended says nothing of it, because it is another now, or never ran.
func void(view plan.View, c *v1.Container) bool {
	last := view.Seen.FindContainerStatusByName(c.Name)
	return last != nil && !view.Counts(c, last)
}

// termination returns how a container ended that does not run, nil if it never ran.
func termination(s *v1.ContainerStatus) *v1.ContainerStateTerminated {
	if s.State.Waiting != nil {
		return s.LastTerminationState.Terminated
	}
	return s.State.Terminated
}

// conditions returns the conditions of a pod whose phase and containers are in status. Their reasons are those
// of the kubelet v1.37. One that is as before keeps its transition time.
func conditions(pod *v1.Pod, status *v1.PodStatus, sandboxReady bool, before []v1.PodCondition) []v1.PodCondition {
	sandbox := v1.PodCondition{
		Type: v1.PodReadyToStartContainers, Status: v1.ConditionFalse, Reason: "PodSandboxNotReady",
	}
	if sandboxReady {
		sandbox.Status, sandbox.Reason = v1.ConditionTrue, ""
	}
	ready := containersReady(pod, status)
	podReady := ready
	podReady.Type = v1.PodReady
	all := []v1.PodCondition{
		sandbox, initialized(pod, status), podReady, ready, {Type: v1.PodScheduled, Status: v1.ConditionTrue},
	}
	now := metav1.Now().Rfc3339Copy()
	for i := range all {
		all[i].LastTransitionTime = now
		for _, b := range before {
			if b.Type == all[i].Type && b.Status == all[i].Status {
				all[i].LastTransitionTime = b.LastTransitionTime
			}
		}
	}
	return all
}

func initialized(pod *v1.Pod, status *v1.PodStatus) v1.PodCondition {
	cond := v1.PodCondition{Type: v1.PodInitialized, Status: v1.ConditionTrue}
	if status.Phase == v1.PodSucceeded {
		cond.Reason = "PodCompleted"
		return cond
	}
	for _, s := range status.ContainerStatuses {
		if s.State.Running != nil || termination(&s) != nil {
			return cond // it has started, so the init containers have run
		}
	}
	var incomplete []string
	for i, s := range status.InitContainerStatuses {
		done := s.Ready
		if plan.IsSidecar(&pod.Spec.InitContainers[i]) {
			done = ptr.Deref(s.Started, false)
		}
		if !done {
			incomplete = append(incomplete, s.Name)
		}
	}
	return withMissing(cond, "ContainersNotInitialized", "incomplete", incomplete)
}

func containersReady(pod *v1.Pod, status *v1.PodStatus) v1.PodCondition {
	if status.Phase == v1.PodSucceeded {
		return v1.PodCondition{Type: v1.ContainersReady, Status: v1.ConditionFalse, Reason: "PodCompleted"}
	}
	if status.Phase == v1.PodFailed {
		return v1.PodCondition{Type: v1.ContainersReady, Status: v1.ConditionFalse, Reason: "PodFailed"}
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
	cond := v1.PodCondition{Type: v1.ContainersReady, Status: v1.ConditionTrue}
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
