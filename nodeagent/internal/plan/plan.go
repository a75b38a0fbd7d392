// Package plan decides what is to be done to a pod: it compares what should be with what is. Its functions are pure.
package plan

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

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
	// Remove are the dead containers that nobody needs any more, RemoveSandboxes the dead sandboxes.
	Remove          []*pleg.Status
	RemoveSandboxes []string
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
		return Actions{Kill: [][]Kill{kill}}
	}
	a := Actions{Start: start}
	a.Remove, a.RemoveSandboxes = v.leftovers()
	return a
}

// end returns how everything in a pod is ended: the containers, then the sidecars, the last first, then the sandboxes.
func (v View) end() (a Actions) {
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
	a.Remove, a.RemoveSandboxes = v.leftovers()
	return a
}

// wrong returns why a container that runs must not, if there is a reason.
func (v View) wrong(s *pleg.Status) Kill {
	c := Find(v.Pod, s.Name)
	switch {
	case c == nil:
		return Kill{Status: s, Why: "the pod no longer has it"}
	case s.State == pleg.ContainerStateUnknown:
		return Kill{Status: s, Why: "its state is unknown"} // lest two of it run
	case s.Hash != v.Hash(c):
		return Kill{Status: s, Why: "its specification changed"}
	}
	for _, kind := range []ProbeKind{Liveness, Startup} {
		if probe := Probe(c, kind); probe != nil && v.Probed(v.Pod.UID, c.Name, kind, s.ID.String()) == v1.ConditionFalse {
			return Kill{Status: s, Why: "its " + string(kind) + " probe failed", Probe: probe}
		}
	}
	return Kill{}
}

// starts returns the containers that are to be started, in this order. When none of those that the pod is for is left
// to keep or to start, or an init container has failed, the pod is over.
func (v View) starts() (start []*v1.Container, over bool) {
	// A regular container shows that the init containers have run, even if the runtime has none of them any more.
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
			return start, false // those that follow wait for it
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

// runsAgain reports whether a pod without a sandbox gets one: not if it has run and is to run once, and not if nothing
// of it is left to run. One whose init containers alone have run has not.
func (v View) runsAgain(attempt uint32) bool {
	ran := slices.DeleteFunc(slices.Clone(v.Seen.ContainerStatuses),
		func(s *pleg.Status) bool { return s.State == pleg.ContainerStateCreated })
	if v.Pod.Spec.RestartPolicy == v1.RestartPolicyNever && attempt > 0 && v.hasRegular(ran) {
		return false
	}
	return slices.ContainsFunc(v.Pod.Spec.Containers, func(c v1.Container) bool { return v.ShouldRun(&c) })
}

// leftovers returns what a pod leaves behind. Of each container the newest dead instance is kept, for its exit code and
// its restart count; older ones are left over, and so are containers that were replaced before they were started, and
// dead sandboxes without a container. Of a pod that is no longer wanted all is left over.
func (v View) leftovers() (containers []*pleg.Status, sandboxes []string) {
	kept := map[string]bool{}
	for _, s := range v.Seen.ContainerStatuses { // newest first
		exited, replaced := s.State == pleg.ContainerStateExited, s != v.Seen.FindContainerStatusByName(s.Name)
		if exited && kept[s.Name] || s.State == pleg.ContainerStateCreated && replaced || v.Unwanted {
			containers = append(containers, s)
		}
		kept[s.Name] = kept[s.Name] || exited
	}
	for i, s := range v.Seen.SandboxStatuses {
		dead := s.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY
		of := func(c *pleg.Container) bool { return c.PodSandboxID == s.GetId() }
		if i > 0 && dead && v.Listed != nil && !slices.ContainsFunc(v.Listed.Containers, of) || v.Unwanted {
			sandboxes = append(sandboxes, s.GetId())
		}
	}
	return containers, sandboxes
}
