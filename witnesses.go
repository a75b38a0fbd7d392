package pleg

import (
	"time"

	"github.com/kubepleg/pleg/internal/schedule"
)

// What a status or an exit event has seen to exit has exited; see exits.go and rules 20 to 22 of
// docs/CONTRACT.md. Lists are the third witness: podRecords.compare.

// noteExits notes that a witness other than a list has seen containers of the record exit.
func (r *reconciler) noteExits(rec *podRecord, cause Cause, ids ...string) {
	for _, id := range ids {
		e := rec.exits[id]
		e.aheadSince = r.sched.Now()
		r.records.setExit(rec, id, e)
	}
	if len(ids) > 0 {
		r.metrics.countTransitions(len(ids), cause)
		r.watchExits(rec)
		r.records.replace(rec, rec.listed, rec.withExits(rec.pod))
	}
}

// containerExited takes in an exit that the runtime tells. Of a sandbox it is a hint: only the
// runtime's own status tells more of one. A container that no list has shown yet is remembered until
// the lists would show it.
func (r *reconciler) containerExited(e ContainerExit) {
	rec, c := r.records.find(e)
	if rec == nil {
		r.records.strangers.add(e, r.sched.Last(), r.sched.Now())
		return
	}
	if !r.sched.Connected() { // else the event stream hints at the pod
		r.hint(rec.uid)
	}
	if c == nil {
		return
	}
	seen := statusesIn(rec.publication.seen)
	status := seen.at(0, e.ContainerID)
	if status != nil && ofEarlierLife(status, e, r.sched.Now()) {
		return
	}
	if status == nil || status.State != ContainerStateExited {
		status = exitStatus(status, c, e, r.sched.Now())
		rec.publication.amend(status)
	}
	if c.State != ContainerStateExited {
		r.noteExits(rec, CauseExit, e.ContainerID)
	}
	if in := &rec.inspection; in.call != nil { // what it is made for is published when it returns
		in.snapshot.pod = withExited(in.snapshot.pod, func(id string) bool { return id == e.ContainerID })
	}
	r.tellExits(rec, []*Status{status}, CauseExit)
	r.countExits(rec)
}

// tellExits stores and publishes the exits among statuses that are not published yet, also where the
// statuses are not stored. What else has changed of the pod waits for its inspection.
func (r *reconciler) tellExits(rec *podRecord, statuses []*Status, cause Cause) {
	published := rec.publication.pod
	if published == nil { // its first inspection tells
		return
	}
	find, exits := statusesIn(statuses), make(map[string]*Status)
	for i, c := range published.Containers {
		if s := find.at(i, c.ID.ID); c.State != ContainerStateExited && s != nil && s.State == ContainerStateExited {
			exits[c.ID.ID] = s
		}
	}
	if len(exits) == 0 {
		return
	}
	told := withExited(published, func(id string) bool { return exits[id] != nil })
	r.cache.storeExits(rec, exits)
	r.publisher.publish(rec, snapshot{
		pod: told, listedAt: r.records.observedStamp(rec), cause: cause,
	}, false)
}

// takeExits has a status show every exit that is known, and notes those that it alone knows of.
func (r *reconciler) takeExits(rec *podRecord, a *answer) {
	status := a.status
	listed, seen := containersOf(rec.pod), statusesIn(rec.publication.seen)
	first, exits := statusesIn(status.ContainerStatuses), map[string]*Status{} // that the status does not know of
	var news []string
	for i, s := range status.ContainerStatuses {
		id := s.ID.ID
		c, last := listed.at(i, id), seen.at(i, id)
		e, known := rec.exits[id]
		running := c != nil && c.State != ContainerStateExited // as far as the record knows
		switch {
		case first.at(0, id) != s: // bad data
		case s.State == ContainerStateExited && c == nil && last == nil && !known: // a list may show it running yet
			r.records.setExit(rec, id, exit{aheadSince: r.sched.Now()})
		case s.State == ContainerStateExited && running:
			news = append(news, id)
		case s.State == ContainerStateExited || running || last == nil || last.State != ContainerStateExited:
		case !s.StartedAt.Equal(last.StartedAt) &&
			(startedAfter(s.StartedAt, last.FinishedAt) || !last.StartedAt.IsZero() && s.StartedAt.After(last.FinishedAt)):
			r.startedAgain(rec, id)
		default:
			if last.Unconfirmed && s.State == ContainerStateRunning { // of the rest this status knows more
				last = exitStatus(s, c, ContainerExit{ExitCode: last.ExitCode, FinishedAt: last.FinishedAt}, last.FinishedAt)
			}
			exits[id] = last
			a.lags = a.lags || last.Unconfirmed && c != nil && !e.ahead()
		}
	}
	r.noteExits(rec, CausePeriod, news...)
	if len(news) > 0 && !rec.publication.change.pending && a.snapshot.syncs == rec.publication.syncsDelivered {
		a.snapshot.cause = CausePeriod // nobody has asked for this inspection
	}
	if len(exits) > 0 {
		status.ContainerStatuses = withStatuses(status.ContainerStatuses, exits)
		status.ActiveContainerStatuses = withStatuses(status.ActiveContainerStatuses, exits)
	}
	statuses := statusesIn(status.ContainerStatuses)
	a.snapshot.pod = withExited(a.snapshot.pod, func(id string) bool {
		s := statuses.at(0, id)
		return s != nil && s.State == ContainerStateExited
	})
}

