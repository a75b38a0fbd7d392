package pleg

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/schedule"
)

// listInfo says of a list that has completed which it was; what it shows is elsewhere.
type listInfo struct {
	stamp stamp
	cause Cause
}

// beginFullList notes a full list that begins.
func (r *reconciler) beginFullList(c *schedule.Call) {
	r.relists.begin()
	r.answeredBesideList = nil
	if !r.lastFull.IsZero() {
		r.metrics.relistInterval.Observe(c.Began.Sub(r.lastFull).Seconds())
	}
	r.lastFull = c.Began
	if r.out.log.enabled(5) {
		r.out.log.info(5, "Relisting", "cause", c.Cause)
	}
}

// completeFullList takes in the result of a full list. One with an error is a failed list,
// whatever pods it brings: a partial list removes nothing, and answers no request. A dead one
// has failed already: its answer is discarded, for it may be older than an absence that was
// forgotten since.
func (r *reconciler) completeFullList(res *result) {
	c := res.call
	switch {
	case c.Dead:
	case res.stopped:
		r.relists.stopped()
	case res.err != nil:
		r.fullListFailed(res.err, c)
	default:
		r.applyFullList(res.pods, c)
	}
	r.forgetAbsent()
}

// fullListFailed notes a failed full list. It changes nothing.
func (r *reconciler) fullListFailed(err error, c *schedule.Call) {
	r.sched.FullListFailed()
	r.metrics.relistDuration.Observe(r.sched.Since(c.Began).Seconds())
	if r.health.listErr == nil || r.health.listErr.Error() != err.Error() {
		r.out.log.error(err, "Cannot list pods; will try again every period")
	}
	r.health.listErr, r.health.listErrAt = err, r.sched.Now()
	r.out.relisted = append(r.out.relisted, r.relists.failed(err)...)
}

// applyFullList compares a full list with the records, and acts on what it says about each
// pod. One that a caller of Relist waits for has the pods inspected again whose inspection failed,
// or whose status contradicted the record: it answers for them as if they had been requested.
func (r *reconciler) applyFullList(pods []*Pod, c *schedule.Call) {
	if len(r.relists.attached) > 0 {
		for _, pods := range [...]map[types.UID]*podRecord{r.failing.byUID, r.cache.held} {
			for uid, rec := range pods {
				if !rec.own.After(c.Stamp) {
					r.sched.RequestOf(c, uid)
				}
			}
		}
	}
	l := listInfo{stamp: c.Stamp, cause: Cause(c.Cause)}
	r.compared = r.records.compareAll(pods, c.Stamp, r.sched.Last(), r.compared[:0], r.badData)
	for _, found := range r.compared {
		r.apply(found, l)
	}
	clear(r.compared)
	r.publisher.noteFullList(c.Stamp, r.records)
	for _, uid := range r.sched.Requested() { // what is left of the requests
		r.confirmUnchanged(uid, l)
	}
	r.cache.freshenAll(c.Stamp.Time)
	r.sched.FullListed(c)
	r.fullListSucceeded(c)
}

// fullListSucceeded notes a successful full list.
func (r *reconciler) fullListSucceeded(c *schedule.Call) {
	if r.health.listErr != nil {
		r.out.log.info(0, "Relist succeeded again")
		r.out.listsRecovered = true
	}
	r.health.lastList, r.health.listErr = c.Began, nil
	r.relists.succeeded(c.Stamp, c.Began, r.cache.held, r.publisher.syncing, r.failing.byUID)
}

// confirmUnchanged acts on what compareAll does not return: that the list confirms a record.
// It answers the pod's request.
func (r *reconciler) confirmUnchanged(uid types.UID, l listInfo) {
	if !r.records.confirms(uid, l.stamp) {
		return
	}
	asked := r.sched.PodListed(uid, l.stamp)
	if rec := r.records.byUID[uid]; rec != nil {
		r.confirmed(rec, asked)
	}
}

// completePodList takes in the result of a single-pod list.
func (r *reconciler) completePodList(res *result) {
	c := res.call
	switch {
	case c.Dead || res.stopped:
	case errors.Is(res.err, ErrPodNotFound):
		r.applyPodList(nil, c)
	case res.err != nil:
		r.out.log.info(4, "Cannot list pod", "podUID", c.UID, "err", res.err)
		r.sched.PodListFailed(c.UID)
	case res.pod == nil:
		r.badData(badPodNil, string(c.UID))
		r.sched.PodListFailed(c.UID)
	case res.pod.ID != c.UID:
		r.badData(badPodMismatch, fmt.Sprintf("%s instead of %s", res.pod.ID, c.UID))
		r.sched.PodListFailed(c.UID)
	default:
		r.applyPodList(res.pod, c)
	}
	r.forgetIfAbsent(c.UID)
}

