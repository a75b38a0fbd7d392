// Package pleg is the kubelet's Pod Lifecycle Event Generator as an ordinary Go
// module, under the kubelet's names. It relists a container runtime, turns the
// difference between two lists into pod lifecycle events, and keeps a pod status
// cache whose readers can block until it is new enough.
//
// NewGenericPLEG makes a generator of a Runtime and a Cache. Package cri connects to a
// runtime, package plegtest has a fake one for tests, package criserver below it a CRI server,
// and package plegz shows a page of the node.
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
// # Guarantees
//
//   - For a container, ContainerStarted precedes ContainerDied precedes
//     ContainerRemoved. A subscriber gets each at most once per container ID, unless
//     the container was in the state unknown in between.
//   - An event is delivered after the cache holds a status, or the error of an
//     inspection, at least as new as the list that showed the transition.
//   - A subscriber starts with the pods that exist, whose events are marked as Initial,
//     reads at its own pace and loses no state: the events that it has read, replayed,
//     equal the present once it has caught up. Updates that it has not read are
//     coalesced, so that what is held for it is bounded by the containers that exist
//     and those reported to it.
//   - The event of a death has the last status that was seen of the container, also
//     when the cache has let go of it.
//   - GetNewerThan(uid, t) returns only state observed after t.
//   - A pod whose inspection hangs or fails delays its own events and readers, and no
//     other pod's. When an inspection fails, the cache returns the error with the last
//     good status; the inspection is retried with back-off until it succeeds or the
//     pod is removed. If an inspection hangs, the pod's events are delivered when the
//     inspection timeout expires.
//   - After RequestReinspect, and when an inspection succeeds after it had failed,
//     subscribers get a PodSync once the cache holds the new status.
//   - A failed list changes nothing. A pod that is missing from a list is gone.
//   - Healthy names the call that hangs, the pod or container that it is for, and for
//     how long it has hung.
//
// The full contract, rule by rule with the tests that hold it, is docs/CONTRACT.md in
// the repository.
//
// # Concurrency
//
//   - The methods of GenericPLEG and PodCache are safe for concurrent use. Only Handle,
//     Relist, Stop, a Start beside a Stop, WaitForSync, and the cache's GetNewerThan block.
//   - At most DefaultInspectionWorkers inspections run at once, one per pod. An
//     inspection that runs longer than a relist period is slow: it releases its worker
//     slot. After DefaultInspectionTimeout it has failed. A runtime that ignores
//     cancellation costs one goroutine per call that hangs, at most two per pod.
//   - Every goroutine that Start starts has ended when Stop returns, except calls to a
//     runtime that ignores cancellation.
//   - The functions of a Handler run in the goroutine of Handle. No code of a user but the
//     Cache's runs under a lock of the generator: not the logger's either.
//   - Pods, containers and statuses are never modified after they are handed over, in
//     either direction.
//   - A cache has one generator at a time. NewGenericPLEG panics when a PodCache has
//     another that is not stopped; with any other Cache, two generators overwrite each
//     other's statuses.
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
	// subscriber knew it as absent, created or unknown. A container that started and
	// exited between two lists has no ContainerStarted; its first event is
	// ContainerDied. The status in the cache is the state to sync the pod with.
	ContainerStarted PodLifeCycleEventType = "ContainerStarted"
	// ContainerDied means that a list shows the container or sandbox exited, or no longer shows
	// one that was not known to have exited. It is not repeated when an exited
	// container is removed. The exit code and the reason are in the event's Status, if the
	// runtime still had them.
	ContainerDied PodLifeCycleEventType = "ContainerDied"
	// ContainerRemoved means that a list no longer shows the container or sandbox. For one that
	// had not died before, it follows its ContainerDied. A container that came and went
	// while the subscriber was not reading has none. What is held for the container ID
	// can be dropped; no CRI runtime uses it again.
	ContainerRemoved PodLifeCycleEventType = "ContainerRemoved"
	// PodSync means that the pod has a new status without a transition of a container. An
	// inspection that RequestReinspect asked for has succeeded or failed, or an
	// inspection has succeeded after it had failed. The event has no container. The
	// cache holds the status, or the error, when it is delivered. The PodSyncs of a pod
	// that is removed first are not delivered.
	PodSync PodLifeCycleEventType = "PodSync"
	// ContainerChanged means that a container or sandbox enters the state unknown (created counts
	// as unknown). It has the pod inspected, so that the cache is right, and is never
	// delivered.
	ContainerChanged PodLifeCycleEventType = "ContainerChanged"
)

