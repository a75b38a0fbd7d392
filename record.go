package pleg

import (
	"time"

	"github.com/kubepleg/pleg/internal/core/schedule"
)

// podRecord is all that is known of one pod, and all work that is open for it.
type podRecord struct {
	// Entry contains UID. Only the schedule writes its other fields: List and Inspection are the calls
	// in flight, and StuckSince is when the oldest unanswered slow inspection began.
	schedule.Entry

	// The next fields describe the pod in the lists. If a pod list and a full list overlap, the list
	// that completes first is believed, and the other is dropped. A pod's pod lists never overlap.

	// pod is the pod in the newest believed list, without bad data; nil if absent. Exits that a status or
	// an exit event has shown are applied to pod, unless the list shows another life of the container.
	pod *Pod
	// listed is the pod in the newest believed list; a state is unknown if a status shows a restart.
	listed *Pod
	// at is the stamp of the newest believed list.
	at stamp
	// overlapTo is the number of the newest list that had begun when the believed list completed.
	// Lists with this number or a lower number are dropped.
	overlapTo uint64
	// listedIn is the number of the newest full list that contains the pod.
	listedIn uint64

	// The next fields describe the containers, by ID; see exits.go.

	// statuses contains the newest status of each container, from an inspection, an exit event, an early exit or a restart
	// in a list. A status that storeUnlessOutdated dropped counts too. An exit stays until another life is shown.
	statuses map[string]*Status
	// ends contains the deaths of containers. An end is deleted once its container is in no list, not
	// published, not in an inspection in flight, and not in change.initial.
	ends map[string]*end

	// The next fields are work to do. The method wants passes it to the schedule.

	// request merges the open requests for a list.
	request request
	// due contains the time of each kind of later work; zero for none.
	due [dueKinds]time.Time
	// attempts is the number of consecutive retries that were scheduled.
	attempts int
	// inspect is true if an inspection must begin. A status that agrees with the list clears it, too.
	inspect bool
	// inspecting is the state for which the inspection in flight was begun. It is nil once the result is handled.
	inspecting *snapshot
	// lastInspected is when the last successful inspection began. Ignored results do not count.
	lastInspected time.Time
	// inspectedFor is the stamp of the list for which the last stored inspection was made. A Relist
	// waits for a failing pod or a PodSync until this stamp is new enough; see awaits.
	inspectedFor stamp

	// The next fields describe the cached status.

	// stale is true until the cache holds a status that agrees with the record, or an error that
	// inspectionFailed stored. The field observed matters only while stale is true: the list with that
	// stamp, and no newer list, then confirms the cached state.
	stale    bool
	observed stamp
	// failures is the number of errors stored since the last good status. Superseded inspections count too.
	failures int
	// failedCall is the failed call of the last inspection, which may have timed out; see CallError.
	failedCall *RuntimeCall

	// The next fields describe the updates for subscribers.

	// published is the pod in the newest update, or nil. Each subscription compares updates itself.
	published *Pod
	// change is the newest change that a list has shown. It is nil once the result of an inspection
	// for it is published. The pointer identifies the change: an inspection that began for another
	// change is superseded. An exit that no list shows is not a change.
	change *change
	// sync is true if RequestReinspect requested a PodSync with the result of the next inspection.
	sync bool
}

// change is a change of a record, shown by a list.
type change struct {
	stamp stamp // of the list that showed the change
	cause Cause
	// initial is the pod in its first list if no full list had succeeded before, else nil. The next
	// change keeps initial until it is published. Events that lead from no pod to initial are Initial.
	initial *Pod
}

// snapshot is the part of a record that is inspected and then published. inspectionFailed updates
// it to the present record, even while a slow inspection is in flight.
type snapshot struct {
	pod    *Pod // with the exits that became known later
	at     stamp
	change *change
	sync   bool
	// publishedEarly is true if the exit of a new container was published, with an error, before this slow
	// inspection returned. The result is then ignored. If the inspection succeeds, another inspection follows.
	publishedEarly bool
	// inspectAgain is true if endCheck came due during the inspection: another one must follow.
	inspectAgain bool
}

