package pleg

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/schedule"
)

// podRecord is all that is known of one pod, and all that is open of it.
type podRecord struct {
	// Pod is what the schedule knows: UID, the calls in flight (List and Inspection, nil for none),
	// and HungSince. Only the schedule writes it.
	schedule.Pod

	// What the lists have shown. Lists that are believed never overlap: of two that do, the
	// first to complete is believed, and the other is dropped. One single-pod list of a pod runs at
	// a time, so one of the two is a full list.

	// pod is what the newest believed list showed, without bad data, and with every container that is
	// known to have exited shown as exited; nil if the pod is absent.
	pod *Pod
	// listed is that pod as the list showed it, without the exits that are known otherwise.
	listed *Pod
	// at is the stamp of that list.
	at stamp
	// overlapTo is the number of the newest list that had begun when that list completed: the
	// lists up to it are dropped.
	overlapTo uint64
	// listedIn is the number of the newest full list that showed the pod.
	listedIn uint64

	// What is known of the containers; see exits.go.

	// seen has the newest status of each container, by ID.
	seen map[string]*Status
	// ends has the deaths of containers, by ID; those that the first full list shows dead are settled
	// from the start. An entry goes once the container is neither listed nor published, and no
	// inspection in flight can show it.
	ends map[string]*end

	// What is asked of the runtime; see wants.

	// request is the open request for a list.
	request request
	// due is when something else is asked, by what it is; zero for never.
	due [dueKinds]time.Time
	// attempts counts the waits for a retry in a row.
	attempts int
	// inspect is true when an inspection is to begin.
	inspect bool
	// inspecting is what the inspection in flight is made for; nil if none is in flight.
	inspecting *snapshot
	// lastInspected is when an inspection of the pod succeeded last.
	lastInspected time.Time

	// What the cache has.

	// stale is true until the cache has a status that agrees with the record, or an error of
	// inspecting it. Until then it counts as observed by the list stamped observed.
	stale    bool
	observed stamp
	// err is the error that the cache holds, for the health report; failures counts the errors stored
	// since the last good status.
	err      error
	failures int

	// What the subscribers have.

	// published is the pod as it was published last; nil if it is absent there.
	published *Pod
	// change is the newest change of the record; nil when it is published. An inspection that is
	// made for another change, compared by identity, is superseded.
	change *change
	// sync is true when a PodSync is due with the result of the next inspection.
	sync bool
}

// change is a change of a record that a list showed.
type change struct {
	stamp stamp // of the list
	cause Cause
	// initial is the pod as it was listed until the first full list, if that is not published yet.
	initial *Pod
}

// snapshot is what an inspection is made for, and what is published with its result.
type snapshot struct {
	pod    *Pod  // the record's, as it was then and with the exits that are known since
	at     stamp // the record's, as it was then
	change *change
	sync   bool
	// publishedEarly is true if the pod was published without the inspection, because that was slow.
	// Its result is not used; if it succeeds, the pod is inspected again.
	publishedEarly bool
	// again is true if the pod is to be inspected again, whatever this inspection returns.
	again bool
}

// dueKind is what happens at a time. See expire for what it does.
type dueKind int

const (
	// followUp asks for one more list after the answer to a hint, because events run ahead of lists.
	followUp dueKind = iota
	// retry asks for a list after an inspection that failed or contradicted the record, or while an
	// exit awaits its confirmation. endBackOff clears it.
	retry
	// listFailed ends the wait of an open request after a single-pod list that failed. A list of the
	// pod that is believed clears it.
	listFailed
	// reasonCheck asks for an inspection after a death, because runtimes report late why a container
	// died. gone clears it.
	reasonCheck
	dueKinds
)

// request is what somebody wants a list for. The open requests for a pod are one.
type request struct {
	// A list numbered newest or higher answers the whole request, one from oldest on only the earlier
	// part. Both are 0 if no request is open.
	newest, oldest uint64
	cause          Cause // of the first
	// hinted is true if an event of the runtime is among them: the list that answers all is followed
	// by one more, which is no hint.
	hinted bool
}

// add adds a request that every list after number last answers.
func (r *request) add(last uint64, cause Cause, hinted bool) {
	if r.newest == 0 {
		r.cause, r.oldest = cause, last+1
	}
	r.newest = last + 1
	r.hinted = r.hinted || hinted
}

// answer notes that the list of a number answers what was requested before it began. It reports
// whether that was anything, and whether nothing is left and an event was among it.
func (r *request) answer(number uint64) (answered, hinted bool) {
	switch {
	case r.newest == 0 || r.oldest > number:
		return false, false
	case r.newest > number:
		r.oldest = r.newest
		return true, false
	}
	hinted = r.hinted
	*r = request{}
	return true, hinted
}

// wants derives from the facts of the pod what the schedule is to do for it, and when.
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

// isOpen reports whether something of the pod is still to come: a call, a request, a time.
func (rec *podRecord) isOpen() bool {
	return rec.List != nil || rec.Inspection != nil || rec.request.newest > 0 || !rec.wants().Wake.IsZero()
}

// observedAt returns the stamp of the list by which readers observe the pod.
func (rec *podRecord) observedAt() stamp {
	if rec.stale {
		return rec.observed
	}
	return rec.at
}

