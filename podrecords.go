package pleg

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// podRecord is what the newest listing that told of a pod said.
type podRecord struct {
	uid types.UID
	// listed is the pod as the runtime handed it over, so that the same pointer
	// coming again is known to be no change; nil when the pod is absent.
	listed *Pod
	// pod is listed without its bad data; the same pointer when it has none.
	pod *Pod
	// stamp is that of the newest listing of this pod alone. The newest full
	// listing may be newer: see stampOf.
	stamp stamp
	// settled is the newest listing that had begun when the last one of this pod
	// alone landed: those up to it overlapped.
	settled stamp
	// disputed is true while two listings that overlapped differ.
	disputed bool
	// doubts counts the inspections in a row that showed something else than the
	// listing they were made for; recheck is the full listing after which the pod
	// is inspected again though it did not change, zero for none.
	doubts  int
	recheck uint64
	// generation is the last full listing that spoke for the record.
	generation uint64
}

// stamp is when a listing began. Its time is what freshness is measured by, and
// never goes back, so that it is ahead of a clock that does; its number is what listings are ordered by, for two
// may begin at the same time.
type stamp struct {
	time   time.Time
	number uint64
}

func (s stamp) after(other stamp) bool { return s.number > other.number }

// A full listing and one of a single pod may be under way at once, and the
// runtime may answer them in any order: which of the two saw the pod later cannot
// be told. So a listing is believed about a pod only where it began after the
// last one that was believed had landed. Where it did not, and they differ, the
// pod is disputed until one settles it that overlaps with none.

// podRecords is what the listings have said so far. It is a value machine: it
// knows no clock, lock, log, channel or metric, and takes stamps as they come.
type podRecords struct {
	byUID map[types.UID]*podRecord
	// order has the records in the order of the last full listing. A runtime
	// that lists in the same order every time is recognised without a single
	// look into the map.
	order []*podRecord
	// fullStamp is the stamp of the newest full listing, fullSettled the newest
	// listing that had begun when it landed.
	fullStamp   stamp
	fullSettled stamp
	generation  uint64
	// present counts the records with a pod; the others remember an absence that
	// a full listing on its way may not know of yet.
	present int
	tally   tally
	// scratch is reused by every diff.
	scratch []transition
}

// podChange is a pod in which a listing showed a transition, or that it showed
// for the first time or no more; or one that is disputed.
type podChange struct {
	uid types.UID
	old *Pod // nil: it was absent
	new *Pod // nil: it is absent
	// disputed says that what the listing showed is not believed.
	disputed bool
	// rechecked says that nothing has changed, and that the pod is to be inspected
	// all the same.
	rechecked bool
}

func newPodRecords() *podRecords {
	return &podRecords{byUID: make(map[types.UID]*podRecord)}
}

// get returns the pod as it is known to be, or nil.
func (r *podRecords) get(uid types.UID) *Pod {
	if rec := r.byUID[uid]; rec != nil {
		return rec.pod
	}
	return nil
}

// stampOf returns the stamp of the newest listing that spoke for the pod.
func (r *podRecords) stampOf(uid types.UID) stamp {
	if rec := r.byUID[uid]; rec != nil && rec.stamp.after(r.fullStamp) {
		return rec.stamp
	}
	return r.fullStamp
}

// landAll takes in a full listing and appends to changes what it changed, sorted
// by UID. begun is the newest listing that has begun.
func (r *podRecords) landAll(pods []*Pod, stamp, begun stamp, changes []podChange, report reportBadData) []podChange {
	r.generation++
	r.fullStamp, r.fullSettled = stamp, begun
	first := len(changes)
	seen := 0
	for i, listed := range pods {
		rec := r.recordAt(i, listed)
		if rec == nil {
			rec = r.recordFor(listed, report)
		}
		if i == len(r.order) {
			r.order = append(r.order, nil)
		}
		r.order[i] = rec
		if rec == nil {
			continue
		}
		if rec.generation == r.generation {
			report(badPodDuplicate, string(rec.uid))
			continue
		}
		rec.generation = r.generation
		seen++
		if change, changed := r.takeListed(rec, listed, stamp, report); changed {
			changes = append(changes, change)
		}
	}
	clear(r.order[len(pods):])
	r.order = r.order[:len(pods)]
	if seen != len(r.byUID) {
		changes = r.sweep(stamp, changes)
	}
	slices.SortFunc(changes[first:], func(a, b podChange) int {
		return strings.Compare(string(a.uid), string(b.uid))
	})
	return changes
}