// applyPodList compares a single-pod list with the record, and acts on what it says; pod is
// nil if the pod is absent.
func (r *reconciler) applyPodList(pod *Pod, c *schedule.Call) {
	r.metrics.podRelistDuration.Observe(r.sched.Since(c.Began).Seconds())
	rec := r.records.getOrAdd(c.UID)
	found := r.records.compareOne(rec, pod, c.Stamp, r.sched.Last(), r.badData)
	r.apply(found, listInfo{stamp: c.Stamp, cause: Cause(c.Cause)})
}

// apply acts on what a list says about one pod.
func (r *reconciler) apply(found comparison, l listInfo) {
	rec := found.rec
	switch found.verdict {
	case ignored:
		return
	case conflicting:
		// Which of the two read the runtime later is unknown: list again. The runtime can list
		// one pod: full lists do not overlap, so one of the two was a single-pod list.
		r.sched.Request(rec.uid, string(l.cause))
		r.cache.holdOrRelease(rec)
		return
	case confirmed, changed:
	}
	asked := r.sched.PodListed(rec.uid, l.stamp)
	switch {
	case found.verdict == confirmed:
		if found.statusDue {
			r.sched.InspectChanged(rec.uid)
		}
		r.countExits(rec)
		r.confirmed(rec, asked)
	case rec.pod == nil:
		r.gone(rec, found.transitions, l)
	default:
		r.changed(rec, found.transitions, l)
	}
}

// confirmed: a list shows the record unchanged. If the list was asked for, a pod whose inspection
// failed, whose status contradicted the record, or which has exits that the list does not show, is
// inspected again: the back-off ends here.
func (r *reconciler) confirmed(rec *podRecord, asked bool) {
	if asked && rec.pod != nil && (rec.dirty || rec.failures > 0 || rec.hasExitsAhead()) {
		r.sched.Inspect(rec.uid)
	}
	r.watchExits(rec)
	r.cache.freshen(rec)
}

// changed: a list shows a change. The pod is inspected, and held until a status agrees.
func (r *reconciler) changed(rec *podRecord, transitions []transition, l listInfo) {
	r.noteChange(rec, transitions, l)
	r.cache.holdOrRelease(rec)
	if rec.publication.pod == nil {
		r.cache.setListed(rec.uid)
	}
	r.watchExits(rec)
	r.sched.InspectChanged(rec.uid)
	if rec.inspection.dead() { // no other can begin: the pod is published with an error
		r.inspectionDied(rec)
	}
	r.failing.update(rec)
}

// noteChange notes a change that a list shows, and counts the deaths in it. What a pod shows when
// it appears until the first full list was so before there was anybody to see it.
func (r *reconciler) noteChange(rec *podRecord, transitions []transition, l listInfo) {
	newest, first := &rec.publication.change, r.publisher.firstFullList
	existed := newest.stamp.Number == 0 && (first.Number == 0 || !l.stamp.After(first))
	*newest = change{true, l.stamp, l.cause}
	r.metrics.countTransitions(deliverable(transitions), l.cause)
	seen := statusesIn(rec.publication.seen)
	for i, t := range transitions {
		id := t.container.ID.ID
		if t.kind == ContainerStarted && !t.sandbox {
			if s := seen.at(i, id); s != nil && s.State == ContainerStateExited {
				rec.publication.amend(startedStatus(s))
			}
		}
		if _, known := rec.exits[id]; t.kind == ContainerDied && !t.sandbox && !known {
			r.records.setExit(rec, id, exit{counted: existed})
		}
	}
	r.countExits(rec)
}

// errPodGone is the cause of cancelling the inspection of a pod that is no longer listed.
var errPodGone = errors.New("the pod is gone")

// gone: a list shows that the pod is absent. Nothing has to be inspected: it is published.
func (r *reconciler) gone(rec *podRecord, transitions []transition, l listInfo) {
	r.sched.Gone(rec.uid)
	rec.dirty, rec.err, rec.failures = false, nil, 0
	r.failing.update(rec)
	if c := rec.inspection.call; c != nil {
		r.out.cancel = append(r.out.cancel, cancelCall{c, errPodGone})
	}
	r.noteChange(rec, transitions, l)
	r.publisher.syncsDone(rec, rec.publication.syncsRequested) // what is gone has no PodSync
	r.cache.remove(rec.uid)
	r.cache.freshen(rec)
	r.publisher.publish(rec, rec.snapshot(l.stamp), false)
}

