package pleg

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg/internal/schedule"
)

// beginInspection notes the inspection of a record. Its stamp is that of the newest list
// that showed this record, never that of a list that showed something else.
func (r *reconciler) beginInspection(c *schedule.Call) *Pod {
	rec := r.records.byUID[c.UID]
	at := r.records.listedStamp(rec)
	c.Cause = string(rec.cause)
	rec.inspection = inspection{call: c, of: rec.published.snapshot(rec.pod, at, rec.cause), stamp: at}
	if rec.failures > 0 {
		r.metrics.inspectionRetries.Inc()
	}
	return rec.pod
}

// inspectCanary inspects the next healthy pod by UID.
func (r *reconciler) inspectCanary() {
	var first, next types.UID
	for uid, rec := range r.records.byUID {
		if rec.pod == nil || rec.dirty || rec.failures > 0 || rec.unconfirmed || rec.inspection.call != nil {
			continue
		}
		if first == "" || uid < first {
			first = uid
		}
		if uid > r.canary && (next == "" || uid < next) {
			next = uid
		}
	}
	if next == "" {
		next = first
	}
	if next != "" {
		r.canary = next
		r.records.byUID[next].cause = CausePeriod
		r.sched.Inspect(next)
	}
}

// completeInspection takes in the result of an inspection. A dead one has failed already;
// that it came back shows that another may succeed. One that Stop cancelled, or whose pod
// was suspended meanwhile, counts as not begun.
func (r *reconciler) completeInspection(res *result) {
	c := res.call
	rec := r.records.byUID[c.UID]
	in := rec.inspection
	rec.inspection = inspection{}
	r.sched.Return(c, !c.Dead || res.err == nil || in.discarded)
	switch {
	case rec.pod == nil:
		r.sched.Gone(c.UID)
		r.forgetIfAbsent(c.UID)
	case in.discarded || res.stopped || c.Dead && res.err == nil:
		r.sched.Inspect(c.UID)
	case c.Dead:
	default:
		r.inspected(rec, in, res)
	}
	r.failing.update(rec)
	r.sched.Recycle(c)
}

// inspected acts on the status, or the error, of a pod that is present.
func (r *reconciler) inspected(rec *podRecord, in inspection, res *result) {
	status, err := res.status, res.err
	if err == nil {
		status, err = validStatus(status, in.of.pod, r.metrics.badData)
	}
	if err == nil {
		r.sched.InspectionSucceeded()
		r.health.lastInspection = r.health.asOf
	}
	switch {
	case in.superseded:
		r.storeOlder(rec, in, status, err)
		r.sched.Inspect(rec.uid)
	case err != nil:
		r.fail(rec, in.of.syncs, err)
	case agrees(rec.pod, status):
		r.storeAgreeing(rec, in, status)
	default:
		r.contradicted(rec, in, status)
	}
}

// storeAgreeing stores a status that agrees with the record: the pod is as fresh as its
// newest list. An inspection that was to begin tells the same, unless a PodSync was
// requested since this one began.
func (r *reconciler) storeAgreeing(rec *podRecord, in inspection, status *PodStatus) {
	rec.dirty = false
	r.sched.Inspected(rec.uid, rec.published.syncsRequested != in.of.syncs)
	recovered := r.store(rec, rec.pod, status, nil, in.stamp, r.records.listedStamp(rec))
	r.cache.holdOrRelease(rec)
	r.publisher.publish(rec, in.of, recovered)
}

// contradicted: a status differs from the present record. Either may be older: the pod is
// as fresh as the list that the inspection was made for, and is listed again: after a
// back-off, or at once if the status is too old to be stored.
func (r *reconciler) contradicted(rec *podRecord, in inspection, status *PodStatus) {
	rec.freeze(r.records.listedStamp(rec))
	r.cache.hold(rec)
	switch stored := r.storeOlder(rec, in, status, nil); {
	case r.sched.InspectionWanted(rec.uid):
	case stored:
		r.sched.Retry(rec.uid, string(in.of.cause))
	default: // a list has shown the record since it began: the next status is newer than that
		r.requestNow(rec.uid, string(in.of.cause))
	}
}

// storeOlder stores and publishes a result that is not of the present record, unless what
// the cache holds is newer, so that a pod which keeps changing is delivered too. The pod
// stays dirty. It reports whether it did.
func (r *reconciler) storeOlder(rec *podRecord, in inspection, status *PodStatus, err error) (stored bool) {
	if rec.observed.After(in.stamp) {
		return false
	}
	rec.observed = in.stamp
	recovered := r.store(rec, in.of.pod, status, err, in.stamp, in.stamp)
	r.publisher.publish(rec, in.of, recovered)
	return true
}

// inspectionLate: an inspection that is slow holds up no other pod's updates any more; one
// that is dead has failed.
func (r *reconciler) inspectionLate(late schedule.LateCall) {
	rec := r.records.byUID[late.UID]
	switch {
	case late.NowDead:
		r.out.cancel = append(r.out.cancel, cancelCall{late.Call, r.deadlineError(methodGetPodStatus)})
		if rec.pod != nil && rec.suspensions == 0 { // of a suspended pod, a list after that says so
			r.failDead(rec)
		}
	case rec.pod != nil:
		r.publisher.window.skip(rec)
		r.cfg.logger.V(2).Info("Inspection is slow", "pod", klog.KRef(rec.pod.Namespace, rec.pod.Name),
			"podUID", rec.uid, "since", r.sched.Clock(late.Began))
	}
	r.failing.update(rec)
}

// failDead is fail for an inspection that is dead.
func (r *reconciler) failDead(rec *podRecord) {
	r.fail(rec, rec.inspection.of.syncs, r.deadlineError(methodGetPodStatus))
}

// deadlineError is the error of a call that is dead.
func (r *reconciler) deadlineError(method string) error {
	return fmt.Errorf("%s has not returned within %v: %w", method, r.cfg.Timeout, context.DeadlineExceeded)
}

// fail stores an error beside the last good status, publishes the record with the PodSyncs
// up to a number, and has the pod listed and inspected again after a back-off.
func (r *reconciler) fail(rec *podRecord, syncs uint64, err error) {
	rec.dirty = false
	at := r.records.listedStamp(rec)
	r.store(rec, rec.pod, nil, err, at, at)
	r.cache.holdOrRelease(rec)
	snapshot := rec.published.snapshot(rec.pod, at, rec.cause)
	snapshot.syncs = syncs
	r.publisher.publish(rec, snapshot, false)
	r.sched.Retry(rec.uid, string(rec.cause))
}

// store stores the result of an inspection, of which a pod is to be published, and reports
// whether it is a status after an error: then a PodSync is due.
func (r *reconciler) store(
	rec *podRecord, of *Pod, status *PodStatus, err error, made, observed stamp,
) (recovered bool) {
	r.cache.store(rec, status, err, made, observed)
	if status != nil {
		rec.published.see(status, rec.pod, of)
	}
	pod := klog.KRef(rec.pod.Namespace, rec.pod.Name)
	switch {
	case err != nil:
		rec.failures++
		if rec.failures == 1 {
			r.cfg.logger.Error(err, "Cannot inspect pod; will try again until it can be", "pod", pod, "podUID", rec.uid)
		}
	case rec.failures > 0:
		recovered = true
		r.cfg.logger.V(2).Info("Inspection succeeded again", "pod", pod, "podUID", rec.uid, "failures", rec.failures)
		rec.failures = 0
	}
	rec.err = err
	return recovered
}
