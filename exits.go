package pleg

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Every list (withExits), status (takeStatus) and exit event (takeExit) passes through this file on its way
// into the records. A container only goes forward: from created to running to exited. Once a status or an
// exit event has shown an exit, a list or status that shows the container running is out of date, and is
// corrected. If only a list has shown the exit, a status that shows the container running is stored as it
// is, and disagrees with that list. See rules 20 to 22 of docs/CONTRACT.md.
//
// A runtime may start a container again with the same ID: the container then has another life. Lists show
// another life as running after exited, statuses as another StartedAt. The start and the end of one life
// are not compared: a runtime short of CPU may stamp the start later.
//
// An exited status is Unconfirmed if only an exit event has shown the exit. It has EndUnknown if the runtime
// does not know the exit either, and reports 255 "Unknown".

// end is what is known about the death of a container.
type end struct {
	// endedBy is a time by which the newest death, or else the one before it, had happened; zero if unknown. An
	// exit event that is not later reports nothing new.
	endedBy time.Time
	// since is when the reconciler learned of the death or, after an exit event, when a status confirmed it.
	since time.Time
	// settled is true if no further status of this end is awaited; see settle. Ends that the first full list
	// shows are settled, but not counted.
	settled bool
	// restarted is true if the container has started again since. Only endedBy counts then.
	restarted bool
}

func hasExited(s *Status) bool { return s != nil && s.State == ContainerStateExited }

func isExited(c *Container) bool { return plegStateOf(c) == plegExited }

// withExits returns the pod, or a copy with the exits that rec.statuses shows. It leaves containers as they
// are if rec.listed shows them exited. So compare must call it before it replaces rec.listed: a container
// that has exited in rec.listed and runs in the new list was started again.
func (rec *podRecord) withExits(pod *Pod) *Pod {
	if pod == nil || len(rec.statuses) == 0 {
		return pod
	}
	before := finder(rec.listed.containers())
	return withExited(pod, func(id string) bool {
		return hasExited(rec.statuses[id]) && !isExited(before(id))
	})
}

// withExited returns the pod, or a copy in which the given containers have exited.
func withExited(pod *Pod, exited func(id string) bool) *Pod {
	return withState(pod, ContainerStateExited, exited)
}

// withState returns the pod, or a copy in which the given containers have a state.
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

// awaitsExits reports whether the record has an exit that is unconfirmed or not yet in the lists.
func (rec *podRecord) awaitsExits() bool {
	if rec.pod == nil || len(rec.statuses) == 0 {
		return false
	}
	listed := finder(rec.listed.containers())
	for _, c := range rec.pod.Containers {
		s := rec.statuses[c.ID.ID]
		if isExited(c) && hasExited(s) && (s.Unconfirmed || !isExited(listed(c.ID.ID))) {
			return true
		}
	}
	return false
}

// takeExit applies an exit event to a container of the record. news is false if it changes nothing.
func (r *reconciler) takeExit(rec *podRecord, c *Container, e ContainerExit) (news bool) {
	id := c.ID.ID
	last, ended := rec.statuses[id], rec.ends[id]
	// An exit without a time is never later than endedBy.
	isOld := ended != nil && !ended.endedBy.IsZero() && !e.FinishedAt.After(ended.endedBy)
	if isOld || hasExited(last) && !last.EndUnknown {
		return false
	}
	rec.setStatus(exitStatus(last, c, e, r.sched.Now))
	isThis := func(other string) bool { return other == id }
	if pod := withExited(rec.pod, isThis); pod != rec.pod {
		rec.pod = pod
		r.died(rec, id)
		r.metrics.countTransitions(1, CauseExit)
	}
	if rec.inspecting != nil { // keep the snapshot of the inspection in flight up to date
		rec.inspecting.pod = withExited(rec.inspecting.pod, isThis)
	}
	return true
}