// startSlack is by how much a start must be later than an exit to be another one: runtimes stamp a
// start when the call for it returns, and a process may have ended before that.
const startSlack = time.Second

// startedAfter reports whether a container was started again after an exit.
func startedAfter(start, exit time.Time) bool {
	return !exit.IsZero() && start.After(exit.Add(startSlack))
}

// ofEarlierLife reports whether an exit event is from before the container was started again under its
// ID. A start that is in the future was before the clock was set back.
func ofEarlierLife(s *Status, e ContainerExit, now time.Time) bool {
	return startedAfter(s.StartedAt, e.FinishedAt) && !s.StartedAt.After(now) ||
		s.State == ContainerStateRunning && !e.FinishedAt.IsZero() && !e.FinishedAt.After(s.FinishedAt)
}

// noteEnds compares how containers have ended with what was known of it. A PodSync is due where code,
// reason or message are others now. A reason other than Completed may be told late, so that the pod is
// inspected once more.
func (r *reconciler) noteEnds(rec *podRecord, a *answer) {
	seen := statusesIn(rec.publication.seen)
	for i, s := range a.status.ContainerStatuses {
		if s.State != ContainerStateExited || s.Unconfirmed {
			continue
		}
		last := seen.at(i, s.ID.ID)
		ended := last != nil && last.State == ContainerStateExited
		a.amends = a.amends || endedOtherwise(last, s)
		e, dead := rec.exits[s.ID.ID]
		if news := ended && last.Unconfirmed || !ended && !e.counted; dead && news && s.Reason != exitCompleted {
			r.sched.InspectLater(rec.uid)
		}
	}
}

// endedOtherwise reports whether two statuses of a container, either of which may be nil, show ends
// of another exit code, reason or message.
func endedOtherwise(a, b *Status) bool {
	return a != nil && a.State == ContainerStateExited && b != nil && b.State == ContainerStateExited &&
		(a.ExitCode != b.ExitCode || a.Reason != b.Reason || a.Message != b.Message)
}

// maxExitWatch bounds the time between two looks at a container that has exited and that the lists
// show running.
const maxExitWatch = time.Minute

// watchExits has a pod listed again that has an exit which no list shows, and inspected if that list
// does not show it either: only its status can tell that the container was started again. The wait is
// as long as that has been known.
func (r *reconciler) watchExits(rec *podRecord) {
	var longest time.Duration
	ahead := false
	for _, e := range rec.exits {
		if e.ahead() {
			ahead, longest = true, max(longest, r.sched.Since(e.aheadSince))
		}
	}
	if ahead {
		r.sched.ListLater(rec.uid, min(longest, maxExitWatch))
	}
}

// startedAgain notes that a container runs that is known to have exited: the runtime has started it
// again under its ID. Only a list makes the record show that.
func (r *reconciler) startedAgain(rec *podRecord, id string) {
	if !rec.exits[id].ahead() {
		return
	}
	delete(rec.exits, id)
	other := *rec.listed // that the same one coming again is compared
	rec.listed = &other
	r.requestNow(rec.uid, schedule.CausePeriod)
}

// countExits counts the deaths of a pod's containers whose end was seen, and those of which
// nothing can show it any more. An exit event does not know the reason: what it alone has told is
// counted when the runtime's status comes, or none can come.
func (r *reconciler) countExits(rec *podRecord) {
	if len(rec.exits) == 0 {
		return
	}
	listed, statuses := containersOf(rec.pod), statusesIn(rec.publication.seen)
	inspected := rec.pod != nil && rec.inspection.call != nil && !rec.inspection.dead()
	for id, e := range rec.exits {
		end, is := statuses.at(0, id), plegStateOf(listed.at(0, id))
		if end != nil && end.State != ContainerStateExited {
			end = nil
		}
		seen, over := end != nil && !end.Unconfirmed, is == plegAbsent || is == plegRunning
		switch {
		case e.ahead() && is == plegAbsent: // it was never listed
			continue
		case !e.counted && seen:
			r.metrics.countExit(end)
			e.counted = true
			rec.exits[id] = e
		case !e.counted && (!over || inspected):
			continue
		case !e.counted:
			r.metrics.countExit(end)
		}
		if over {
			delete(rec.exits, id)
		}
	}
}
