package pleg

import (
	"slices"
	"time"

	"github.com/kubepleg/pleg/internal/schedule"
)

// A container only goes forward: created, running, exited. What any witness has seen to exit has
// exited: a list, a status, or an exit event. What shows it running after that is older, or wrong,
// and is taken as if it showed the exit. See rule 20 of docs/CONTRACT.md.

// exit is what is known of a container that has exited.
type exit struct {
	// counted: the death is in pleg_container_exits_total, or is from before the first list.
	counted bool
	// ahead: no list has shown it. since is when it was seen, by the clock.
	ahead bool
	since time.Time
}

// setExit notes what is known of a container.
func (rec *podRecord) setExit(id string, e exit) { put(&rec.exits, id, e) }

// hasExitsAhead reports whether a container is known to have exited that no list shows so.
func (rec *podRecord) hasExitsAhead() bool {
	for _, e := range rec.exits {
		if e.ahead {
			return true
		}
	}
	return false
}

// withExits returns a pod as it is listed, or a copy in which those containers have exited that are
// known to have.
func (rec *podRecord) withExits(pod *Pod) *Pod {
	if pod == nil || !rec.hasExitsAhead() {
		return pod
	}
	return withExited(pod, func(id string) bool { return rec.exits[id].ahead })
}

// withExited returns a pod, or a copy in which some of its containers have exited.
func withExited(pod *Pod, exited func(id string) bool) *Pod {
	copied := pod
	for i, c := range pod.Containers {
		if c.State == ContainerStateExited || !exited(c.ID.ID) {
			continue
		}
		if copied == pod {
			shallow := *pod
			shallow.Containers = slices.Clone(pod.Containers)
			copied = &shallow
		}
		dead := *c
		dead.State = ContainerStateExited
		copied.Containers[i] = &dead
	}
	return copied
}

// catchUp notes that a list of a pod is believed: the exits that it shows are not ahead of the lists
// any more. It reports whether the status of one of them is to be had yet.
func (rec *podRecord) catchUp(listed *Pod) (unconfirmed bool) {
	if !rec.hasExitsAhead() {
		return false
	}
	var containers finder[Container]
	if listed != nil {
		containers = finderIn(listed.Containers)
	}
	statuses := statusFinderIn(rec.publication.seen)
	for id, e := range rec.exits {
		c := containers.at(0, id)
		if !e.ahead || c != nil && c.State != ContainerStateExited {
			continue
		}
		e.ahead = false
		rec.exits[id] = e
		s := statuses.at(0, id)
		unconfirmed = unconfirmed || c != nil && s != nil && s.Unconfirmed
	}
	return unconfirmed
}

// noteExit notes that a witness other than a list has seen a container of the record exit. What is
// in flight for the record is for that too.
func (r *reconciler) noteExit(rec *podRecord, id string) {
	e := rec.exits[id]
	e.ahead, e.since = true, r.sched.Now()
	rec.setExit(id, e)
	r.records.replace(rec, rec.listed, rec.withExits(rec.pod))
	if rec.inspection.call != nil {
		rec.inspection.snapshot.pod = rec.withExits(rec.inspection.snapshot.pod)
	}
}

// takeExits has a status show every exit that is known, and notes those that it alone knows of.
// The status is the generator's own copy.
func (r *reconciler) takeExits(rec *podRecord, insp *inspection, status *PodStatus) {
	listed, seen := finderIn(rec.pod.Containers), statusFinderIn(rec.publication.seen)
	first, exits := statusFinderIn(status.ContainerStatuses), map[string]*Status{} // that the status does not know of
	for i, s := range status.ContainerStatuses {
		id := s.ID.ID
		c, last := listed.at(i, id), seen.at(i, id)
		_, known := rec.exits[id]
		running := c != nil && c.State != ContainerStateExited // as far as the record knows
		switch {
		case first.at(0, id) != s: // bad data
		case s.State == ContainerStateExited && running:
			r.noteExit(rec, id)
		case s.State == ContainerStateExited || running || !known || last == nil || last.State != ContainerStateExited:
		case !last.FinishedAt.IsZero() && s.StartedAt.After(last.FinishedAt):
			r.startedAgain(rec, id)
		default:
			exits[id] = last
		}
	}
	insp.snapshot.pod = rec.withExits(insp.snapshot.pod)
	if len(exits) > 0 {
		status.ContainerStatuses = withStatuses(status.ContainerStatuses, exits)
		status.ActiveContainerStatuses = withStatuses(status.ActiveContainerStatuses, exits)
	}
}

// startedAgain notes that a container runs that is known to have exited: the runtime has started it
// again under its ID. Only a list makes the record show that.
func (r *reconciler) startedAgain(rec *podRecord, id string) {
	if !rec.exits[id].ahead {
		return
	}
	delete(rec.exits, id)
	rec.listed, rec.shown = nil, nil
	r.requestNow(rec.uid, schedule.CausePeriod)
}

// withStatuses returns a copy of a list in which some statuses are others of the same container.
func withStatuses(list []*Status, others map[string]*Status) []*Status {
	list = slices.Clone(list)
	for i, s := range list {
		if other := others[s.ID.ID]; other != nil {
			list[i] = other
		}
	}
	return list
}
