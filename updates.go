package pleg

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/broadcast"
)

// update is a new state of a pod for the subscribers. It is published when the cache has the
// pod's status, and not modified after that.
type update struct {
	uid types.UID
	// pod is the pod as it was listed; nil if it is gone.
	pod *Pod
	// statuses are the last statuses of the containers of the pod and of the update before it.
	statuses lastStatuses
	// settled has the IDs of its exited containers whose end is settled; nil for none. ips are the
	// addresses in the cache.
	settled map[string]bool
	ips     []string
	// initial is the pod as it was when the subscription began; nil if it did not exist.
	// Subscribers that have an update of the pod ignore it.
	initial *Pod
	// first is the update of initial; nil if no update was coalesced into this one.
	first *update
	// sync is true if a PodSync is due.
	sync     bool
	listedAt time.Time
	cause    Cause
}

// syncedUID is the key of the update that reports that the generator has synced. It is published
// once. As the greatest key, it comes behind the pods that exist when a subscription begins.
const syncedUID types.UID = "\xff synced"

// broadcaster delivers updates as events to the subscribers.
type broadcaster = broadcast.Broadcaster[types.UID, *update, *PodLifecycleEvent]

func newBroadcaster(discarded func(n int)) *broadcaster {
	return broadcast.New[types.UID, *update, *PodLifecycleEvent](updateRules{}, discarded)
}

// updateRules implement broadcast.Rules.
type updateRules struct{}

// Key implements broadcast.Rules.
func (updateRules) Key(u *update) types.UID { return u.uid }

// Gone implements broadcast.Rules.
func (updateRules) Gone(u *update) bool { return u.pod == nil && u.uid != syncedUID }

// Initial implements broadcast.Rules.
func (updateRules) Initial(u *update) *update {
	initial := *u
	initial.initial, initial.sync = u.pod, false
	return &initial
}

// Events implements broadcast.Rules.
func (updateRules) Events(delivered, u *update) []*PodLifecycleEvent {
	return inSteps(delivered, u, stepEvents)
}

// inSteps returns the events that lead from delivered to u. A subscriber that has no update of
// the pod gets two steps: from nothing to what existed when its subscription began, and from that
// to u. A step without delivered is initial if u.initial is set.
func inSteps(delivered, u *update, step func(delivered, u *update) []*PodLifecycleEvent) []*PodLifecycleEvent {
	if delivered == nil {
		if first := u.beginning(); first != nil {
			return append(step(nil, first), step(first, u)...)
		}
	}
	return step(delivered, u)
}

// beginning returns the update of what existed when the subscription began; nil for nothing. A pod
// that is gone before its first update is not reported.
func (u *update) beginning() *update {
	if u.first != nil || u.initial == nil || u.pod == nil {
		return u.first
	}
	first := *u
	first.pod, first.sync, first.settled = u.initial, false, nil
	now := finder(u.pod.containers())
	for i, c := range u.initial.containers() {
		if id := c.ID.ID; isExited(c) && (u.settled[id] || now(i, id) == nil) {
			put(&first.settled, id, true)
		}
	}
	return &first
}

// stepEvents returns the events of one step.
func stepEvents(delivered, u *update) (events []*PodLifecycleEvent) {
	pod, statuses := cmp.Or(u.pod, delivered.listed()), finder(u.statuses)
	for i, t := range u.since(delivered) {
		if t.kind == containerChanged {
			continue
		}
		e := u.event(t.kind, pod, t.container)
		e.Data, e.sandbox, e.Initial = t.container.ID.ID, t.sandbox, delivered == nil && u.initial != nil
		if !t.sandbox {
			e.Status = statuses(i, t.container.ID.ID)
		}
		events = append(events, e)
	}
	amended := u.amended(delivered)
	for i, c := range amended {
		e := u.event(PodSync, pod, c)
		e.Status = statuses(i, c.ID.ID)
		events = append(events, e)
	}
	if u.sync && u.pod != nil && len(amended) == 0 {
		events = append(events, u.event(PodSync, pod, nil))
	}
	return events
}

// event returns an event of the update, about a container or nil.
func (u *update) event(kind PodLifeCycleEventType, pod *Pod, c *Container) *PodLifecycleEvent {
	return &PodLifecycleEvent{ID: u.uid, Type: kind, Pod: pod, Container: c, ListedAt: u.listedAt, Cause: u.cause}
}

// hasSettled reports whether the end of a container is settled in the update, nil for no update.
func (u *update) hasSettled(id string) bool { return u != nil && u.settled[id] }

// listed returns the pod of the update; nil for no update.
func (u *update) listed() *Pod {
	if u == nil {
		return nil
	}
	return u.pod
}

// since returns the transitions from delivered, nil for nothing, to the update.
func (u *update) since(delivered *update) []transition {
	return appendTransitions(nil, delivered.listed(), u.pod)
}

// amended returns the containers that the subscriber knows as exited, and whose end is not what it
// was sent: it was sent no end, or another exit code, reason or message.
func (u *update) amended(delivered *update) (amended []*Container) {
	if delivered.listed() == nil || u.pod == nil {
		return nil
	}
	known, sent, now := finder(delivered.pod.containers()), finder(delivered.statuses), finder(u.statuses)
	for i, c := range u.pod.Containers {
		if isExited(c) && isExited(known(i, c.ID.ID)) && amends(now(i, c.ID.ID), sent(i, c.ID.ID)) {
			amended = append(amended, c)
		}
	}
	return amended
}

// amends reports whether a status shows an end that the status sent before, nil for none, does not.
func amends(now, sent *Status) bool {
	return hasExited(now) && (!hasExited(sent) ||
		sent.ExitCode != now.ExitCode || sent.Reason != now.Reason || sent.Message != now.Message)
}

// Coalesce implements broadcast.Rules. The result keeps what the step from delivered needs of
// earlier: what existed when the subscription began, a PodSync, statuses, and, if later has no
// event, the list that earlier came from.
func (updateRules) Coalesce(delivered, earlier, later *update) (coalesced *update, discarded int) {
	both := *later
	if delivered == nil {
		both.first = earlier.beginning()
		delivered = both.first
	}
	both.sync = earlier.sync || later.sync
	both.statuses = later.statuses.with(earlier.statuses, delivered.listed(), later.pod)
	last := deliverable(later.since(earlier))
	discarded = deliverable(earlier.since(delivered)) + last - deliverable(later.since(delivered))
	if last == 0 && !later.sync {
		both.listedAt, both.cause = earlier.listedAt, earlier.cause
	}
	return &both, max(0, discarded)
}

// lastStatuses are the last statuses of the containers of a pod, and of containers that are gone
// and whose end was not published or delivered yet. The list is shared with others, such as the
// cache, and never modified.
type lastStatuses []*Status

// with returns these statuses and, of the older ones, those of other containers of the pods. A
// pod may be nil.
func (l lastStatuses) with(older lastStatuses, pods ...*Pod) lastStatuses {
	missing := make(map[string]bool) // containers of the pods, by ID
	for c := range containersOf(pods...) {
		missing[c.ID.ID] = true
	}
	for _, s := range l {
		missing[s.ID.ID] = false
	}
	all := slices.Clip(l) // shared, so that an append copies it
	for _, s := range older {
		if missing[s.ID.ID] {
			all = append(all, s)
		}
	}
	return all
}
