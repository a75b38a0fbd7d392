package pleg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is the container runtime as the generator sees it. Package github.com/kubepleg/pleg/cri
// implements it for any CRI v1 runtime.
//
// The methods must be safe for concurrent use. They should honour cancellation of their context: a
// call that ignores it costs one goroutine, and no second call of its kind is made for the same pod
// (for GetPods: at all) until it returns. A call that has not returned when the request timeout
// expires has failed, and its late answer is discarded.
//
// Neither side modifies what a method has returned. A runtime that returns the same *Pod again says
// that nothing in it has changed, which makes the relist cheaper.
type Runtime interface {
	// GetPods lists every pod that the runtime knows. The parameter is the kubelet's: true, as the
	// generator always calls it, includes containers and sandboxes that do not run; false leaves
	// them out, and pods that have nothing else. An incomplete list must come with an error: a pod
	// that is missing from a list without one is gone. Containers and sandboxes are listed newest
	// first.
	GetPods(ctx context.Context, all bool) ([]*Pod, error)
	// GetPodStatus inspects one listed pod. It fills in everything but TimeStamp, and need not keep
	// the addresses of a pod whose network is gone. A container that is gone meanwhile is left out
	// of the status and is no error; the status of a pod that is gone has no containers.
	//
	// The status must have the same containers and sandboxes as the list of the pod, in the same
	// states, except that a container may have exited since. It may leave out all sandboxes. If the
	// two differ, the generator takes it that the pod has changed in between: it lists and inspects
	// the pod again after a back-off, and until they agree, later lists do not make the pod fresher.
	// So a runtime whose statuses always lack a listed container is asked again every ten seconds.
	GetPodStatus(ctx context.Context, pod *Pod) (*PodStatus, error)
}

// PodGetter is an optional companion of Runtime, found by type assertion: a runtime that can list a
// single pod. With it, hints and blocked readers cost a single-pod relist instead of a full relist.
type PodGetter interface {
	// GetPod lists one pod, with its exited containers. If the runtime does not know the pod, the
	// error is ErrPodNotFound, wrapped or not.
	GetPod(ctx context.Context, uid types.UID) (*Pod, error)
}

// EventSource is an optional companion of Runtime, found by type assertion: a runtime that has a
// stream of container events.
type EventSource interface {
	// WatchContainerEvents calls observe for every container event until ctx ends or the stream
	// breaks, and returns why. It calls connected once, before the first observe, when the runtime
	// has accepted the stream; over CRI a refusal may still follow. A stream that is not accepted
	// within ten seconds is cancelled. If the runtime has no event stream, the error is
	// ErrEventsUnsupported, wrapped or not. After any other return, nil too, the stream is opened
	// again within a minute. observe never blocks.
	WatchContainerEvents(ctx context.Context, connected func(), observe func(ContainerEvent)) error
}

// ExitSource is an optional companion of Runtime, found by type assertion: a runtime that reports at
// once that a container has exited, before its lists, statuses and container events show it. Its
// reports are believed: ContainerDied is delivered, and the container is exited from then on,
// whatever lists and statuses show. So it must not report the exit of a command in a container. It
// may report an exit late, twice, or of a container that no list shows. The exit of a sandbox only
// has its pod listed.
type ExitSource interface {
	// WatchContainerExits calls observe for every exit of a container or a sandbox until ctx ends or
	// the stream breaks, and returns why. It calls connected once, before the first observe, when
	// the runtime has accepted the stream; a refusal may still follow. It reports no earlier exits.
	// If the runtime reports no exits at all, the error is ErrEventsUnsupported, wrapped or not.
	// observe never blocks.
	WatchContainerExits(ctx context.Context, connected func(), observe func(ContainerExit)) error
}

// CallReporter is an optional companion of Runtime, found by type assertion: a runtime that can list
// its calls in flight. The health report then names the CRI call that hangs and the container that
// it is for.
type CallReporter interface {
	// CallsInFlight returns the calls that have not returned, oldest first. It never blocks.
	CallsInFlight() []RuntimeCall
}

