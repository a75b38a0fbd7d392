package pleg

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/broadcast"
)

// update is a pod as a list showed it, for the subscribers, once the cache has its status.
// It is not modified after it is published.
type update struct {
	uid types.UID
	// pod is the pod as it was listed; nil when it is gone.
	pod *Pod
	// transitions lead from the update of version follows to this one.
	transitions      []transition
	version, follows uint64
	// statuses are the newest of the pod's containers, and of those that the transitions
	// are about.
	statuses lastStatuses
	// initial is what is no news to a subscriber that has no update of the pod yet: the pod
	// as it was when the subscription began, without containers that are gone since; nil if
	// there was none.
	initial *Pod
	// sync asks for a PodSync besides the transitions.
	sync bool
	// amends: nothing is new but statuses. They are for later events; this brings none.
	amends   bool
	listedAt time.Time
	cause    Cause
}

// broadcaster delivers updates as events to the subscribers.
type broadcaster = broadcast.Broadcaster[types.UID, *update, *PodLifecycleEvent]

func newBroadcaster(discarded func(n int)) *broadcaster {
	return broadcast.New[types.UID, *update, *PodLifecycleEvent](updateRules{}, discarded)
}

// updateRules are the rules by which updates become events.
type updateRules struct{}

// Key implements broadcast.Rules.
func (updateRules) Key(u *update) types.UID { return u.uid }

// Gone implements broadcast.Rules.
func (updateRules) Gone(u *update) bool { return u.pod == nil }

// Initial implements broadcast.Rules.
func (updateRules) Initial(u *update) *update {
	initial := *u
	initial.initial, initial.sync = u.pod, false
	return &initial
}

// Events implements broadcast.Rules: they lead from delivered, the update that the subscriber
// got last, to this one.
func (updateRules) Events(delivered, u *update) []*PodLifecycleEvent {
	transitions := u.since(delivered)
	pod := u.pod
	if pod == nil && delivered != nil {
		pod = delivered.pod
	}
	n := deliverable(transitions)
	if u.sync && u.pod != nil {
		n++
	}
	if n == 0 {
		return nil
	}
	block := make([]PodLifecycleEvent, 0, n) // one piece of memory for all of them
	var existed initialState                 // nothing, for a subscriber that has an update of the pod
	if delivered == nil {
		existed = initially(u.initial, u.pod)
	}
	statuses := statusFinderIn(u.statuses)
	for i, t := range transitions {
		if t.kind == ContainerChanged {
			continue
		}
		var status *Status
		if !t.sandbox {
			status = statuses.at(i, t.container.ID.ID)
		}
		block = append(block, PodLifecycleEvent{
			ID: u.uid, Type: t.kind, Data: t.container.ID.ID,
			Pod: pod, Container: t.container, sandbox: t.sandbox,
			Status: status, Initial: existed.has(i, t),
			ListedAt: u.listedAt, Cause: u.cause,
		})
	}
	if u.sync && u.pod != nil {
		block = append(block, PodLifecycleEvent{
			ID: u.uid, Type: PodSync, Pod: pod, ListedAt: u.listedAt, Cause: u.cause,
		})
	}
	events := make([]*PodLifecycleEvent, n)
	for i := range block {
		events[i] = &block[i]
	}
	return events
}

// Coalesce implements broadcast.Rules. Transitions are discarded where the steps delivered →
// earlier → later are more than the one step delivered → later. Of the earlier update what this
// step still needs is kept: a PodSync, statuses, and what existed at the beginning.
func (updateRules) Coalesce(delivered, earlier, later *update) (coalesced *update, discarded int) {
	steps := deliverable(earlier.since(delivered)) + deliverable(later.since(earlier))
	discarded = max(0, steps-deliverable(later.since(delivered)))
	sync, initial := later.pod != nil && (earlier.sync || later.sync), later.initial
	var known *Pod
	if delivered != nil {
		known = delivered.pod
	} else if initial == nil {
		initial = among(earlier.initial, later.pod)
	}
	statuses := later.statuses.with(earlier.statuses, known, later.pod)
	if sync == later.sync && initial == later.initial && len(statuses) == len(later.statuses) && !later.amends {
		return later, discarded
	}
	both := *later
	both.sync, both.initial, both.statuses = sync, initial, statuses
	if later.amends {
		both.listedAt, both.cause, both.amends = earlier.listedAt, earlier.cause, false
	}
	return &both, discarded
}

// since returns the transitions from an older update, nil for none, to this one: those that
// came with it where it follows the older one, else those between their pods.
func (u *update) since(delivered *update) []transition {
	if delivered == nil {
		delivered = &update{}
	}
	if u.follows == delivered.version {
		return u.transitions
	}
	return appendTransitions(nil, delivered.pod, u.pod)
}
