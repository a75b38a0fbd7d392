package pleg

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg/internal/core/broadcast"
)

// update is a new state of a pod for subscribers. The cache holds the pod's status before the
// update is published. An update is never modified.
type update struct {
	uid types.UID
	// pod is the listed pod; nil if it is gone.
	pod *Pod
	// statuses are the newest statuses of the containers of this and the previous update.
	statuses lastStatuses
	// settled contains the IDs of exited containers with a settled end. initialEnds contains the IDs
	// of containers that the first full list has shown exited.
	settled, initialEnds map[string]bool
	ips                  []string // the addresses in the cached status
	// initial is the pod when the subscription began; nil if it did not exist. It is used only in a pod's first update.
	initial *Pod
	// first is the update that describes initial; nil unless updates were coalesced.
	first *update
	// sync is true if a PodSync is due. unseen is true if the pod was gone before the first full list.
	sync, unseen bool
	listedAt     time.Time
	cause        Cause
}

// updateOf returns the update for a snapshot.
func (r *reconciler) updateOf(rec *podRecord, s *snapshot) *update {
	u := &update{uid: rec.UID, pod: s.pod, sync: s.sync, listedAt: s.at.Time, cause: CausePeriod}
	switch {
	case s.change != nil:
		u.listedAt, u.cause, u.initial = s.change.stamp.Time, s.change.cause, s.change.initial
	case s.sync:
		u.cause = CauseDemand
	}
	return u
}

// publish publishes an update of the pod. The cache must already hold the pod's status.
func (r *reconciler) publish(rec *podRecord, u *update) {
	listed := finder(u.pod.containers())
	for id, e := range rec.ends {
		s, c := rec.statuses[id], listed(id)
		switch {
		case hasExited(s) && isExited(c):
			e.shown = s
		case !hasExited(s) && e.shown != nil && (isExited(c) || c == nil && !e.restarted): // s shows the next life
			u.statuses = append(u.statuses, e.shown)
		}
		if e.settled && isExited(c) {
			put(&u.settled, id, true)
		}
		if e.initial {
			put(&u.initialEnds, id, true)
		}
	}
	u.statuses = u.statuses.with(slices.Collect(maps.Values(rec.statuses)), u.pod, rec.published, u.initial)
	cached, _ := r.cache.Get(rec.UID) // the error of the inspection is not needed here
	u.ips = cached.IPs
	was := rec.published
	r.out.log = append(r.out.log, func(logger klog.Logger) { u.log(logger, was) })
	rec.published = u.pod
	r.records.own(rec, was)
	r.updates.Publish(u)
}

// log logs the transitions from the pod "was" to the update u.
func (u *update) log(l klog.Logger, was *Pod) {
	if !l.V(2).Enabled() {
		return
	}
	for _, t := range appendTransitions(nil, was, u.pod) {
		id := t.container.ID.ID
		l.V(4).Info("Transition", "podUID", u.uid, "containerID", id, "event", t.kind)
		if s := find(u.statuses, id); t.kind == ContainerDied && hasExited(s) {
			l.V(2).Info("Container finished", "podUID", u.uid, "containerID", id, "exitCode", s.ExitCode, "reason", s.Reason)
		}
	}
}

// syncedUID is the key of the single update that reports that the generator has synced. It is
// greater than all other keys, so a new subscription is sent this update after the existing pods.
const syncedUID types.UID = "\xff synced"

// broadcaster delivers updates as events to the subscribers.
type broadcaster = broadcast.Broadcaster[types.UID, *update, *PodLifecycleEvent]

func newBroadcaster(discarded func(n int)) *broadcaster {
	return broadcast.New[types.UID, *update, *PodLifecycleEvent](updateRules{}, discarded)
}

// updateRules implements broadcast.Rules.
type updateRules struct{}

func (updateRules) Key(u *update) types.UID { return u.uid }

func (updateRules) Gone(u *update) bool { return u.pod == nil && u.uid != syncedUID }

func (updateRules) Initial(u *update) *update {
	initial := *u
	initial.initial, initial.sync = u.pod, false
	return &initial
}

// events is a function that returns the events that lead from the delivered update to the update u.
type events func(delivered, u *update) []*PodLifecycleEvent

// inSteps makes two steps if the subscriber was sent no update of the pod. The first step leads to
// the pod at the beginning of the subscription; its events are Initial. The second step leads to u.
func inSteps(step events) events {
	return func(delivered, u *update) []*PodLifecycleEvent {
		if delivered == nil {
			if first := u.beginning(); first != nil {
				return append(step(nil, first), step(first, u)...)
			}
		}
		return step(delivered, u)
	}
}

