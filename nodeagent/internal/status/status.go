// Package status converts the library's statuses of pods to API statuses. A Directory stores the
// API statuses in files.
package status

import (
	"cmp"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/nodeagent/internal/runtime"
)

// Generate returns the API status of a pod. reasons maps the name of a container to the reason why
// the container does not run although it should.
func Generate(view plan.View, reasons map[string]v1.ContainerStateWaiting, nodeIP string) v1.PodStatus {
	g, pod := generator{view, reasons}, view.Pod
	status := v1.PodStatus{
		StartTime: cmp.Or(view.Before.StartTime, ptr.To(metav1.NewTime(view.Now).Rfc3339Copy())), Phase: view.Before.Phase,
		HostIP: nodeIP, HostIPs: []v1.HostIP{{IP: nodeIP}}, QOSClass: runtime.QOS(pod),
	}
	ips := view.Seen.IPs
	if pod.Spec.HostNetwork && len(view.Seen.SandboxStatuses) > 0 {
		ips = []string{nodeIP}
	}
	for _, ip := range ips {
		status.PodIP = cmp.Or(status.PodIP, ip)
		status.PodIPs = append(status.PodIPs, v1.PodIP{IP: ip})
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		status.InitContainerStatuses = append(status.InitContainerStatuses, g.container(c, !plan.IsSidecar(c)))
	}
	for i := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, g.container(&pod.Spec.Containers[i], false))
	}
	// A lost exit code may come late, so Failed may still become Succeeded.
	if next := phase(view, &status); !Ended(status.Phase) || next == v1.PodSucceeded {
		status.Phase = next
	}
	status.Conditions = conditions(view, &status)
	return status
}

// Ended reports whether a phase is final: the pod has ended by itself and does not run again.
func Ended(phase v1.PodPhase) bool { return phase == v1.PodSucceeded || phase == v1.PodFailed }

// generator makes the statuses of a pod's containers.
type generator struct {
	plan.View
	reasons map[string]v1.ContainerStateWaiting
}

// container returns the status of a container. runsOnce is true for an init container that is not a
// sidecar.
func (g *generator) container(c *v1.Container, runsOnce bool) v1.ContainerStatus {
	s := g.state(c, runsOnce)
	started := s.State.Running != nil && g.Passes(c, plan.Startup, s.ContainerID)
	s.Started, s.Ready = &started, started && g.Passes(c, plan.Readiness, s.ContainerID)
	if runsOnce {
		s.Ready = s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
	}
	return s
}

// state returns the status of a container without the fields Started and Ready.
func (g *generator) state(c *v1.Container, runsOnce bool) v1.ContainerStatus {
	before := ptr.Deref(plan.FindStatus(&g.Before, c.Name), v1.ContainerStatus{})
	s := v1.ContainerStatus{
		Name: c.Name, Image: c.Image,
		RestartCount: before.RestartCount, LastTerminationState: before.LastTerminationState,
	}
	last := g.Seen.FindContainerStatusByName(c.Name)
	switch {
	case last != nil:
		g.present(&s, last, &before)
	case before.State.Terminated != nil:
		return before
	case runsOnce && (g.Initialized() || g.HasRun() && before.ContainerID != ""):
		// The container has run, and the runtime has lost or removed it.
		s.RestartCount, s.LastTerminationState = 0, v1.ContainerState{}
		s.State.Terminated = &v1.ContainerStateTerminated{Reason: "Completed"}
		return s
	default:
		g.absent(&s, &before)
	}
	// If a container should run but does not, and the reason is known, the container's state is
	// Waiting.
	done := runsOnce && last != nil && g.Counts(c, last) && last.ExitCode == 0
	if why, ok := g.reasons[c.Name]; ok && !done && g.ShouldRun(c) {
		if s.State.Terminated != nil {
			s.LastTerminationState = s.State
		}
		s.State = v1.ContainerState{Waiting: &why}
	}
	return s
}

