package pleg

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/kubepleg/pleg/internal/core/schedule"
)

// followUpDivisor sets the wait before the second list of a hinted pod to a twentieth of a period.
const followUpDivisor = 20

func (r *reconciler) beginFullList(c *schedule.Call) {
	r.relists.attached, r.relists.waiting = r.relists.waiting, nil
	if !r.fullBegan.IsZero() {
		r.metrics.relistInterval.Observe(c.Began.Sub(r.fullBegan).Seconds())
	}
	r.fullBegan = c.Began
	r.out.info(5, "Relisting", "cause", c.Cause)
}

// completeFullList handles the result of a full list. A failed list's pods are ignored: a partial
// list must not remove pods or answer requests. A list that timed out is ignored too, because it
// may contain pods that were removed since and have no record any more.
func (r *reconciler) completeFullList(res *result) {
	c := res.call
	switch {
	case c.TimedOut:
	case res.stopped:
		r.relists.waiting, r.relists.attached = append(r.relists.waiting, r.relists.attached...), nil
	case res.err != nil:
		r.fullListFailed(res.err, c)
	default:
		r.applyFullList(res.pods, c)
		if len(r.records.byUID) == r.records.pods {
			return
		}
	}
	r.planRequested()
}

// fullListFailed records that a full list failed. No pod changes.
func (r *reconciler) fullListFailed(err error, c *schedule.Call) {
	r.sched.FullListEnded(c, false)
	r.metrics.relistDuration.Observe(r.sched.Now.Sub(c.Began).Seconds())
	if r.listErr == nil {
		r.out.error(err, "Cannot list pods; will try again every period")
		r.listFailingSince = c.Began
	}
	r.listErr, r.listErrAt = err, r.sched.Now
	r.out.relisted = append(r.out.relisted, fail(&r.relists.attached, err)...)
}

// applyFullList compares a full list with the records and handles each difference. If a caller of
// Relist waits for the list, each pod is treated as requested.
func (r *reconciler) applyFullList(pods []*Pod, c *schedule.Call) {
	r.sched.FullListEnded(c, true)
	r.all.answer(c.Stamp.Number)
	if r.firstFull.Number == 0 {
		r.firstFull = c.Stamp
	}
	compared := r.records.compareAll(pods, c.Stamp, r.sched.Last.Number, r.badData)
	r.records.earlyExits.forget(r.fullSucceeded.Add(-r.cfg.Period))
	for _, found := range compared {
		r.apply(found, c, len(r.relists.attached) > 0)
	}
	r.cache.UpdateTime(c.Stamp.Time)
	if r.listErr != nil {
		r.out.info(0, "Relist succeeded again")
	}
	r.fullSucceeded, r.listErr = c.Began, nil
	r.relists.succeeded(c, compared)
}

// completePodList handles the result of a pod list.
func (r *reconciler) completePodList(rec *podRecord, res *result) {
	if res.call.TimedOut || res.stopped {
		return
	}
	pod, err := res.pod, res.err
	switch {
	case errors.Is(err, ErrPodNotFound):
		pod, err = nil, nil
	case err != nil:
	case pod == nil:
		err = errors.New("the runtime returned no pod, and no error")
		r.badData(badNil, "pod "+string(rec.UID))
	case pod.ID != rec.UID:
		err = fmt.Errorf("the runtime returned pod %s", pod.ID)
		r.badData(badUID, "pod "+string(pod.ID)+" instead of "+string(rec.UID))
	}
	if err != nil {
		r.out.info(4, "Cannot list pod", "podUID", rec.UID, "err", err)
		r.podListFailed(rec)
		return
	}
	r.metrics.podRelistDuration.Observe(r.sched.Now.Sub(res.call.Began).Seconds())
	r.apply(r.records.compare(rec, pod, res.call.Stamp, r.sched.Last.Number, r.badData), res.call, false)
}

// podListFailed retries an open request after a period, unless a full list answers it first.
func (r *reconciler) podListFailed(rec *podRecord) {
	if rec.request.newest > 0 {
		rec.due[listFailed] = r.sched.Now.Add(r.cfg.Period)
	}
}

