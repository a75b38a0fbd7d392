package plan

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg"
)

// SandboxHashAnnotation is the annotation of a sandbox that holds the hash of what it was made from.
const SandboxHashAnnotation = "nodeagent.kubepleg.dev/sandbox-hash"

// unsettledFor is for how long after an end that the runtime has lost its exit code may still be reported.
const unsettledFor = 10 * time.Second

// View is a pod as it is specified, and as it was seen once.
type View struct {
	Pod  *v1.Pod
	Seen *pleg.PodStatus
	Now  time.Time // when it was
	// Listed is the pod as it was listed, nil if it was not.
	Listed *pleg.Pod
	// Before is the status that was published last: the runtime may have lost a container that it has.
	Before v1.PodStatus
	// Over says that nothing of it is to run any more, Unwanted that nothing is to be left.
	Over, Unwanted bool
	// SandboxHash and Hash are the hashes of the specification.
	SandboxHash string
	Hash        func(*v1.Container) uint64
	// Probed returns what a probe has shown of the container with an ID, after as many results as its thresholds say.
	Probed func(pod types.UID, container string, kind ProbeKind, id string) v1.ConditionStatus
	// Interrupted are the IDs of the containers that the agent has ended last although they were to run on, by name.
	Interrupted map[string]string
}

// Lives reports whether something of a container may run.
func Lives(s *pleg.Status) bool {
	return s.State == pleg.ContainerStateRunning || s.State == pleg.ContainerStateUnknown
}

// Passes reports whether the container with an ID has shown what its probe of a kind asks for, or there is none. As
// long as that is not known it is as it was published: an agent that starts again makes no container unready.
func (v View) Passes(c *v1.Container, kind ProbeKind, id string) bool {
	if Probe(c, kind) == nil {
		return true
	}
	shown, before := v.Probed(v.Pod.UID, c.Name, kind, id), FindStatus(&v.Before, c.Name)
	if shown == v1.ConditionUnknown && before != nil && before.ContainerID == id {
		return kind == Readiness && before.Ready || kind == Startup && ptr.Deref(before.Started, false)
	}
	return shown == v1.ConditionTrue
}

// Active returns the newest instance of a container in the present sandbox, nil if there is none.
func (v View) Active(name string) *pleg.Status {
	return (&pleg.PodStatus{ContainerStatuses: v.Seen.ActiveContainerStatuses}).FindContainerStatusByName(name)
}

// Counts reports whether an instance is an outcome of a container as it is specified. One whose start has failed is: a
// start that was cut short may have begun the container's work, and what runs once must not run twice.
func (v View) Counts(c *v1.Container, s *pleg.Status) bool {
	return s.State == pleg.ContainerStateExited && s.Hash == v.Hash(c)
}

// Unsettled reports whether a container's end is lost, and a witness may still report it: it decides nothing yet.
// A container that runs again whatever its exit code is does not wait.
func (v View) Unsettled(s *pleg.Status) bool {
	c := Find(v.Pod, s.Name)
	if c == nil || !s.EndUnknown || v.Now.Sub(s.FinishedAt).Abs() >= unsettledFor {
		return false
	}
	init := slices.Index(Containers(v.Pod), c) < len(v.Pod.Spec.InitContainers)
	return !IsSidecar(c) && (init || !v.Restarts(c, s.ID.String(), 0))
}

// Restarts reports whether a container runs again after an exit. An interrupted one does, even if it exits with 0.
func (v View) Restarts(c *v1.Container, id string, exitCode int) bool {
	return IsSidecar(c) || v.Pod.Spec.RestartPolicy == v1.RestartPolicyAlways ||
		v.Pod.Spec.RestartPolicy == v1.RestartPolicyOnFailure && (exitCode != 0 || v.Interrupted[c.Name] == id)
}

// ShouldRun reports whether a container that does not run is to be started, now or after a back-off.
func (v View) ShouldRun(c *v1.Container) bool {
	s := v.Seen.FindContainerStatusByName(c.Name)
	return !v.Over && (s == nil || !Lives(s) && (!v.Counts(c, s) || v.Restarts(c, s.ID.String(), s.ExitCode)))
}

// SandboxChanged reports whether the pod needs a new sandbox, and returns the attempt that it is to have. The present
// sandbox is gone, dead, of another specification, without the address it should have, or one of several.
func (v View) SandboxChanged() (changed bool, attempt uint32) {
	if len(v.Seen.SandboxStatuses) == 0 {
		return true, 0
	}
	for _, s := range v.Seen.SandboxStatuses {
		attempt = max(attempt, s.GetMetadata().GetAttempt()+1)
	}
	newest := v.Seen.SandboxStatuses[0]
	ok := slices.Equal(v.readySandboxes(), []string{newest.GetId()}) &&
		newest.GetAnnotations()[SandboxHashAnnotation] == v.SandboxHash &&
		(v.Pod.Spec.HostNetwork || newest.GetNetwork().GetIp() != "")
	return !ok, attempt
}

func (v View) readySandboxes() (ids []string) {
	for _, s := range v.Seen.SandboxStatuses {
		if s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			ids = append(ids, s.GetId())
		}
	}
	return ids
}

// Initialized reports whether the init containers have run: another container exists in the present sandbox.
func (v View) Initialized() bool {
	changed, _ := v.SandboxChanged()
	return !changed && v.hasRegular(v.Seen.ActiveContainerStatuses)
}

// HasRun reports whether any container but the init containers exists in any sandbox.
func (v View) HasRun() bool { return v.hasRegular(v.Seen.ContainerStatuses) }

func (v View) hasRegular(statuses []*pleg.Status) bool {
	return slices.ContainsFunc(v.Pod.Spec.Containers, func(c v1.Container) bool {
		return slices.ContainsFunc(statuses, func(s *pleg.Status) bool { return s.Name == c.Name })
	})
}

// Crashed returns when a container failed last, zero if it has not. As in the kubelet, an instance that was ended does
// not count for the back-off of its successor, only those before it.
func (v View) Crashed(c *v1.Container, ended sets.Set[string]) time.Time {
	newest := v.Seen.FindContainerStatusByName(c.Name)
	for _, s := range v.Seen.ContainerStatuses { // newest first
		switch {
		case s.Name != c.Name || s.Hash != v.Hash(c) || s == newest && ended.Has(s.ID.ID):
		case s.State == pleg.ContainerStateExited:
			return s.FinishedAt
		default:
			return s.CreatedAt // its start failed, or nobody knows what became of it
		}
	}
	return time.Time{}
}

// RestartCount returns that of the next instance of a container, which is its attempt too. It never falls, whatever was
// removed. It is greater than that of every instance, newest or not: the runtime reserves a name with its attempt.
func (v View) RestartCount(c *v1.Container) int {
	count := int(ptr.Deref(FindStatus(&v.Before, c.Name), v1.ContainerStatus{}).RestartCount)
	for _, s := range v.Seen.ContainerStatuses {
		if s.Name == c.Name {
			count = max(count, s.RestartCount+1)
		}
	}
	return count
}
