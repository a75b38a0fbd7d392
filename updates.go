package pleg

import (
	"slices"
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
	// statuses are the newest of the pod's containers, and of those that were published before.
	statuses lastStatuses
	// initial is what is no news to a subscriber that has no update of the pod yet: the pod
	// as it was when the subscription began, without containers that are gone since; nil if
	// there was none.
	initial *Pod
	// sync asks for a PodSync besides the transitions.
	sync bool
	// merged: transitions before it were discarded for this subscriber.
	merged   bool
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
	var few [8]transition // of an ordinary pod
	transitions := u.since(delivered, few[:0])
	pod := u.pod
	if pod == nil && delivered != nil {
		pod = delivered.pod
	}
	n, amended := deliverable(transitions), []amendment(nil)
	if u.sync && u.pod != nil {
		amended = u.amended(delivered)
		n += max(1, len(amended))
	}
	if n == 0 {
		return nil
	}
	block := make([]PodLifecycleEvent, 0, n) // one piece of memory for all of them
	var existed initialState                 // nothing, for a subscriber that has an update of the pod
	if delivered == nil {
		existed = initially(u.initial, u.pod)
	}
	statuses := statusesIn(u.statuses)
	for i, t := range transitions {
		if t.kind == containerChanged {
			continue
		}
		var status *Status
		if !t.sandbox {
			status = statuses.at(i, t.container.ID.ID)
		}
		block = append(block, PodLifecycleEvent{
			ID: u.uid, Type: t.kind, Data: t.container.ID.ID,
			Pod: pod, Container: t.container, sandbox: t.sandbox,
			Status: status, Initial: existed.has(i, t), Merged: u.merged,
			ListedAt: u.listedAt, Cause: u.cause,
		})
	}
	for i := len(block); i < n; i++ {
		sync := PodLifecycleEvent{
			ID: u.uid, Type: PodSync, Pod: pod, Merged: u.merged, ListedAt: u.listedAt, Cause: u.cause,
		}
		if len(amended) > 0 {
			sync.Container, sync.Status = amended[0].container, amended[0].status
			amended = amended[1:]
		}
		block = append(block, sync)
	}
	events := make([]*PodLifecycleEvent, n)
	for i := range block {
		events[i] = &block[i]
	}
	return events
}

// amendment is a container that has ended with another exit code, reason or message than was told.
type amendment struct {
	container *Container
	status    *Status
}

// amended returns what a subscriber was told otherwise.
func (u *update) amended(delivered *update) (amended []amendment) {
	if delivered == nil || delivered.pod == nil {
		return nil
	}
	known, told, now := containersOf(delivered.pod), statusesIn(delivered.statuses), statusesIn(u.statuses)
	for i, c := range u.pod.Containers {
		is := now.at(i, c.ID.ID)
		if plegStateOf(known.at(i, c.ID.ID)) == plegExited && endedOtherwise(told.at(i, c.ID.ID), is) {
			amended = append(amended, amendment{c, is})
		}
	}
	return amended
}

// Coalesce implements broadcast.Rules. Transitions are discarded where the steps delivered →
// earlier → later are more than the one step delivered → later. Of the earlier update what this
// step still needs is kept: a PodSync, statuses, what existed at the beginning, and, where the
// later one brings no event, by which list it was seen.
func (updateRules) Coalesce(delivered, earlier, later *update) (coalesced *update, discarded int) {
	last := later.since(earlier, nil)
	steps := deliverable(earlier.since(delivered, nil)) + deliverable(last)
	discarded = max(0, steps-deliverable(later.since(delivered, nil)))
	sync, initial := later.pod != nil && (earlier.sync || later.sync), later.initial
	var known *Pod
	if delivered != nil {
		known = delivered.pod
	} else if initial == nil {
		initial = among(earlier.initial, later.pod)
	}
	statuses := later.statuses.with(earlier.statuses, known, later.pod)
	both := *later
	both.sync, both.initial, both.statuses = sync, initial, statuses
	both.merged = earlier.merged || later.merged || discarded > 0
	if len(last) == 0 && !later.sync {
		both.listedAt, both.cause = earlier.listedAt, earlier.cause
	}
	return &both, discarded
}

// since appends the transitions from an older update, nil for none, to this one.
func (u *update) since(delivered *update, ts []transition) []transition {
	if delivered == nil {
		return appendTransitions(ts, nil, u.pod)
	}
	return appendTransitions(ts, delivered.pod, u.pod)
}

