// Package plan decides what is to be done to a pod: it compares the pod as it should be with the pod as it is. Its
// functions are pure.
package plan

import (
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

// Actions is what is to be done, in the order of the fields.
type Actions struct {
	// KillPod ends everything in the pod, its sandboxes included. Kill is empty then.
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

// Make returns what is to be done to a pod. The hashes are those of its specification, as they should be.
func Make(pod *v1.Pod, sandboxHash string, containerHash func(*v1.Container) uint64, status *pleg.PodStatus,
	probes Probes) Actions {
	p := &planner{pod: pod, hash: containerHash, status: status, probes: probes,
		active: &pleg.PodStatus{ContainerStatuses: status.ActiveContainerStatuses}}
	if changed, attempt := SandboxChanged(pod, sandboxHash, status); changed {
		p.replaceSandbox(attempt)
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
	pod     *v1.Pod
	hash    func(*v1.Container) uint64
	status  *pleg.PodStatus
	active  *pleg.PodStatus // the present sandbox: what ran in an older one must run again
	probes  Probes
	actions Actions
}

// start plans the start of a container; last is its newest instance, nil if there is none. One whose state is unknown
// is ended before, lest two of it run.
func (p *planner) start(c *v1.Container, last *pleg.Status) {
	p.actions.Start = append(p.actions.Start, c)
	if last != nil && last.State == pleg.ContainerStateUnknown {
		p.kill(c, last, "its state is unknown", "")
	}
}

// strangers plans the end of the containers that the specification no longer has.
func (p *planner) strangers() {
	for _, s := range p.status.ContainerStatuses {
		dead := s.State == pleg.ContainerStateExited || s.State == pleg.ContainerStateCreated
		if !dead && Find(p.pod, s.Name) == nil {
			p.kill(&v1.Container{Name: s.Name}, s, "the pod no longer has it", "")
		}
	}
}

// replaceSandbox ends what is left of the old sandbox and begins anew in another, if there is anything left to run.
func (p *planner) replaceSandbox(attempt uint32) {
	p.actions.KillPod, p.actions.Attempt = true, attempt
	if p.pod.Spec.RestartPolicy == v1.RestartPolicyNever && attempt > 0 && len(p.status.ContainerStatuses) > 0 {
		return // it has run
	}
	for i := range p.pod.Spec.Containers {
		c := &p.pod.Spec.Containers[i]
		s := p.status.FindContainerStatusByName(c.Name)
		succeeded := s != nil && s.State == pleg.ContainerStateExited && s.ExitCode == 0
		if p.pod.Spec.RestartPolicy != v1.RestartPolicyOnFailure || !succeeded {
			p.start(c, nil) // what is left of it is ended with the pod
		}
	}
	if len(p.actions.Start) == 0 && HasRegularContainer(p.pod, p.status) {
		return
	}
	p.actions.CreateSandbox = true
	if len(p.pod.Spec.InitContainers) > 0 {
		p.actions.Start = []*v1.Container{&p.pod.Spec.InitContainers[0]}
	}
}

// initContainers plans the init containers, and reports whether all have done their part: those that run to their end
// have succeeded, the sidecars have started.
func (p *planner) initContainers() (initialized bool) {
	// A regular container shows that the init containers have run, even if the runtime has none of them any more.
	done := HasRegularContainer(p.pod, p.active)
	for i := range p.pod.Spec.InitContainers {
		c := &p.pod.Spec.InitContainers[i]
		s := p.active.FindContainerStatusByName(c.Name)
		switch {
		case IsSidecar(c):
			if up := p.sidecar(c, s); !up && !done {
				return false
			}
		case done:
		case s != nil && s.State == pleg.ContainerStateRunning:
			if p.mustDie(c, s) {
				p.start(c, s)
			}
			return false
		case s == nil || s.State != pleg.ContainerStateExited || s.ExitCode != 0 && Restarts(p.pod, c, s.ExitCode):
			p.start(c, s)
			return false
		case s.ExitCode != 0:
			p.actions.KillPod = true // the pod has failed
			return false
		}
	}
	return true
}

// sidecar plans an init container that runs beside the others, and reports whether it has started.
func (p *planner) sidecar(c *v1.Container, s *pleg.Status) (up bool) {
	if s == nil || s.State != pleg.ContainerStateRunning || p.mustDie(c, s) {
		p.start(c, s)
		return false
	}
	return p.probes.Started(p.pod, c, s.ID)
}

// regularContainers plans the containers that the pod is for. When none of them is left to keep or to start, the pod
// has completed.
func (p *planner) regularContainers() {
	completed := true
	for i := range p.pod.Spec.Containers {
		c := &p.pod.Spec.Containers[i]
		s := p.status.FindContainerStatusByName(c.Name)
		running := s != nil && s.State == pleg.ContainerStateRunning
		switch {
		case !running && !ShouldRun(p.pod, c, p.status):
			continue
		case !running:
			p.start(c, s)
		case p.hash(c) == s.Hash && p.pod.Spec.RestartPolicy == v1.RestartPolicyNever:
			p.mustDie(c, s) // it does not run again
		case p.mustDie(c, s):
			p.start(c, s)
		}
		completed = false
	}
	p.actions.KillPod = completed
}

// mustDie plans the end of a running container whose specification changed or whose probe demands it.
func (p *planner) mustDie(c *v1.Container, s *pleg.Status) bool {
	probe := p.probes.Failed(p.pod, c, s.ID)
	switch {
	case s.Hash != p.hash(c):
		p.kill(c, s, "its specification changed", "")
	case probe != "":
		p.kill(c, s, "its "+string(probe)+" probe failed", probe)
	default:
		return false
	}
	return true
}

func (p *planner) kill(c *v1.Container, s *pleg.Status, why string, probe ProbeKind) {
	p.actions.Kill = append(p.actions.Kill, Kill{Container: c, Status: s, Why: why, Probe: probe})
}
