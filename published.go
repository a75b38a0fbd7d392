package pleg

// published is what the subscribers have of a pod, and what is still to be published.
type published struct {
	pod     *Pod   // as it was published last; nil if it was not, or as gone
	version uint64 // of the update that did
	initial *Pod   // the pod as the first full list showed it, until it is published
	change  change
	// seen are the newest statuses that were seen: those of the newest status of the pod,
	// and of other containers that are listed or published. amended: some of them are in
	// no update.
	seen    lastStatuses
	amended bool
	exits   exits
	// syncsRequested counts the PodSyncs that were requested, syncsDelivered those
	// delivered.
	syncsRequested, syncsDelivered uint64
	window                         windowEntry
}

// see takes in a newer status of the pod, which is listed as it is, and is published next
// as it was.
func (p *published) see(status *PodStatus, listed, next *Pod) {
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

// windowEntry says of a pod that it is in a reorder window.
type windowEntry struct {
	number  uint64 // of the window
	awaited bool
}

// snapshot is what is published of a pod: as it was when its inspection began, or when it
// was found to need none.
type snapshot struct {
	pod    *Pod
	change uint64 // number of the newest change in it
	stamp  stamp  // of the list that showed that change if it is pending, else of the newest
	cause  Cause
	syncs  uint64 // the PodSyncs that were requested by then
}

// snapshot returns that of a pod, which was listed at a stamp.
func (p *published) snapshot(pod *Pod, at stamp, cause Cause) snapshot {
	if p.change.pending {
		at = p.change.stamp
	}
	return snapshot{pod, p.change.number, at, cause, p.syncsRequested}
}
