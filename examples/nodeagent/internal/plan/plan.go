// Package plan decides what is to be done to a pod: it compares the pod as it should be with the pod as it is. Its
// functions are pure.
package plan

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/kubepleg/pleg"
)

// Probes is what the prober knows of a running container.
type Probes interface {
	// Failed returns the kind of probe that demands that the container is killed, Liveness or Startup; "" if none does.
	Failed(pod *v1.Pod, c *v1.Container, id pleg.ContainerID) ProbeKind
	// Started reports whether the container's startup probe has succeeded, or there is none.
	Started(pod *v1.Pod, c *v1.Container, id pleg.ContainerID) bool
}

// Actions is what is to be done, in the order of the fields. What comes after an end is planned anew when it is seen.
type Actions struct {
	// KillPod ends everything in the pod, its sandboxes included. Kill and Start are empty then.
	KillPod bool
	// Kill are the containers to end.
	Kill []Kill
	// CreateSandbox makes a new sandbox, with Attempt.
	CreateSandbox bool
	Attempt       uint32
	// Start are the containers to start, in this order.
	Start []*v1.Container
}

// Kill is a container to be ended.
type Kill struct {
	Container *v1.Container
	Status    *pleg.Status
	Why       string
	// Probe is the kind of probe that demands it, "" if none does.
	Probe ProbeKind
}

// Make returns what is to be done to a pod.
func Make(v View, probes Probes) Actions {
	p := &planner{View: v, probes: probes}
	if changed, attempt := v.SandboxChanged(); changed {
		p.actions = Actions{KillPod: true, CreateSandbox: p.runsAgain(attempt), Attempt: attempt}
		return p.actions
	}
	p.strangers()
	if p.initContainers() {
		p.regularContainers()
	}
	if p.actions.KillPod {
		p.actions.Kill, p.actions.Start = nil, nil
	}
	return p.actions
}

type planner struct {
	View
	probes  Probes
	actions Actions
}

// runsAgain reports whether a pod without a sandbox gets one: not if it has run and is to run once, and not if nothing
// of it is left to run. One whose init containers alone have run has not.
func (p *planner) runsAgain(attempt uint32) bool {
	if p.Pod.Spec.RestartPolicy == v1.RestartPolicyNever && attempt > 0 {
		return !slices.ContainsFunc(p.Seen.ContainerStatuses, func(s *pleg.Status) bool {
			is := func(c v1.Container) bool { return c.Name == s.Name }
			return !p.NeverRan(s) && slices.ContainsFunc(p.Pod.Spec.Containers, is)
		})
	}
	for i := range p.Pod.Spec.Containers {
		c := &p.Pod.Spec.Containers[i]
		s := p.Seen.FindContainerStatusByName(c.Name)
		if s == nil || p.Pod.Spec.RestartPolicy != v1.RestartPolicyOnFailure || !p.Counts(c, s) || s.ExitCode != 0 {
			return true
		}
	}
	return false
}

// strangers plans the end of the containers that the specification no longer has.
func (p *planner) strangers() {
	for _, s := range p.Seen.ContainerStatuses {
		if Find(p.Pod, s.Name) == nil && Lives(s) {
			p.kill(&v1.Container{Name: s.Name}, s, "the pod no longer has it", "")
		}
	}
}

// initContainers plans the init containers, and reports whether all have done their part: those that run to their end
// have succeeded, the sidecars have started.
func (p *planner) initContainers() (initialized bool) {
	// A regular container shows that the init containers have run, even if the runtime has none of them any more.
	done := p.Initialized()
	for i := range p.Pod.Spec.InitContainers {
		c := &p.Pod.Spec.InitContainers[i]
		s := p.Active(c.Name)
		switch {
		case IsSidecar(c):
			if up := p.runs(c, s); !done && !(up && p.probes.Started(p.Pod, c, s.ID)) {
				return false
			}
		case done:
		case s == nil || !p.Counts(c, s) || s.ExitCode != 0 && Restarts(p.Pod, c, s.ExitCode):
			p.runs(c, s)
			return false
		case s.ExitCode != 0:
			p.actions.KillPod = true // the pod has failed
			return false
		}
	}
	return true
}

// regularContainers plans the containers that the pod is for. When none of them is left to keep or to start, the pod
// has completed.
func (p *planner) regularContainers() {
	completed := true
	for i := range p.Pod.Spec.Containers {
		c := &p.Pod.Spec.Containers[i]
		if s := p.Seen.FindContainerStatusByName(c.Name); s != nil && Lives(s) || p.ShouldRun(c) {
			p.runs(c, s)
			completed = false
		}
	}
	p.actions.KillPod = completed
}

// runs plans that a container runs of which s is the newest instance, and reports whether it does and stays.
func (p *planner) runs(c *v1.Container, s *pleg.Status) (stays bool) {
	if s == nil || !Lives(s) {
		p.actions.Start = append(p.actions.Start, c)
		return false
	}
	probe := p.probes.Failed(p.Pod, c, s.ID)
	switch {
	case s.State == pleg.ContainerStateUnknown:
		p.kill(c, s, "its state is unknown", "") // lest two of it run
	case s.Hash != p.Hash(c):
		p.kill(c, s, "its specification changed", "")
	case probe != "":
		p.kill(c, s, "its "+string(probe)+" probe failed", probe)
	default:
		return true
	}
	return false
}

func (p *planner) kill(c *v1.Container, s *pleg.Status, why string, probe ProbeKind) {
	p.actions.Kill = append(p.actions.Kill, Kill{Container: c, Status: s, Why: why, Probe: probe})
}
