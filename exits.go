package pleg

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// This file merges every list (withExits), status (takeStatus) and exit event (takeExit) into the records. A container
// only goes forward: from created to running to exited. Once a status or an exit event has shown an exit, a list or
// status that shows the container running is outdated, and is corrected. If only a list has shown the exit, a status
// that shows the container running is stored unchanged, and disagrees with the list. See rules 20 to 22 of
// docs/CONTRACT.md.
//
// A runtime may start a container again with the same ID. The container then has another life. A list shows another
// life if the container runs after it had exited; a status shows it with another StartedAt. The start and the end of
// one life are not compared, because a runtime that is short of CPU may record the start later than the end.
//
// A status is Unconfirmed if only an exit event has shown the exit. It has EndUnknown if the runtime does not know the
// exit code, and reports 255 "Unknown". Some runtimes report 255 with another reason until they know the code. A
// program may also exit with 255. That end counts as known, but another code replaces it.

const (
	// unsureCode is the exit code that runtimes report if they do not know it.
	unsureCode = 255
	// reasonCheckWait is how long after a death the pod is inspected again. containerd 2 reports a
	// reason such as OOMKilled 10 to 500 ms late.
	reasonCheckWait = 2 * time.Second
	// unconfirmedWait is how long after a death an unconfirmed end may stay unsettled.
	unconfirmedWait = 10 * time.Second
)

// givesWay reports whether a known end with this code replaces the end in s.
func givesWay(s *Status, code int) bool {
	return !knows(s) || s.ExitCode == unsureCode && code != unsureCode
}

// isOver reports whether the newest status of a container shows it exited.
func (rec *podRecord) isOver(id string) bool { return hasExited(rec.statuses[id]) }

// withExits returns the pod with the exits in rec.statuses, because an outdated list may still show an
// exited container running. A container that rec.listed shows exited stays unchanged: if the new list shows
// it running, it was started again. Therefore, compare must call withExits before it replaces rec.listed.
func (rec *podRecord) withExits(pod *Pod) *Pod {
	if pod == nil || len(rec.statuses) == 0 {
		return pod
	}
	before := finder(rec.listed.containers())
	return withExited(pod, func(id string) bool {
		return hasExited(rec.statuses[id]) && !isExited(before(id))
	})
}

// withExited sets the containers that match to exited. It copies the pod if it changes.
func withExited(pod *Pod, exited func(id string) bool) *Pod {
	return withState(pod, ContainerStateExited, exited)
}

// withState sets the state of the containers that match. It copies the pod if it changes.
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

// takeExit applies an exit event to a container of the record. news is false if the event changes nothing.
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
	if rec.inspecting != nil { // otherwise its result might publish a start after the death
		rec.inspecting.pod = withExited(rec.inspecting.pod, rec.isOver)
	}
	return true
}

// takeStatus merges a status with the known exits: it corrects the status, and records exits that
// only the status shows. anotherLife is true if the status, but no list yet, shows that an exited
// container was started again.
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
			// If the end of the previous life is unknown, the start of this life is the latest time for it.
			if last != nil && (ended == nil || ended.restarted) && !last.StartedAt.IsZero() && startedAgain(last, s) {
				put(&rec.ends, id, &end{endedBy: s.StartedAt, restarted: true})
			}
			rec.setStatus(s)
		case startedAgain(last, s) || ended != nil && ended.settled && last.StartedAt.IsZero() && last.Unconfirmed &&
			s.StartedAt.After(last.FinishedAt.Add(unconfirmedWait)): // no status has shown the life that ended
			rec.setStatus(s)
			rec.listed = withState(rec.listed, ContainerStateUnknown, func(other string) bool { return other == id })
			anotherLife = true // the next list now differs from rec.listed, so it is compared
		default:
			if last.Unconfirmed && s.State == ContainerStateRunning { // all other fields of the status are newer
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
	if len(corrected) > 0 {
		status.ContainerStatuses = withStatuses(status.ContainerStatuses, corrected)
		status.ActiveContainerStatuses = withStatuses(status.ActiveContainerStatuses, corrected)
	}
	rec.inspecting.pod = withExited(rec.inspecting.pod, rec.isOver)
	r.forgetStatuses(rec, status.ContainerStatuses)
	return anotherLife
}

