package plan

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg"
)

// SandboxHashAnnotation is the annotation that contains the hash of a sandbox's specification.
const SandboxHashAnnotation = "nodeagent.kubepleg.dev/sandbox-hash"

// unsettledFor is how long the agent waits for an exit code that the runtime has lost. A witness,
// such as the container's shim, may still report the exit code.
const unsettledFor = 10 * time.Second

// View is a pod's specification, and its state at one time.
type View struct {
	Pod  *v1.Pod
	Seen *pleg.PodStatus
	Now  time.Time // the time of the view
	// Listed is the pod in the newest list, or nil.
	Listed *pleg.Pod
	// Before is the last published status. It may include containers that the runtime has lost.
	Before v1.PodStatus
	// Over is true if no container may run any more. Unwanted is true if the pod must also be
	// removed.
	Over, Unwanted bool
	// SandboxHash is the hash of the sandbox's specification. Hash returns the hash of a
	// container's specification.
	SandboxHash string
	Hash        func(*v1.Container) uint64
	// Probed returns the result of a probe of the container with the given ID. The result is
	// unknown until the probe reaches a threshold.
	Probed func(kind ProbeKind, id string) v1.ConditionStatus
	// Interrupted maps the name of a container to the ID of the last instance that the agent
	// stopped although the pod was not over.
	Interrupted map[string]string
}

// Lives reports whether a container runs, or may run because its state is unknown.
func Lives(s *pleg.Status) bool {
	return s.State == pleg.ContainerStateRunning || s.State == pleg.ContainerStateUnknown
}

// Passes reports whether the container with the given ID passes its probe of a kind. It returns
// true if the manifest defines no such probe. While the result is unknown, Passes uses the
// published status, so that a restart of the agent makes no container unready.
func (v View) Passes(c *v1.Container, kind ProbeKind, id string) bool {
	if Probe(c, kind) == nil {
		return true
	}
	shown, before := v.Probed(kind, id), FindStatus(&v.Before, c.Name)
	if shown == v1.ConditionUnknown && before != nil && before.ContainerID == id {
		return kind == Readiness && before.Ready || kind == Startup && ptr.Deref(before.Started, false)
	}
	return shown == v1.ConditionTrue
}

// Active returns the newest instance of a container in the present sandbox, or nil.
func (v View) Active(name string) *pleg.Status {
	return (&pleg.PodStatus{ContainerStatuses: v.Seen.ActiveContainerStatuses}).FindContainerStatusByName(name)
}

// Counts reports whether an instance has exited and belongs to the container's present
// specification. An instance whose start failed counts too: it may have begun its work, and a
// container with the restart policy Never must not run twice.
func (v View) Counts(c *v1.Container, s *pleg.Status) bool {
	return s.State == pleg.ContainerStateExited && s.Hash == v.Hash(c)
}

// Unsettled reports whether the runtime has lost a container's exit code and a witness may still
// report the code. While Unsettled returns true, the agent does not act on the container's end.
// Unsettled returns false if the container restarts after any exit code.
func (v View) Unsettled(s *pleg.Status) bool {
	c := Find(v.Pod, s.Name)
	if c == nil || !s.EndUnknown || v.Now.Sub(s.FinishedAt).Abs() >= unsettledFor {
		return false
	}
	init := slices.Index(Containers(v.Pod), c) < len(v.Pod.Spec.InitContainers)
	return !IsSidecar(c) && (init || !v.Restarts(c, s.ID.String(), 0))
}

// Restarts reports whether a container runs again after an exit. With the restart policy OnFailure,
// an interrupted container runs again even after exit code 0.
func (v View) Restarts(c *v1.Container, id string, exitCode int) bool {
	return IsSidecar(c) || v.Pod.Spec.RestartPolicy == v1.RestartPolicyAlways ||
		v.Pod.Spec.RestartPolicy == v1.RestartPolicyOnFailure && (exitCode != 0 || v.Interrupted[c.Name] == id)
}

// ShouldRun reports whether a container that does not run must be started, now or after a back-off.
func (v View) ShouldRun(c *v1.Container) bool {
	s := v.Seen.FindContainerStatusByName(c.Name)
	return !v.Over && (s == nil || !Lives(s) && (!v.Counts(c, s) || v.Restarts(c, s.ID.String(), s.ExitCode)))
}

// SandboxChanged reports whether the pod needs a new sandbox, and returns the new sandbox's
// attempt. The pod can keep its newest sandbox if this is the only ready sandbox and matches the
// specification. Unless the pod uses the host's network, the sandbox must also have an address.
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

// Initialized reports whether the init containers have run in the present sandbox. They have run if
// a regular container exists there.
func (v View) Initialized() bool {
	changed, _ := v.SandboxChanged()
	return !changed && v.hasRegular(v.Seen.ActiveContainerStatuses)
}

// HasRun reports whether a regular container exists in any sandbox.
func (v View) HasRun() bool { return v.hasRegular(v.Seen.ContainerStatuses) }

func (v View) hasRegular(statuses []*pleg.Status) bool {
	return slices.ContainsFunc(v.Pod.Spec.Containers, func(c v1.Container) bool {
		return slices.ContainsFunc(statuses, func(s *pleg.Status) bool { return s.Name == c.Name })
	})
}

// Crashed returns when a container last crashed, or zero. ended contains the IDs of instances that
// the agent has stopped. As in the kubelet, the newest instance does not count as crashed if the
// agent stopped it. Earlier instances always count.
func (v View) Crashed(c *v1.Container, ended sets.Set[string]) time.Time {
	newest := v.Seen.FindContainerStatusByName(c.Name)
	for _, s := range v.Seen.ContainerStatuses { // newest first
		switch {
		case s.Name != c.Name || s.Hash != v.Hash(c) || s == newest && ended.Has(s.ID.ID):
		case s.State == pleg.ContainerStateExited:
			return s.FinishedAt
		default:
			return s.CreatedAt // the instance's start failed, or its end is unknown
		}
	}
	return time.Time{}
}

// RestartCount returns the restart count of a container's next instance. The count is also the
// attempt in the instance's name. The count never falls, even if instances are removed. It exceeds
// the counts of all existing instances, because the runtime reserves the names of existing
// instances.
func (v View) RestartCount(c *v1.Container) int {
	count := int(ptr.Deref(FindStatus(&v.Before, c.Name), v1.ContainerStatus{}).RestartCount)
	for _, s := range v.Seen.ContainerStatuses {
		if s.Name == c.Name {
			count = max(count, s.RestartCount+1)
		}
	}
	return count
}