// beginning returns the update for the pod at the beginning of the subscription; nil if there was
// no pod. It is also nil if the pod was gone before its first update.
func (u *update) beginning() *update {
	if u.first != nil || u.initial == nil || u.pod == nil {
		return u.first
	}
	first := *u
	first.pod, first.sync, first.settled = u.initial, false, nil
	now := finder(u.pod.containers())
	for _, c := range u.initial.containers() {
		if id := c.ID.ID; isExited(c) && (u.hasSettled(id) || now(id) == nil) {
			put(&first.settled, id, true)
		}
	}
	return &first
}

// stepEvents makes the events in one step.
func stepEvents(delivered, u *update) (events []*PodLifecycleEvent) {
	pod, statuses := cmp.Or(u.pod, delivered.listed()), finder(u.statuses)
	for _, t := range u.since(delivered) {
		e := u.event(t.kind, pod, t.container)
		e.Data, e.sandbox, e.Initial = t.container.ID.ID, t.sandbox, delivered == nil && u.initial != nil
		if !t.sandbox {
			e.Status = statuses(t.container.ID.ID)
		}
		events = append(events, e)
	}
	amended := u.amended(delivered)
	for _, c := range amended {
		e := u.event(PodSync, pod, c)
		e.Status = statuses(c.ID.ID)
		events = append(events, e)
	}
	if u.sync && u.pod != nil && len(amended) == 0 {
		events = append(events, u.event(PodSync, pod, nil))
	}
	return events
}

// event returns an event of the update. c may be nil.
func (u *update) event(kind PodLifeCycleEventType, pod *Pod, c *Container) *PodLifecycleEvent {
	return &PodLifecycleEvent{ID: u.uid, Type: kind, Pod: pod, Container: c, ListedAt: u.listedAt, Cause: u.cause}
}

func (u *update) hasSettled(id string) bool { return u != nil && u.settled[id] }

func (u *update) listed() *Pod {
	if u == nil {
		return nil
	}
	return u.pod
}

// since returns the transitions that lead from the delivered update, which may be nil, to u.
func (u *update) since(delivered *update) []transition {
	return deliverable(appendTransitions(nil, delivered.listed(), u.pod))
}

// amended returns the exited containers with an end that differs from the end that the subscriber was
// sent, or that is confirmed only now.
func (u *update) amended(delivered *update) (amended []*Container) {
	if delivered.listed() == nil || u.pod == nil {
		return nil
	}
	known, sent, now := finder(delivered.pod.containers()), finder(delivered.statuses), finder(u.statuses)
	for _, c := range u.pod.Containers {
		if isExited(c) && isExited(known(c.ID.ID)) && amends(now(c.ID.ID), sent(c.ID.ID), delivered.hasSettled(c.ID.ID)) {
			amended = append(amended, c)
		}
	}
	return amended
}

// amends reports whether the new status (now) shows an end that the old status (sent) does not, or
// confirms an end that was settled.
func amends(now, sent *Status, settled bool) bool {
	return hasExited(now) && (!hasExited(sent) || settled && sent.Unconfirmed && !now.Unconfirmed ||
		sent.ExitCode != now.ExitCode || sent.Reason != now.Reason || sent.Message != now.Message)
}

// Coalesce implements broadcast.Rules. From the earlier update, the result keeps what the events
// since the delivered update need: the initial pod, a PodSync and statuses. If the later update
// causes no events, the result also keeps the list and cause of the earlier update.
func (updateRules) Coalesce(delivered, earlier, later *update) (coalesced *update, discarded int) {
	both := *later
	if delivered == nil && !later.unseen {
		both.first = earlier.beginning()
		delivered = both.first
	}
	both.initialEnds = earlier.initialEnds // later updates contain no new ones
	both.sync = earlier.sync || later.sync
	both.statuses = later.statuses.with(earlier.statuses, delivered.listed(), later.pod)
	last := len(later.since(earlier))
	discarded = len(earlier.since(delivered)) + last - len(later.since(delivered))
	if last == 0 && !later.sync {
		both.listedAt, both.cause = earlier.listedAt, earlier.cause
	}
	return &both, max(0, discarded)
}

// lastStatuses are the newest statuses of a pod's containers, and of removed containers with an
// undelivered end. They are not sorted. The slice is shared and never modified.
type lastStatuses []*Status

// The method with returns l and, for the pods' containers that l lacks, their statuses in older.
func (l lastStatuses) with(older lastStatuses, pods ...*Pod) lastStatuses {
	missing := make(map[string]bool) // by container ID
	for _, c := range itemsOf(pods...) {
		missing[c.ID.ID] = true
	}
	for _, s := range l {
		missing[s.ID.ID] = false
	}
	all := slices.Clip(l) // l is shared, so append must copy it
	for _, s := range older {
		if missing[s.ID.ID] {
			all = append(all, s)
		}
	}
	return all
}
