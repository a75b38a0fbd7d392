package pleg

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// This file merges lists (withExits), statuses (takeStatus) and exit events (takeExit) into the
// records. A container only goes forward: from created to running to exited. If a status or an exit
// event has shown an exit, later answers that show the container running are outdated and
// corrected. If only a list has shown the exit, a status that shows the container running is not
// corrected; see contradicted and rules 20 to 22 of docs/CONTRACT.md.
//
// A container that the runtime starts again with the same ID has another life. A list shows another
// life if an exited container runs again; a status, if StartedAt changes. The start and the end of
// a life are not compared: a runtime that is short of CPU may record the start after the end.
//
// Unconfirmed: only an exit event has shown the exit. EndUnknown: the runtime does not know the
// exit code, and reports 255 "Unknown". With another reason, 255 may be the program's code, or a
// substitute until the runtime knows the code. It counts as known, but another code replaces it.

const (
	// unsureCode is the exit code that runtimes report if they do not know it.
	unsureCode = 255
	// reasonCheckWait is how long after a death the pod is inspected again. containerd 2 reports a
	// reason such as OOMKilled 10 to 500 ms late.
	reasonCheckWait = 2 * time.Second
	// unconfirmedWait is the time from a death until an unconfirmed or unknown end is settled.
	unconfirmedWait = 10 * time.Second
)

// givesWay reports whether a known end with this code replaces the end in s.
func givesWay(s *Status, code int) bool {
	return !knows(s) || s.ExitCode == unsureCode && code != unsureCode
}

// isOver reports whether the newest status of a container shows it exited.
func (rec *podRecord) isOver(id string) bool { return hasExited(rec.statuses[id]) }

// withExits returns the pod with the exits in rec.statuses, because an outdated list may still show
// an exited container running. It skips exits that rec.listed shows: a container that runs after
// its exit was restarted. So the method compare must call withExits before it replaces rec.listed.
func (rec *podRecord) withExits(pod *Pod) *Pod {
	before := finder(rec.listed.containers())
	return withExited(pod, func(id string) bool {
		return hasExited(rec.statuses[id]) && !isExited(before(id))
	})
}

// withExited is withState with the state exited.
func withExited(pod *Pod, exited func(id string) bool) *Pod {
	return withState(pod, ContainerStateExited, exited)
}

// withState returns pod, or a copy with the given state in the containers selected by the callback.
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

// awaitsExits reports whether the record contains an exit that is unconfirmed, or that no list shows yet.
func (rec *podRecord) awaitsExits() bool {
	listed := finder(rec.listed.containers())
	for _, c := range rec.pod.containers() {
		s := rec.statuses[c.ID.ID]
		if isExited(c) && hasExited(s) && (s.Unconfirmed || !isExited(listed(c.ID.ID))) {
			return true
		}
	}
	return false
}

// takeExit applies an exit event to a container. It returns true if the record has changed.
func (r *reconciler) takeExit(rec *podRecord, c *Container, e ContainerExit) (news bool) {
	id := c.ID.ID
	last, ended := rec.statuses[id], rec.ends[id]
	// A runtime may report the exit of an earlier life again. An exit without a time is never later than endedBy.
	isOld := ended != nil && !ended.endedBy.IsZero() && !e.FinishedAt.After(ended.endedBy)
	if isOld || !givesWay(last, e.ExitCode) {
		return false
	}
	rec.setStatus(exitStatus(last, c, e, r.sched.Now))
	if pod := rec.withExits(rec.pod); pod != rec.pod {
		rec.pod = pod
		r.died(rec, id)
		r.metrics.countTransitions(1, CauseExit)
	}
	if rec.inspecting != nil { // its result must not publish a start after the death
		rec.inspecting.pod = withExited(rec.inspecting.pod, rec.isOver)
	}
	return true
}

