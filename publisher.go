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
	p.updates.Publish(u)
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
