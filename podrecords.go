package pleg

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/schedule"
)

// podRecord is everything that is known of one pod, and everything that is still to be done for it.
type podRecord struct {
	// Entry has UID and, written by the schedule only, the calls in flight, List and Inspection, and StuckSince,
	// when the oldest unanswered slow inspection began.
	schedule.Entry

	// The pod in the lists. If two lists of the pod overlap, the first to complete is believed and the
	// other is dropped. A pod has at most one pod list at a time, so one of the two is a full list.

	// pod is the pod in the newest believed list, without bad data; nil if absent. Containers that have
	// exited, by a status or an exit event, are exited in it, unless the list shows another life.
	pod *Pod
	// listed is the same pod as the list showed it. A container that a status shows restarted is unknown.
	listed *Pod
	// at is the stamp of the newest believed list.
	at stamp
	// overlapTo is the number of the newest list that had begun when the believed one completed. Lists up
	// to it are dropped.
	overlapTo uint64
	// listedIn is the number of the newest full list that has the pod.
	listedIn uint64

	// The containers, by ID; see exits.go.

	// statuses has what an inspection, an exit event, an early exit or a restart in a list showed last of each
	// container, even if storeUnlessOutdated dropped that status. An exit stays until another life is shown.
	statuses map[string]*Status
	// ends has the deaths of containers. An end is deleted once the container is neither listed nor
	// published, and neither an inspection in flight nor change.initial has it.
	ends map[string]*end

	// Work to do; see wants.

	// request merges the open requests for a list.
	request request
	// due has the time of each kind of later work; zero for none.
	due [dueKinds]time.Time
	// attempts is how many retries in a row were scheduled.
	attempts int
	// inspect is true if an inspection must begin. Its begin clears it, and so does a status that agrees.
	inspect bool
	// inspecting is what the inspection in flight was begun for. It is nil once the result is handled.
	inspecting *snapshot
	// lastInspected is when the last successful inspection began. Ignored results do not count.
	lastInspected time.Time
	// inspectedFor is what at was when the last inspection with a stored result began. A Relist waits for a
	// failing pod or a PodSync until this stamp is new enough; see awaits.
	inspectedFor stamp

	// The cache.

	// stale is true until the cache has a status that agrees with the record, or an error that
	// inspectionFailed stored. Until then, the cache has the pod as of the list stamped observed, whatever
	// newer lists show. observed has no meaning while stale is false.
	stale    bool
	observed stamp
	// failures is how many errors were stored since the last good status. Superseded inspections count too.
	failures int

	// The subscribers.

	// published is the pod in the newest update; nil if absent or none. Each subscriber compares updates by itself.
	published *Pod
	// change is the newest change that a list has shown, until the result of an inspection for it is published;
	// nil for none. Its pointer identifies it: an inspection that began for another change is superseded. An
	// exit that no list shows is not a change.
	change *change
	// sync is true if RequestReinspect asked for a PodSync with the result of the next inspection.
	sync bool
}

// change is a change of a record, shown by a list.
type change struct {
	stamp stamp // of the list
	cause Cause
	// initial is the pod as its first list showed it, if that was the first full list or a pod list before that;
	// else nil, as for later changes. Events from nothing to it are Initial.
	initial *Pod
}