// initialState is what existed of a pod when a subscription began; nothing, if it is zero.
type initialState struct {
	all                   bool // everything that there is now
	containers, sandboxes finder[*Container]
}

// initially returns the initial state of a pod: initial is the pod as it was then, nil if it
// did not exist, and now as it is at present.
func initially(initial, now *Pod) (s initialState) {
	switch initial {
	case nil:
	case now:
		s.all = true
	default:
		s.containers, s.sandboxes = containersOf(initial), finder[*Container]{list: initial.Sandboxes}
	}
	return s
}

// has reports whether transition i leads to a state that existed then.
func (s *initialState) has(i int, t transition) bool {
	if s.all {
		return true
	}
	find := &s.containers
	if t.sandbox {
		find = &s.sandboxes
	}
	return plegStateOf(find.at(i, t.container.ID.ID)) == plegStateOf(t.container)
}

// among returns a pod with those of its containers and sandboxes that another one has, so
// that no more is held of it than exists; nil if there are none.
func among(pod, other *Pod) *Pod {
	if pod == nil || other == nil {
		return nil
	}
	left := &Pod{ID: pod.ID}
	containers, sandboxes := containersOf(other), finder[*Container]{list: other.Sandboxes}
	left.Containers = kept(pod.Containers, func(i int, c *Container) bool { return containers.at(i, c.ID.ID) != nil })
	left.Sandboxes = kept(pod.Sandboxes, func(i int, c *Container) bool { return sandboxes.at(i, c.ID.ID) != nil })
	switch len(left.Containers) + len(left.Sandboxes) {
	case 0:
		return nil
	case len(pod.Containers) + len(pod.Sandboxes):
		return pod
	}
	return left
}

// kept returns the items of a list that are to be kept: the list itself if all of them are.
func kept[T any](list []T, keep func(i int, item T) bool) []T {
	for i, item := range list {
		if keep(i, item) {
			continue
		}
		left := append([]T(nil), list[:i]...) // nil, if there are none
		for j, item := range list[i+1:] {
			if keep(i+1+j, item) {
				left = append(left, item)
			}
		}
		return left
	}
	return list
}

// lastStatuses are the newest statuses of the containers of a pod, also of containers that
// are gone while their end is still to be published or delivered. The list is shared, with
// the cache's status among others, and never modified.
type lastStatuses []*Status

// with returns these, and of older ones those of other containers of some pods; a nil pod
// has none.
func (l lastStatuses) with(older lastStatuses, pods ...*Pod) lastStatuses {
	find := statusesIn(l)
	more := kept(older, func(i int, s *Status) bool { return find.at(i, s.ID.ID) == nil })
	if len(more) == 0 { // the usual case
		return l
	}
	among := make([]finder[*Container], 0, 3) // as many pods as callers have
	for _, pod := range pods {
		among = append(among, containersOf(pod))
	}
	more = kept(more, func(i int, s *Status) bool {
		for f := range among {
			if among[f].at(i, s.ID.ID) != nil {
				return true
			}
		}
		return false
	})
	if len(more) == 0 {
		return l
	}
	return slices.Concat(l, more)
}

// publisher hands the changes of the records to the subscribers, after the cache has their
// statuses.
type publisher struct {
	updates       *broadcaster
	log           *stepLog
	now           time.Time // by the clock, at the present step
	firstFullList stamp     // of the first full list that succeeded
	// syncing are the pods with a PodSync that is requested and not delivered. To look at all pods
	// for that costs half of an idle Relist (BenchmarkIdleRelist).
	syncing map[types.UID]*podRecord
}

// requestSync notes that a PodSync is due with the result of an inspection of the pod that
// begins from now on.
func (p *publisher) requestSync(rec *podRecord) {
	rec.publication.syncsRequested++
	p.syncing[rec.uid] = rec
}

// syncsDone notes that the PodSyncs up to a number are delivered, and reports whether one
// of them was still due.
func (p *publisher) syncsDone(rec *podRecord, number uint64) bool {
	if rec.publication.syncsDelivered >= number {
		return false
	}
	rec.publication.syncsDelivered = number
	if number == rec.publication.syncsRequested {
		delete(p.syncing, rec.uid)
	}
	return true
}