// takeListed takes in what a full listing shows of a pod.
func (r *podRecords) takeListed(rec *podRecord, listed *Pod, stamp stamp, report reportBadData) (podChange, bool) {
	switch {
	case rec.listed == listed && !rec.unsettled(r.generation):
		return podChange{}, false
	case !rec.unsettled(r.generation) && showsTheSame(rec.pod, listed):
		rec.listed, rec.pod = listed, listed
		return podChange{}, false
	case !rec.overlaps(stamp):
		return r.put(rec, listed, rec.unsettled(r.generation), report)
	case rec.stamp.after(stamp):
		return podChange{}, false // a look that began later has landed first
	}
	r.scratch = appendTransitions(r.scratch[:0], rec.pod, withoutBadData(listed, report))
	if rec.pod != nil && len(r.scratch) == 0 {
		return podChange{}, false
	}
	return rec.dispute(), true
}

// unsettled tells whether a full listing that shows no change is to lead to an
// inspection all the same.
func (rec *podRecord) unsettled(generation uint64) bool {
	return rec.disputed || rec.recheck != 0 && generation >= rec.recheck
}

// unsettledForLook tells the same of a listing of the pod alone, which somebody
// has a reason for: a recheck does not wait.
func (rec *podRecord) unsettledForLook() bool { return rec.disputed || rec.recheck != 0 }

// maxDoubts bounds the doubling of the listings between two rechecks.
const maxDoubts = 7

// inspected notes whether an inspection agreed with the listing that it was made
// for. If it did not, the pod went on changing in between; should it change back,
// no listing would show it, and the cache would have for ever what was so for a
// moment. So the next listing leads to an inspection in any case; and one twice as
// far away each time, for a runtime whose statuses never agree with its lists.
func (r *podRecords) inspected(uid types.UID, agrees bool) {
	rec := r.byUID[uid]
	switch {
	case rec == nil:
	case agrees:
		rec.doubts, rec.recheck = 0, 0
	case rec.recheck == 0: // or else it is coming already
		rec.recheck = r.generation + 1<<rec.doubts
		rec.doubts = min(rec.doubts+1, maxDoubts)
	}
}

// showsTheSame tells whether a pod has the containers of one without bad data, in
// their order and states, and so no bad data either. It spares a runtime that
// makes its pods anew for every list most of the cost of comparing them.
func showsTheSame(known, listed *Pod) bool {
	return known != nil && sameContainers(known.Containers, listed.Containers) && sameContainers(known.Sandboxes, listed.Sandboxes)
}

func sameContainers(known, listed []*Container) bool {
	if len(known) != len(listed) {
		return false
	}
	for i, c := range listed {
		if c == nil || c.ID.ID != known[i].ID.ID || c.State != known[i].State {
			return false
		}
	}
	return true
}

// overlaps tells whether a listing began before the last one of the pod alone had
// landed.
func (rec *podRecord) overlaps(s stamp) bool { return !s.after(rec.settled) }

func (rec *podRecord) dispute() podChange {
	rec.disputed = true
	return podChange{uid: rec.uid, old: rec.pod, new: rec.pod, disputed: true}
}

// verdict is what becomes of a listing of one pod.
type verdict int

const (
	// believed is one that overlapped with none.
	believed verdict = iota
	// outrun is one that a full listing has outrun which began later.
	outrun
	// overlapped is one that began while a full listing was under way which has
	// landed since: it has to be made again.
	overlapped
)

// landOne takes in a listing of one pod, if it is to be believed; a nil pod says
// that it is absent. begun is the newest listing that has begun.
func (r *podRecords) landOne(uid types.UID, listed *Pod, stamp, begun stamp, report reportBadData) (change podChange, changed bool, v verdict) {
	switch {
	case r.fullStamp.after(stamp):
		return podChange{}, false, outrun
	case !stamp.after(r.fullSettled):
		return podChange{}, false, overlapped
	}
	rec := r.byUID[uid]
	if rec == nil {
		rec = &podRecord{uid: uid}
		r.byUID[uid] = rec
	}
	rec.stamp, rec.settled = stamp, begun
	switch {
	case listed == nil:
		change, changed = r.remove(rec)
	case rec.listed != listed || rec.unsettledForLook():
		change, changed = r.put(rec, listed, rec.unsettledForLook(), report)
	}
	return change, changed, believed
}

