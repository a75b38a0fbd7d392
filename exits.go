package pleg

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// A container only goes forward: created, running, exited. What a status or an exit event has shown
// exited has exited, and a list or status that shows it running later is behind. (Where only a list
// has shown an exit, a status that shows the container running contradicts the record.) This file is
// the door: every list (withExits), status (takeStatus) and exit event (takeExit) enters the
// records through it. See rules 20 to 22 of docs/CONTRACT.md.
//
// A runtime may start a container again under its ID. Then it has another life. Lists show that
// when one shows it exited and a later one running, statuses when StartedAt is another. A
// start is no sign of another life because it is after the end: a runtime that is short of CPU
// stamps a start after the end of the same life.

// end is the death of a container.
type end struct {
	// at is when the newest life that has ended did; zero if that is not known.
	at time.Time
	// since is when the death was noted.
	since time.Time
	// settled is true when no other status of this end is waited for; see settle.
	settled bool
	// livesAgain is true while the container has another life.
	livesAgain bool
}

// hasExited reports whether a status, nil for none, shows an exit.
func hasExited(s *Status) bool { return s != nil && s.State == ContainerStateExited }

// isExited reports whether a container, nil for none, is shown exited.
func isExited(c *Container) bool { return plegStateOf(c) == plegExited }

// withExits returns a pod as it is listed, or a copy with each container shown as exited whose newest
// status says so, unless the list before already showed the exit: then running means that it was
// started again. So it is called before rec.listed is replaced.
func (rec *podRecord) withExits(listed *Pod) *Pod {
	if listed == nil || len(rec.seen) == 0 {
		return listed
	}
	before := finder(rec.listed.containers())
	return withExited(listed, func(id string) bool {
		return hasExited(rec.seen[id]) && !isExited(before(0, id))
	})
}

// withExited returns a pod, or a copy in which some of its containers have exited.
func withExited(pod *Pod, exited func(id string) bool) *Pod {
	return withState(pod, ContainerStateExited, exited)
}

// withState returns a pod, or a copy in which some of its containers are in a state.
func withState(pod *Pod, state State, are func(id string) bool) *Pod {
	containers, changed := rewrite(pod.containers(), func(c *Container) *Container {
		if c.State == state || !are(c.ID.ID) {
			return c
		}
		return c.in(state)
	})
	if !changed {
		return pod
	}
	copied := *pod
	copied.Containers = containers
	return &copied
}

// awaitsExits reports whether the record shows an exit that the runtime's status has not confirmed,
// or that the lists do not show yet.
func (rec *podRecord) awaitsExits() bool {
	if rec.pod == nil || len(rec.seen) == 0 {
		return false
	}
	listed := finder(rec.listed.containers())
	for i, c := range rec.pod.Containers {
		s := rec.seen[c.ID.ID]
		if isExited(c) && hasExited(s) && (s.Unconfirmed || !isExited(listed(i, c.ID.ID))) {
			return true
		}
	}
	return false
}

// takeExit takes in an exit event of a container of the record. It reports whether the event is news.
func (r *reconciler) takeExit(rec *podRecord, c *Container, e ContainerExit) (news bool) {
	id := c.ID.ID
	if last := rec.seen[id]; hasExited(last) && !last.EndUnknown {
		return false
	}
	if known := rec.ends[id]; known != nil && !known.at.IsZero() && !e.FinishedAt.After(known.at) {
		return false // the event is of an earlier life, or does not say of which
	}
	rec.see(exitStatus(rec.seen[id], c, e, r.sched.Now))
	isDead := func(other string) bool { return other == id }
	if pod := withExited(rec.pod, isDead); pod != rec.pod {
		rec.pod = pod
		r.died(rec, id)
		r.metrics.countTransitions(1, CauseExit)
	}
	if rec.inspecting != nil { // what it is made for is published when it returns
		rec.inspecting.pod = withExited(rec.inspecting.pod, isDead)
	}
	return true
}