// takeStatus merges a status with the known exits: it corrects the status, and records exits that only
// the status shows. anotherLife is true if the status shows that an exited container was started again, and
// no list has shown it yet.
func (r *reconciler) takeStatus(rec *podRecord, status *PodStatus) (anotherLife bool) {
	var corrected map[string]*Status // by ID, where the record knows more about the end
	deaths := 0                      // that only the status shows
	pod := finder(rec.pod.containers())
	for _, s := range status.ContainerStatuses {
		id := s.ID.ID
		last, ended, c := rec.statuses[id], rec.ends[id], pod(id)
		switch {
		case hasExited(s):
			if ended != nil && ended.restarted && !s.FinishedAt.After(ended.endedBy) {
				break // this status is of an earlier life, and disagrees
			}
			if s.EndUnknown && hasExited(last) && !last.EndUnknown && !startedAgain(last, s) { // the exit is known already
				full := *s
				full.ExitCode, full.FinishedAt, full.EndUnknown = last.ExitCode, last.FinishedAt, false
				full.Reason, full.Message = last.Reason, last.Message
				s = &full
				put(&corrected, id, s)
			}
			if ended != nil && last != nil && last.Unconfirmed {
				ended.since = r.sched.Now // the runtime's own reason may still follow
			}
			rec.setStatus(s)
			if c != nil && !isExited(c) {
				deaths++
				r.died(rec, id)
			}
		case !hasExited(last), c != nil && !isExited(c): // no exit is known, or a list has shown another life
			// If the end of the previous life is unknown, it was before this start.
			if last != nil && (ended == nil || ended.restarted) && !last.StartedAt.IsZero() && startedAgain(last, s) {
				put(&rec.ends, id, &end{endedBy: s.StartedAt, restarted: true})
			}
			rec.setStatus(s)
		case startedAgain(last, s):
			rec.setStatus(s)
			rec.listed = withState(rec.listed, ContainerStateUnknown, func(other string) bool { return other == id })
			anotherLife = true // rec.listed now differs from the next list, which is therefore compared
		default:
			if last.Unconfirmed && s.State == ContainerStateRunning { // the status is newer in all other fields
				last = exitStatus(s, nil, ContainerExit{ExitCode: last.ExitCode, FinishedAt: last.FinishedAt}, last.FinishedAt)
				rec.setStatus(last)
			}
			put(&corrected, id, last)
		}
	}
	if deaths > 0 {
		rec.pod = rec.withExits(rec.pod)
		r.metrics.countTransitions(deaths, CausePeriod)
	}
	if len(corrected) > 0 {
		status.ContainerStatuses = withStatuses(status.ContainerStatuses, corrected)
		status.ActiveContainerStatuses = withStatuses(status.ActiveContainerStatuses, corrected)
	}
	rec.inspecting.pod = withExited(rec.inspecting.pod, func(id string) bool { return hasExited(rec.statuses[id]) })
	for _, s := range rec.forgetStatuses(status.ContainerStatuses) {
		if hasExited(s) { // a list that began earlier may still show the container
			exit := ContainerExit{ContainerID: s.ID.ID, ExitCode: s.ExitCode, FinishedAt: s.FinishedAt}
			r.records.earlyExits.add(exit, r.sched.Now)
		}
	}
	return anotherLife
}

// startedAgain reports whether s is of another life than last. If last comes from an exit event alone, its
// start is unknown, and startedAgain returns false.
func startedAgain(last, s *Status) bool {
	return !s.StartedAt.IsZero() && !s.StartedAt.Equal(last.StartedAt) && !(last.StartedAt.IsZero() && last.Unconfirmed)
}

// setStatus stores the newest status of a container.
func (rec *podRecord) setStatus(s *Status) { put(&rec.statuses, s.ID.ID, s) }

// forgetStatuses deletes and returns the statuses of other containers than those needed, in statuses or
// in ends. takeStatus keeps the exits among them as early exits.
func (rec *podRecord) forgetStatuses(statuses []*Status) (dropped []*Status) {
	if len(rec.statuses) <= len(statuses) {
		return nil
	}
	needed := rec.needed()
	for _, s := range statuses {
		needed[s.ID.ID] = true
	}
	for _, id := range slices.Sorted(maps.Keys(rec.statuses)) {
		if !needed[id] && rec.ends[id] == nil {
			dropped = append(dropped, rec.statuses[id])
			delete(rec.statuses, id)
		}
	}
	return dropped
}