// present completes the status of a container that exists in the runtime. last is the container's
// newest instance.
func (g *generator) present(s *v1.ContainerStatus, last *pleg.Status, before *v1.ContainerStatus) {
	s.Image, s.ImageID, s.ContainerID = last.Image, last.ImageRef, last.ID.String()
	s.RestartCount = int32(last.RestartCount) //nolint:gosec // it was an int32
	if !plan.Lives(last) {                    // a successor may have been removed before it ran
		s.RestartCount = max(s.RestartCount, before.RestartCount)
	}
	s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{}}
	if last.State != pleg.ContainerStateUnknown && !g.Unsettled(last) {
		s.State = stateOf(last)
	} else if before.ContainerID == s.ContainerID {
		s.State = before.State // the last known state
	}
	if before.ContainerID != s.ContainerID && before.State.Terminated != nil {
		s.LastTerminationState = before.State // the runtime may have lost this instance
	}
	for _, older := range g.Seen.ContainerStatuses {
		if older.Name == s.Name && older != last {
			s.LastTerminationState = stateOf(older)
			break
		}
	}
	if t := s.LastTerminationState.Terminated; t != nil && t.ContainerID == s.ContainerID {
		// In the earlier status, the container was waiting for its restart, with the end of the
		// present instance as its last termination. Here, that end is the container's state.
		s.LastTerminationState.Terminated = nil
	}
}

// absent completes the status of a container that does not exist in the runtime, either not yet or
// no longer.
func (g *generator) absent(s, before *v1.ContainerStatus) {
	switch t := before.LastTerminationState.Terminated; {
	case before.State.Running != nil:
		s.RestartCount++
		s.LastTerminationState.Terminated = &v1.ContainerStateTerminated{
			ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "The runtime no longer knows the container.",
		}
	// The container was waiting for its restart.
	case before.ContainerID != "" && t != nil && t.ContainerID == before.ContainerID:
		s.RestartCount++
	}
	s.State.Waiting = &v1.ContainerStateWaiting{Reason: "ContainerCreating"}
	if len(g.Pod.Spec.InitContainers) > 0 {
		s.State.Waiting.Reason = "PodInitializing"
	}
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

// phase returns the phase of a pod, from the statuses of its containers.
func phase(view plan.View, status *v1.PodStatus) v1.PodPhase {
	var pending, running, crashed bool
	pod, hasRun := view.Pod, view.HasRun()
	for i, s := range status.InitContainerStatuses {
		c, t, up := &pod.Spec.InitContainers[i], termination(&s), s.State.Running != nil
		switch {
		case plan.IsSidecar(c): // a restarting sidecar does not make a pod pending again
			running = running || up
			pending = pending || t == nil && !hasRun && !(up && ptr.Deref(s.Started, false))
		case t != nil && view.Initialized():
			// A regular container exists, so the init container has succeeded, whatever its exit
			// code: after a crash, containerd may report a wrong exit code.
		case up || t == nil || void(view, c) || t.ExitCode != 0 && view.Restarts(c, t.ContainerID, int(t.ExitCode)):
			pending = true
		case t.ExitCode != 0:
			return v1.PodFailed
		}
	}
	for i, s := range status.ContainerStatuses {
		switch c, t := &pod.Spec.Containers[i], termination(&s); {
		case s.State.Running != nil:
			running = true
		case t == nil:
			pending = true
		case void(view, c) || view.Restarts(c, t.ContainerID, int(t.ExitCode)):
			running = true // the container runs, or will run again
		default:
			crashed = crashed || t.ExitCode != 0
		}
	}
	switch {
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

// void reports whether a container's last end does not count, because the container's specification
// has changed since.
func void(view plan.View, c *v1.Container) bool {
	last := view.Seen.FindContainerStatusByName(c.Name)
	return last != nil && !view.Counts(c, last)
}

// termination returns the end of a container that does not run, or nil if it never ran.
func termination(s *v1.ContainerStatus) *v1.ContainerStateTerminated {
	if s.State.Waiting != nil {
		return s.LastTerminationState.Terminated
	}
	return s.State.Terminated
}

// conditions derives a pod's conditions from the phase and the containers in status. It uses the
// reasons of the kubelet v1.37. An unchanged condition keeps its transition time.
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
			incomplete = nil // a regular container has started, so the init containers have run
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
	now := metav1.NewTime(view.Now).Rfc3339Copy()
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

// missing returns the reason and the message of a false condition. If no container makes the
// condition false, it returns "".
func missing(reason, what string, containers []string) (string, string) {
	if len(containers) == 0 {
		return "", ""
	}
	return reason, fmt.Sprintf("containers with %s status: [%s]", what, strings.Join(containers, " "))
}
