// Package pleg is the kubelet's Pod Lifecycle Event Generator as an ordinary Go module, under the kubelet's
// names. It lists the pods of a container runtime, turns the difference between two lists into pod lifecycle
// events, and keeps a cache of pod statuses. Readers of the cache can wait for a status that is new enough.
//
// New makes a generator from a Runtime. There are more packages:
//
//   - cri is the Runtime for containerd, CRI-O and other CRI runtimes;
//   - attribution finds the pod and container of a process;
//   - podworkers runs a worker for each pod, for agents that act on pods;
//   - plegz serves a web page about the node;
//   - plegtest has a fake runtime, and a conformance test for a Runtime of your own;
//   - plegtest/criserver is a CRI server for tests.
//
// docs/GUIDE.md in the repository builds an agent step by step.
//
// # Data flow
//
// State reaches the cache and the subscribers on one path, with one writer:
//
//  1. A full list, of all pods, or a pod list, of one pod, is compared with earlier lists.
//  2. The pods that changed are inspected: the runtime is asked for their statuses.
//  3. The statuses are stored in the cache.
//  4. The events are delivered.
//
// The runtime's list is the truth. The period, an event of the runtime's stream, a blocked reader
// and RequestRelist only decide which pod is listed next.
//
// Only an exit needs no list. A container goes from created to running to exited, never back. Once a list, a status or
// an exit event (ExitSource) has shown the exit, an answer that shows the container running is old or wrong.
//
// # Guarantees
//
//   - ContainerStarted precedes ContainerDied, and ContainerDied precedes ContainerRemoved. A
//     subscriber is sent each type at most once per container ID, unless the container was unknown,
//     was started again, or was omitted from a list without an error, in between.
//   - When an event is delivered, the cache holds a status, or the error of an inspection, at least
//     as new as the list that showed the transition.
//   - The first events of a subscriber describe the pods that exist, and are marked as Initial. A
//     subscriber reads at its own pace and loses no state: the events that it reads always lead to
//     the present state. Unread updates of a pod are coalesced, which bounds their number.
//   - A death that an exit event reports is delivered at once. Its status is Unconfirmed until the
//     runtime's own status shows the exit. One death is one event, whatever reports it first.
//   - The event of a death contains the container's last status, even if the cache no longer has it.
//     A PodSync follows if the runtime later reports another exit code, reason or message. To find
//     such changes, a pod is inspected again two seconds after a death with a reason other than Completed.
//   - GetNewerThan(uid, t) returns only state observed after t.
//   - A pod with a stuck or failing inspection delays only its own events and readers. If an
//     inspection is stuck, the pod's events are delivered when the request timeout expires.
//   - When an inspection fails, the cache returns the error with the last good status. The inspection
//     is retried with back-off until it succeeds or the pod is removed.
//   - A failed list changes nothing. A pod that is missing from a successful list is gone. While a
//     list is blocked, the known pods are inspected in turn, and their deaths are delivered.
//   - Healthy names the stuck call, its pod or container, and its age.
//
// The full contract is docs/CONTRACT.md in the repository, with the tests of each rule.
//
// # Concurrency
//
//   - The methods of GenericPLEG and PodCache are safe for concurrent use. Only these block: Handle,
//     Relist, Stop, a concurrent Start, WaitForSync, and the cache's GetNewerThan and
//     LookupNewerThan.
//   - At most DefaultInspectionWorkers inspections run at once, one per pod. An inspection that runs
//     longer than a period is slow, and releases its worker. After DefaultRuntimeRequestTimeout, it
//     counts as failed. If the runtime ignores cancellation, each stuck call costs a goroutine, at
//     most two per pod.
//   - When Stop returns, every goroutine that Start started has ended, except calls to a runtime that
//     ignores cancellation.
//   - The functions of a Handler run in the goroutine of Handle. The generator holds no lock while
//     they run. A logger must not call the generator.
//   - Pods, containers and statuses are never modified after a runtime or the generator has returned
//     them. Callers must not modify them either.
//   - A cache has one generator at a time.
//
// # Time
//
// The injected clock decides all timing except how long Stop waits. Its times must have a monotonic
// reading, like the times of RealClock, so that they do not go back when the wall clock is set. Tests
// run in a testing/synctest bubble, or with a fake clock and Relist.
package pleg

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// The kubelet's defaults.
const (
	// DefaultRelistPeriod is the time between the starts of two full lists.
	DefaultRelistPeriod = time.Second
	// DefaultRelistThreshold is the default of WithRelistThreshold. Healthy reports false if the last
	// successful full list began longer ago.
	DefaultRelistThreshold = 3 * time.Minute
	// DefaultChannelCapacity is the default of WithCapacity and WithWatchCapacity, in events.
	DefaultChannelCapacity = 1000
)

