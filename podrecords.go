package pleg

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/core/schedule"
)

// podRecords contains the records of all pods. It uses no clock, lock, log, channel or metric.
type podRecords struct {
	// byUID contains the present pods. It also contains absent pods with open work, and absent pods
	// that the full list in flight may still show.
	byUID map[types.UID]*podRecord
	// owners maps the ID of each container and sandbox in podRecord.pod and podRecord.published to its pod.
	owners map[string]types.UID
	// full is the stamp of the newest full list that succeeded.
	full stamp
	// pods is how many pods are present.
	pods int
	// earlyExits are the exits of containers that are in no record.
	earlyExits earlyExits
}

// getOrAdd returns the record of a pod. In a new record, the pod is absent as of the newest full list.
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
	// dropped is true if the list overlaps with the believed list. Then only rec and before are set.
	dropped bool
	// before is the stamp of the list that was believed before this list.
	before stamp
	// changed is true if the list has changed the record. transitions are the changes that events report.
	changed     bool
	transitions []transition
	// mayConfirmExit is true if the list differs from the previous list and the pod awaits exits. Usually, the
	// list is the first to show the exit. The pod is then stale and is inspected, as after a change.
	mayConfirmExit bool
}

// compare applies a list to the record of a pod. raw is the pod in the list; nil if absent. begun
// is the number of the newest list that has begun.
func (r *podRecords) compare(rec *podRecord, raw *Pod, at stamp, begun uint64, report reportBadData) comparison {
	found := comparison{rec: rec, before: rec.at}
	// It is unknown when a list read the pod, so of two lists that overlap, the first to complete is
	// believed. The other may be older than the start of a container, and would remove the container.
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
		if rec.pod != rec.listed { // rec.pod contains exits that the list lacks
			pod = rec.withExits(listed)
		}
		rec.pod, rec.listed = pod, listed
		return found
	}
	r.earlyExits.adopt(rec, listed)
	pod := rec.withExits(listed)
	transitions := appendTransitions(nil, rec.pod, pod)
	found.changed = len(transitions) > 0 || (pod == nil) != (rec.pod == nil)
	found.transitions = deliverable(transitions)
	r.pods += oneIf[int](pod != nil) - oneIf[int](rec.pod != nil)
	was := rec.pod
	rec.pod, rec.listed = pod, listed
	r.own(rec, was)
	found.mayConfirmExit = rec.awaitsExits()
	return found
}

// own updates owners after rec.pod or rec.published has changed from the pod "was" to another pod.
func (r *podRecords) own(rec *podRecord, was *Pod) {
	for _, c := range itemsOf(was) {
		delete(r.owners, c.ID.ID)
	}
	for _, c := range itemsOf(rec.pod, rec.published) {
		put(&r.owners, c.ID.ID, rec.UID)
	}
}

// compareAll applies a full list to all records. It returns the comparisons that need attention,
// sorted by UID. It omits pods that the list only confirms and that have no open work.
func (r *podRecords) compareAll(pods []*Pod, at stamp, begun uint64, report reportBadData) (all []comparison) {
	previous := r.full
	take := func(rec *podRecord, listed *Pod) {
		found := r.compare(rec, listed, at, begun, report)
		// If found.before is older than the previous full list, the previous full list was dropped.
		news := found.changed || found.dropped || found.mayConfirmExit || previous.After(found.before)
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

// isUnchangedIn reports whether a list shows the same containers and sandboxes as the last list, in
// the same order and states. It compares nothing else: labels and annotations may be large.
func (rec *podRecord) isUnchangedIn(raw *Pod) bool {
	return rec.listed != nil && raw != nil && (raw == rec.listed ||
		slices.EqualFunc(rec.listed.Containers, raw.Containers, looksSame) &&
			slices.EqualFunc(rec.listed.Sandboxes, raw.Sandboxes, looksSame))
}

func looksSame(known, listed *Container) bool {
	return listed != nil && known.State == listed.State && known.ID.ID == listed.ID.ID
}
