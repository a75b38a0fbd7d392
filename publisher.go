package pleg

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// publisher hands the changes of the records to the subscribers, after the cache has their
// statuses.
type publisher struct {
	updates *broadcaster
	exited  func(end *Status) // counts the death of a container
	logger  klog.Logger
	window  window
	now     time.Time // by the clock, at the present step
	version uint64    // of the newest update
	first   stamp     // of the first full list that succeeded
	// syncing are the pods with a PodSync that is requested and not delivered.
	syncing map[types.UID]*podRecord
}

// requestSync notes that a PodSync is due with the result of an inspection of the pod that
// begins from now on.
func (p *publisher) requestSync(rec *podRecord) {
	rec.published.syncsRequested++
	p.syncing[rec.uid] = rec
}

// syncsDone notes that the PodSyncs up to a number are delivered, and reports whether one
// of them was still due.
func (p *publisher) syncsDone(rec *podRecord, number uint64) bool {
	if rec.published.syncsDelivered >= number {
		return false
	}
	rec.published.syncsDelivered = number
	if number == rec.published.syncsRequested {
		delete(p.syncing, rec.uid)
	}
	return true
}

// publish hands the update of a pod to the window or the subscribers: the cache holds a
// status for the snapshot. recovered: it is the first since an inspection failed.
func (p *publisher) publish(rec *podRecord, s snapshot, recovered bool) {
	last := &rec.published
	p.version++
	u := &update{
		uid: rec.uid, pod: s.pod, version: p.version, follows: last.version,
		sync: p.syncsDone(rec, s.syncs) || recovered, listedAt: s.stamp.Time, cause: s.cause,
		statuses: last.seen, initial: p.takeInitial(last, s),
	}
	switch newest := s.change == last.change.number; {
	case newest && !last.change.pending: // it has been published
	case newest && last.change.whole:
		u.transitions = last.change.transitions
	default:
		u.transitions = appendTransitions(nil, last.pod, s.pod)
	}
	if s.change == last.change.number {
		last.change.pending = false
		p.window.skip(rec) // it has waited for this
	}
	p.countExits(last, u)
	appears := (last.pod == nil) != (s.pod == nil)
	u.amends = len(u.transitions) == 0 && !u.sync && !appears
	if u.amends && !last.amended {
		return
	}
	last.pod, last.version, last.amended = s.pod, u.version, false
	if s.pod == nil {
		last.version, last.seen = 0, nil
	}
	p.log(u)
	if !p.window.add(rec, u) {
		p.deliver(u)
	}
}

// takeInitial returns, once, what existed of a pod when the subscriptions began that there were at the
// first full list.
func (p *publisher) takeInitial(last *published, s snapshot) *Pod {
	initial := last.initial
	last.initial = nil
	if p.first.Number == 0 || !s.stamp.After(p.first) {
		return s.pod
	}
	return initial
}

// countExits counts the deaths that an update tells of.
func (p *publisher) countExits(last *published, u *update) {
	if len(last.exits) == 0 && !slices.ContainsFunc(u.transitions, transition.mayBeExit) {
		return
	}
	d := deaths{statuses: statusFinderIn(u.statuses), count: p.exited}
	if last.pod != nil {
		d.before = finderIn(last.pod.Containers)
	} else {
		d.existed = initially(u.initial, u.pod)
	}
	last.exits.add(u.transitions, &d)
}

// firstList notes that the first full list is in the records. The pods that are not published
// as it shows them may change before they are.
func (p *publisher) firstList(at stamp, records *podRecords) {
	p.first = at
	for _, rec := range records.byUID {
		if rec.published.change.pending {
			rec.published.initial = rec.pod
		}
	}
}

// closeWindow delivers what the reorder window holds back.
func (p *publisher) closeWindow() { p.window.close(p.deliver) }

func (p *publisher) deliver(u *update) {
	if u.amends {
		p.updates.Amend(u)
	} else {
		p.updates.Publish(u, p.now)
	}
}

// log logs every transition, and the exit code of containers that finished.
func (p *publisher) log(u *update) {
	v := p.logger.V(2)
	if !v.Enabled() {
		return
	}
	statuses := statusFinderIn(u.statuses)
	for i, t := range u.transitions {
		id := t.container.ID.ID
		p.logger.V(4).Info("Transition", "podUID", u.uid, "containerID", id, "event", t.kind)
		if t.kind != ContainerDied || t.sandbox {
			continue
		}
		if s := statuses.at(i, id); s != nil && s.State == ContainerStateExited {
			v.Info("Container finished", "podUID", u.uid, "containerID", id, "exitCode", s.ExitCode, "reason", s.Reason)
		}
	}
}