// PodLifeCycleEventType is the type of a PodLifecycleEvent. The spelling is the kubelet's, so that
// ported code need not change. Watch and Subscribe send the kubelet's types; Handle calls a function
// of the Handler for each type:
//
//	                  Watch, Subscribe   Handle
//	ContainerCreated  -                  OnContainerCreated
//	ContainerStarted  yes                OnContainerStarted
//	ContainerDied     yes                OnContainerDied
//	ContainerEnded    -                  OnContainerEnded
//	ContainerRemoved  yes                OnContainerRemoved
//	PodSync           yes                OnPodSync
type PodLifeCycleEventType string

const (
	// ContainerStarted means that a list shows the container or sandbox running. The subscriber did
	// not know it as running. If a container starts and exits between two lists, its first event is
	// ContainerDied. To sync a pod, use the status in the cache, not the event.
	ContainerStarted PodLifeCycleEventType = "ContainerStarted"
	// ContainerDied means that a list, a status or an exit event shows the container or sandbox as
	// exited, or that a list no longer shows it although it had not exited. Exit returns how the
	// container ended. A PodSync follows if the runtime corrects the end.
	ContainerDied PodLifeCycleEventType = "ContainerDied"
	// ContainerRemoved means that a list no longer shows the container or sandbox. A ContainerDied
	// always comes first. No event is sent for a container that came and went while the subscriber was
	// not reading. CRI runtimes do not reuse container IDs, so a subscriber may forget the ID.
	ContainerRemoved PodLifeCycleEventType = "ContainerRemoved"
	// PodSync means that the pod has a new status without a transition of a container. It is sent
	// after an inspection that RequestReinspect requested, even if the inspection fails, and after the
	// first success since a failure. It is also sent for each dead container whose exit code, reason or
	// message has changed since its last event, or whose settled end is no longer Unconfirmed; Exit then
	// returns the new end. Other PodSyncs have no container. The cache already holds the status or the
	// error. A removed pod gets no PodSync.
	PodSync PodLifeCycleEventType = "PodSync"
	// ContainerCreated is sent once for each container, before its other events.
	ContainerCreated PodLifeCycleEventType = "ContainerCreated"
	// ContainerEnded is sent once after ContainerDied, when the end is settled; see
	// Handler.OnContainerEnded.
	ContainerEnded PodLifeCycleEventType = "ContainerEnded"
)

// Cause is the reason for the list or inspection that showed a transition. It is CauseExit if an
// exit event showed the transition. It is for logs and reports only.
type Cause string

const (
	// CausePeriod is a periodic full list, a pod list after a failed inspection's back-off, or an
	// inspection that no caller requested.
	CausePeriod Cause = "period"
	// CauseHint is an event of the runtime's stream.
	CauseHint Cause = "hint"
	// CauseExit is an exit event that came before a list showed the exit; see ExitSource.
	CauseExit Cause = "exit"
	// CauseDemand is a request by a blocked reader of the cache, RequestRelist, RequestReinspect or Relist.
	CauseDemand Cause = "demand"
)