// disputed tells whether listings that overlapped differ about a pod.
func (r *podRecords) disputed(uid types.UID) bool {
	rec := r.byUID[uid]
	return rec != nil && rec.disputed
}

// recordAt returns the record at position i of the last full listing if it is that
// of the pod listed there now.
func (r *podRecords) recordAt(i int, listed *Pod) *podRecord {
	if i >= len(r.order) || listed == nil {
		return nil
	}
	if rec := r.order[i]; rec != nil && (rec.listed == listed || rec.uid == listed.ID) {
		return rec
	}
	return nil
}

// recordFor returns the record of a listed pod, a new one if need be, or nil for
// a pod that cannot be told apart.
func (r *podRecords) recordFor(listed *Pod, report reportBadData) *podRecord {
	if listed == nil {
		report(badPodNil, "")
		return nil
	}
	if listed.ID == "" {
		report(badPodNoUID, listed.Namespace+"/"+listed.Name)
		return nil
	}
	rec := r.byUID[listed.ID]
	if rec == nil {
		rec = &podRecord{uid: listed.ID}
		r.byUID[listed.ID] = rec
	}
	return rec
}

// put makes the record say what a listing showed, and tells whether that is a
// change: a transition of a container, a pod that was not there, or anything at all
// of a pod that is unsettled.
func (r *podRecords) put(rec *podRecord, listed *Pod, unsettled bool, report reportBadData) (podChange, bool) {
	old := rec.pod
	rec.listed, rec.pod = listed, withoutBadData(listed, report)
	if old == nil {
		r.present++
	}
	r.tally.subtract(old)
	r.tally.add(rec.pod)
	r.scratch = appendTransitions(r.scratch[:0], old, rec.pod)
	rechecked := old != nil && len(r.scratch) == 0
	if rechecked && !unsettled {
		return podChange{}, false
	}
	rec.disputed, rec.recheck = false, 0
	if !rechecked {
		rec.doubts = 0 // those were about another listing
	}
	return podChange{uid: rec.uid, old: old, new: rec.pod, rechecked: rechecked}, true
}

// remove makes the record say that the pod is absent. The record stays until a
// full listing of a later stamp has landed, so that one of an earlier stamp, still
// on its way, cannot bring the pod back.
func (r *podRecords) remove(rec *podRecord) (podChange, bool) {
	old := rec.pod
	rec.listed, rec.pod = nil, nil
	if old == nil && !rec.disputed {
		return podChange{}, false
	}
	rec.disputed = false
	if old != nil {
		r.present--
		r.tally.subtract(old)
	}
	return podChange{uid: rec.uid, old: old}, true
}

// sweep removes the records that the full listing just landed did not show.
func (r *podRecords) sweep(stamp stamp, changes []podChange) []podChange {
	for uid, rec := range r.byUID {
		switch {
		case rec.generation == r.generation:
		case !rec.overlaps(stamp):
			if change, changed := r.remove(rec); changed {
				changes = append(changes, change)
			}
			delete(r.byUID, uid)
		case rec.pod != nil && !rec.stamp.after(stamp):
			changes = append(changes, rec.dispute())
		}
	}
	return changes
}

// tally counts what runs.
type tally struct {
	// runningPods are the pods that have a running sandbox.
	runningPods int
	// containers are the containers by state, sandboxes not among them.
	created, running, exited, unknown int
}

func (t *tally) add(pod *Pod)      { t.count(pod, 1) }
func (t *tally) subtract(pod *Pod) { t.count(pod, -1) }

func (t *tally) count(pod *Pod, n int) {
	if pod == nil {
		return
	}
	for _, c := range pod.Containers {
		switch c.State {
		case ContainerStateCreated:
			t.created += n
		case ContainerStateRunning:
			t.running += n
		case ContainerStateExited:
			t.exited += n
		case ContainerStateUnknown:
			t.unknown += n
		}
	}
	if slices.ContainsFunc(pod.Sandboxes, func(s *Container) bool { return s.State == ContainerStateRunning }) {
		t.runningPods += n
	}
}