// dueKind is a kind of work in podRecord.due; see expire.
type dueKind int

const (
	// followUp requests one more list after a hint was answered, because events may be ahead of lists.
	followUp dueKind = iota
	// retry requests a list after an inspection that failed or contradicted the record, or while an
	// exit is unconfirmed or not listed. If the list changes nothing and the problem remains, the pod is
	// inspected. endBackOff clears the retry.
	retry
	// listFailed tries an open request again after a pod list failed. The next believed list clears it.
	listFailed
	// endCheck requests the inspection that settles an end; see settle.
	endCheck
	dueKinds
)

// wants returns the work for the pod, and when it is due. The schedule reads nothing else of rec.
func (rec *podRecord) wants() (w schedule.Wants) {
	if rec.due[listFailed].IsZero() {
		w.List, w.Cause = rec.request.newest, string(rec.request.cause)
	}
	w.Inspect = rec.inspect && rec.pod != nil
	for _, at := range rec.due {
		if !at.IsZero() && (w.Wake.IsZero() || at.Before(w.Wake)) {
			w.Wake = at
		}
	}
	return w
}

// isOpen reports whether the pod has a call in flight, an open request or a time that is due later.
func (rec *podRecord) isOpen() bool {
	return rec.List != nil || rec.Inspection != nil || rec.request.newest > 0 || !rec.wants().Wake.IsZero()
}

// observedAt returns the stamp of the newest list that confirms the cached status.
func (rec *podRecord) observedAt() stamp {
	if rec.stale {
		return rec.observed
	}
	return rec.at
}

// makeStale records that the cached status may not agree with the record. The list with the stamp
// "at" confirms the status, and no newer list does: a list that shows an exit must not confirm the
// status of the running container. If the pod is stale already, makeStale does nothing.
func (rec *podRecord) makeStale(at stamp) {
	if !rec.stale {
		rec.stale, rec.observed = true, at
	}
}

// endBackOff cancels the retry and resets its back-off.
func (rec *podRecord) endBackOff() { rec.attempts, rec.due[retry] = 0, time.Time{} }

type stamp = schedule.Stamp

// end contains the known facts about the death of a container.
type end struct {
	// endedBy is a time by which the newest death, or at least the previous death, had occurred; zero
	// if unknown. An exit event that is not later than endedBy reports nothing new.
	endedBy time.Time
	// since is when the reconciler learned of the death. If the end was unconfirmed or unknown, the
	// first status with the end sets since again.
	since time.Time
	// settled is true once the end was reported as settled; see settle.
	settled bool
	// initial is true if change.initial has shown the exit. The death is then not counted.
	initial bool
	// restarted is true if the container was restarted. Only endedBy, earlier and shown then have a meaning.
	restarted bool
	// shown is the last published status with the end; nil if there was none.
	shown *Status
	// earlier is the last status before a list showed the container running again. It is nil once
	// another status has shown whether the container has another life.
	earlier *Status
}

// request holds the coalesced requests for a list of a pod, or of all pods.
type request struct {
	// newest and oldest are the numbers of the first lists that answer the newest and the oldest request; 0 for none.
	newest, oldest uint64
	cause          Cause // of the request that was added when there was no other; empty for none
	// hinted is true if a request was an event of the runtime; see followUp.
	hinted bool
}

// add adds a request. Only lists that begin later, with numbers above last, answer the request. A
// list in flight may have read the pod before the event that led to the request.
func (r *request) add(last uint64, cause Cause, hinted bool) {
	if r.newest == 0 {
		r.cause, r.oldest = cause, last+1
	}
	r.newest = last + 1
	r.hinted = r.hinted || hinted
}

// answer removes the requests that the list with this number answers. answered is true if the list
// answers any request. hinted is true if no request is left and r.hinted was true.
func (r *request) answer(number uint64) (answered, hinted bool) {
	switch {
	case r.newest == 0 || r.oldest > number:
		return false, false
	case r.newest > number: // hints come faster than lists: no list answers the newest hint, but each list answers some
		r.oldest = r.newest
		return true, false
	}
	hinted = r.hinted
	*r = request{}
	return true, hinted
}