// Describer is an optional companion of Runtime, found by type assertion: a runtime that describes
// itself in a few words, for the health report.
type Describer interface {
	// DescribeRuntime returns something like "containerd 2.4.2, streaming lists". It never blocks.
	DescribeRuntime() string
}

// ErrPodNotFound is returned by a PodGetter for a pod that the runtime does not know. It is an
// answer, not a failure: the pod is gone.
var ErrPodNotFound = errors.New("pod not found in the runtime")

// ErrEventsUnsupported is returned by an EventSource or an ExitSource whose runtime has no such
// stream, or none that may be used.
var ErrEventsUnsupported = errors.New("the runtime has no event stream")

// RuntimeCall is one call to the runtime that has not returned yet.
type RuntimeCall struct {
	// Method is the call as the runtime names it, such as "ContainerStatus".
	Method string `json:"method"`
	// PodUID is the pod that the call is about; empty for a list of all pods.
	PodUID types.UID `json:"podUID,omitempty"`
	// Object is what the call is for, in readable form: "container app (3f2a…)"; empty for lists.
	Object string `json:"object,omitempty"`
	// ObjectID is the full ID of that container or sandbox; empty for none.
	ObjectID string `json:"objectID,omitempty"`
	// Since is when the call was made.
	Since time.Time `json:"since"`
}

// ContainerEvent is one event of the runtime's stream. It is a hint that the pod may have changed:
// the pod is listed, and nothing else in the event is used.
type ContainerEvent struct {
	// PodUID is the pod. If it is empty, all pods are listed.
	PodUID types.UID
	// ContainerID is the container or sandbox, without the runtime's prefix.
	ContainerID string
	// CreatedAt is the runtime's timestamp of the event. It is used for the latency metric only,
	// never for ordering.
	CreatedAt time.Time
}

// ContainerExit says that a container, or a sandbox, has exited.
type ContainerExit struct {
	// PodUID is the pod. If it is empty, the pod is found by ContainerID.
	PodUID types.UID
	// ContainerID is the container or sandbox, without the runtime's prefix.
	ContainerID string
	// ExitCode is the exit code, 128 and the signal's number if a signal ended it.
	ExitCode int
	// FinishedAt is when it exited, by the node's clock; zero if that is not known.
	FinishedAt time.Time
}

// The methods of a runtime, as reports name them.
const (
	methodGetPods      = "GetPods"
	methodGetPod       = "GetPod"
	methodGetPodStatus = "GetPodStatus"
	methodWatchEvents  = "WatchContainerEvents"
	methodWatchExits   = "WatchContainerExits"
)

// State is the state of a container or a sandbox. A value other than those below is read as
// ContainerStateUnknown and counted as bad data.
type State string

const (
	// ContainerStateCreated is a container that has not been started. Events treat it as unknown.
	ContainerStateCreated State = "created"
	// ContainerStateRunning is a running container, or a ready sandbox.
	ContainerStateRunning State = "running"
	// ContainerStateExited is a container that ran and ended, or a sandbox that is not ready.
	ContainerStateExited State = "exited"
	// ContainerStateUnknown is anything else. To the generator, a sandbox that is not ready, has no
	// containers and was never seen ready is unknown too: it is being made.
	ContainerStateUnknown State = "unknown"
)

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
	// The fields that every relist compares come first, here and in Container: that saves cache
	// misses (BenchmarkIdleRelist with list=fresh).

	// ID is the UID of the pod.
	ID types.UID
	// Containers are the pod's containers, of all its sandboxes, newest first: those of one name in
	// the order of their restarts, the present one before the one that it replaced.
	Containers []*Container
	// Sandboxes are the pod's sandboxes, newest first, shown as containers.
	Sandboxes []*Container
	// Name and Namespace are for logs and reports. The pod is identified by ID alone.
	Name      string
	Namespace string
	// CreatedAt is when the pod's newest sandbox was created, in nanoseconds since 1970.
	CreatedAt uint64
	// Labels and Annotations are those of the pod's newest sandbox, nil or empty if there are none.
	// Over CRI, these are what the pod had when the sandbox was created, and the kubelet's own
	// io.kubernetes.* labels.
	//
	// The maps, here and in Container, are shared and must not be modified. The generator never
	// copies, reads, compares or logs them: a change of them alone is no event and no inspection.
	// Every list refreshes them. Pods has those of the newest list, an event those of the list that
	// showed its transition or of a newer one, and the first events of a subscriber those of the
	// pod's last change.
	Labels      map[string]string
	Annotations map[string]string
	// RuntimeHandler is the runtime handler of the pod's newest sandbox, such as "kata"; empty for
	// the runtime's default.
	RuntimeHandler string
	// Source is the runtime's own object, for those who know the runtime; nil if it gives none.
	// Package cri gives none. The generator passes it through, and neither reads nor compares it: a
	// change of Source alone is no change.
	Source any
}