// snapshot is the part of a record that an inspection is made for and that is published with its result.
// inspectionFailed replaces it by what it publishes, even while a slow inspection is still in flight.
type snapshot struct {
	pod    *Pod // with the exits that became known since
	at     stamp
	change *change
	sync   bool
	// publishedEarly is true if the exit of a new container was published, with an error, before this
	// slow inspection returned. Its result is then ignored; if it succeeds, another inspection follows.
	publishedEarly bool
	// inspectAgain is true if endCheck came due meanwhile: another inspection follows, even if the status agrees.
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

// wants returns what the schedule should do for the pod, and when. The schedule reads nothing else of the record.
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

// observedAt returns the stamp of the list by which the cached status counts as observed.
func (rec *podRecord) observedAt() stamp {
	if rec.stale {
		return rec.observed
	}
	return rec.at
}

// makeStale records that the cached status may not agree with the record. The cache then has the pod as of
// the list stamped at. If the pod is stale already, makeStale does nothing.
func (rec *podRecord) makeStale(at stamp) {
	if !rec.stale {
		rec.stale, rec.observed = true, at
	}
}

// endBackOff cancels the retry and resets its back-off.
func (rec *podRecord) endBackOff() { rec.attempts, rec.due[retry] = 0, time.Time{} }

// isHealthy reports whether the cache has a good status that agrees with the record.
func (rec *podRecord) isHealthy() bool { return rec.pod != nil && !rec.stale && rec.failures == 0 }

// isFailing reports whether the pod's last inspection failed, or is stuck.
func (rec *podRecord) isFailing() bool {
	return rec.pod != nil && (rec.failures > 0 || !rec.StuckSince.IsZero())
}

// podRecords has the records of all pods. It knows no clock, lock, log, channel or metric.
type podRecords struct {
	// byUID has the present pods. It also has absent pods with something open, and pods that the full
	// list in flight may have read before they went.
	byUID map[types.UID]*podRecord
	// owners has the pods of the containers and sandboxes in podRecord.pod and podRecord.published, by their IDs.
	owners map[string]types.UID
	// full is the stamp of the newest full list that succeeded.
	full stamp
	// pods is how many pods are present.
	pods int
	// earlyExits are the exits of containers that no record has.
	earlyExits earlyExits
}

func newPodRecords() *podRecords {
	return &podRecords{byUID: make(map[types.UID]*podRecord), earlyExits: make(earlyExits)}
}

// getOrAdd returns the record of a pod. In a new one, the pod is absent as of the newest full list.
func (r *podRecords) getOrAdd(uid types.UID) *podRecord {
	rec := r.byUID[uid]
	if rec == nil {
		rec = &podRecord{Entry: schedule.Entry{UID: uid}, at: r.full}
		r.byUID[uid] = rec
	}
	return rec
}

// present returns the records of present pods, sorted by UID.
func (r *podRecords) present() []*podRecord {
	recs := make([]*podRecord, 0, len(r.byUID))
	for _, rec := range r.byUID {
		if rec.pod != nil {
			recs = append(recs, rec)
		}
	}
	slices.SortFunc(recs, func(a, b *podRecord) int { return cmp.Compare(a.UID, b.UID) })
	return recs
}

// comparison is the result of comparing a list with the record of a pod.
type comparison struct {
	rec *podRecord
	// dropped is true if the list overlaps with the believed one. Only rec and before are set then.
	dropped bool
	// before is the stamp of the list believed until now.
	before stamp
	// changed is true if the list has changed the record. transitions are the changes of its containers.
	changed     bool
	transitions []transition
	// mayConfirmExit is true if the list differs from the previous one and the pod awaits exits. Usually, the
	// list is the first to show the exit. The pod is then stale and is inspected, as after a change.
	mayConfirmExit bool
}

// compare applies a list of the pod to its record; a nil pod is absent. begun is the number of the
// newest list that has begun.
func (r *podRecords) compare(rec *podRecord, raw *Pod, at stamp, begun uint64, report reportBadData) comparison {
	found := comparison{rec: rec, before: rec.at}
	if at.Number <= rec.overlapTo {
		found.dropped = true
		return found
	}
	rec.at, rec.overlapTo = at, begun
	listed := raw
	if !rec.isUnchangedIn(raw) {
		listed = withoutBadData(raw, report)
	}
	if rec.isUnchangedIn(listed) {
		pod := listed
		if rec.pod != rec.listed { // an exit is applied to it
			pod = rec.withExits(listed)
		}
		rec.pod, rec.listed = pod, listed
		return found
	}
	r.earlyExits.adopt(rec, listed)
	pod := rec.withExits(listed)
	found.transitions = appendTransitions(nil, rec.pod, pod)
	found.changed = len(found.transitions) > 0 || (pod == nil) != (rec.pod == nil)
	r.pods += oneIf[int](pod != nil) - oneIf[int](rec.pod != nil)
	was := rec.pod
	rec.pod, rec.listed = pod, listed
	r.own(rec, was)
	found.mayConfirmExit = rec.awaitsExits()
	return found
}

// own updates owners for the pod after its field pod or published was was.
func (r *podRecords) own(rec *podRecord, was *Pod) {
	for _, c := range itemsOf(was) {
		delete(r.owners, c.ID.ID)
	}
	for _, c := range itemsOf(rec.pod, rec.published) {
		put(&r.owners, c.ID.ID, rec.UID)
	}
}

// compareAll applies a full list to all records. It returns the comparisons that need attention,
// sorted by UID: it omits pods that are merely confirmed and have nothing open.
func (r *podRecords) compareAll(pods []*Pod, at stamp, begun uint64, report reportBadData) (all []comparison) {
	previous := r.full
	take := func(rec *podRecord, listed *Pod) {
		found := r.compare(rec, listed, at, begun, report)
		wasDropped := previous.After(found.before) // the full list before this one
		news := found.changed || found.dropped || found.mayConfirmExit || wasDropped
		unfinished := rec.inspecting != nil || rec.inspect || rec.attempts > 0 || rec.failures > 0
		if news || rec.stale || unfinished || rec.request.newest > 0 {
			all = append(all, found)
		}
	}
	shown := 0
	for _, pod := range pods {
		switch {
		case pod == nil:
			report(badNil, "pod")
			continue
		case pod.ID == "":
			report(badNoID, "pod "+pod.Namespace+"/"+pod.Name)
			continue
		}
		rec := r.getOrAdd(pod.ID)
		if rec.listedIn == at.Number {
			report(badDuplicate, "pod "+string(pod.ID))
			continue
		}
		rec.listedIn = at.Number
		shown++
		take(rec, pod)
	}
	if shown != len(r.byUID) {
		for _, rec := range r.byUID {
			if rec.listedIn != at.Number {
				take(rec, nil)
			}
		}
	}
	r.full = at
	slices.SortFunc(all, func(a, b comparison) int { return cmp.Compare(a.rec.UID, b.rec.UID) })
	return all
}

// isUnchangedIn reports whether a list shows the same containers and sandboxes as the last, in the
// same order and states. It compares nothing else: labels and annotations may be large.
func (rec *podRecord) isUnchangedIn(raw *Pod) bool {
	return rec.listed != nil && raw != nil && (raw == rec.listed ||
		slices.EqualFunc(rec.listed.Containers, raw.Containers, looksSame) &&
			slices.EqualFunc(rec.listed.Sandboxes, raw.Sandboxes, looksSame))
}

func looksSame(known, listed *Container) bool {
	return listed != nil && known.State == listed.State && known.ID.ID == listed.ID.ID
}

type stamp = schedule.Stamp

func oneIf[T int | float64](is bool) T {
	if is {
		return 1
	}
	return 0
}