// takeStatus merges a status with the known exits: it corrects the status, and records exits that
// only the status shows. anotherLife is true if the status shows a restart of an exited container
// that no list has shown yet.
func (r *reconciler) takeStatus(rec *podRecord, status *PodStatus) (anotherLife bool) {
	var corrected map[string]*Status // by container ID; set if the record knows more about the end
	pod := finder(rec.pod.containers())
	for _, s := range status.ContainerStatuses {
		id := s.ID.ID
		last, ended, c := rec.statuses[id], rec.ends[id], pod(id)
		if ended != nil && ended.earlier != nil && !s.StartedAt.IsZero() {
			was, counted := ended.earlier, ended.settled || !ended.restarted
			if s.StartedAt.Equal(was.StartedAt) && (hasExited(was) || hasExited(s)) { // no new life: the list was wrong
				*ended, last = end{endedBy: ended.endedBy, since: r.sched.Now, settled: counted, initial: ended.initial}, was
				rec.setStatus(last)
				r.metrics.countTransitions(oneIf[int](c != nil && !isExited(c)), CausePeriod)
				c = nil
			} else if ended.restarted {
				r.countGone(rec, id, ended)
			}
			ended.earlier = nil
		}
		switch {
		case hasExited(s):
			if ended != nil && ended.restarted && !s.FinishedAt.After(ended.endedBy) {
				break // the status is of an earlier life, so it disagrees with the list
			}
			if knows(last) && givesWay(s, last.ExitCode) && !startedAgain(last, s) {
				full := *s
				full.ExitCode, full.FinishedAt, full.EndUnknown = last.ExitCode, last.FinishedAt, false
				full.Reason, full.Message = last.Reason, last.Message
				s = &full
				put(&corrected, id, s)
			}
			if ended != nil && knows(s) && hasExited(last) && (last.Unconfirmed || last.EndUnknown) {
				ended.since = r.sched.Now // the runtime's own reason may still follow
			}
			rec.setStatus(s)
			if c != nil && !isExited(c) {
				r.metrics.countTransitions(1, CausePeriod)
				r.died(rec, id)
			}
		case !hasExited(last), c != nil && !isExited(c): // no exit is known, or a list has shown another life
			// If the end of the previous life is unknown, that life ended before this life started.
			if last != nil && (ended == nil || ended.restarted) && !last.StartedAt.IsZero() && startedAgain(last, s) {
				put(&rec.ends, id, &end{endedBy: s.StartedAt, restarted: true})
			}
			rec.setStatus(s)
		case startedAgain(last, s) || ended != nil && ended.settled && last.StartedAt.IsZero() && last.Unconfirmed &&
			s.StartedAt.After(last.FinishedAt.Add(unconfirmedWait)): // only an exit event has shown the earlier life
			rec.setStatus(s)
			rec.listed = withState(rec.listed, ContainerStateUnknown, func(other string) bool { return other == id })
			anotherLife = true // the next list now differs from rec.listed, so it is compared
		default:
			if last.Unconfirmed && s.State == ContainerStateRunning { // keep the exit; s is newer in all other fields
				started := last.StartedAt
				last = exitStatus(s, nil, ContainerExit{ExitCode: last.ExitCode, FinishedAt: last.FinishedAt}, last.FinishedAt)
				if s.StartedAt.After(last.FinishedAt) { // perhaps the start of another life
					last.StartedAt = started
				}
				rec.setStatus(last)
			}
			put(&corrected, id, last)
		}
	}
	rec.pod = rec.withExits(rec.pod)
	status.ContainerStatuses = withStatuses(status.ContainerStatuses, corrected)
	status.ActiveContainerStatuses = withStatuses(status.ActiveContainerStatuses, corrected)
	rec.inspecting.pod = withExited(rec.inspecting.pod, rec.isOver)
	r.forgetStatuses(rec, status.ContainerStatuses)
	return anotherLife
}

