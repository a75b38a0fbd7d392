package pleg

import (
	"bytes"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/schedule"
)

// podRecord is one pod as the lists have shown it, and what is known of its status.
//
// Two lists of a pod that overlap may read the runtime in any order. Of the two, the first
// to complete is believed. The second confirms it or, where it differs and began later,
// conflicts with it: then the pod is held until a list of it is believed or confirms the
// record.
type podRecord struct {
	// What the lists have shown. The fields that an idle relist reads come first, in one
	// piece of memory.

	uid   types.UID
	shown shown // by pod
	// listed is the pod as the runtime handed it over, so that the same pointer coming
	// again is known to be no change; nil when the pod is absent.
	listed *Pod
	// overlapTo is the number of the newest list that had begun when a list of the pod
	// was last believed: those up to it overlapped with that one.
	overlapTo uint64
	// shownIn is the number of the last full list that showed the pod.
	shownIn uint64
	// frozenAt is set while lists conflict: a list that began later and overlapped differs from the
	// record, and no list has been believed or has confirmed the record since. It is the newest
	// list that showed the record before that; zero while none conflict.
	frozenAt stamp
	// pod is listed without its bad data, with the sandboxes unknown that are being made, and with
	// the containers exited that are known to have (withExits); the same pointer without any of
	// these.
	pod *Pod
	// exits are the containers that are known to have exited, by ID, whether lists show it or not,
	// and those that are gone and whose end may still be seen.
	exits map[string]exit
	// own is the newest list of this pod alone that showed the record. See
	// podRecords.listedStamp.
	own stamp

	// What the cache has of it.

	// dirty: the cache is not known to hold a status of the record. observed is then
	// how fresh it is; when not dirty it is as fresh as the record.
	dirty    bool
	observed stamp
	// err is the error that stands in the cache, failures how many inspections have
	// failed in a row; nil and 0 for none.
	err      error
	failures int

	// What is in flight, and what the subscribers and the metrics have of it.

	inspection  inspection
	publication publication
}

// markDirty notes that the cache is not known to hold a status of the record, and how fresh
// it is until it does.
func (rec *podRecord) markDirty(at stamp) {
	if !rec.dirty {
		rec.dirty, rec.observed = true, at
	}
}

// isHeld reports whether no full list makes the pod fresher: the cache is not known to hold a
// status of the record, or lists conflict.
func (rec *podRecord) isHeld() bool { return rec.dirty || rec.conflicted() }

// conflicted reports whether lists conflict.
func (rec *podRecord) conflicted() bool { return rec.frozenAt.Number > 0 }

// isHealthy reports whether the cache has a good status of the record, and nothing is known
// that says otherwise.
func (rec *podRecord) isHealthy() bool {
	return rec.pod != nil && !rec.isHeld() && rec.failures == 0
}

// supersedes reports whether the record has changed since an inspection of it began.
func (rec *podRecord) supersedes(insp *inspection) bool {
	return rec.publication.change.stamp.Number != insp.snapshot.change.Number
}

// inspection is the inspection of a pod in flight.
type inspection struct {
	call     *schedule.Call // nil: none is
	snapshot snapshot       // what it is made for, with the exits seen since; published with its status
	stamp    stamp          // of the newest list that showed the record then
}

// dead reports whether the inspection is past its deadline.
func (in *inspection) dead() bool { return in.call != nil && in.call.Dead }

// podRecords has the records of all pods. It knows no clock, lock, log, channel or metric:
// stamps are handed in.
type podRecords struct {
	byUID map[types.UID]*podRecord
	// order has the records in the order of the last full list. A runtime that lists
	// in the same order every time costs no lookup in the map.
	order []*podRecord
	// full is the stamp of the newest full list.
	full stamp
	// present counts the records with a pod; the others remember an absence that a
	// full list in flight may not know of yet.
	present int
	tally   tally
	// ahead are the pods with an exit that no list has shown, strangers such exits of containers
	// that none has shown.
	ahead     map[types.UID]*podRecord
	strangers strangers
	found     []transition // by the newest list
	shown     shown        // scratch
}

// verdict is how a list relates to the record of one pod.
type verdict int

const (
	// ignored: a list that began later has been believed or has confirmed the record.
	ignored verdict = iota
	// conflicting: it differs from a list that it overlapped with.
	conflicting
	// confirmed: it shows what the record shows.
	confirmed
	// changed: it is believed, and shows something else.
	changed
)

// comparison is what compare finds: what a list says about a pod.
type comparison struct {
	rec     *podRecord
	verdict verdict
	// transitions are what happened to the pod's containers if it changed.
	transitions []transition
	// caughtUp: it shows an exit that was known before. statusDue: of one only an exit event has
	// told how.
	caughtUp, statusDue bool
}

