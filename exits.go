package pleg

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Every list (withExits), status (takeStatus) and exit event (takeExit) passes through this file on its way
// into the records. A container only goes forward: from created to running to exited. Once a status or an
// exit event has shown an exit, a list or status that shows the container running is out of date. If only a
// list has shown the exit, a running status contradicts that list. See rules 20 to 22 of docs/CONTRACT.md.
//
// A runtime may start a container again with the same ID: the container then has another life. Lists show
// another life as running after exited, statuses as another StartedAt. The start and the end of one life
// are not compared: a runtime short of CPU may stamp the start later.

// end is what is known about the death of a container.
type end struct {
	// endedBy is a time by which the known ends have happened; zero if unknown. An exit that is not after it
	// is one of these, or of an earlier life.
	endedBy time.Time
	// since is when the reconciler learned of the death or, after an exit event, when a status confirmed it.
	since time.Time
	// settled is true if no further status of this end is awaited; see settle. Ends that the first full list
	// shows are settled, but not counted.
	settled bool
	// restarted is true if the container has started again since.
	restarted bool
}

func hasExited(s *Status) bool { return s != nil && s.State == ContainerStateExited }

func isExited(c *Container) bool { return plegStateOf(c) == plegExited }

// withExits returns a listed pod, or a copy with the exits that newer statuses show. A container
// that was exited in the previous list and is running now was started again, and stays running.
// Call withExits before replacing rec.listed.
func (rec *podRecord) withExits(listed *Pod) *Pod {
	if listed == nil || len(rec.statuses) == 0 {
		return listed
	}
	before := finder(rec.listed.containers())
	return withExited(listed, func(id string) bool {
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
	last, known := rec.statuses[id], rec.ends[id]
	isEarlier := known != nil && !known.endedBy.IsZero() && !e.FinishedAt.After(known.endedBy) // or without a time
	if isEarlier || hasExited(last) && !last.EndUnknown {
		return false
	}
	rec.setStatus(exitStatus(last, c, e, r.sched.Now))
	isDead := func(other string) bool { return other == id }
	if pod := withExited(rec.pod, isDead); pod != rec.pod {
		rec.pod = pod
		r.died(rec, id)
		r.metrics.countTransitions(1, CauseExit)
	}
	if rec.inspecting != nil { // keep the snapshot of the inspection in flight up to date
		rec.inspecting.pod = withExited(rec.inspecting.pod, isDead)
	}
	return true
}

// takeStatus merges a status with the known exits: it corrects the status, and records exits that only
// the status shows. contradicts is true if the status shows no exit of a container, a list shows it exited,
// and its exit is unconfirmed. restarted is true if a container that had exited has another StartedAt.
func (r *reconciler) takeStatus(rec *podRecord, status *PodStatus) (contradicts, restarted bool) {
	var corrected map[string]*Status // by ID, where the record knows more about the end
	deaths := 0                      // that only the status shows
	pod, listed := finder(rec.pod.containers()), finder(rec.listed.containers())
	for _, s := range status.ContainerStatuses {
		id := s.ID.ID
		last, known, c := rec.statuses[id], rec.ends[id], pod(id)
		switch {
		case hasExited(s):
			if known != nil && known.restarted && !s.FinishedAt.After(known.endedBy) {
				break // this status is of an earlier life
			}
			if s.EndUnknown && hasExited(last) && !last.EndUnknown && !startedAgain(last, s) { // the exit is known already
				confirmed := *s
				confirmed.ExitCode, confirmed.FinishedAt, confirmed.EndUnknown = last.ExitCode, last.FinishedAt, false
				confirmed.Reason, confirmed.Message = last.Reason, last.Message
				s = &confirmed
				put(&corrected, id, s)
			}
			if known != nil && last != nil && last.Unconfirmed {
				known.since = r.sched.Now // the runtime's own reason may still follow
			}
			rec.setStatus(s)
			if c != nil && !isExited(c) {
				deaths++
				r.died(rec, id)
			}
		case !hasExited(last), c != nil && !isExited(c): // no known exit, or a list has shown another life
			// The end of the previous life was never observed.
			if last != nil && (known == nil || known.restarted) && !last.StartedAt.IsZero() && startedAgain(last, s) {
				put(&rec.ends, id, &end{endedBy: s.StartedAt, restarted: true})
			}
			rec.setStatus(s)
		case startedAgain(last, s):
			rec.setStatus(s)
			rec.listed = withState(rec.listed, ContainerStateUnknown, func(other string) bool { return other == id })
			restarted = true // rec.listed now differs from the next list, which is therefore compared
		default:
			if last.Unconfirmed && s.State == ContainerStateRunning { // the status is newer in all other fields
				last = exitStatus(s, nil, ContainerExit{ExitCode: last.ExitCode, FinishedAt: last.FinishedAt}, last.FinishedAt)
				rec.setStatus(last)
			}
			put(&corrected, id, last)
			contradicts = contradicts || last.Unconfirmed && isExited(listed(id))
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
	return contradicts, restarted
}

// startedAgain reports whether s is of another life than ended. It is false if no inspection has
// shown when the ended life started.
func startedAgain(ended, s *Status) bool {
	return !s.StartedAt.IsZero() && !s.StartedAt.Equal(ended.StartedAt) && !(ended.StartedAt.IsZero() && ended.Unconfirmed)
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
	dead := rec.Inspection != nil && rec.Inspection.TimedOut
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

// noteTransitions records the deaths and restarts that a list shows. began is when the list began.
// existed is true for a pod in the first full list or a pod list before it: its exited containers died before,
// so their ends are settled.
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
// asOf is when the last inspection began, zero for none, or the present time if none can proceed. settled
// is true if any end was settled: handlers then get OnContainerEnded, and others a PodSync if it changed.
func (r *reconciler) settle(rec *podRecord, asOf time.Time) (settled bool) {
	rec.due[endCheck] = time.Time{}
	for id, e := range rec.ends {
		s := rec.statuses[id]
		if e.restarted || !hasExited(s) {
			continue
		}
		if !s.EndUnknown { // its FinishedAt is when the runtime noticed
			e.endedBy = later(e.endedBy, s.FinishedAt)
		}
		late := e.since.Add(reasonCheckWait)
		if s.Unconfirmed {
			late = e.since.Add(unconfirmedWait)
		}
		switch {
		case e.settled:
		case !asOf.Before(late), s.Reason == exitCompleted && !s.Unconfirmed:
			e.settled, settled = true, true
			r.metrics.countExit(s)
		case rec.due[endCheck].IsZero() || late.Before(rec.due[endCheck]):
			rec.due[endCheck] = late
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
// and from statuses. They are kept until a full list succeeds that began at least a period later and was
// dropped for no pod.
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
