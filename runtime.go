package pleg

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is what the generator needs of a container runtime. Package
// github.com/kubepleg/pleg/cri makes one of any CRI v1 runtime.
//
// Its methods are called from several goroutines at once. They should return
// soon after their context ends; a call that does not costs one goroutine, and
// no second call of its kind is made for the same pod (for GetPods: at all)
// until it returns.
//
// What they return is handed over: neither side modifies it any more. A runtime
// that returns the same *Pod again says that nothing in it has changed, and makes
// the relist cheaper.
type Runtime interface {
	// GetPods lists every pod that the runtime knows. If all is true, which is
	// how the generator calls it, exited containers and sandboxes are included.
	// A list that is not complete must be an error: a pod that is missing from a
	// list without error is taken to be gone.
	GetPods(ctx context.Context, all bool) ([]*Pod, error)
	// GetPodStatus inspects one listed pod. A container that is gone meanwhile
	// is left out of the status and is no error; of a pod that is gone altogether
	// the status has no containers. It fills in everything but TimeStamp, and need
	// not remember addresses.
	GetPodStatus(ctx context.Context, pod *Pod) (*PodStatus, error)
}

// PodGetter is an optional companion of Runtime, found by type assertion: a
// runtime that can list one pod. With it, hints and blocked readers cost a look
// at one pod instead of one at the whole node.
type PodGetter interface {
	// GetPod lists one pod, with its exited containers. ErrPodNotFound, wrapped
	// or not, is the answer that the runtime does not know the pod.
	GetPod(ctx context.Context, uid types.UID) (*Pod, error)
}

// EventSource is an optional companion of Runtime, found by type assertion: a
// runtime that tells when something happens to a container.
type EventSource interface {
	// WatchContainerEvents calls observe for every container event until ctx
	// ends or the stream breaks, and returns why. It calls connected once, before
	// the first observe, when the runtime has accepted the stream as far as can be
	// told: over CRI a refusal may come only afterwards.
	// ErrEventsUnsupported, wrapped or not, says that the runtime has no such
	// stream. observe never blocks.
	WatchContainerEvents(ctx context.Context, connected func(), observe func(ContainerEvent)) error
}

// CallReporter is an optional companion of Runtime, found by type assertion: a
// runtime that can name the calls it is waiting for. The health report then names
// the very call that hangs and the container it was made for.
type CallReporter interface {
	// CallsInFlight returns the calls that have not returned, oldest first. It
	// never blocks.
	CallsInFlight() []RuntimeCall
}

// Describer is an optional companion of Runtime, found by type assertion: a
// runtime that can say in a few words what it is and how it is spoken to, for
// the health report.
type Describer interface {
	// DescribeRuntime returns something like "containerd 2.4.2, streaming
	// lists". It never blocks.
	DescribeRuntime() string
}

// ErrPodNotFound is how a PodGetter says that the runtime does not know a pod.
// It is an answer, not a failure.
var ErrPodNotFound = errors.New("pod not found in the runtime")

// ErrEventsUnsupported is how an EventSource says that the runtime has no event
// stream, or none that it may be used for.
var ErrEventsUnsupported = errors.New("the runtime has no event stream")

// RuntimeCall is one call to the runtime that has not returned yet.
type RuntimeCall struct {
	// Method is the call as the runtime names it, such as "ContainerStatus".
	Method string `json:"method"`
	// PodUID is the pod that the call was made for; empty if for none.
	PodUID types.UID `json:"podUID,omitempty"`
	// Object is what the call asks for, for people to read: "container app
	// (3f2a…)"; empty for lists.
	Object string `json:"object,omitempty"`
	// Since is when the call was made.
	Since time.Time `json:"since"`
}

// ContainerEvent is one event of the runtime's stream. It is a hint that
// something about the pod may have changed, and nothing else in it is believed.
type ContainerEvent struct {
	// PodUID is the pod; it may be empty, and is then looked up by ContainerID.
	PodUID types.UID
	// ContainerID is the container or sandbox, without the runtime's prefix.
	ContainerID string
	// CreatedAt is the runtime's own timestamp of the event. It orders nothing.
	CreatedAt time.Time
}

// The methods of a runtime, as reports name them.
const (
	methodGetPods      = "GetPods"
	methodGetPod       = "GetPod"
	methodGetPodStatus = "GetPodStatus"
	methodWatchEvents  = "WatchContainerEvents"
)

// State is the state of a container or a sandbox. Any other value than those
// below is read as ContainerStateUnknown and counted as bad data.
type State string