// PodLifecycleEvent is one transition in the life of a pod. Each subscriber is sent its own event,
// but Pod, Container and Status are shared and must not be modified.
type PodLifecycleEvent struct {
	// ID is the UID of the pod.
	ID types.UID
	// Type is the kind of event.
	Type PodLifeCycleEventType
	// Data is the ID of the container or sandbox, as a string without the runtime's prefix; nil for PodSync.
	Data any

	// Pod is the pod in the list that showed the transition. If the pod is gone, it is the pod in its last
	// list. If no list shows an exit yet, it is the pod of the last list, with the container set to exited.
	Pod *Pod
	// Container is the container or sandbox as that list showed it. If the container is gone, it is
	// the container in its last list. It is nil for a PodSync that does not correct the end of a
	// container. Sandboxes count as containers, as in the kubelet; see IsSandbox.
	Container *Container
	// Status is the container's status for this event. For ContainerDied and ContainerRemoved, it is
	// the last status that any inspection returned, even if the cache has dropped it. An Unconfirmed
	// status contains the exit event's code and time. If the container was gone before its end was
	// seen, State is not ContainerStateExited, and there is no exit code. Status is nil for a sandbox,
	// for a PodSync without Container, and for a container that was never inspected.
	Status *Status
	// Initial is true if the event describes the state when the subscription began, or the state in
	// the first full list if that list came later. Events of later changes are not Initial.
	Initial bool
	sandbox bool
	// ListedAt is when the list that showed the transition began. For a death that a status showed
	// before any list, and for a PodSync without a transition, it is the TimeStamp of the cached
	// PodStatus. For a death that an exit event showed, and for a PodSync after a failed inspection,
	// it is the time of the cached state, which LookupNewerThan compares with minTime.
	ListedAt time.Time
	// Cause is the reason for that list, or CauseExit. For a PodSync without a transition, it is
	// CauseDemand if a caller requested the inspection, else CausePeriod.
	Cause Cause
}

// IsSandbox reports whether the event is about a pod sandbox rather than about a container in it.
func (e *PodLifecycleEvent) IsSandbox() bool { return e.sandbox }

// String returns the event as a line for logs: the pod, the container with the beginning of its ID,
// and the type. For a death, the line includes the exit code and the reason if they are known, as
// in "shop/cart-0 cart (3f2a…) ContainerDied exit 137 OOMKilled".
func (e *PodLifecycleEvent) String() string {
	if e == nil {
		return "no event"
	}
	line := string(e.ID)
	if e.Pod != nil && e.Pod.Name != "" {
		line = e.Pod.Namespace + "/" + e.Pod.Name
	}
	id, name := e.Data, "container"
	if e.sandbox {
		name = "sandbox"
	}
	if e.Container != nil {
		id, name = e.Container.ID.ID, cmp.Or(e.Container.Name, name)
	}
	if id != nil {
		line += fmt.Sprintf(" %s (%s)", name, shortID(fmt.Sprint(id)))
	}
	line += " " + string(e.Type)
	if code, reason, ok := e.Exit(); ok && e.Type != ContainerRemoved {
		line += strings.TrimRight(fmt.Sprintf(" exit %d %s", code, reason), " ")
	}
	return line
}

// Exit returns how the event's container ended: the exit code, and the reason, such as "Completed",
// "Error" or "OOMKilled". It is for ContainerDied, ContainerEnded, ContainerRemoved, and a PodSync
// that corrects an end. ok is false for ContainerStarted, if the container has not exited or was gone before
// anyone saw its end, and if the end is unknown (Status.EndUnknown). A code of 0 is a success only if ok is true.
func (e *PodLifecycleEvent) Exit() (code int, reason string, ok bool) {
	if e == nil || e.Type == ContainerStarted || !hasExited(e.Status) || e.Status.EndUnknown {
		return 0, "", false
	}
	return e.Status.ExitCode, e.Status.Reason, true
}

// shortID returns the beginning of a container's ID, as runtimes' own tools show it.
func shortID(id string) string {
	if len(id) > 13 {
		return id[:13] + "…"
	}
	return id
}

// MarshalLog implements logr.Marshaler. It logs String, not the whole pod.
func (e *PodLifecycleEvent) MarshalLog() any { return e.String() }