// Cause is why the pod was listed when a transition was seen. It does not affect what
// is reported.
type Cause string

const (
	// CausePeriod is the full relist of every period, or one more list of a pod that could not
	// be inspected.
	CausePeriod Cause = "period"
	// CauseHint is an event of the runtime's stream.
	CauseHint Cause = "hint"
	// CauseExit is an exit that the runtime told by itself, before a list showed it.
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

	// Pod is the pod as the list showed it that showed the transition; for the last
	// events of a pod that is gone, as it was last listed.
	Pod *Pod
	// Container is the container or sandbox as it was listed, or as it was last listed
	// if it is gone; nil for PodSync. Sandboxes count as containers, as they do in the
	// kubelet; see IsSandbox.
	Container *Container
	// Status is the container's status for this event. For ContainerDied and
	// ContainerRemoved it is the last that was seen, also when the reader comes so late
	// that the cache has let go of it; if the container was gone before an inspection saw
	// its end, State is not ContainerStateExited, and there is no exit code. It is nil for
	// a sandbox, for PodSync, and if no inspection has seen the container. It is shared and
	// must not be modified.
	Status *Status
	// Initial means that the event is no news: it tells of a state that existed when the
	// subscription began, as part of the first that the subscriber learns of the pod. What
	// the first full list of the generator shows counts as having existed before, so a
	// subscription made before Start begins with it. A container that changed since then,
	// even if the subscriber had not read anything yet, is news. A PodSync is always news.
	Initial bool
	sandbox bool
	// ListedAt is when the list began that showed the transition; for PodSync, when the
	// newest list began that showed the pod.
	ListedAt time.Time
	// Cause is why that list was made; CauseDemand for PodSync.
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
	if e.Type == PodSync || e.Data == nil {
		return pod + " " + string(e.Type)
	}
	name := "sandbox"
	if e.Container != nil && e.Container.Name != "" {
		name = e.Container.Name
	} else if !e.sandbox {
		name = "container"
	}
	return fmt.Sprintf("%s %s (%s) %s%s", pod, name, shortID(e.Data), e.Type, e.exit())
}

// exit returns how a container ended, with a space before it; "" if it was not seen.
func (e *PodLifecycleEvent) exit() string {
	if e.Type != ContainerDied || e.Status == nil || e.Status.State != ContainerStateExited {
		return ""
	}
	return strings.TrimRight(fmt.Sprintf(" exit %d %s", e.Status.ExitCode, e.Status.Reason), " ")
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

// MarshalLog implements logr.Marshaler: ID, type and data, which is what the kubelet logs
// of an event. With the whole pod in each line, a kubelet's log grew by three quarters.
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

// PodLifecycleEventGenerator has the methods that most code needs of a generator: those of
// the kubelet's interface of this name, in its release 1.36. GenericPLEG has more.
type PodLifecycleEventGenerator interface {
	// Start begins to relist and to deliver events.
	Start()
	// Watch returns the channel of the events.
	Watch() chan *PodLifecycleEvent
	// Healthy reports whether the generator works, and if not, why not.
	Healthy() (bool, error)
	// RequestReinspect asks for an inspection of a pod whose list may not have changed.
	RequestReinspect(podUID types.UID)
	// RequestRelist asks for a single-pod relist.
	RequestRelist(podUID types.UID)
}