// Container is a container as a list shows it. A sandbox has only ID, State, CreatedAt, Attempt,
// Labels and Annotations.
type Container struct {
	// ID is the container's ID.
	ID ContainerID
	// State is the container's state.
	State State
	// Name is the container's name in the pod's specification.
	Name string
	// Image is the image as it was asked for, in the form NAME:TAG.
	Image string
	// ImageID is the runtime's ID of the image. Over CRI it is ImageRef if the runtime reports no ID,
	// as older runtimes do.
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
	// Attempt counts the earlier containers of this name in the pod, or the earlier sandboxes, as
	// CRI's metadata does; 0 for the first, and if the runtime does not say.
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
	// IPs are the pod's addresses, the primary one first. When the pod's network has been torn down
	// they are the last that the pod had.
	IPs []string
	// ContainerStatuses are the statuses of the pod's containers, newest first by CreatedAt, and in
	// the order of Pod.Containers if that is equal. The first of a name is the present one.
	ContainerStatuses []*Status
	// ActiveContainerStatuses are those in the pod's newest sandbox, if that is ready, newest first.
	ActiveContainerStatuses []*Status
	// SandboxStatuses are the statuses of the pod's sandboxes, newest first.
	SandboxStatuses []*runtimeapi.PodSandboxStatus
	// Labels and Annotations are those that the listed pod had when it was inspected, unless the
	// runtime sets others; see Pod.Labels.
	Labels      map[string]string
	Annotations map[string]string
	// TimeStamp is the beginning of the list that was the pod's newest when the inspection was made:
	// the status was observed then or later. The generator sets it. It stays while lists confirm the
	// status, so a status may be fresher than its TimeStamp.
	TimeStamp time.Time
	// GoneAt is when what the status was looked up by was found gone: the pod, or a container or an
	// address that it had; zero while it exists. Only PodCache's look-ups return such.
	GoneAt time.Time
	// Source is the runtime's own object; see Pod.Source.
	Source any
}

// Status is a container as an inspection shows it.
type Status struct {
	// ID is the container's ID.
	ID ContainerID
	// Name is the container's name in the pod's specification.
	Name string
	// State is the container's state.
	State State
	// CreatedAt, StartedAt and FinishedAt are when that happened; zero if it has not.
	CreatedAt  time.Time
	StartedAt  time.Time
	FinishedAt time.Time
	// ExitCode is the exit code of a container that has exited.
	ExitCode int
	// Image is the image as it was asked for, in the form NAME:TAG.
	Image string
	// ImageID is the runtime's ID of the image. Over CRI it is ImageRef if the runtime reports no ID,
	// as older runtimes do.
	ImageID string
	// ImageRef is the image by digest.
	ImageRef string
	// ImageRuntimeHandler is the runtime handler that the image was pulled for.
	ImageRuntimeHandler string
	// Hash is the hash of the container's specification; 0 if there is none.
	Hash uint64
	// PodSandboxID is the sandbox that the container is in.
	PodSandboxID string
	// LogPath is the file that the container's output is written to; empty if the runtime writes none.
	LogPath string
	// Labels and Annotations are the container's own; see Pod.Labels.
	Labels      map[string]string
	Annotations map[string]string
	// RestartCount is the number of restarts before this instance of the container.
	RestartCount int
	// Reason is why the container is in its state, in one word, such as "Completed" or "OOMKilled".
	Reason string
	// Message is the same in a sentence.
	Message string
	// Unconfirmed means that an exit event has reported the exit, but the runtime's status has not
	// shown it yet. State, ExitCode and FinishedAt are the event's, Reason is Completed or Error, by
	// the code, and the rest is what the runtime says of the container otherwise; before it is
	// inspected, RestartCount is Container.Attempt. The runtime's status of the exit replaces this
	// one, with a PodSync if code, reason or message are others. The generator sets it.
	Unconfirmed bool
	// EndUnknown means that the container has exited and nobody saw how: the runtime has put another
	// ExitCode in place of the true one, such as containerd's 255 "Unknown" for a container that ended
	// while containerd was away. The runtime's adapter sets it.
	EndUnknown bool
	// Resources, User, Mounts and StopSignal are passed through as the runtime reports them; nil or
	// zero if it does not.
	Resources *runtimeapi.ContainerResources
	User      *runtimeapi.ContainerUser
	Mounts    []*runtimeapi.Mount
	// StopSignal is a runtimeapi.Signal, a type that cri-api has since 0.33.
	StopSignal int32
	// Source is the runtime's own object; see Pod.Source.
	Source any
}