// publish hands the update of a pod to the subscribers: the cache holds a status for the
// snapshot. Events that fit are in the channels when it returns. recovered: it is the first since an inspection failed.
func (p *publisher) publish(rec *podRecord, s snapshot, recovered bool) {
	pub := &rec.publication
	u := &update{
		uid: rec.uid, pod: s.pod, sync: p.syncsDone(rec, s.syncs) || recovered,
		listedAt: s.listedAt.Time, cause: s.cause, statuses: pub.seen, initial: p.takeInitial(rec, s),
	}
	if s.change.Number == pub.change.stamp.Number {
		pub.change.pending = false
	}
	if p.log.enabled(2) {
		p.logTransitions(pub.pod, u)
	}
	pub.pod = s.pod
	if s.pod == nil {
		pub.seen = nil
	}
	p.updates.Publish(u, p.now)
}

// takeInitial returns, once, what existed of a pod for the subscriptions that began before the
// first full list: what that list showed.
func (p *publisher) takeInitial(rec *podRecord, s snapshot) *Pod {
	initial := rec.publication.initial
	rec.publication.initial = nil
	if p.firstFullList.Number == 0 || p.firstFullList.After(s.listedAt) {
		return s.listed
	}
	return initial
}

// noteFullList notes that a full list is in the records. Of the first, pods that are not
// published as it shows them may change before they are.
func (p *publisher) noteFullList(at stamp, records *podRecords) {
	if p.firstFullList.Number > 0 {
		return
	}
	p.firstFullList = at
	for _, rec := range records.byUID {
		if rec.publication.change.pending {
			rec.publication.initial = rec.asListed()
		}
	}
}

// logTransitions logs every transition, and the exit code of containers that finished.
func (p *publisher) logTransitions(published *Pod, u *update) {
	statuses := statusesIn(u.statuses)
	for i, t := range appendTransitions(nil, published, u.pod) {
		id := t.container.ID.ID
		p.log.info(4, "Transition", "podUID", u.uid, "containerID", id, "event", t.kind)
		if t.kind != ContainerDied || t.sandbox {
			continue
		}
		if s := statuses.at(i, id); s != nil && s.State == ContainerStateExited {
			p.log.info(2, "Container finished", "podUID", u.uid, "containerID", id, "exitCode", s.ExitCode, "reason", s.Reason)
		}
	}
}

// publication is what the subscribers have of a pod, and what is still to be published.
type publication struct {
	pod     *Pod   // as it was published last; nil if it was not, or as gone
	initial *Pod   // as the first full list showed it, until it is published
	change  change // the newest of the record, also after it was published
	// seen are the newest statuses of containers that were seen: those of the newest status of the
	// pod, and of other containers that are listed or published. The pod's status is the cache's.
	seen lastStatuses
	// syncsRequested counts the PodSyncs that were requested, syncsDelivered those
	// delivered.
	syncsRequested, syncsDelivered uint64
}

// see takes in a newer status of the pod, which is listed as it is, and is published next
// as it was.
func (p *publication) see(status *PodStatus, listed, next *Pod) {
	p.seen = lastStatuses(status.ContainerStatuses).with(p.seen, p.pod, listed, next)
}

// amend takes in a newer status of one container.
func (p *publication) amend(status *Status) {
	others := slices.DeleteFunc(slices.Clone(p.seen), func(s *Status) bool { return s.ID.ID == status.ID.ID })
	p.seen = slices.Concat(others, lastStatuses{status})
}

// change is the newest change of a record.
type change struct {
	pending bool  // it is not published
	stamp   stamp // of the list that showed it
	cause   Cause // of that list
}

// snapshot is what is published of a pod: as it was when its inspection began, or when it
// was found to need none.
type snapshot struct {
	pod      *Pod
	listed   *Pod   // as lists showed it, without exits that they do not show
	change   stamp  // of the newest change in it
	listedAt stamp  // that too if it is pending, else that of the newest list
	cause    Cause  // of that list; CauseDemand if nothing is pending
	syncs    uint64 // the PodSyncs that were requested by then
}

// snapshot returns that of the record, which was listed at a stamp.
func (rec *podRecord) snapshot(at stamp) snapshot {
	cause, change := CauseDemand, rec.publication.change
	if change.pending {
		at, cause = change.stamp, change.cause
	}
	return snapshot{rec.pod, rec.asListed(), change.stamp, at, cause, rec.publication.syncsRequested}
}
