// Package pleg is the kubelet's Pod Lifecycle Event Generator as an ordinary Go
// module, under the kubelet's names. It relists a container runtime, turns the
// difference between two lists into pod lifecycle events, and keeps a pod status
// cache whose readers can block until it is new enough.
//
// NewGenericPLEG makes a generator of a Runtime and a PodCache. Package cri connects to a
// runtime, package plegtest has a fake runtime for tests and, in criserver, a CRI server, and
// package plegz shows a page of the node. docs/GUIDE.md in the repository builds an agent step
// by step.
//
// # Data flow
//
// State reaches the cache and the subscribers on one path, with one writer:
//
//  1. A list of all pods, or of one pod, is compared with the records of the lists
//     before.
//  2. The pods that changed are inspected: the runtime is asked for their statuses.
//  3. The status is stored in the cache.
//  4. The events are delivered.
//
// The runtime's list is the truth. The relist period, an event of the runtime's
// stream, a blocked reader and RequestRelist only decide which pod is listed next.
//
// One thing is believed without a list: that a container has exited. A container only goes
// forward, from created to running to exited. So what a list, a status or an exit event of
// the runtime (ExitSource) has seen to exit has exited, and what shows it running after that
// is older, or wrong.
//
// # Guarantees
//
//   - For a container, ContainerStarted precedes ContainerDied precedes
//     ContainerRemoved. A subscriber gets each at most once per container ID, unless
//     the container was in the state unknown in between.
//   - An event is delivered after the cache holds a status, or the error of an
//     inspection, at least as new as the list that showed the transition.
//   - A subscriber starts with the pods that exist, whose events are marked as Initial.
//     It reads at its own pace and loses no state: once it has caught up, the events that
//     it has read, replayed, equal the present. Updates that it has not read are
//     coalesced, so that what waits for it is bounded by the containers that exist
//     and those reported to it.
//   - A death that the runtime tells by an exit event is delivered at once. Its status is
//     Unconfirmed until the runtime's own shows the exit. One death is one event, whoever
//     tells of it first.
//   - The event of a death has the container's last status, even if the cache no longer
//     has it. A PodSync follows when the runtime says later that the container ended with
//     another code, reason or message; a pod is inspected once more for that, two seconds after a death
//     with another reason than Completed.
//   - GetNewerThan(uid, t) returns only state observed after t.
//   - A pod whose inspection hangs or fails delays its own events and readers, and no
//     other pod's. When an inspection fails, the cache returns the error with the last
//     good status; the inspection is retried with back-off until it succeeds or the
//     pod is removed. If an inspection hangs, the pod's events are delivered when the
//     request timeout expires.
//   - After RequestReinspect, and when an inspection succeeds after it had failed,
//     subscribers get a PodSync once the cache holds the new status.
//   - A failed list changes nothing. A pod that is missing from a list is gone. While a list
//     hangs, the pods that are known are inspected in turn, and their deaths delivered.
//   - Healthy names the call that hangs, the pod or container that it is for, and for
//     how long it has hung.
//
// The full contract, rule by rule with the tests that hold it, is docs/CONTRACT.md in
// the repository.
//
// # Concurrency
//
//   - The methods of GenericPLEG and PodCache are safe for concurrent use. Only Handle,
//     Relist, Stop, a Start beside a Stop, WaitForSync, and the cache's GetNewerThan and
//     LookupNewerThan block.
//   - At most DefaultInspectionWorkers inspections run at once, one per pod. An
//     inspection that runs longer than a relist period is slow: it releases its worker
//     slot. After DefaultRuntimeRequestTimeout it has failed. A runtime that ignores
//     cancellation costs one goroutine per call that hangs, at most two per pod.
//   - Every goroutine that Start starts has ended when Stop returns, except calls to a
//     runtime that ignores cancellation.
//   - The functions of a Handler run in the goroutine of Handle, and the generator holds no lock
//     meanwhile. A logger must not call the generator.
//   - Pods, containers and statuses are never modified after they are handed over, in
//     either direction.
//   - A cache has one generator at a time. NewGenericPLEG panics when the cache has
//     another that is not stopped.
//
// # Time
//
// The injected clock decides all timing except how long Stop waits. Its times must have a
// monotonic reading, as RealClock's have: they do not go back when the wall clock is set.
// Tests run in a testing/synctest bubble, or with a fake clock and Relist.
package pleg

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// The kubelet's defaults.
const (
	// DefaultRelistPeriod is the time between two full relists.
	DefaultRelistPeriod = time.Second
	// DefaultRelistThreshold is the age of the last successful relist, counted from its
	// beginning, above which Healthy reports false.
	DefaultRelistThreshold = 3 * time.Minute
	// DefaultChannelCapacity is the capacity of the channel of Watch.
	DefaultChannelCapacity = 1000
)

