package pleg

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/core/schedule"
)

// request requests a new list of the pod. If the runtime cannot list one pod, the full list of the
// next period answers. The method requestPod would request a full list at once.
func (r *reconciler) request(rec *podRecord, cause Cause) {
	rec.request.add(r.sched.Last.Number, cause, false)
}

// requestPod requests a list of the pod with a UID. It requests a full list if the UID is empty, if the
// runtime cannot list one pod, or if too many unknown pods were requested.
func (r *reconciler) requestPod(uid types.UID, cause Cause) {
	tooMany := r.records.byUID[uid] == nil && len(r.records.byUID)-r.records.pods >= maxHints
	if uid != "" && !tooMany {
		rec := r.records.getOrAdd(uid)
		rec.request.add(r.sched.Last.Number, cause, cause == CauseHint)
		r.plan(rec)
	}
	if uid == "" || tooMany || !r.cfg.ListsPods {
		r.all.add(r.sched.Last.Number, cause, false)
	}
}

// retryLater requests a list of the pod after a back-off, which starts at one period. It does
// nothing if a retry is scheduled already.
func (r *reconciler) retryLater(rec *podRecord) {
	if rec.due[retry].IsZero() {
		rec.attempts++
		rec.due[retry] = r.sched.Now.Add(r.backOff.Wait(rec.attempts))
	}
}

// plan updates the schedule of the pod. It deletes the record of an absent pod without open work, unless the newest
// full list was dropped for it. The record also stays while a full list that may still show the pod is in flight.
func (r *reconciler) plan(rec *podRecord) {
	r.sched.Plan(&rec.Entry, rec.wants())
	fullListCounts := r.sched.FullList != nil && !r.sched.FullList.TimedOut
	if rec.pod == nil && !rec.isOpen() && !fullListCounts && !r.isHeld(rec) && r.records.byUID[rec.UID] == rec {
		delete(r.records.byUID, rec.UID)
		r.cache.Delete(rec.UID)
	}
}

// planRequested plans the pods with open requests, and the absent pods that were kept for a full
// list, after that full list has ended or is slow.
func (r *reconciler) planRequested() {
	for _, uid := range sortedKeys(r.records.byUID) {
		if rec := r.records.byUID[uid]; rec.pod == nil || rec.request.newest > 0 {
			r.plan(rec)
		}
	}
}

// relists are the full lists that are not yet complete, and the callers of Relist that wait for them.
type relists struct {
	// waiting are callers of Relist that wait for a full list to begin. attached are callers of the
	// full list in flight. incomplete are successful lists that still wait for pods.
	waiting, attached []*relistCaller
	incomplete        []*succeededList
}

// succeededList is a full list that has succeeded and may still wait for pods.
type succeededList struct {
	stamp   stamp
	began   time.Time
	callers []*relistCaller
	// awaited is one of the pods that the list waits for; nil for none.
	awaited *podRecord
}

// awaits reports whether the list l waits for a pod: until l or a newer list confirms the pod's
// state in the cache. If l has callers of Relist, l also waits until a failing pod, or a pod with a
// due PodSync, was inspected for l or a newer list.
func (l *succeededList) awaits(rec *podRecord) bool {
	owed := rec.failures > 0 || rec.sync || rec.inspecting != nil && rec.inspecting.sync
	return l.stamp.After(rec.observedAt()) || len(l.callers) > 0 && owed && l.stamp.After(rec.inspectedFor)
}

// fail removes the callers, sets their error, and returns them.
func fail(callers *[]*relistCaller, err error) (failed []*relistCaller) {
	failed, *callers = *callers, nil
	for _, c := range failed {
		c.err = err
	}
	return failed
}

// succeeded adds a full list that has succeeded. found must contain all pods that it may wait for.
func (r *relists) succeeded(c *schedule.Call, found []comparison) {
	done := &succeededList{stamp: c.Stamp, began: c.Began, callers: r.attached}
	for _, f := range found {
		if done.awaits(f.rec) {
			done.awaited = f.rec // pods are inspected in this order, so wait for the last
		}
	}
	r.attached, r.incomplete = nil, append(r.incomplete, done)
}

// stillWaits reports whether a list waits for a pod that can proceed. Usually it looks at one pod.
func (r *reconciler) stillWaits(l *succeededList) bool {
	waits := func(rec *podRecord) bool { return l.awaits(rec) && r.sched.Moving(&rec.Entry) }
	if l.awaited != nil && !waits(l.awaited) {
		l.awaited = nil
		for _, rec := range r.records.byUID { // random order: many other pods are done by the next search
			if waits(rec) {
				l.awaited = rec
				break
			}
		}
	}
	return l.awaited != nil
}

// freshen updates cacheEntry.observed and cacheEntry.held.
func (r *reconciler) freshen(rec *podRecord) {
	r.cache.setObserved(rec.UID, rec.observedAt(), r.isHeld(rec))
}

// isHeld reports whether newer full lists do not confirm the cached status: it is stale, or the
// newest full list was dropped for the pod.
func (r *reconciler) isHeld(rec *podRecord) bool { return rec.stale || r.records.full.After(rec.at) }