// forgetAbsent drops the records of absent pods, unless a full list is in flight, which
// may have read the runtime before they went.
func (r *reconciler) forgetAbsent() {
	if r.sched.FullListInFlight() {
		return
	}
	r.records.forget(r.isOpen, r.cache.remove)
}

// forgetIfAbsent is forgetAbsent for the one pod whose call has returned: to look at all
// of them after each would take the square of their number.
func (r *reconciler) forgetIfAbsent(uid types.UID) {
	if rec := r.records.byUID[uid]; rec != nil && !r.sched.FullListInFlight() {
		r.records.forgetOne(rec, r.isOpen, r.cache.remove)
	}
}

// isOpen reports whether something of an absent pod is still to come: a call or a request.
func (r *reconciler) isOpen(rec *podRecord) bool { return r.sched.Open(rec.uid) }

// relists are the full lists that callers of Relist wait for, and those that have succeeded and
// whose pods are not all as fresh as they.
type relists struct {
	// Set once.

	records *podRecords
	sched   *schedule.Scheduler

	// waiting are the callers whose list is to begin, attached those whose list is in
	// flight.
	waiting, attached []*relistCaller
	incomplete        []relist
}

// relist is a full list that has succeeded.
type relist struct {
	stamp   stamp
	began   time.Time
	callers []*relistCaller
	awaited []awaited
	paused  bool // the generator was stopped or started since: how long it took says nothing
}

// awaited is a pod that was older than a list when that succeeded, or is to have what else was due
// then and a caller waits for: its PodSyncs up to a number, or another inspection after one that
// had failed.
type awaited struct {
	rec     *podRecord
	syncs   uint64
	retried bool
}

// begin attaches the callers that wait to the list that begins.
func (r *relists) begin() { r.attached, r.waiting = r.waiting, nil }

// stopped has the callers wait for another list.
func (r *relists) stopped() {
	r.waiting = append(r.waiting, r.attached...)
	r.attached = nil
}

// paused notes that the generator was stopped or started.
func (r *relists) paused() {
	for i := range r.incomplete {
		r.incomplete[i].paused = true
	}
}

// failed returns the callers of the list in flight, which has failed: they have their answer.
func (r *relists) failed(err error) (callers []*relistCaller) {
	callers, r.attached = r.attached, nil
	return withError(callers, err)
}

// giveUp returns the callers that wait for a list to begin: after one that has failed and not
// returned, none can.
func (r *relists) giveUp(err error) (callers []*relistCaller) {
	callers, r.waiting = r.waiting, nil
	return withError(callers, err)
}

func withError(callers []*relistCaller, err error) []*relistCaller {
	for _, c := range callers {
		c.err = err
	}
	return callers
}

// succeeded notes that the list in flight has. held are the pods that may be older than it,
// syncing those with a PodSync that is due, failing those whose inspection hangs or has failed.
func (r *relists) succeeded(at stamp, began time.Time, held, syncing, failing map[types.UID]*podRecord) {
	w := relist{stamp: at, began: began, callers: r.attached}
	for _, rec := range held {
		w.awaited = append(w.awaited, awaited{rec: rec})
	}
	if len(w.callers) > 0 {
		for _, rec := range syncing {
			w.awaited = append(w.awaited, awaited{rec: rec, syncs: rec.publication.syncsRequested})
		}
		for _, rec := range failing {
			w.awaited = append(w.awaited, awaited{rec: rec, retried: true})
		}
	}
	r.incomplete = append(r.incomplete, w)
	r.attached = nil
}

// complete takes away the lists whose pods are all as fresh as they, and calls done with
// each.
func (r *relists) complete(done func(relist)) {
	kept := r.incomplete[:0]
	for _, w := range r.incomplete {
		i := slices.IndexFunc(w.awaited, func(a awaited) bool { return r.awaits(a, w.stamp) })
		if i < 0 {
			done(w)
			continue
		}
		w.awaited[0], w.awaited[i] = w.awaited[i], w.awaited[0] // most often it is still this one in the next step
		kept = append(kept, w)
	}
	clear(r.incomplete[len(kept):])
	r.incomplete = kept
}

// awaits reports whether a list has still to wait for a pod. One of which nothing moves is not
// waited for.
func (r *relists) awaits(a awaited, at stamp) bool {
	rec := a.rec
	return r.sched.Moving(rec.uid) &&
		(rec.isHeld() && at.After(r.records.observedStamp(rec)) ||
			rec.publication.syncsDelivered < a.syncs ||
			a.retried && rec.failures > 0 && r.sched.InspectionOpen(rec.uid))
}