// PodLifeCycleEventType is the type of a PodLifecycleEvent. The spelling is the
// kubelet's, so that names need not change where code moves over.
type PodLifeCycleEventType string

const (
	// ContainerStarted means that a list shows the container or sandbox running, and the
	// subscriber knew it as absent, created or unknown. If a container starts and exits
	// between two lists, its first event is ContainerDied. To sync a pod, use the status in
	// the cache, not the event.
	ContainerStarted PodLifeCycleEventType = "ContainerStarted"
	// ContainerDied means that the container or sandbox has exited, or that a list no longer
	// shows it although it was not known to have exited. A list need not show the exit yet: the
	// status of an inspection may, or an exit event of the runtime. It is not repeated when an
	// exited container is removed. The exit code and the reason are in the event's Status, if the
	// runtime still had them; if it knows better later, a PodSync follows.
	ContainerDied PodLifeCycleEventType = "ContainerDied"
	// ContainerRemoved means that a list no longer shows the container or sandbox. It always
	// follows a ContainerDied. There is none for a container that came and went while the
	// subscriber was not reading. No CRI runtime uses the container ID again, so a subscriber
	// may forget it.
	ContainerRemoved PodLifeCycleEventType = "ContainerRemoved"
	// PodSync means that the pod has a new status without a transition of a container:
	// RequestReinspect asked for an inspection, which has succeeded or failed, an inspection
	// has succeeded after a failure, or a container that died has another exit code, reason or
	// message than before: then the event has that container, and Exit says how it ended. There is one for
	// each such container, and one without a container where there is none. When it is
	// delivered, the cache holds the status or the error. If the pod is removed first, its
	// PodSyncs are not delivered.
	PodSync PodLifeCycleEventType = "PodSync"
)

// Cause says why the list or the inspection was made that showed a transition, or that an exit
// event told it. It is for logs and reports: nothing else depends on it.
type Cause string

const (
	// CausePeriod is the full relist of every period; another list, after a back-off, of a pod
	// that could not be inspected; or an inspection that nobody asked for, such as those that
	// are made while a full list hangs.
	CausePeriod Cause = "period"
	// CauseHint is an event of the runtime's stream.
	CauseHint Cause = "hint"
	// CauseExit is an exit event of the runtime, which came before a list showed the exit; see
	// ExitSource.
	CauseExit Cause = "exit"
	// CauseDemand is a caller: a blocked reader of the cache, RequestRelist,
	// RequestReinspect or Relist.
	CauseDemand Cause = "demand"
)

