package pleg

import (
	"context"
	"errors"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is a container runtime. Package github.com/kubepleg/pleg/cri implements it for any CRI v1 runtime.
//
// The methods must be safe for concurrent use. They should return when their context ends. A call
// that does not return costs one goroutine. Until it returns, the method is not called again for
// the same pod, and GetPods is not called again at all. A call that has not returned when the
// request timeout expires counts as failed, and its late answer is discarded.
//
// Neither the runtime nor the generator may modify returned objects. If nothing in a pod has
// changed, a runtime may return the same *Pod again, which makes the comparison of lists cheaper.
type Runtime interface {
	// GetPods lists every pod that the runtime knows, in the same order each time, with containers and
	// sandboxes newest first. The parameter all comes from the kubelet; the generator always passes
	// true. With false, the list leaves out containers and sandboxes that do not run, and pods in which
	// nothing runs. An incomplete list must come with an error. Without an error, a missing pod counts as gone.
	GetPods(ctx context.Context, all bool) ([]*Pod, error)
	// GetPodStatus inspects one listed pod. It sets all fields except TimeStamp, and need not keep the
	// addresses of a pod whose network is gone. It leaves out containers that no longer exist, without
	// an error. If the pod no longer exists, its status contains no containers.
	//
	// The status must agree with the pod's list: the same containers and sandboxes in the same states,
	// except that a container may have exited since. A status may leave out all sandboxes. If the
	// status disagrees, the generator lists and inspects the pod again after a back-off of up to ten
	// seconds. Until a status agrees, readers that wait for a newer status keep waiting.
	//
	// With an error, the status may be nil, or contain only the containers that could be inspected.
	// The generator then uses only the exits in the status.
	GetPodStatus(ctx context.Context, pod *Pod) (*PodStatus, error)
}

// PodGetter is an optional interface of a Runtime that can list a single pod. With it, hints and
// blocked readers cost a pod list instead of a full list.
type PodGetter interface {
	// GetPod lists one pod, with its exited containers. If the runtime does not know the pod, the
	// error is ErrPodNotFound, wrapped or not. The generator never passes an empty uid.
	GetPod(ctx context.Context, uid types.UID) (*Pod, error)
}

// EventSource is an optional interface of a Runtime that has a stream of container events.
type EventSource interface {
	// WatchContainerEvents calls observe for every container event until ctx ends or the stream breaks, and returns
	// why. It calls connected once, before the first observe, when the runtime has accepted the stream; over CRI a
	// refusal may still follow. A stream that is not accepted within ten seconds is cancelled. If the runtime has no
	// event stream, the error is ErrEventsUnsupported, wrapped or not. After any other return, including nil, the
	// stream is opened again within five seconds. observe never blocks, and is safe for concurrent use.
	WatchContainerEvents(ctx context.Context, connected func(), observe func(ContainerEvent)) error
}

// ExitSource is an optional interface of a Runtime that reports exits before its lists, statuses and
// container events show them. The generator believes these reports: it delivers ContainerDied, and
// treats the container as exited from then on, whatever lists and statuses show. So an ExitSource must
// not report the exit of a command that was executed in a container. It may report an exit late, twice,
// or for a container that no list shows. After the exit of a sandbox, the generator only lists its pod. For a
// runtime that starts containers again under their IDs, see rule 20 of docs/CONTRACT.md.
type ExitSource interface {
	// WatchContainerExits is like WatchContainerEvents, for exits of containers and sandboxes. It may
	// report exits from before it called connected. For a container that the first list shows exited,
	// such a report only completes an unknown end: there is no ContainerDied, and the first event
	// stays Initial.
	WatchContainerExits(ctx context.Context, connected func(), observe func(ContainerExit)) error
}

// CallReporter is an optional interface of a Runtime that tracks its calls. The health report then
// names the stuck CRI call and its container, and distinguishes a stuck runtime from a stuck container.
type CallReporter interface {
	// CallsInFlight returns the calls that have not returned, oldest first, and when the runtime last answered a call,
	// with an error or without; zero for never. A call without PodUID and Object counts as a full list, so the call
	// of an open stream needs an Object. CallsInFlight never blocks.
	//
	// While a full list is unanswered, the Runtime should make another cheap call every few seconds: a
	// runtime that answers no call for ten seconds counts as frozen.
	CallsInFlight() (inFlight []RuntimeCall, lastAnswer time.Time)
}

// CallError is an optional interface of an error of GetPodStatus, which may wrap it: the health report then
// names the failed call.
type CallError interface {
	error
	// Call returns the failed call; nil if unknown.
	Call() *RuntimeCall
}

// Describer is an optional interface of a Runtime that describes itself in a few words, for the health report.
type Describer interface {
	// DescribeRuntime returns something like "containerd 2.4.2, streaming lists". It never blocks.
	DescribeRuntime() string
}

// ErrPodNotFound is the error of a PodGetter for a pod that the runtime does not know. It is not a
// failure: the pod is gone.
var ErrPodNotFound = errors.New("pod not found in the runtime")

// ErrEventsUnsupported is the error of an EventSource or an ExitSource if its runtime has no such
// stream, or does not allow its use.
var ErrEventsUnsupported = errors.New("the runtime has no event stream")

// RuntimeCall is a call to the runtime.
type RuntimeCall struct {
	// Method is the call as the runtime names it, such as "ContainerStatus".
	Method string `json:"method"`
	// PodUID is the UID of the pod of the call; empty for a list of all pods.
	PodUID types.UID `json:"podUID,omitempty"`
	// Object describes the object of the call: "container app (3f2a…)", "sandbox (3f2a…)"; empty for lists.
	Object string `json:"object,omitempty"`
	// ObjectID is the full ID of the container or sandbox in Object; empty for none.
	ObjectID string `json:"objectID,omitempty"`
	// Since is when the runtime was called.
	Since time.Time `json:"since"`
}

// ContainerEvent is one event of the runtime's stream. It is a hint that the pod may have changed:
// the generator lists the pod, and uses nothing else of the event.
type ContainerEvent struct {
	// PodUID is the UID of the pod. If it is empty, all pods are listed.
	PodUID types.UID
	// ContainerID is the ID of the container or sandbox, without the runtime's prefix.
	ContainerID string
	// CreatedAt is the runtime's timestamp of the event. It is used for the latency metric only, never for ordering.
	CreatedAt time.Time
}

// ContainerExit is the exit of a container or a sandbox.
type ContainerExit struct {
	// PodUID is the UID of the pod. The exit applies to no other pod. If PodUID is empty, ContainerID finds the pod.
	PodUID types.UID
	// ContainerID is the ID of the container or sandbox, without the runtime's prefix. If it is empty,
	// the event is only a hint to list the pod.
	ContainerID string
	// ExitCode is the exit code: 128 plus the signal's number if a signal ended the process.
	ExitCode int
	// FinishedAt is when the container exited, by the node's clock; zero if unknown.
	FinishedAt time.Time
}

// The names of the runtime's methods in reports.
const (
	methodGetPods      = "GetPods"
	methodGetPod       = "GetPod"
	methodGetPodStatus = "GetPodStatus"
	methodWatchEvents  = "WatchContainerEvents"
	methodWatchExits   = "WatchContainerExits"
)

// State is the state of a container or a sandbox. A value other than the constants below is read as
// ContainerStateUnknown and counted as bad data.
type State string

const (
	// ContainerStateCreated is a container that has not been started, such as one that CRI's RestorePod
	// has restored. Events treat it as unknown.
	ContainerStateCreated State = "created"
	// ContainerStateRunning is a running container, or a ready sandbox. CRI has no state for a paused
	// container, such as during CRI's CheckpointPod; containerd shows it running.
	ContainerStateRunning State = "running"
	// ContainerStateExited is a container that ran and ended, or a sandbox that is not ready.
	ContainerStateExited State = "exited"
	// ContainerStateUnknown is anything else.
	ContainerStateUnknown State = "unknown"
)

var allStates = [...]State{ContainerStateCreated, ContainerStateRunning, ContainerStateExited, ContainerStateUnknown}

// ContainerID is a container's ID together with the name of the runtime that knows it.
type ContainerID struct {
	// Type is the name of the runtime, such as "containerd".
	Type string
	// ID is the runtime's ID of the container.
	ID string
}

// String returns the form that Kubernetes shows: "containerd://3f2a…".
func (c ContainerID) String() string { return c.Type + "://" + c.ID }

// Pod is a pod as a list shows it.
type Pod struct {
	// The fields that every relist compares come first, here and in Container, to save cache misses
	// (BenchmarkIdleRelist with list=fresh).

	// ID is the UID of the pod.
	ID types.UID
	// Containers are the containers of all the pod's sandboxes, newest first: a container comes before
	// the containers that it replaced.
	Containers []*Container
	// Sandboxes are the pod's sandboxes, newest first, in the form of containers.
	Sandboxes []*Container
	// Name and Namespace are for logs and reports. Only ID identifies the pod.
	Name      string
	Namespace string
	// CreatedAt is when the pod's newest sandbox was created, in nanoseconds since 1970.
	CreatedAt uint64
	// Labels and Annotations belong to the pod's newest sandbox; nil or empty if there are none. Over
	// CRI, the kubelet copies the pod's when it creates the sandbox, and adds io.kubernetes.* labels.
	//
	// The generator never copies, reads, compares or logs the maps, here and in Container: if only
	// they change, there is no event and no inspection. GenericPLEG.Pods returns the maps of the
	// newest list. An event contains the maps of the list that showed its transition, or of a newer
	// list. The first events of a subscriber contain the maps of the pod's last change.
	Labels      map[string]string
	Annotations map[string]string
	// RuntimeHandler is the runtime handler of the pod's newest sandbox, such as "kata"; empty for
	// the runtime's default.
	RuntimeHandler string
	// Source is for an object that the runtime attaches; see cri.InfoOf. The generator passes it on,
	// and neither reads nor compares it.
	Source any
}

// Container is a container, or a sandbox, as a list shows it. For a sandbox, only ID, State,
// CreatedAt, Attempt, Labels and Annotations are set.
type Container struct {
	// ID is the container's ID.
	ID ContainerID
	// State is the container's state.
	State State
	// Name is the container's name in the pod's specification.
	Name string
	// Image is the image as it was requested, in the form NAME:TAG.
	Image string
	// ImageID is the runtime's ID of the image. Older runtimes report no ID over CRI; ImageID is then
	// the same as ImageRef.
	ImageID string
	// ImageRef is the reference of the image by digest.
	ImageRef string
	// ImageRuntimeHandler is the runtime handler that the image was pulled for.
	ImageRuntimeHandler string
	// Hash is the hash of the container's specification; 0 if there is none. Over CRI, it is the
	// kubelet's annotation io.kubernetes.container.hash.
	Hash uint64
	// PodSandboxID is the sandbox that the container is in.
	PodSandboxID string
	// CreatedAt is when the container was created, in nanoseconds since 1970.
	CreatedAt int64
	// Attempt is CRI's count of earlier containers of this name in the pod, or of earlier
	// sandboxes; 0 if there are none, or if it is unknown.
	Attempt uint32
	// Labels and Annotations are the container's own, or the sandbox's; see Pod.Labels.
	Labels      map[string]string
	Annotations map[string]string
	// Source is the runtime's own object; see Pod.Source.
	Source any
}

// PodStatus is a pod as an inspection shows it.
type PodStatus struct {
	// ID is the UID of the pod. If a runtime leaves it empty, the generator sets it.
	ID types.UID
	// Name and Namespace are for logs and reports.
	Name      string
	Namespace string
	// IPs are the pod's addresses, the primary address first. They stay after the pod's network is torn down.
	IPs []string
	// ContainerStatuses are the statuses of the pod's containers, newest first by CreatedAt. Statuses with
	// the same name are ordered by attempt. The first status of a name describes the present container.
	ContainerStatuses []*Status
	// ActiveContainerStatuses are the statuses of containers in the pod's newest sandbox, newest
	// first; none if that sandbox is not ready.
	ActiveContainerStatuses []*Status
	// SandboxStatuses are the statuses of the pod's sandboxes, newest first.
	SandboxStatuses []*runtimeapi.PodSandboxStatus
	// Labels and Annotations are copied from the Pod that was inspected, unless the runtime sets
	// others; see Pod.Labels.
	Labels      map[string]string
	Annotations map[string]string
	// TimeStamp is the start of the newest list of the pod that had completed before the inspection.
	// The status was observed then or later. TimeStamp stays the same while newer lists confirm the
	// status, so the status may be fresher than its TimeStamp. The generator sets TimeStamp.
	TimeStamp time.Time
	// GoneAt is when the pod lost the container, name or address that was looked up; zero while the
	// pod has it. Only look-ups of PodCache set GoneAt.
	GoneAt time.Time
	// Source is the runtime's own object; see Pod.Source.
	Source any
}

// Status is a container as an inspection shows it. Fields without a comment are as in Container.
type Status struct {
	ID    ContainerID
	Name  string
	State State
	// CreatedAt, StartedAt and FinishedAt are the times of these events; zero before the event.
	CreatedAt  time.Time
	StartedAt  time.Time
	FinishedAt time.Time
	// ExitCode is the exit code of a container that has exited.
	ExitCode int

	Image               string
	ImageID             string
	ImageRef            string
	ImageRuntimeHandler string
	Hash                uint64
	PodSandboxID        string

	// LogPath is the file that the container's output is written to; empty if the runtime writes none.
	LogPath string
	// Labels and Annotations are the container's own; see Pod.Labels.
	Labels      map[string]string
	Annotations map[string]string
	// RestartCount is the number of restarts before this instance of the container. Over CRI, it is
	// the kubelet's annotation io.kubernetes.container.restartCount; 0 without it.
	RestartCount int
	// Reason is why the container is in its state, in one word, such as "Completed" or "OOMKilled".
	Reason string
	// Message explains Reason in a sentence.
	Message string
	// Unconfirmed is true if an exit event has reported the exit, but the runtime's status has not
	// shown the exit yet. State, ExitCode and FinishedAt then come from the event, and Reason is
	// Completed or Error, depending on the code. The other fields come from the last inspection.
	// Before the first inspection, RestartCount is Container.Attempt. The first runtime status with
	// the exit replaces this status. A PodSync follows if code, reason or message differ, or if the end
	// was settled before (rule 22). The generator sets Unconfirmed.
	Unconfirmed bool
	// EndUnknown is true if the container has exited and ExitCode is not the true code, because the
	// runtime did not see the end. An example is containerd's 255 "Unknown" for a container that ended
	// while containerd was not running. The Runtime sets it, and a look-up in PodCache for a container that was
	// not inspected. If an exit event or an earlier status showed the true exit, the generator uses that exit instead.
	EndUnknown bool
	// Resources, User, Mounts and StopSignal are as the runtime reports them; nil or zero if not reported.
	Resources *runtimeapi.ContainerResources
	User      *runtimeapi.ContainerUser
	Mounts    []*runtimeapi.Mount
	// StopSignal is a runtimeapi.Signal. cri-api has contained this type since 0.33.
	StopSignal int32
	// Source is the runtime's own object; see Pod.Source.
	Source any
}

// first returns the first item that fits and is not nil; nil if there is none.
func first[T any](items []*T, fits func(*T) bool) *T {
	for _, item := range items {
		if item != nil && fits(item) {
			return item
		}
	}
	return nil
}

// FindContainerStatusByName returns the status of the newest container with a name, nil if there is none.
func (s *PodStatus) FindContainerStatusByName(containerName string) *Status {
	if s == nil {
		return nil
	}
	return first(s.ContainerStatuses, func(status *Status) bool { return status.Name == containerName })
}

// FindContainerStatusByID returns the status of the container with an ID, nil if there is none. The ID may be the
// runtime's, the form "containerd://3f2a…", or the first 12 or more characters of either.
func (s *PodStatus) FindContainerStatusByID(id string) *Status {
	if s == nil {
		return nil
	}
	id = withoutType(id)
	return first(s.ContainerStatuses, func(status *Status) bool { return isID(status.ID.ID, id) })
}

// withoutType returns a container's ID without a prefix such as "containerd://".
func withoutType(id string) string {
	if _, bare, prefixed := strings.Cut(id, "://"); prefixed {
		return bare
	}
	return id
}

// isID reports whether id is the full ID, or a long enough beginning of it.
func isID(full, id string) bool {
	return full == id || len(id) >= shortestID && strings.HasPrefix(full, id)
}

// shortestID is the minimum number of characters of an ID in a look-up.
const shortestID = 12

// plegState is a container's state for events. The states and their transitions are the kubelet's.
type plegState int

const (
	plegAbsent plegState = iota
	plegUnknown
	plegRunning
	plegExited
)

func plegStateOf(c *Container) plegState {
	if c == nil {
		return plegAbsent
	}
	return plegStateIn(c.State)
}

func plegStateIn(s State) plegState {
	switch s {
	case ContainerStateRunning:
		return plegRunning
	case ContainerStateExited:
		return plegExited
	default:
		return plegUnknown
	}
}

func hasExited(s *Status) bool { return s != nil && s.State == ContainerStateExited }

// knows reports whether s shows an exit whose exit code is known. s may be nil.
func knows(s *Status) bool { return hasExited(s) && !s.EndUnknown }

func isExited(c *Container) bool { return plegStateOf(c) == plegExited }

func isReady(s *runtimeapi.PodSandboxStatus) bool {
	return s.State == runtimeapi.PodSandboxState_SANDBOX_READY
}
