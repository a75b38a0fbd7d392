// Package plan decides what is to be done to a pod: it compares the pod as it should be with the pod as it is. Its
// functions are pure.
package plan

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/kubepleg/pleg"
)

// Actions is what is to be done, in the order of the fields. What comes after an end is planned anew when it is seen.
type Actions struct {
	// Kill are the containers to end, step by step: those in one step end at once. StopSandboxes end after them.
	Kill          [][]Kill
	StopSandboxes []string
	// CreateSandbox makes a new sandbox, with Attempt.
	CreateSandbox bool
	Attempt       uint32
	// Start are the containers to start, in this order.
	Start []*v1.Container
}

// Kill is a container to be ended.
type Kill struct {
	*pleg.Status
	Why string
	// Probe is the one that demands it, nil if none does.
	Probe *v1.Probe
}

// Make returns what is to be done to a pod.
func Make(v View) Actions {
	if v.Over {
		return End(v)
	}
	p := &planner{View: v}
	if changed, attempt := v.SandboxChanged(); changed {
		a := End(v)
		a.CreateSandbox, a.Attempt = p.runsAgain(attempt), attempt
		return a
	}
	p.strangers()
	if p.initContainers() {
		p.regularContainers()
	}
	if p.over {
		return End(v)
	}
	a := Actions{Start: p.start}
	if len(p.kill) > 0 {
		a.Kill = [][]Kill{p.kill}
	}
	return a
}

// End returns how everything in a pod is ended: the containers, then the sidecars, the last that started first, then
// the sandboxes.
func End(v View) (a Actions) {
	inits := v.Pod.Spec.InitContainers
	steps := make([][]Kill, 1+len(inits))
	for _, s := range v.Seen.ContainerStatuses {
		if Lives(s) {
			place := slices.IndexFunc(inits, func(c v1.Container) bool { return c.Name == s.Name && IsSidecar(&c) })
			step := (len(inits) - place) % len(steps)
			steps[step] = append(steps[step], Kill{Status: s, Why: "all of its pod ends"})
		}
	}
	a.Kill = slices.DeleteFunc(steps, func(step []Kill) bool { return len(step) == 0 })
	a.StopSandboxes = v.readySandboxes()
	return a
}

type planner struct {
	View
	kill  []Kill
	start []*v1.Container
	over  bool // everything is to be ended
}

// runsAgain reports whether a pod without a sandbox gets one: not if it has run and is to run once, and not if nothing
// of it is left to run. One whose init containers alone have run has not.
func (p *planner) runsAgain(attempt uint32) bool {
	ran := slices.DeleteFunc(slices.Clone(p.Seen.ContainerStatuses), p.NeverRan)
	if p.Pod.Spec.RestartPolicy == v1.RestartPolicyNever && attempt > 0 && p.hasRegular(ran) {
		return false
	}
	return slices.ContainsFunc(p.Pod.Spec.Containers, func(c v1.Container) bool { return p.ShouldRun(&c) })
}

// strangers plans the end of the containers that the specification no longer has.
func (p *planner) strangers() {
	for _, s := range p.Seen.ContainerStatuses {
		if Find(p.Pod, s.Name) == nil && Lives(s) {
			p.ends(s, "the pod no longer has it", nil)
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
			if up := p.runs(c, s); !done && !(up && p.Passes(c, Startup, s.ID.String())) {
				return false
			}
		case done:
		case s == nil || !p.Counts(c, s) || s.ExitCode != 0 && Restarts(p.Pod, c, s.ExitCode):
			p.runs(c, s)
			return false
		case s.ExitCode != 0:
			p.over = true // the pod has failed
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
	p.over = completed
}

// runs plans that a container runs of which s is the newest instance, and reports whether it does and stays.
func (p *planner) runs(c *v1.Container, s *pleg.Status) (stays bool) {
	if s == nil || !Lives(s) {
		p.start = append(p.start, c)
		return false
	}
	if s.State == pleg.ContainerStateUnknown {
		p.ends(s, "its state is unknown", nil) // lest two of it run
		return false
	}
	if s.Hash != p.Hash(c) {
		p.ends(s, "its specification changed", nil)
		return false
	}
	for _, kind := range []ProbeKind{Liveness, Startup} {
		if probe := Probe(c, kind); probe != nil && p.Probed(p.Pod.UID, c.Name, kind, s.ID.String()) == Failure {
			p.ends(s, "its "+string(kind)+" probe failed", probe)
			return false
		}
	}
	return true
}

func (p *planner) ends(s *pleg.Status, why string, probe *v1.Probe) {
	p.kill = append(p.kill, Kill{s, why, probe})
}