const (
	// ContainerStateCreated is a container that has not been started. In the
	// terms of events it counts as unknown.
	ContainerStateCreated State = "created"
	// ContainerStateRunning is a running container, or a ready sandbox.
	ContainerStateRunning State = "running"
	// ContainerStateExited is a container that ran and ended, or a sandbox that
	// is not ready.
	ContainerStateExited State = "exited"
	// ContainerStateUnknown is anything else.
	ContainerStateUnknown State = "unknown"
)

// ContainerID is a container's ID together with the name of the runtime that
// knows it.
type ContainerID struct {
	// Type is the name of the runtime, such as "containerd".
	Type string
	// ID is the runtime's ID of the container.
	ID string
}

// String returns the form that Kubernetes shows: "containerd://3f2a…".
func (c ContainerID) String() string {
	return c.Type + "://" + c.ID
}

// Pod is a pod as a listing shows it.
//
// What every relist compares comes first, here and in Container: it is a matter of
// cache lines (BenchmarkIdleRelist).
type Pod struct {
	// ID is the UID of the pod.
	ID types.UID
	// Containers are the pod's containers, of all its sandboxes.
	Containers []*Container
	// Sandboxes are the pod's sandboxes, newest first, shown as containers.
	Sandboxes []*Container
	// Name and Namespace are for people to read; they identify nothing.
	Name      string
	Namespace string
	// CreatedAt is when the pod's newest sandbox was created, in nanoseconds
	// since 1970.
	CreatedAt uint64
}

// Container is a container as a listing shows it. A sandbox has only ID, State
// and CreatedAt.
type Container struct {
	// ID is the container's ID.
	ID ContainerID
	// State is the container's state.
	State State
	// Name is the container's name in the pod's specification.
	Name string
	// Image is the image as it was asked for, in the form NAME:TAG.
	Image string
	// ImageID is the runtime's ID of the image.
	ImageID string
	// ImageRef is the image by digest.
	ImageRef string
	// ImageRuntimeHandler is the runtime handler that the image was pulled for.
	ImageRuntimeHandler string
	// Hash is the hash of the container's specification; 0 if there is none.
	Hash uint64
	// PodSandboxID is the sandbox that the container is in.
	PodSandboxID string
	// CreatedAt is when the container was created, in nanoseconds since 1970.
	CreatedAt int64
}

// PodStatus is a pod as an inspection shows it.
type PodStatus struct {
	// ID is the UID of the pod; if a runtime leaves it empty, it is that of the pod
	// that was asked for.
	ID types.UID
	// Name and Namespace are for people to read.
	Name      string
	Namespace string
	// IPs are the pod's addresses, the primary one first. When the pod's network
	// has been torn down they are the last that the pod had.
	IPs []string
	// ContainerStatuses are the statuses of the pod's containers, in the order of
	// Pod.Containers.
	ContainerStatuses []*Status
	// ActiveContainerStatuses are those in the pod's newest sandbox, if that is
	// ready.
	ActiveContainerStatuses []*Status
	// SandboxStatuses are the statuses of the pod's sandboxes, newest first.
	SandboxStatuses []*runtimeapi.PodSandboxStatus
	// TimeStamp is the stamp of the listing that the status was asked for: what
	// the status says was true at that time or later. The generator sets it. It
	// stays while listings find the pod unchanged, so that a status may be fresher
	// than its TimeStamp.
	TimeStamp time.Time
}

// Status is a container as an inspection shows it.
type Status struct {
	// ID is the container's ID.
	ID ContainerID
	// Name is the container's name in the pod's specification.
	Name string
	// State is the container's state.
	State State
	// CreatedAt, StartedAt and FinishedAt are the times of its life; zero if
	// they have not come.
	CreatedAt  time.Time
	StartedAt  time.Time
	FinishedAt time.Time
	// ExitCode is the exit code of a container that has exited.
	ExitCode int
	// Image is the image as it was asked for, in the form NAME:TAG.
	Image string
	// ImageID is the runtime's ID of the image.
	ImageID string
	// ImageRef is the image by digest.
	ImageRef string
	// ImageRuntimeHandler is the runtime handler that the image was pulled for.
	ImageRuntimeHandler string
	// Hash is the hash of the container's specification; 0 if there is none.
	Hash uint64
	// RestartCount is how often the container had been restarted when this
	// instance of it was created.
	RestartCount int
	// Reason says in a word why the container is in its state, such as
	// "Completed", "Error" or "OOMKilled".
	Reason string
	// Message says it in a sentence.
	Message string
	// Resources, User, Mounts and StopSignal are what the runtime reports, as it
	// reports it; nil or zero if it does not.
	Resources  *runtimeapi.ContainerResources
	User       *runtimeapi.ContainerUser
	Mounts     []*runtimeapi.Mount
	StopSignal runtimeapi.Signal
}
