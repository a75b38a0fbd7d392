package pleg

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
}

// add notes a change that a list showed.
func (c *change) add(transitions []transition, at stamp) {
	*c = change{number: c.number + 1, pending: true, whole: !c.pending, transitions: transitions, stamp: at}
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
	cause        Cause
	syncs        uint64 // the PodSyncs that were requested by then
}

// snapshot returns that of a pod, which was listed at a stamp.
func (p *publication) snapshot(pod *Pod, at stamp, cause Cause) snapshot {
	if p.change.pending {
		at = p.change.stamp
	}
	return snapshot{pod, p.change.number, at, cause, p.syncsRequested}
}