// startedAgain reports whether the statuses last and s show two lives of the container. It returns
// false if last comes from an exit event alone, because the start of that life is unknown.
func startedAgain(last, s *Status) bool {
	return !s.StartedAt.IsZero() && !s.StartedAt.Equal(last.StartedAt) && !(last.StartedAt.IsZero() && last.Unconfirmed)
}

func (rec *podRecord) setStatus(s *Status) { put(&rec.statuses, s.ID.ID, s) }

// forgetStatuses deletes the status of each container that is not in needed, statuses or rec.ends.
// A known exit moves to earlyExits, because a list that began earlier may still show the container.
func (r *reconciler) forgetStatuses(rec *podRecord, statuses []*Status) {
	if len(rec.statuses) <= len(statuses) {
		return
	}
	needed := rec.needed()
	for _, s := range statuses {
		needed[s.ID.ID] = true
	}
	for _, id := range slices.Sorted(maps.Keys(rec.statuses)) {
		s := rec.statuses[id]
		if needed[id] || rec.ends[id] != nil {
			continue
		}
		delete(rec.statuses, id)
		if knows(s) {
			exit := ContainerExit{PodUID: rec.UID, ContainerID: id, ExitCode: s.ExitCode, FinishedAt: s.FinishedAt}
			r.records.earlyExits.add(exit, r.sched.Now)
		}
	}
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
	for _, c := range itemsOf(rec.pod, rec.published, inspecting, initial) {
		needed[c.ID.ID] = true
	}
	return needed
}