func newPodRecords() *podRecords {
	return &podRecords{byUID: make(map[types.UID]*podRecord)}
}

// pod returns the pod as it was listed last, or nil.
func (r *podRecords) pod(uid types.UID) *Pod {
	if rec := r.byUID[uid]; rec != nil {
		return rec.pod
	}
	return nil
}

// getOrAdd returns the record of a pod, a new one if need be.
func (r *podRecords) getOrAdd(uid types.UID) *podRecord {
	rec := r.byUID[uid]
	if rec == nil {
		rec = &podRecord{uid: uid}
		r.byUID[uid] = rec
	}
	return rec
}

// pods returns the pods that are present, by UID.
func (r *podRecords) pods() Pods {
	pods := make(Pods, 0, r.present)
	for _, rec := range r.byUID {
		if rec.pod != nil {
			pods = append(pods, rec.pod)
		}
	}
	slices.SortFunc(pods, func(a, b *Pod) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return pods
}

// listedStamp returns the stamp of the newest list that showed the record.
func (r *podRecords) listedStamp(rec *podRecord) stamp {
	if rec.conflicted() {
		return rec.frozenAt
	}
	return schedule.Later(rec.own, r.full)
}

// observedStamp returns how fresh the cache is about the pod.
func (r *podRecords) observedStamp(rec *podRecord) stamp {
	if rec.dirty {
		return rec.observed
	}
	return r.listedStamp(rec)
}

// compare takes in what one list says about one pod; a nil pod says that it is absent.
// begun is the newest list that has begun.
func (r *podRecords) compare(rec *podRecord, listed *Pod, at, begun stamp, report reportBadData) comparison {
	newest := r.listedStamp(rec)
	found := comparison{rec: rec}
	believed := at.Number > rec.overlapTo
	if !believed && newest.After(at) {
		return found
	}
	shows, pod := rec.asListed(), rec.pod // the second with what is known besides
	if listed == nil || listed != rec.listed {
		shows = withSandboxesBeingMade(rec.pod, withoutBadData(listed, report))
		r.adopt(rec, shows)
		pod = rec.withExits(shows)
	}
	before := len(r.found)
	r.found = appendTransitions(r.found, rec.pod, pod)
	found.transitions = r.found[before:]
	same := len(found.transitions) == 0 && (pod == nil) == (rec.pod == nil)
	if !believed && !same {
		rec.frozenAt = newest
		found.verdict = conflicting
		return found
	}
	rec.frozenAt = stamp{}
	found.caughtUp, found.statusDue = rec.catchUp(shows, believed)
	if believed {
		rec.overlapTo = begun.Number
		r.replace(rec, listed, pod)
	}
	if !same || found.statusDue {
		rec.markDirty(newest)
	}
	found.verdict = confirmed
	if !same {
		found.verdict = changed
	}
	return found
}

// compareOne takes in a list of one pod.
func (r *podRecords) compareOne(rec *podRecord, listed *Pod, at, begun stamp, report reportBadData) comparison {
	r.found = nil
	found := r.compare(rec, listed, at, begun, report)
	if found.verdict == confirmed || found.verdict == changed {
		rec.own = schedule.Later(rec.own, at)
	}
	return found
}

// compareAll takes in a full list and returns what compare finds of each pod, by UID, without
// those that simply confirm a record; into is empty memory for that.
func (r *podRecords) compareAll(pods []*Pod, at, begun stamp, into []comparison, report reportBadData) []comparison {
	r.found = nil
	all, seen, exits := into, 0, len(r.ahead) > 0
	for i, listed := range pods {
		// In a function of its own, this costs a fifth of BenchmarkIdleRelist/pods=1000.
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
		if rec.shownIn == at.Number {
			report(badPodDuplicate, string(rec.uid))
			continue
		}
		rec.shownIn = at.Number
		seen++
		if rec.conflicted() || exits && rec.hasExitsAhead() || rec.listed != listed && !r.shows(listed, rec) {
			all = r.appendCompared(all, rec, listed, at, begun, report)
		} else {
			rec.shownAgain(listed, at, begun)
		}
	}
	clear(r.order[len(pods):])
	r.order = r.order[:len(pods)]
	if seen != len(r.byUID) {
		for _, rec := range r.byUID {
			if rec.shownIn != at.Number {
				all = r.appendCompared(all, rec, nil, at, begun, report)
			}
		}
	}
	slices.SortFunc(all, func(a, b comparison) int {
		return strings.Compare(string(a.rec.uid), string(b.rec.uid))
	})
	r.full = at
	r.strangers.forget(at)
	return all
}

// shows reports whether a listed pod shows what a record does: the same containers in the same
// order and states, and so no bad data either.
func (r *podRecords) shows(listed *Pod, rec *podRecord) bool {
	r.shown = r.shown.of(listed)
	return bytes.Equal(r.shown, rec.shown)
}

// shownAgain is compare for a list that shows a confirmed record unchanged, as nearly all do.
func (rec *podRecord) shownAgain(listed *Pod, at, begun stamp) {
	if at.Number <= rec.overlapTo {
		return
	}
	rec.overlapTo = begun.Number
	if rec.listed != listed {
		rec.listed, rec.pod = listed, listed
	}
}

// appendCompared is compare for compareAll.
func (r *podRecords) appendCompared(
	all []comparison, rec *podRecord, listed *Pod, at, begun stamp, report reportBadData,
) []comparison {
	wasConflicted := rec.conflicted()
	found := r.compare(rec, listed, at, begun, report)
	if found.verdict == ignored || found.verdict == confirmed && !wasConflicted && !found.caughtUp {
		return all
	}
	return append(all, found)
}

// confirms reports whether the last full list, stamped at, confirms the record of a pod.
func (r *podRecords) confirms(uid types.UID, at stamp) bool {
	rec := r.byUID[uid]
	return rec == nil || !rec.conflicted() && !rec.own.After(at)
}

// recordAt returns the record at position i of the last full list if it is that of the
// pod listed there now. One that is absent may have been forgotten since.
func (r *podRecords) recordAt(i int, listed *Pod) *podRecord {
	if i >= len(r.order) || listed == nil {
		return nil
	}
	if rec := r.order[i]; rec != nil && rec.pod != nil && (rec.listed == listed || rec.uid == listed.ID) {
		return rec
	}
	return nil
}

// recordFor returns the record of a listed pod, a new one if need be, or nil for a pod
// without an identity.
func (r *podRecords) recordFor(listed *Pod, report reportBadData) *podRecord {
	switch {
	case listed == nil:
		report(badPodNil, "")
		return nil
	case listed.ID == "":
		report(badPodNoUID, listed.Namespace+"/"+listed.Name)
		return nil
	}
	return r.getOrAdd(listed.ID)
}

// replace makes the record say what a list showed.
func (r *podRecords) replace(rec *podRecord, listed, pod *Pod) {
	switch {
	case rec.pod == nil && pod != nil:
		r.present++
	case rec.pod != nil && pod == nil:
		r.present--
	}
	r.tally.count(rec.pod, -1)
	r.tally.count(pod, 1)
	rec.listed, rec.pod = listed, pod
	rec.shown = rec.shown.of(pod)
}

// forget drops the records of absent pods, but for those that are still open: a list
// in flight may not know of their absence yet.
func (r *podRecords) forget(open func(*podRecord) bool, forgotten func(types.UID)) {
	if len(r.byUID) == r.present {
		return
	}
	for _, rec := range r.byUID {
		r.forgetOne(rec, open, forgotten)
	}
}

// forgetOne is forget for one record.
func (r *podRecords) forgetOne(rec *podRecord, open func(*podRecord) bool, forgotten func(types.UID)) {
	if rec.pod == nil && !open(rec) {
		delete(r.byUID, rec.uid)
		forgotten(rec.uid)
	}
}

// shown is the part of a pod that a relist compares, in one piece of memory: for each
// container and then each sandbox the state, the length of its ID, and the ID. Following
// the pointers of the known pod instead costs more than all else in a relist
// (BenchmarkIdleRelist with list=fresh). What has bad data shows what no record does. It is nil
// for an absent pod.
//
// Nothing else is compared, labels and annotations least of all: they may be of any size.
// That is safe because a list that shows the same hands its pod over all the same (see
// podRecords.compareAll), with the labels and whatever else is new in it.
type shown []byte

// sandboxesFollow stands where a state would.
const sandboxesFollow = 0xff

// of returns what a pod shows, in the same memory if it fits.
func (s shown) of(pod *Pod) shown {
	if pod == nil {
		return nil
	}
	return append(s[:0].add(pod.Containers), sandboxesFollow).add(pod.Sandboxes)
}

func (s shown) add(list []*Container) shown {
	for _, c := range list {
		if c == nil {
			return append(s, badState)
		}
		n := len(c.ID.ID)
		s = append(append(s, stateByte(c.State), byte(n), byte(n>>8), byte(n>>16), byte(n>>24)), c.ID.ID...)
	}
	return s
}

// badState stands for a state that is bad data.
const badState = 0

// stateByte tells the states apart.
func stateByte(s State) byte {
	switch s {
	case ContainerStateCreated:
		return 1
	case ContainerStateRunning:
		return 2
	case ContainerStateExited:
		return 3
	case ContainerStateUnknown:
		return 4
	default:
		return badState
	}
}

// stamp orders lists by the moment at which they began.
type stamp = schedule.Stamp