// apply handles one pod of the list c. asked is true if a caller of Relist waits for the list. Each
// pod then counts as requested.
func (r *reconciler) apply(found comparison, c *schedule.Call, asked bool) {
	rec := found.rec
	if found.dropped {
		isRequested := asked || c.Kind == schedule.ListAll && c.Cause != string(CausePeriod)
		if isRequested && c.Stamp.After(rec.at) { // otherwise, the next full list is enough
			r.request(rec, Cause(c.Cause))
		}
		r.freshen(rec)
		r.plan(rec)
		return
	}
	answered, hinted := rec.request.answer(c.Stamp.Number)
	rec.due[listFailed] = time.Time{}
	if hinted {
		rec.due[followUp] = r.sched.Now.Add(r.cfg.Period / followUpDivisor)
	}
	switch {
	case found.changed && rec.pod == nil:
		r.gone(found, c)
	case found.changed:
		r.changed(found, c)
	default:
		r.confirmed(found, asked || answered)
	}
	r.plan(rec)
}

// confirmed handles a list that does not change the record. If the cache holds no good status, or
// an exit is unconfirmed, a requested list causes another inspection.
func (r *reconciler) confirmed(found comparison, asked bool) {
	rec := found.rec
	if found.mayConfirmExit {
		rec.makeStale(found.before)
		rec.endBackOff()
		rec.inspect = true
	}
	switch open := rec.stale || rec.failures > 0 || rec.awaitsExits(); {
	case !open:
		rec.endBackOff()
	case asked && rec.pod != nil:
		rec.inspect = true
	}
	r.freshen(rec)
}

// changed handles a list that changes the record: the pod is inspected, and is stale until a status agrees.
func (r *reconciler) changed(found comparison, c *schedule.Call) {
	rec := found.rec
	r.noteChange(found, c)
	rec.makeStale(found.before)
	r.cache.setListed(rec.pod)
	r.freshen(rec)
	rec.endBackOff()
	rec.inspect = true
	if rec.Inspection != nil && rec.Inspection.TimedOut { // no other inspection can begin: publish the pod with an error
		r.inspectionFailed(rec, r.deadlineError(methodGetPodStatus))
	}
	r.forgetEnds(rec)
}

// errPodGone is the cause of an inspection's cancellation if the pod is no longer listed.
var errPodGone = errors.New("the pod is gone")

// gone handles a list without the pod. The pod is published at once, without an inspection.
func (r *reconciler) gone(found comparison, c *schedule.Call) {
	rec := found.rec
	r.noteChange(found, c)
	r.sched.Gone(&rec.Entry)
	rec.endBackOff()
	rec.due[endCheck] = time.Time{}
	rec.inspect, rec.sync, rec.stale, rec.failures = false, false, false, 0
	if rec.Inspection != nil {
		rec.inspecting.sync = false
		r.out.cancel = append(r.out.cancel, cancelCall{rec.Inspection, errPodGone})
	}
	r.cache.Delete(rec.UID)
	r.freshen(rec)
	u := r.updateOf(rec, &snapshot{at: rec.at, change: rec.change})
	u.unseen = r.firstFull.Number == 0
	r.publish(rec, u)
	rec.change = nil
	r.forgetEnds(rec)
	rec.statuses = nil
}

// noteChange records a change that a list shows, and counts its transitions.
func (r *reconciler) noteChange(found comparison, c *schedule.Call) {
	rec := found.rec
	isFirst := rec.change == nil && rec.published == nil && (r.firstFull.Number == 0 || c.Stamp == r.firstFull)
	rec.change = &change{stamp: c.Stamp, cause: Cause(c.Cause), initial: cmp.Or(rec.change, &change{}).initial}
	if isFirst {
		rec.change.initial = rec.listed
	}
	r.metrics.countTransitions(len(found.transitions), rec.change.cause)
	r.noteTransitions(rec, found.transitions, c.Began, isFirst)
	r.forgetStatuses(rec, nil)
}