// takeStatus corrects a status of the record by the exits that are known, and keeps those that it
// shows; the pod is listed again until a list shows them too. contradicts is true if the status
// shows a container running that the list shows exited, and only an exit event has reported how it
// ended. again is true if an exited container has another StartedAt.
func (r *reconciler) takeStatus(rec *podRecord, status *PodStatus) (contradicts, again bool) {
	var corrected map[string]*Status // of containers of whose end the status shows less than is known
	pod, first := finder(rec.pod.containers()), finder(status.ContainerStatuses)
	for i, s := range status.ContainerStatuses {
		id := s.ID.ID
		last, known, c := rec.seen[id], rec.ends[id], pod(i, id)
		switch {
		case first(0, id) != s: // bad data: the first counts
		case hasExited(s):
			if known != nil && known.livesAgain && !s.FinishedAt.After(known.at) {
				break // it is the end of an earlier life
			}
			if s.EndUnknown && hasExited(last) && !last.EndUnknown { // that is no answer: it only confirms the exit
				confirmed := *last
				confirmed.Unconfirmed = false
				s = &confirmed
				put(&corrected, id, s)
			}
			rec.see(s)
			if c != nil && !isExited(c) {
				rec.pod = rec.withExits(rec.pod)
				r.died(rec, id)
				r.metrics.countTransitions(1, CausePeriod)
			}
		case !hasExited(last), c != nil && !isExited(c): // no exit is known, or a list has shown another life
			// Nobody has seen the end between two lives.
			if last != nil && known == nil && !last.StartedAt.IsZero() && startedAgain(last, s) {
				put(&rec.ends, id, &end{at: s.StartedAt, livesAgain: true})
			}
			rec.see(s)
		case startedAgain(last, s):
			rec.see(s)
			rec.listed = withState(rec.listed, ContainerStateUnknown, func(other string) bool { return other == id })
			again = true // and the next list is compared, even if it is the same
		default:
			if last.Unconfirmed && s.State == ContainerStateRunning { // of the rest this status knows more
				last = exitStatus(s, nil, ContainerExit{ExitCode: last.ExitCode, FinishedAt: last.FinishedAt}, last.FinishedAt)
				rec.see(last)
			}
			put(&corrected, id, last)
			contradicts = contradicts || last.Unconfirmed && isExited(rec.listed.container(i, id))
		}
	}
	if len(corrected) > 0 {
		status.ContainerStatuses = withStatuses(status.ContainerStatuses, corrected)
		status.ActiveContainerStatuses = withStatuses(status.ActiveContainerStatuses, corrected)
	}
	rec.inspecting.pod = withExited(rec.inspecting.pod, func(id string) bool { return hasExited(rec.seen[id]) })
	for _, s := range rec.forgetStatuses(status.ContainerStatuses) {
		if hasExited(s) { // a list that began before may show the container yet
			exit := ContainerExit{ContainerID: s.ID.ID, ExitCode: s.ExitCode, FinishedAt: s.FinishedAt}
			r.records.strangers.add(exit, r.sched.Now)
		}
	}
	return contradicts, again
}

// startedAgain reports whether a status shows another life than the one that has ended. The start
// of a life that no inspection has shown is not known.
func startedAgain(ended, s *Status) bool {
	return !s.StartedAt.IsZero() && !s.StartedAt.Equal(ended.StartedAt) && !(ended.StartedAt.IsZero() && ended.Unconfirmed)
}

// see keeps the newest status of a container.
func (rec *podRecord) see(s *Status) { put(&rec.seen, s.ID.ID, s) }

// forgetStatuses drops, and returns, the statuses of containers that nobody needs: they are not
// listed, not published, not in statuses, and no death of them is open.
func (rec *podRecord) forgetStatuses(statuses []*Status) (dropped []*Status) {
	if len(rec.seen) <= len(statuses) {
		return nil
	}
	needed := rec.needed()
	for _, s := range statuses {
		needed[s.ID.ID] = true
	}
	for _, id := range slices.Sorted(maps.Keys(rec.seen)) {
		if !needed[id] && rec.ends[id] == nil {
			dropped = append(dropped, rec.seen[id])
			delete(rec.seen, id)
		}
	}
	return dropped
}

// needed returns the IDs of the containers that are listed or published, or that the present inspection
// shows.
func (rec *podRecord) needed() map[string]bool {
	var inspecting, initial *Pod
	dead := rec.Inspection != nil && rec.Inspection.Dead
	if rec.pod != nil && rec.inspecting != nil && !dead {
		inspecting = rec.inspecting.pod
	}
	if rec.change != nil {
		initial = rec.change.initial
	}
	needed := make(map[string]bool)
	for c := range containersOf(rec.pod, rec.published, inspecting, initial) {
		needed[c.ID.ID] = true
	}
	return needed
}

// noteTransitions notes the deaths in what a list that began at a time shows, and which containers
// were started again. existed is true for a pod that appears in the first full list: what that
// shows dead had died before.
func (r *reconciler) noteTransitions(rec *podRecord, transitions []transition, began time.Time, existed bool) {
	for i, t := range transitions {
		id := t.container.ID.ID
		switch s, e := rec.seen[id], rec.ends[id]; {
		case t.sandbox || t.kind == ContainerRemoved:
		case t.kind == ContainerDied && existed && isExited(rec.listed.container(i, id)):
			put(&rec.ends, id, &end{settled: true})
		case t.kind == ContainerDied:
			r.died(rec, id)
		case t.kind == ContainerStarted:
			if e != nil {
				r.countGone(rec, id, e)
				e.livesAgain = true
				if e.at.IsZero() { // whatever reports an end from before is of the earlier life
					e.at = began
				}
			}
			if hasExited(s) {
				rec.see(startedStatus(s, t.container.State))
			}
		}
	}
}

// died notes the death of a container, whoever showed it. It is counted when its end is known.
func (r *reconciler) died(rec *podRecord, id string) {
	e := rec.ends[id]
	switch {
	case e == nil:
		e = &end{}
		put(&rec.ends, id, e)
	case !e.livesAgain: // this death is known: the state was unknown in between
		return
	}
	*e = end{at: e.at, since: r.sched.Now}
}

