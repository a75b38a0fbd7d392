package pleg

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/schedule"
)

// relists are the full lists that callers of Relist wait for, and those whose duration is
// measured.
type relists struct {
	// Set once.

	records *podRecords
	sched   *schedule.Scheduler
	cache   *cacheWriter

	// waiting are the callers whose list is to begin, attached those whose list is in
	// flight.
	waiting, attached []*relistCaller
	// incomplete are the lists that have succeeded and whose pods are not all as fresh as
	// they.
	incomplete []relist
	blocker    *podRecord // the pod that one of these awaited last
}

// relist is a full list that has succeeded.
type relist struct {
	stamp  stamp
	began  time.Time
	caller *relistCaller // nil: only its duration is to be measured
	// What was due when the list succeeded, and a caller waits for: PodSyncs, and that
	// pods are inspected again whose inspection had failed.
	syncs   []dueSync
	retried []*podRecord
}

// dueSync is a PodSync that a relist waits for.
type dueSync struct {
	rec    *podRecord
	number uint64
}

// begin attaches the callers that wait to the list that begins.
func (r *relists) begin() { r.attached, r.waiting = r.waiting, nil }

// stopped has the callers wait for another list.
func (r *relists) stopped() {
	r.waiting = append(r.waiting, r.attached...)
	r.attached = nil
}

// failed returns the callers of the list in flight, which has failed: they have their answer.
func (r *relists) failed() (callers []*relistCaller) {
	callers, r.attached = r.attached, nil
	return callers
}

// giveUp returns the callers that wait for a list to begin: none can.
func (r *relists) giveUp() (callers []*relistCaller) {
	callers, r.waiting = r.waiting, nil
	return callers
}

// succeeded notes that the list in flight has. syncing are the pods with a PodSync that is
// due, failing those whose inspection hangs or has failed.
func (r *relists) succeeded(at stamp, began time.Time, syncing, failing map[types.UID]*podRecord) {
	r.incomplete = append(r.incomplete, relist{stamp: at, began: began})
	if len(r.attached) == 0 {
		return
	}
	due := relist{stamp: at, began: began}
	for _, rec := range syncing {
		due.syncs = append(due.syncs, dueSync{rec, rec.publication.syncsRequested})
	}
	due.retried = slices.AppendSeq(due.retried, maps.Values(failing))
	for _, caller := range r.attached {
		due.caller = caller
		r.incomplete = append(r.incomplete, due)
	}
	r.attached = nil
}

// complete takes away the lists whose pods are all as fresh as they, and calls done with
// each.
func (r *relists) complete(done func(relist)) {
	kept := r.incomplete[:0]
	for _, w := range r.incomplete {
		if r.isIncomplete(w) {
			kept = append(kept, w)
		} else {
			done(w)
		}
	}
	clear(r.incomplete[len(kept):])
	r.incomplete = kept
}

// isIncomplete reports whether some pod is older than a list, or is owed a PodSync. A pod
// of which nothing moves is not waited for.
func (r *relists) isIncomplete(w relist) bool {
	for _, s := range w.syncs {
		if s.rec.publication.syncsDelivered < s.number && r.sched.Moving(s.rec.uid) {
			return true
		}
	}
	for _, rec := range w.retried {
		if rec.failures > 0 && r.sched.InspectionOpen(rec.uid) && r.sched.Moving(rec.uid) {
			return true
		}
	}
	if r.blocker != nil && r.isOlder(r.blocker, w.stamp) {
		return true
	}
	r.blocker = nil
	for _, rec := range r.cache.held {
		if r.isOlder(rec, w.stamp) {
			r.blocker = rec
			return true
		}
	}
	return false
}

func (r *relists) isOlder(rec *podRecord, at stamp) bool {
	return rec.isHeld() && at.After(r.records.observedStamp(rec)) && r.sched.Moving(rec.uid)
}
