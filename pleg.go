// Package pleg tells a node agent what its pods are doing: it lists a container
// runtime, turns the difference between what it knew and what it sees into pod
// lifecycle events, and keeps a cache of pod statuses whose readers can block
// until it is new enough. It is the kubelet's Pod Lifecycle Event Generator as an
// ordinary module, under the kubelet's names.
//
// # The way of the data
//
// There is one path by which anything reaches the cache or a subscriber, and one
// writer on it: the runtime's list is compared with the records, pods that changed
// are inspected, the status is stored in the cache, and then the events are
// announced. The list is the truth. A period that has passed, an event of the
// runtime's stream, a reader that blocks and a caller's RequestRelist only say
// which pod to look at now.
//
// # What is promised
//
//   - Of a container, ContainerStarted comes before ContainerDied before
//     ContainerRemoved, each at most once per subscriber, but for a stay in the
//     state unknown.
//   - An event is delivered only when the cache holds a status, or the error of an
//     inspection, at least as new as the listing that showed the transition.
//   - A subscriber begins with what exists, reads at its own pace and loses
//     nothing: what it has read, replayed, equals the present once it has caught
//     up. News that it did not read is merged, so that what is held for it is
//     bounded by what exists and what it was told of.
//   - What is read from the cache with a minTime was observed after that time.
//   - A pod whose inspection hangs or fails delays its own events and readers and
//     nobody else's. A failure stands in the cache beside the last good status and
//     is retried until it succeeds or the pod is gone; a pod that hangs is told of
//     when its deadline has passed.
//   - A list that fails changes nothing. A pod that a list does not show is gone.
//   - Healthy names the call that hangs, what it was made for and for how long.
//
// The contract in full, with the tests that hold it, is docs/CONTRACT.md in the
// repository.
//
// # Concurrency
//
//   - Every method of GenericPLEG and PodCache may be called from any goroutine.
//     None blocks but Relist, Stop, a Start beside a Stop, and the GetNewerThan of
//     the cache.
//   - Between the pods that one relist found changed, events come by UID. A pod
//     whose inspection is slower than the others by more than a twentieth of a
//     period is announced after them.
//   - At most DefaultInspectionWorkers inspections are under way at once, one per
//     pod. One that takes longer than a period is set aside and no longer counts;
//     one that takes longer than DefaultInspectionTimeout has failed. A runtime
//     that does not heed its context costs one goroutine per pod that hangs.
//   - Every goroutine that Start starts has ended when Stop returns, except calls
//     to a runtime that does not heed its context.
//   - What is handed over, either way, is never modified again: pods, containers,
//     statuses.
//
// # Time
//
// The clock that was injected decides everything but how long Stop waits. Tests
// run in a testing/synctest bubble, or with a fake clock and Relist.
package pleg

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Defaults of the kubelet, under the kubelet's numbers.
const (
	// DefaultRelistPeriod is the time between two full relists.
	DefaultRelistPeriod = time.Second
	// DefaultRelistThreshold is how long ago the last successful relist may have
	// begun before Healthy says that it is not.
	DefaultRelistThreshold = 3 * time.Minute
	// DefaultChannelCapacity is how many events wait in the channel of Watch.
	DefaultChannelCapacity = 1000
)

// PodLifeCycleEventType is the kind of a PodLifecycleEvent. The spelling is the
// kubelet's, so that names need not change where code moves over.
type PodLifeCycleEventType string

const (
	// ContainerStarted comes when a container or sandbox is seen running that
	// the subscriber did not know to be running: it was absent, created or
	// unknown before. It does not come for a container that started and exited
	// between two looks; that one's first event is ContainerDied. On it, a reader
	// reads the pod's status from the cache and brings the pod up to date.
	ContainerStarted PodLifeCycleEventType = "ContainerStarted"
	// ContainerDied comes when a container or sandbox is seen exited, and when
	// one that was not known to have exited has vanished. It does not come a
	// second time when an exited container is removed. On it, a reader finds the
	// exit code and the reason in the cache, if the runtime still had them.
	ContainerDied PodLifeCycleEventType = "ContainerDied"
	// ContainerRemoved comes when a container or sandbox that had been listed is
	// no longer; for one that had not died before, right after its ContainerDied.
	// It does not come for a container that came and went while the subscriber
	// was not reading. On it, a reader lets go of what it holds for that container
	// ID, which no CRI runtime uses again.
	ContainerRemoved PodLifeCycleEventType = "ContainerRemoved"
	// PodSync comes when the pod deserves a look for a reason that no transition
	// of a container tells: a reinspection that was asked for has landed, an
	// inspection has succeeded after it had failed, or the runtime's events spoke
	// of a container that was gone before it was ever listed. It carries no
	// container. On it, a reader reads the pod's status from the cache.
	PodSync PodLifeCycleEventType = "PodSync"
	// ContainerChanged is computed when a container or sandbox enters the state
	// "unknown" (created counts as unknown). It makes the pod be inspected, so
	// that the cache is right, and is never delivered.
	ContainerChanged PodLifeCycleEventType = "ContainerChanged"
)

// Cause is what made the generator look at a pod when it saw a transition. It
// says nothing about what was seen: whatever the cause, the listing decides.
type Cause string

const (
	// CausePeriod is the full relist that comes every period.
	CausePeriod Cause = "period"
	// CauseHint is an event of the runtime's stream.
	CauseHint Cause = "hint"
	// CauseDemand is a caller: a reader that blocked on the cache,
	// RequestRelist, RequestReinspect or Relist.
	CauseDemand Cause = "demand"
)

// PodLifecycleEvent is one transition in the life of a pod. It is handed to one
// subscriber and belongs to it, but Pod and Container are shared and must not be
// modified.
type PodLifecycleEvent struct {
	// ID is the UID of the pod.
	ID types.UID
	// Type says what happened.
	Type PodLifeCycleEventType
	// Data is the ID of the container or sandbox, as a string without the
	// runtime's prefix; nil for PodSync.
	Data any

	// Pod is the pod as it was listed when the transition was seen; for the last
	// events of a pod that is gone, as it was listed last.
	Pod *Pod
	// Container is the container or sandbox that the event is about, as it was
	// listed, or as it was listed last if it is gone; nil for PodSync. Sandboxes
	// count as containers, as they do in the kubelet; see IsSandbox.
	Container *Container
	// ListedAt is the stamp of the listing that showed the transition: it was
	// taken before the runtime was asked.
	ListedAt time.Time
	// Cause is what made the generator ask.
	Cause Cause

	sandbox bool
}

// IsSandbox tells whether the event is about a pod sandbox rather than about a
// container in it.
func (e *PodLifecycleEvent) IsSandbox() bool { return e.sandbox }

// PodLifecycleEventGenerator is what most code needs of a generator. GenericPLEG
// has these methods and more; so has the kubelet's interface of this name.
type PodLifecycleEventGenerator interface {
	// Start begins to relist and to deliver events.
	Start()
	// Watch returns the channel of the events.
	Watch() chan *PodLifecycleEvent
	// Healthy tells whether the generator does its work, and if not, why not.
	Healthy() (bool, error)
}
