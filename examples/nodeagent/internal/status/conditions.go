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
func conditions(view plan.View, status *v1.PodStatus) []v1.PodCondition {
	var incomplete, unready []string
	for i, s := range status.InitContainerStatuses {
		sidecar := plan.IsSidecar(&view.Pod.Spec.InitContainers[i])
		if !(s.Ready || sidecar && *s.Started) {
			incomplete = append(incomplete, s.Name)
		}
		if sidecar && !s.Ready {
			unready = append(unready, s.Name)
		}
	}
	for _, s := range status.ContainerStatuses {
		if s.State.Running != nil || termination(&s) != nil {
			incomplete = nil // it has started, so the init containers have run
		}
		if !s.Ready {
			unready = append(unready, s.Name)
		}
	}
	noSandbox := ""
	if changed, _ := view.SandboxChanged(); changed {
		noSandbox = "PodSandboxNotReady"
	}
	notInitialized, whichNot := missing("ContainersNotInitialized", "incomplete", incomplete)
	notReady, whichUnready := missing("ContainersNotReady", "unready", unready)
	switch status.Phase {
	case v1.PodSucceeded:
		notInitialized, notReady, whichUnready = "", "PodCompleted", ""
	case v1.PodFailed:
		notReady, whichUnready = "PodFailed", ""
	default:
	}
	all := []v1.PodCondition{
		{Type: v1.PodReadyToStartContainers, Reason: noSandbox},
		{Type: v1.PodInitialized, Reason: notInitialized, Message: whichNot},
		{Type: v1.PodReady, Reason: notReady, Message: whichUnready},
		{Type: v1.ContainersReady, Reason: notReady, Message: whichUnready},
		{Type: v1.PodScheduled},
	}
	now := metav1.Now().Rfc3339Copy()
	for i := range all {
		c := &all[i]
		c.Status, c.LastTransitionTime = v1.ConditionTrue, now
		if c.Reason != "" {
			c.Status = v1.ConditionFalse
		}
		for _, b := range view.Before.Conditions {
			if b.Type == c.Type && b.Status == c.Status {
				c.LastTransitionTime = b.LastTransitionTime
			}
		}
		if c.Type == v1.PodInitialized && status.Phase == v1.PodSucceeded {
			c.Reason, c.Message = "PodCompleted", ""
		}
	}
	return all
}

// missing returns a reason and a message why a condition is false, if any container is missing for it.
func missing(reason, what string, containers []string) (string, string) {
	if len(containers) == 0 {
		return "", ""
	}
	return reason, fmt.Sprintf("containers with %s status: [%s]", what, strings.Join(containers, " "))
}