// Pods are pods as a list shows them. Its methods skip nil pods, and read only.
type Pods []*Pod

// FindPodByID returns the pod with a UID, nil if there is none.
func (p Pods) FindPodByID(uid types.UID) *Pod {
	return first(p, func(pod *Pod) bool { return pod.ID == uid })
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

// FindContainerByName returns the newest container with a name, nil if there is none.
func (p *Pod) FindContainerByName(containerName string) *Container {
	return first(p.containers(), func(c *Container) bool { return c.Name == containerName })
}

// FindContainerByID returns the container with an ID, nil if there is none. Type and ID must both be
// equal; sandboxes are not found.
func (p *Pod) FindContainerByID(id ContainerID) *Container {
	return first(p.containers(), func(c *Container) bool { return c.ID == id })
}

// FindContainerStatusByName returns the newest status of a container with a name, nil if there is
// none. A container that was restarted has an older one too.
func (s *PodStatus) FindContainerStatusByName(containerName string) *Status {
	if s == nil {
		return nil
	}
	return first(s.ContainerStatuses, func(status *Status) bool { return status.Name == containerName })
}

// FindContainerStatusByID returns the status of the container with an ID, which is the runtime's or
// in the form "containerd://3f2a…"; nil if there is none. The beginning of an ID, of 12 characters or
// more, is enough.
func (s *PodStatus) FindContainerStatusByID(id string) *Status {
	if s == nil {
		return nil
	}
	id = withoutType(id)
	return first(s.ContainerStatuses, func(status *Status) bool { return isID(status.ID.ID, id) })
}

// GetRunningContainerStatuses returns a new slice of the running containers' statuses, newest first.
func (s *PodStatus) GetRunningContainerStatuses() []*Status {
	if s == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(s.ContainerStatuses), func(status *Status) bool {
		return status == nil || status.State != ContainerStateRunning
	})
}

// withoutType returns the runtime's ID of a container, of either form.
func withoutType(id string) string {
	if _, bare, prefixed := strings.Cut(id, "://"); prefixed {
		return bare
	}
	return id
}

// ParseContainerID parses the form that Kubernetes shows, "containerd://3f2a…". It is the inverse of
// ContainerID.String. Unlike the kubelet's function, it returns an error and does not log.
func ParseContainerID(s string) (ContainerID, error) {
	typ, id, found := strings.Cut(s, "://")
	if !found || strings.Contains(id, "://") {
		return ContainerID{}, fmt.Errorf("parsing a container ID: %q is not of the form type://id", s)
	}
	return ContainerID{Type: typ, ID: id}, nil
}

// MarshalJSON implements json.Marshaler: a string in the form of String.
func (c ContainerID) MarshalJSON() ([]byte, error) { return json.Marshal(c.String()) }

// UnmarshalJSON implements json.Unmarshaler: it takes what MarshalJSON returns. A null changes
// nothing.
func (c *ContainerID) UnmarshalJSON(data []byte) error {
	var s *string
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("parsing a container ID: %w", err)
	}
	if s == nil {
		return nil
	}
	id, err := ParseContainerID(*s)
	if err == nil {
		*c = id
	}
	return err
}
