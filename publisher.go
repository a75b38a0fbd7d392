package pleg

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// publisher hands the changes of the records to the subscribers, after the cache has their
// statuses.
type publisher struct {
	updates       *broadcaster
	countExit     func(end *Status) // counts the death of a container
	log           *stepLog
	now           time.Time // by the clock, at the present step
	version       uint64    // of the newest update
	firstFullList stamp     // of the first full list that succeeded
	// syncing are the pods with a PodSync that is requested and not delivered.
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
// snapshot. recovered: it is the first since an inspection failed.
func (p *publisher) publish(rec *podRecord, s snapshot, recovered bool) {
	pub := &rec.publication
	p.version++
	u := &update{
		uid: rec.uid, pod: s.pod, version: p.version, follows: pub.version,
		sync: p.syncsDone(rec, s.syncs) || recovered, listedAt: s.listedAt.Time, cause: s.cause,
		statuses: pub.seen, initial: p.takeInitial(pub, s), transitions: pub.transitionsTo(s),
	}
	if s.changeNumber == pub.change.number {
		pub.change.pending = false
	}
	p.countExits(pub, u)
	appears := (pub.pod == nil) != (s.pod == nil)
	u.amends = len(u.transitions) == 0 && !u.sync && !appears
	if u.amends && !pub.amended {
		return
	}
	pub.pod, pub.version, pub.amended = s.pod, u.version, false
	if s.pod == nil {
		pub.version, pub.seen = 0, nil
	}
	p.logTransitions(u)
	if u.amends {
		p.updates.Amend(u)
	} else {
		p.updates.Publish(u, p.now)
	}
}

// takeInitial returns, once, what existed of a pod for the subscriptions that began before the
// first full list: what that list showed.
func (p *publisher) takeInitial(pub *publication, s snapshot) *Pod {
	initial := pub.initial
	pub.initial = nil
	if p.firstFullList.Number == 0 || !s.listedAt.After(p.firstFullList) {
		return s.pod
	}
	return initial
}

// countExits counts the deaths that an update tells of.
func (p *publisher) countExits(pub *publication, u *update) {
	if len(pub.exits) == 0 && !slices.ContainsFunc(u.transitions, transition.mayBeExit) {
		return
	}
	d := deaths{statuses: statusFinderIn(u.statuses), count: p.countExit}
	if pub.pod != nil {
		d.before = finderIn(pub.pod.Containers)
	} else {
		d.existed = initially(u.initial, u.pod)
	}
	pub.exits.add(u.transitions, &d)
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
			rec.publication.initial = rec.pod
		}
	}
}

// logTransitions logs every transition, and the exit code of containers that finished.
func (p *publisher) logTransitions(u *update) {
	if !p.log.enabled(2) {
		return
	}
	statuses := statusFinderIn(u.statuses)
	for i, t := range u.transitions {
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
	// What was published last.

	pod     *Pod   // nil if nothing was, or that the pod is gone
	version uint64 // of that update

	// What the next update has.

	initial *Pod   // the pod as the first full list showed it, until it is published
	change  change // also after it was published
	// seen are the newest statuses that were seen: those of the newest status of the pod,
	// and of other containers that are listed or published. amended: some of them are in
	// no update.
	seen    lastStatuses
	amended bool
	exits   exits // not counted yet
	// syncsRequested counts the PodSyncs that were requested, syncsDelivered those
	// delivered.
	syncsRequested, syncsDelivered uint64
}

// see takes in a newer status of the pod, which is listed as it is, and is published next
// as it was.
func (p *publication) see(status *PodStatus, listed, next *Pod) {
	p.seen, p.amended = lastStatuses(status.ContainerStatuses).with(p.seen, p.pod, listed, next), true
}

// change is the newest change of a record.
type change struct {
	number      uint64 // counts the changes of the record
	pending     bool   // it is not published
	whole       bool   // transitions lead to it from what was published
	transitions []transition
	stamp       stamp // of the list that showed it
	cause       Cause // of that list
}

// add notes a change that a list showed.
func (c *change) add(transitions []transition, l listInfo) {
	*c = change{c.number + 1, true, !c.pending, transitions, l.stamp, l.cause}
}

// transitionsTo returns the transitions from what was published to a snapshot.
func (p *publication) transitionsTo(s snapshot) []transition {
	switch newest := s.changeNumber == p.change.number; {
	case newest && !p.change.pending: // it has been published
		return nil
	case newest && p.change.whole:
		return p.change.transitions
	default:
		return appendTransitions(nil, p.pod, s.pod)
	}
}

// snapshot is what is published of a pod: as it was when its inspection began, or when it
// was found to need none.
type snapshot struct {
	pod          *Pod
	changeNumber uint64 // number of the newest change in it
	listedAt     stamp  // of the list that showed that change if it is pending, else of the newest
	cause        Cause  // of that list; CauseDemand if nothing is pending
	syncs        uint64 // the PodSyncs that were requested by then
}

// snapshot returns that of a pod, which was listed at a stamp.
func (p *publication) snapshot(pod *Pod, at stamp) snapshot {
	cause := CauseDemand
	if p.change.pending {
		at, cause = p.change.stamp, p.change.cause
	}
	return snapshot{pod, p.change.number, at, cause, p.syncsRequested}
}

// exits are the deaths of a pod's containers, by ID, that are not counted yet, because no
// status has shown how the container ended, and those of containers that went from exited
// to unknown, which will be seen to die again; counted is true for these. Usually there are
// none, and the map is nil.
type exits map[string]bool

// deaths are what the deaths in an update are counted by.
type deaths struct {
	before   finder[Container] // the containers as they were published before
	existed  initialState      // what was so before there was anybody to see it
	statuses finder[Status]
	count    func(end *Status) // nil if it was not seen
}

// mayBeExit reports whether a transition is of interest where no death is left to count.
func (t transition) mayBeExit() bool {
	return !t.sandbox && (t.kind == ContainerDied || t.kind == ContainerChanged)
}

// add counts the deaths in the transitions of an update, and those that its statuses show
// the end of: each death of a container once.
func (x *exits) add(ts []transition, d *deaths) {
	for i, t := range ts {
		if !t.sandbox {
			x.step(i, t, d)
		}
	}
	for id, counted := range *x {
		if !counted && d.countEnded(0, id) {
			delete(*x, id)
		}
	}
	if len(*x) == 0 {
		*x = nil
	}
}

// step takes in transition i.
func (x *exits) step(i int, t transition, d *deaths) {
	id := t.container.ID.ID
	counted, known := (*x)[id]
	switch t.kind {
	case ContainerDied:
		switch {
		case counted:
			delete(*x, id)
		case !known && !d.existed.has(i, t) && !d.countEnded(i, id):
			x.put(id, false)
		}
	case ContainerChanged:
		if !known && d.hadExited(id) {
			x.put(id, true)
		}
	case ContainerStarted, ContainerRemoved:
		if known && !counted && !d.countEnded(i, id) {
			d.count(nil)
		}
		delete(*x, id)
	default: // no transition
	}
}

func (x *exits) put(id string, counted bool) {
	if *x == nil {
		*x = make(exits)
	}
	(*x)[id] = counted
}

// countEnded counts a death if a status shows how the container ended, and reports whether
// it does.
func (d *deaths) countEnded(i int, id string) bool {
	s := d.statuses.at(i, id)
	if s == nil || s.State != ContainerStateExited {
		return false
	}
	d.count(s)
	return true
}

// hadExited reports whether a container was published as exited.
func (d *deaths) hadExited(id string) bool {
	return plegStateOf(d.before.at(0, id)) == plegExited
}