// noteTransitions records the deaths and restarts that a list shows. began is when the list began.
// existed is true if the pod is in the first full list, or in an earlier pod list. Its exited
// containers died before the generator listed anything, so their ends are settled.
func (r *reconciler) noteTransitions(rec *podRecord, transitions []transition, began time.Time, existed bool) {
	for _, t := range transitions {
		id := t.container.ID.ID
		switch s, e := rec.statuses[id], rec.ends[id]; {
		case t.sandbox || t.kind == ContainerRemoved:
		case t.kind == ContainerDied && existed && isExited(find(rec.listed.containers(), id)):
			put(&rec.ends, id, &end{since: r.sched.Now, initial: true})
		case t.kind == ContainerDied:
			r.died(rec, id)
		case t.kind == ContainerStarted:
			if e != nil {
				if s == nil || s.StartedAt.IsZero() { // no later status can disprove the restart
					r.countGone(rec, id, e)
				}
				e.restarted, e.earlier = true, s
				if e.endedBy.IsZero() { // an end before this list belongs to the earlier life
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
	if e == nil {
		e = &end{restarted: true}
		put(&rec.ends, id, e)
	}
	if !e.restarted { // the death is recorded already: since then, the container was only unknown
		return
	}
	r.countGone(rec, id, e)
	// If the restart was not published, the last two deaths are one for subscribers, settled once.
	settled := e.settled && isExited(find(rec.published.containers(), id))
	*e = end{endedBy: e.endedBy, since: r.sched.Now, settled: settled, earlier: e.earlier}
}

// settle settles the ends of a pod and counts them. A status with a known end settles the end if
// the reason is Completed or the end is initial. Any other reason may change, so an inspection that
// began reasonCheckWait after the death settles the end, even if the inspection fails or is slow.
// An unknown or unconfirmed end is settled after unconfirmedWait. If a status shows it later, one
// more inspection looks for the reason.
//
// asOf is when the last inspection began; zero if there was none. If no inspection can proceed,
// asOf is the present time. settled is true if any end was settled. Handle then calls
// OnContainerEnded. Other subscribers are sent a PodSync if the end changed.
func (r *reconciler) settle(rec *podRecord, asOf time.Time) (settled bool) {
	rec.due[endCheck] = time.Time{}
	for id, e := range rec.ends {
		s := rec.statuses[id]
		if e.restarted || !hasExited(s) && !e.initial {
			continue
		}
		if knows(s) && (s.Unconfirmed || s.ExitCode != unsureCode) { // otherwise, FinishedAt may come after the end
			e.endedBy = later(e.endedBy, s.FinishedAt)
		}
		confirmed, check := knows(s) && !s.Unconfirmed, e.since.Add(reasonCheckWait)
		hasReason := confirmed && (s.Reason == exitCompleted || !rec.lastInspected.Before(check))
		final := check
		if !confirmed {
			final = e.since.Add(unconfirmedWait)
		}
		if !e.settled && (hasReason || confirmed && e.initial || !asOf.Before(final)) {
			settled = true
			r.countEnd(e, s)
		}
		switch {
		case hasReason || e.settled && !confirmed:
		case e.settled && !check.After(r.sched.Now): // a failed inspection is repeated anyway
			rec.inspect = rec.inspect || rec.failures == 0
		default:
			if !knows(s) && check.After(r.sched.Now) { // by then, the runtime may know the end
				final = check
			}
			if due := &rec.due[endCheck]; due.IsZero() || final.Before(*due) {
				*due = final
			}
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
	maps.DeleteFunc(rec.ends, func(id string, e *end) bool {
		if !needed[id] {
			r.countGone(rec, id, e)
			delete(rec.statuses, id)
		}
		return !needed[id]
	})
}

// countGone counts the death of a container that is gone or was started again, by the last known
// status. Handler.events sends the end at the removal or the restart of the container.
func (r *reconciler) countGone(rec *podRecord, id string, e *end) {
	s := rec.statuses[id]
	if e.restarted {
		s = e.earlier
	}
	if !hasExited(s) && e.shown != nil {
		s = e.shown
	}
	if !e.settled && (!e.restarted || s != nil) {
		r.countEnd(e, s)
	}
}

func (r *reconciler) countEnd(e *end, s *Status) {
	e.settled = true
	if !e.initial {
		r.metrics.countExit(s)
	}
}

// exitStatus applies an exit event to the last status or, if it is nil, to the listed container c.
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

// startedStatus makes the status of a restarted container from the status of its ended life.
func startedStatus(ended *Status, state State) *Status {
	s := *ended
	s.State, s.StartedAt, s.FinishedAt = state, time.Time{}, time.Time{}
	s.ExitCode, s.Reason, s.Message, s.Unconfirmed, s.EndUnknown = 0, "", "", false, false
	return &s
}

// earlyExits contains the newest exits, from events and statuses, of containers in no record, by
// container ID. An exit is kept until two full lists that began more than a period later have
// succeeded. By then, every pod has a believed list at least as new as the first of these two.
type earlyExits map[string]earlyExit

type earlyExit struct {
	ContainerExit
	at time.Time // when the exit was reported
}

// isOf reports whether the exit may come from a container of the pod.
func (e ContainerExit) isOf(uid types.UID) bool { return e.PodUID == "" || e.PodUID == uid }

// add adds an exit unless there are maxHints exits already. Later lists show a dropped exit.
func (s earlyExits) add(e ContainerExit, at time.Time) {
	known, is := s[e.ContainerID]
	if is && e.FinishedAt.After(known.FinishedAt) || !is && len(s) < maxHints {
		s[e.ContainerID] = earlyExit{e, at}
	}
}

// adopt moves the early exits of newly listed containers into the record.
func (s earlyExits) adopt(rec *podRecord, listed *Pod) {
	for _, c := range listed.containers() {
		if e, is := s[c.ID.ID]; is && e.isOf(rec.UID) {
			delete(s, c.ID.ID)
			if last := rec.statuses[c.ID.ID]; givesWay(last, e.ExitCode) {
				rec.setStatus(exitStatus(last, c, e.ContainerExit, e.at))
			}
		}
	}
}

// forget deletes the exits reported before a time.
func (s earlyExits) forget(before time.Time) {
	maps.DeleteFunc(s, func(_ string, e earlyExit) bool { return e.at.Before(before) })
}