// startedAgain reports whether s shows another life of the container than last. If last comes from
// an exit event alone, the start of its life is unknown, and startedAgain returns false.
func startedAgain(last, s *Status) bool {
	return !s.StartedAt.IsZero() && !s.StartedAt.Equal(last.StartedAt) && !(last.StartedAt.IsZero() && last.Unconfirmed)
}

// setStatus stores the newest status of a container.
func (rec *podRecord) setStatus(s *Status) { put(&rec.statuses, s.ID.ID, s) }

// forgetStatuses deletes the record's statuses of containers that are not needed and are not in statuses or rec.ends.
// A deleted exit becomes an early exit, because a list that began earlier may still show the container.
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
	if !e.restarted { // the death is known: the container was only unknown in between
		return
	}
	r.countGone(rec, id, e)
	// A subscriber that was not sent the restart sees the two deaths as one death, which is settled only once.
	settled := e.settled && isExited(find(rec.published.containers(), id))
	*e = end{endedBy: e.endedBy, since: r.sched.Now, settled: settled, earlier: e.earlier}
}

// settle settles the ends of a pod and counts them. The first status with a known end settles it if the reason is
// Completed, or if the end is initial. Other reasons may change. An inspection that began reasonCheckWait after the
// death settles them, even if the inspection fails or is slow. An unknown or unconfirmed end is settled after
// unconfirmedWait. If a status shows such an end later, one more inspection looks for its reason.
//
// asOf is when the last inspection began; zero if there was none. It is the present time if no inspection can proceed.
// settled is true if any end was settled. Handle then calls OnContainerEnded. Other subscribers are sent a PodSync if
// the end changed.
func (r *reconciler) settle(rec *podRecord, asOf time.Time) (settled bool) {
	rec.due[endCheck] = time.Time{}
	for id, e := range rec.ends {
		s := rec.statuses[id]
		if e.restarted || !hasExited(s) && !e.initial {
			continue
		}
		if knows(s) && (s.Unconfirmed || s.ExitCode != unsureCode) { // otherwise, FinishedAt is when the runtime noticed it
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

// countGone counts a death by its last known status, because the container is gone or was started again, and no later
// status can explain the death. Handler.events sends the end at the removal or the next start of the container.
func (r *reconciler) countGone(rec *podRecord, id string, e *end) {
	s := rec.statuses[id]
	if e.restarted {
		s = e.earlier
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

// exitStatus applies an exit event to the last status or, if last is nil, to the status of the listed container.
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

// startedStatus makes the status of a container that has started again from its previous status.
func startedStatus(ended *Status, state State) *Status {
	s := *ended
	s.State, s.StartedAt, s.FinishedAt = state, time.Time{}, time.Time{}
	s.ExitCode, s.Reason, s.Message, s.Unconfirmed, s.EndUnknown = 0, "", "", false, false
	return &s
}

// earlyExits contains the newest exits of containers that are in no record, by container ID. Exits come
// from events and from statuses. An exit is kept until two full lists that began more than a period later
// have succeeded. By then, a list that began since the first of the two was believed for every pod.
type earlyExits map[string]earlyExit

type earlyExit struct {
	ContainerExit
	at time.Time // when the exit was reported
}

// isOf reports whether the exit may come from a container of the pod.
func (e ContainerExit) isOf(uid types.UID) bool { return e.PodUID == "" || e.PodUID == uid }

// add adds an exit. It drops exits above maxHints, which only a faulty runtime reaches. Later lists show those exits.
func (s earlyExits) add(e ContainerExit, at time.Time) {
	known, is := s[e.ContainerID]
	if is && e.FinishedAt.After(known.FinishedAt) || !is && len(s) < maxHints {
		s[e.ContainerID] = earlyExit{e, at}
	}
}

// adopt moves the early exits of newly listed containers into the record.
func (s earlyExits) adopt(rec *podRecord, listed *Pod) {
	if len(s) == 0 {
		return
	}
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
