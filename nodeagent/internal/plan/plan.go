// Package plan decides what to do with a pod: it compares the wanted state with the actual state.
// Its functions are pure.
package plan

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// PodActions lists what to do with a pod, in the order of the fields. After the runtime has reported
// an end, the remaining steps are planned again.
type PodActions struct {
	// Kill lists the containers to end, step by step. Containers of one step end at the same time.
	// StopSandboxes lists the sandboxes to stop afterwards.
	Kill          [][]Kill
	StopSandboxes []string
	// CreateSandbox is true if the pod needs a new sandbox. Attempt is the attempt of the new
	// sandbox.
	CreateSandbox bool
	Attempt       uint32
	// Start lists the containers to start, in this order.
	Start []*v1.Container
	// RemoveSandboxes lists the dead sandboxes to remove.
	RemoveSandboxes []string
}

// Kill is a container to end.
type Kill struct {
	*pleg.Status
	Why string
	// Probe is the failed probe that ends the container, or nil.
	Probe *v1.Probe
}

// ComputePodActions returns the actions for a pod.
func ComputePodActions(v View) PodActions {
	changed, attempt := v.SandboxChanged()
	start, over := v.starts()
	if v.Over || changed || over {
		a := v.end()
		a.CreateSandbox, a.Attempt = changed && v.runsAgain(attempt), attempt
		return a
	}
	var kill []Kill
	for _, s := range v.Seen.ContainerStatuses {
		if k := v.wrong(s); Lives(s) && k.Why != "" {
			kill = append(kill, k)
		}
	}
	if len(kill) > 0 {
		return PodActions{Kill: [][]Kill{kill}}
	}
	return PodActions{Start: start, RemoveSandboxes: v.leftovers()}
}

// end returns the actions that end a pod. The actions first end all containers except sidecars,
// then the sidecars in reverse order, and then the sandboxes.
func (v View) end() (a PodActions) {
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
	a.RemoveSandboxes = v.leftovers()
	return a
}

// wrong returns the reason to end a running container, if there is one.
func (v View) wrong(s *pleg.Status) Kill {
	c := Find(v.Pod, s.Name)
	switch {
	case c == nil:
		return Kill{Status: s, Why: "the pod no longer has it"}
	case s.State == pleg.ContainerStateUnknown:
		return Kill{Status: s, Why: "its state is unknown"} // two instances must never run at once
	case s.Hash != v.Hash(c):
		return Kill{Status: s, Why: "its specification changed"}
	}
	for _, kind := range []ProbeKind{Liveness, Startup} {
		if probe := Probe(c, kind); probe != nil && v.Probed(kind, s.ID.String()) == v1.ConditionFalse {
			return Kill{Status: s, Why: "its " + string(kind) + " probe failed", Probe: probe}
		}
	}
	return Kill{}
}

// starts chooses the containers to start, and returns them in the order of their starts. over is
// true if an init container has failed for good. over is also true if no regular container runs or
// must be started.
func (v View) starts() (start []*v1.Container, over bool) {
	// The runtime may have lost the init containers. If a regular container exists, all init
	// containers have run.
	done := v.Initialized()
	for i := range v.Pod.Spec.InitContainers {
		c := &v.Pod.Spec.InitContainers[i]
		s := v.Active(c.Name)
		lives := s != nil && Lives(s)
		ended := s != nil && v.Counts(c, s) && !IsSidecar(c)
		switch {
		case done && !IsSidecar(c), ended && s.ExitCode == 0:
			continue
		case ended && !v.Restarts(c, s.ID.String(), s.ExitCode):
			return nil, true
		case !lives:
			start = append(start, c)
		}
		if !done && !(lives && IsSidecar(c) && v.Passes(c, Startup, s.ID.String())) {
			return start, false // later containers wait for this container
		}
	}
	over = true
	for i := range v.Pod.Spec.Containers {
		c := &v.Pod.Spec.Containers[i]
		if v.ShouldRun(c) {
			start = append(start, c)
		}
		s := v.Seen.FindContainerStatusByName(c.Name)
		over = over && !v.ShouldRun(c) && !(s != nil && Lives(s))
	}
	return start, over
}

// runsAgain reports whether a pod without a suitable sandbox gets a new sandbox. It returns false
// if no regular container needs to run. With the restart policy Never, it also returns false if a
// regular container has run.
func (v View) runsAgain(attempt uint32) bool {
	ran := slices.DeleteFunc(slices.Clone(v.Seen.ContainerStatuses),
		func(s *pleg.Status) bool { return s.State == pleg.ContainerStateCreated })
	if v.Pod.Spec.RestartPolicy == v1.RestartPolicyNever && attempt > 0 && v.hasRegular(ran) {
		return false
	}
	return slices.ContainsFunc(v.Pod.Spec.Containers, func(c v1.Container) bool { return v.ShouldRun(&c) })
}

// leftovers returns the sandboxes to remove: dead sandboxes without containers or, if the pod is
// unwanted, all sandboxes.
func (v View) leftovers() (sandboxes []string) {
	for i, s := range v.Seen.SandboxStatuses {
		dead := s.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY
		of := func(c *pleg.Container) bool { return c.PodSandboxID == s.GetId() }
		if i > 0 && dead && v.Listed != nil && !slices.ContainsFunc(v.Listed.Containers, of) || v.Unwanted {
			sandboxes = append(sandboxes, s.GetId())
		}
	}
	return sandboxes
}