// needed returns the IDs of containers that are listed, published, or about to be published.
func (rec *podRecord) needed() map[string]bool {
	var inspecting, initial *Pod
	timedOut := rec.Inspection != nil && rec.Inspection.TimedOut
	if rec.pod != nil && rec.inspecting != nil && !timedOut {
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

// noteTransitions records the deaths and restarts that a list shows. began is when the list began.
// existed is true for a pod in the first full list or a pod list before it: the containers that it shows exited
// died before the generator listed anything, so their ends are settled.
func (r *reconciler) noteTransitions(rec *podRecord, transitions []transition, began time.Time, existed bool) {
	listed := finder(rec.listed.containers())
	for _, t := range transitions {
		id := t.container.ID.ID
		switch s, e := rec.statuses[id], rec.ends[id]; {
		case t.sandbox || t.kind == ContainerRemoved:
		case t.kind == ContainerDied && existed && isExited(listed(id)):
			put(&rec.ends, id, &end{settled: true})
		case t.kind == ContainerDied:
			r.died(rec, id)
		case t.kind == ContainerStarted:
			if e != nil {
				r.countGone(rec, id, e)
				e.restarted = true
				if e.endedBy.IsZero() { // an end before this list is of the earlier life
					e.endedBy = began
				}
			}
			if hasExited(s) {
				rec.setStatus(startedStatus(s, t.container.State))
			}
		}
	}
}

// died records the death of a container. The death is counted when it is settled.
func (r *reconciler) died(rec *podRecord, id string) {
	e := rec.ends[id]
	switch {
	case e == nil:
		e = &end{}
		put(&rec.ends, id, e)
	case !e.restarted: // known already: the container was only unknown in between
		return
	}
	*e = end{endedBy: e.endedBy, since: r.sched.Now}
}

// settle settles the ends of a pod and counts them. An end with the reason Completed is settled at once.
// Other reasons may change: an inspection that began reasonCheckWait after the death settles them, even
// if it fails or is slow. For an unconfirmed end, whatever its reason, the wait is unconfirmedWait.
//
// asOf is when the last inspection began; zero for none. It is the present time if no inspection can
// proceed. settled is true if any end was settled: handlers then get OnContainerEnded, and others a PodSync
// if the end changed.
func (r *reconciler) settle(rec *podRecord, asOf time.Time) (settled bool) {
	rec.due[endCheck] = time.Time{}
	for id, e := range rec.ends {
		s := rec.statuses[id]
		if e.restarted || !hasExited(s) {
			continue
		}
		if !s.EndUnknown { // otherwise, FinishedAt is only when the runtime noticed
			e.endedBy = later(e.endedBy, s.FinishedAt)
		}
		final := e.since.Add(reasonCheckWait)
		if s.Unconfirmed {
			final = e.since.Add(unconfirmedWait)
		}
		switch {
		case e.settled:
		case !asOf.Before(final), s.Reason == exitCompleted && !s.Unconfirmed:
			e.settled, settled = true, true
			r.metrics.countExit(s)
		case rec.due[endCheck].IsZero() || final.Before(rec.due[endCheck]):
			rec.due[endCheck] = final
		}
	}
	return settled
}

// forgetEnds counts and deletes the ends of containers that are not needed, and deletes their statuses.
func (r *reconciler) forgetEnds(rec *podRecord) {
	if len(rec.ends) == 0 {
		return
	}
	needed := rec.needed()
	for id, e := range rec.ends {
		if !needed[id] {
			r.countGone(rec, id, e)
			delete(rec.ends, id)
			delete(rec.statuses, id)
		}
	}
}

// countGone counts a death that no further status can explain, by its last known status.
// Subscribers take the removal or next start of the container as the end; see handlerEvents.
func (r *reconciler) countGone(rec *podRecord, id string, e *end) {
	if !e.settled && !e.restarted {
		e.settled = true
		r.metrics.countExit(rec.statuses[id])
	}
}

// exitStatus makes the status of an exit event from the last status or, if nil, from the listed container.
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

// listedStatus makes a status of a listed container.
func listedStatus(c *Container) *Status {
	return &Status{
		ID: c.ID, Name: c.Name, Image: c.Image, ImageID: c.ImageID, ImageRef: c.ImageRef, State: c.State,
		ImageRuntimeHandler: c.ImageRuntimeHandler, Hash: c.Hash, CreatedAt: time.Unix(0, c.CreatedAt),
		RestartCount: int(c.Attempt), Labels: c.Labels, Annotations: c.Annotations, PodSandboxID: c.PodSandboxID,
	}
}

// startedStatus returns the status of a container that has started again, made from its previous one.
func startedStatus(ended *Status, state State) *Status {
	s := *ended
	s.State, s.StartedAt, s.FinishedAt = state, time.Time{}, time.Time{}
	s.ExitCode, s.Reason, s.Message, s.Unconfirmed, s.EndUnknown = 0, "", "", false, false
	return &s
}

// withStatuses returns a list of statuses, or a copy with some replaced by container ID.
func withStatuses(list []*Status, others map[string]*Status) []*Status {
	list, _ = rewrite(list, func(s *Status) *Status { return cmp.Or(others[s.ID.ID], s) })
	return list
}

// earlyExits are the newest exits of containers that no record has, by ID. Exits come from events
// and from statuses. They are kept until a full list that began at least a period later succeeds and is
// believed of every pod.
type earlyExits map[string]earlyExit

type earlyExit struct {
	ContainerExit
	at time.Time // when the exit was reported
}

// add adds an exit. Above maxHints, which only a faulty runtime reaches, it relies on later lists.
func (s earlyExits) add(e ContainerExit, at time.Time) {
	known, is := s[e.ContainerID]
	if is && e.FinishedAt.After(known.FinishedAt) || !is && len(s) < maxHints {
		s[e.ContainerID] = earlyExit{e, at}
	}
}

// adopt moves the exits of newly listed containers into the record.
func (s earlyExits) adopt(rec *podRecord, listed *Pod) {
	if len(s) == 0 {
		return
	}
	for _, c := range listed.containers() {
		if e, is := s[c.ID.ID]; is {
			delete(s, c.ID.ID)
			if last := rec.statuses[c.ID.ID]; !hasExited(last) || last.EndUnknown {
				rec.setStatus(exitStatus(last, c, e.ContainerExit, e.at))
			}
		}
	}
}

// forget deletes the exits reported before a time.
func (s earlyExits) forget(before time.Time) {
	for id, e := range s {
		if e.at.Before(before) {
			delete(s, id)
		}
	}
}