// makeStale notes that the record is newer than what the cache has, or contradicted by a status. The
// cache stays as fresh as the list stamped at.
func (rec *podRecord) makeStale(at stamp) {
	if !rec.stale {
		rec.stale, rec.observed = true, at
	}
}

// endBackOff has the next back-off begin with its shortest wait.
func (rec *podRecord) endBackOff() { rec.attempts, rec.due[retry] = 0, time.Time{} }

// isHealthy reports whether the cache has a good status of the record.
func (rec *podRecord) isHealthy() bool { return rec.pod != nil && !rec.stale && rec.failures == 0 }

// isFailing reports whether inspections of the pod fail or hang.
func (rec *podRecord) isFailing() bool {
	return rec.pod != nil && (rec.failures > 0 || !rec.HungSince.IsZero())
}

// podRecords has the records of all pods. It knows no clock, lock, log, channel or metric.
type podRecords struct {
	// byUID has the pods that are present, and absent ones that something is open of, or that
	// the full list in flight may not know to be absent.
	byUID map[types.UID]*podRecord
	// full is the stamp of the newest full list.
	full stamp
	// pods is how many are present.
	pods int
	// strangers are the exits of containers that no list has shown: from exit events, and from
	// statuses of containers that are listed no more.
	strangers strangers
}

func newPodRecords() *podRecords {
	return &podRecords{byUID: make(map[types.UID]*podRecord), strangers: make(strangers)}
}

// getOrAdd returns the record of a pod. A new one says that the pod is absent, as the newest
// full list showed.
func (r *podRecords) getOrAdd(uid types.UID) *podRecord {
	rec := r.byUID[uid]
	if rec == nil {
		rec = &podRecord{Pod: schedule.Pod{UID: uid}, at: r.full}
		r.byUID[uid] = rec
	}
	return rec
}

// present returns the records of the pods that are present, by UID.
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

// comparison is what a list says about a pod.
type comparison struct {
	rec *podRecord
	// dropped is true if the list overlapped with the one that is believed. Nothing else is
	// said then.
	dropped bool
	// before is the stamp of the list that was believed before.
	before stamp
	// changed is true if the record is another now, transitions what happened to containers.
	changed     bool
	transitions []transition
	// mayConfirmExit is true if the list shows something new while an exit awaits its confirmation.
	mayConfirmExit bool
}

// compare takes in what a list says about a pod; a nil pod says that it is absent. begun is the
// number of the newest list that has begun.
func (r *podRecords) compare(rec *podRecord, raw *Pod, at stamp, begun uint64, report reportBadData) comparison {
	found := comparison{rec: rec, before: rec.at}
	if at.Number <= rec.overlapTo {
		found.dropped = true
		return found
	}
	rec.at, rec.overlapTo = at, begun
	listed := raw
	if !rec.showsAgain(raw) {
		listed = withSandboxesBeingMade(rec.pod, withoutBadData(raw, report))
	}
	if rec.showsAgain(listed) {
		if rec.pod == rec.listed {
			rec.pod = listed
		} else {
			rec.pod = rec.withExits(listed)
		}
		rec.listed = listed
		return found
	}
	r.strangers.adopt(rec, listed)
	pod := rec.withExits(listed)
	found.transitions = appendTransitions(nil, rec.pod, pod)
	found.changed = len(found.transitions) > 0 || (pod == nil) != (rec.pod == nil)
	r.pods += count(pod) - count(rec.pod)
	rec.pod, rec.listed = pod, listed
	found.mayConfirmExit = rec.awaitsExits()
	return found
}

// compareAll takes in a full list and returns what it says about each pod, by UID, without the
// pods of which it simply confirms the record, and nothing is open.
func (r *podRecords) compareAll(pods []*Pod, at stamp, begun uint64, report reportBadData) (all []comparison) {
	previous := r.full
	take := func(rec *podRecord, listed *Pod) {
		found := r.compare(rec, listed, at, begun, report)
		news := found.changed || found.dropped || found.mayConfirmExit || previous.After(found.before)
		inspected := rec.inspecting != nil || rec.inspect || rec.attempts > 0 || rec.failures > 0
		if news || rec.stale || inspected || rec.request.newest > 0 {
			all = append(all, found)
		}
	}
	shown := 0
	for _, pod := range pods {
		switch {
		case pod == nil:
			report(badPodNil, "")
			continue
		case pod.ID == "":
			report(badPodNoUID, pod.Namespace+"/"+pod.Name)
			continue
		}
		rec := r.getOrAdd(pod.ID)
		if rec.listedIn == at.Number {
			report(badPodDuplicate, string(pod.ID))
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

// showsAgain reports whether a pod is listed as before: with the same containers and sandboxes, in
// the same order and states. Nothing else is compared, labels and annotations
// least of all: they may be of any size.
func (rec *podRecord) showsAgain(raw *Pod) bool {
	return rec.listed != nil && raw != nil && (raw == rec.listed ||
		slices.EqualFunc(rec.listed.Containers, raw.Containers, looksSame) &&
			slices.EqualFunc(rec.listed.Sandboxes, raw.Sandboxes, looksSame))
}

func looksSame(known, listed *Container) bool {
	return listed != nil && known.State == listed.State && known.ID.ID == listed.ID.ID
}

// stamp orders lists by the moment at which they began.
type stamp = schedule.Stamp

// count returns 1 for a pod, and 0 for an absent one.
func count(pod *Pod) int {
	if pod == nil {
		return 0
	}
	return 1
}
