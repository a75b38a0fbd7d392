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