// settle settles the ends of a pod, and counts them. The reason Completed settles an end at once,
// unless it is unconfirmed. Runtimes report other reasons late: then an inspection settles the end
// that began reasonCheckWait after the death, or unconfirmedWait if the end is unconfirmed, even if
// that inspection fails or is slow. looked is when the inspection in question began; zero for none.
// settled is true if any end was settled: then the pod is published again.
func (r *reconciler) settle(rec *podRecord, looked time.Time) (settled bool) {
	rec.due[reasonCheck] = time.Time{}
	for id, e := range rec.ends {
		s := rec.seen[id]
		if e.livesAgain || !hasExited(s) {
			continue
		}
		e.at = later(e.at, s.FinishedAt)
		late := e.since.Add(reasonCheckWait)
		if s.Unconfirmed {
			late = e.since.Add(unconfirmedWait)
		}
		switch {
		case e.settled:
		case !looked.Before(late), s.Reason == exitCompleted && !s.Unconfirmed:
			e.settled, settled = true, true
			r.metrics.countExit(s)
		case rec.due[reasonCheck].IsZero() || late.Before(rec.due[reasonCheck]):
			rec.due[reasonCheck] = late
		}
	}
	return settled
}

// forgetEnds drops the deaths of containers that are not needed any more, and their statuses. It
// counts those that were not counted.
func (r *reconciler) forgetEnds(rec *podRecord) {
	if len(rec.ends) == 0 {
		return
	}
	needed := rec.needed()
	for id, e := range rec.ends {
		if !needed[id] {
			r.countGone(rec, id, e)
			delete(rec.ends, id)
			delete(rec.seen, id)
		}
	}
}

// countGone counts a death of which no status can show the end any more: by the exit that is known,
// else as unseen. Subscribers take the container's removal, or its next start, as its end; see
// handlerEvents.
func (r *reconciler) countGone(rec *podRecord, id string, e *end) {
	if !e.settled && !e.livesAgain {
		e.settled = true
		r.metrics.countExit(rec.seen[id])
	}
}

// exitStatus returns the status of a container that has exited by an event, made of its last one
// or, without one, of the container as it is listed.
func exitStatus(last *Status, c *Container, e ContainerExit, now time.Time) *Status {
	if last == nil {
		last = listedStatus(c)
	}
	s := *last
	s.State, s.ExitCode, s.FinishedAt, s.Unconfirmed = ContainerStateExited, e.ExitCode, e.FinishedAt, true
	s.EndUnknown = false
	s.Reason, s.Message = exitCompleted, ""
	if s.ExitCode != 0 {
		s.Reason = exitError
	}
	if s.FinishedAt.IsZero() {
		s.FinishedAt = now
	}
	return &s
}

// listedStatus returns what a list shows of a container as a status.
func listedStatus(c *Container) *Status {
	return &Status{
		ID: c.ID, Name: c.Name, Image: c.Image, ImageID: c.ImageID, ImageRef: c.ImageRef, State: c.State,
		ImageRuntimeHandler: c.ImageRuntimeHandler, Hash: c.Hash, CreatedAt: time.Unix(0, c.CreatedAt),
		RestartCount: int(c.Attempt), Labels: c.Labels, Annotations: c.Annotations, PodSandboxID: c.PodSandboxID,
	}
}

// startedStatus returns the status of a container that a list shows in a state before its end again,
// made of that of its earlier life.
func startedStatus(ended *Status, state State) *Status {
	s := *ended
	s.State, s.StartedAt, s.FinishedAt = state, time.Time{}, time.Time{}
	s.ExitCode, s.Reason, s.Message, s.Unconfirmed = 0, "", "", false
	return &s
}

// withStatuses returns a copy of a list in which some statuses are others of the same container.
func withStatuses(list []*Status, others map[string]*Status) []*Status {
	list, _ = rewrite(list, func(s *Status) *Status { return cmp.Or(others[s.ID.ID], s) })
	return list
}

// strangers are exits, by event or by status, of containers that no list has shown, by ID; a newer
// exit replaces an older. They are kept until a full list completes that began a period later.
type strangers map[string]stranger

type stranger struct {
	ContainerExit
	at time.Time // when the event came
}

// add keeps an exit. Beyond maxHints, which only a faulty runtime reaches, the lists will show it.
func (s strangers) add(e ContainerExit, at time.Time) {
	known, is := s[e.ContainerID]
	if is && e.FinishedAt.After(known.FinishedAt) || !is && len(s) < maxHints {
		s[e.ContainerID] = stranger{e, at}
	}
}

// adopt has the record know the exits of containers that a list is the first to show.
func (s strangers) adopt(rec *podRecord, listed *Pod) {
	if len(s) == 0 {
		return
	}
	for _, c := range listed.containers() {
		if e, is := s[c.ID.ID]; is {
			delete(s, c.ID.ID)
			if last := rec.seen[c.ID.ID]; !hasExited(last) {
				rec.see(exitStatus(last, c, e.ContainerExit, e.at))
			}
		}
	}
}

// forget drops those that came before a time.
func (s strangers) forget(before time.Time) {
	for id, e := range s {
		if e.at.Before(before) {
			delete(s, id)
		}
	}
}