// PodLifecycleEvent is one transition in the life of a pod. Every subscriber gets its
// own; Pod and Container are shared and must not be modified.
type PodLifecycleEvent struct {
	// ID is the UID of the pod.
	ID types.UID
	// Type is the kind of event.
	Type PodLifeCycleEventType
	// Data is the ID of the container or sandbox, as a string without the
	// runtime's prefix; nil for PodSync.
	Data any

	// Pod is the pod as it was in the list that showed the transition. If the pod is gone, it
	// is the pod as it was last listed. If no list has shown an exit yet, it is the pod as it was
	// before, with the container exited.
	Pod *Pod
	// Container is the container or sandbox as it was listed, or as it was last listed
	// if it is gone; nil for PodSync, unless that says that a container ended with another exit
	// code, reason or message than was told before. Sandboxes count as containers, as they do in the
	// kubelet; see IsSandbox.
	Container *Container
	// Status is the container's status for this event. For ContainerDied and
	// ContainerRemoved it is the last that any inspection saw, even if the cache no longer
	// has it, or one made of that and of an exit event, which is Unconfirmed. If the container
	// was gone before its end was seen, State is not ContainerStateExited, and there is no exit
	// code. Status is nil for a sandbox, for a PodSync without Container, and if no inspection has
	// seen the container. It is shared and must not be modified.
	Status *Status
	// Initial means that the event is no news: it describes a state that existed when the
	// subscription began, as part of the first that the subscriber learns of the pod. A
	// subscription made before Start begins with what the first full list shows. A change
	// since then is news, even if the subscriber had not read anything yet. A PodSync is
	// always news.
	Initial bool
	// Merged means that transitions of the pod were merged away before this event, because the
	// subscriber was behind: containers may have come and gone. See WithCapacity.
	Merged  bool
	sandbox bool
	// ListedAt is when the list that showed the transition began. For a death that an exit event
	// or a status told first, it is when the newest list began that the cache is as fresh as;
	// for a PodSync that comes alone, when the newest list of the pod began.
	ListedAt time.Time
	// Cause is why that list was made, or CauseExit. A PodSync that comes alone has CauseDemand.
	Cause Cause
}

// IsSandbox reports whether the event is about a pod sandbox rather than about a
// container in it.
func (e *PodLifecycleEvent) IsSandbox() bool { return e.sandbox }

// String returns the event in a line for logs: the pod, the container with the beginning
// of its ID, and the type. A death whose end was seen has the exit code and the reason, as
// in "shop/cart-0 cart (3f2a…) ContainerDied exit 137 OOMKilled".
func (e *PodLifecycleEvent) String() string {
	if e == nil {
		return "no event"
	}
	pod := string(e.ID)
	if e.Pod != nil && e.Pod.Name != "" {
		pod = e.Pod.Namespace + "/" + e.Pod.Name
	}
	id := e.Data
	if id == nil && e.Container != nil {
		id = e.Container.ID.ID
	}
	if id == nil {
		return pod + " " + string(e.Type)
	}
	name := "sandbox"
	if e.Container != nil && e.Container.Name != "" {
		name = e.Container.Name
	} else if !e.sandbox {
		name = "container"
	}
	line := fmt.Sprintf("%s %s (%s) %s", pod, name, shortID(id), e.Type)
	if code, reason, ok := e.Exit(); ok && e.Type != ContainerRemoved {
		line = strings.TrimRight(fmt.Sprintf("%s exit %d %s", line, code, reason), " ")
	}
	return line
}

// Exit returns how the container of a ContainerDied or ContainerRemoved ended: the exit code, and
// the reason, such as "Completed", "Error" or "OOMKilled"; and of a PodSync that corrects these.
// ok is false if nobody saw the end, and for all other events: an exit code of 0 is a success only
// if ok is true.
func (e *PodLifecycleEvent) Exit() (code int, reason string, ok bool) {
	if e == nil || e.Type != ContainerDied && e.Type != ContainerRemoved && e.Type != PodSync ||
		e.Status == nil || e.Status.State != ContainerStateExited {
		return 0, "", false
	}
	return e.Status.ExitCode, e.Status.Reason, true
}

// shortID returns the beginning of a container's ID, as runtimes' own tools show it.
func shortID(id any) string {
	const length = 13
	s := fmt.Sprint(id)
	if len(s) <= length {
		return s
	}
	return s[:length] + "…"
}

// MarshalLog implements logr.Marshaler: it logs ID, type and data, as the kubelet does. With
// the whole pod in each line, a kubelet's log grew by three quarters.
func (e *PodLifecycleEvent) MarshalLog() any {
	if e == nil {
		return nil
	}
	return struct {
		ID   types.UID
		Type PodLifeCycleEventType
		Data any
	}{e.ID, e.Type, e.Data}
}
