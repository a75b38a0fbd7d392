package pleg

import (
	"context"
	"fmt"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg/internal/core/schedule"
)

// beginInspection records the pod and the stamp of the newest believed list, not of a newer list
// that was dropped: a dropped list may have shown a container that the status lacks.
func (r *reconciler) beginInspection(rec *podRecord) *Pod {
	rec.inspecting = &snapshot{pod: rec.pod, at: rec.at, change: rec.change, sync: rec.sync}
	rec.inspect, rec.sync = false, false
	r.plan(rec)
	if rec.failures > 0 {
		r.metrics.inspectionRetries.Inc()
	}
	return rec.pod
}

// completeInspection handles the result of an inspection. A result is ignored if the pod was
// published before it arrived, because the inspection was slow or timed out. If that result is a
// success, the pod is inspected again, as after a call that Stop cancelled.
func (r *reconciler) completeInspection(rec *podRecord, res *result) {
	rec.failedCall = res.failed
	switch {
	case rec.pod == nil:
		r.sched.Gone(&rec.Entry)
	case res.stopped || (res.call.TimedOut || rec.inspecting.publishedEarly) && res.err == nil:
		rec.inspect, rec.sync = true, rec.sync || rec.inspecting.sync
	case res.call.TimedOut || rec.inspecting.publishedEarly:
	default:
		r.inspected(rec, res)
	}
	rec.inspecting = nil
	r.forgetEnds(rec)
}

// inspected handles the result of an inspection for a pod that is present.
func (r *reconciler) inspected(rec *podRecord, res *result) {
	var status *PodStatus
	err := res.err
	if err == nil {
		status, err = validStatus(res.status, rec.inspecting.pod, r.badData)
	} else if res.status != nil {
		r.takePartial(rec, res.status)
	}
	if err == nil {
		rec.lastInspected, r.lastInspection = res.call.Began, r.sched.Now
		if r.takeStatus(rec, status) {
			r.request(rec, CausePeriod)
		}
	}
	switch superseded := rec.change != rec.inspecting.change; {
	case superseded: // every other error is stored; the next success then causes a PodSync
		r.storeUnlessOutdated(rec, status, err)
		rec.inspect = true
	case err != nil:
		r.inspectionFailed(rec, err)
	case agrees(rec.pod, status):
		r.storeAgreeing(rec, status)
	default:
		r.contradicted(rec, status)
	}
	r.publishEnds(rec, CausePeriod, res.call.Began)
	if rec.awaitsExits() {
		r.retryLater(rec)
	}
}

// takePartial uses only the exits of a status that came with an error.
func (r *reconciler) takePartial(rec *podRecord, partial *PodStatus) {
	status, err := validStatus(partial, rec.inspecting.pod, r.badData)
	if err == nil && slices.ContainsFunc(status.ContainerStatuses, hasExited) {
		others := func(s *Status) bool { return !hasExited(s) }
		status.ContainerStatuses = slices.DeleteFunc(slices.Clone(status.ContainerStatuses), others)
		r.takeStatus(rec, status)
		r.cache.storeExits(rec.pod, rec.statuses)
	}
}

// publishEnds settles ends, and publishes exits and settled ends that are not published yet. asOf is
// when the last inspection began; see settle.
//
// publishEnds does not wait for a status to be stored, because the next inspection may be stuck.
// But the exit of a container that is not yet published waits for the inspection of its pod, like
// any other change. If that inspection is slow, the pod is published with an error.
func (r *reconciler) publishEnds(rec *podRecord, cause Cause, asOf time.Time) {
	settled := r.settle(rec, asOf)
	if rec.published != nil {
		pod := withExited(rec.published, rec.isOver)
		if settled || cause == CauseExit || pod != rec.published { // an exit event may also change an end
			r.cache.storeExits(pod, rec.statuses)
			at := rec.observedAt().Time
			if last, _ := r.cache.Get(rec.UID); cause != CauseExit && !last.TimeStamp.IsZero() {
				at = last.TimeStamp // newer lists have only confirmed the status
			}
			r.publish(rec, &update{uid: rec.UID, pod: pod, listedAt: at, cause: cause})
		}
	}
	published := finder(rec.published.containers())
	isNew := func(c *Container) bool { return hasExited(rec.statuses[c.ID.ID]) && published(c.ID.ID) == nil }
	slow := rec.Inspection != nil && rec.Inspection.Slow
	if slow && slices.ContainsFunc(rec.pod.containers(), isNew) {
		r.cache.storeExits(rec.pod, rec.statuses)
		r.inspectionFailed(rec, fmt.Errorf("%s has not returned within %v", methodGetPodStatus, r.cfg.Period))
		rec.inspecting.publishedEarly = true
	}
}

// storeAgreeing stores a status that agrees with the record; the newest list then confirms the
// status. If a caller requested a PodSync, or endCheck came due, the pod is inspected again.
func (r *reconciler) storeAgreeing(rec *podRecord, status *PodStatus) {
	rec.stale = false
	if !rec.awaitsExits() {
		rec.endBackOff()
	}
	rec.inspect = rec.sync || rec.inspecting.inspectAgain
	recovered := r.store(rec, status, nil, rec.inspecting.at, rec.at)
	r.publishMade(rec, recovered)
}

// contradicted handles a status that differs from the record. If the status is outdated, the pod is
// listed again at once. Otherwise, the record may be outdated, for example if a container has
// started since the list. The pod is then listed again after a back-off.
func (r *reconciler) contradicted(rec *podRecord, status *PodStatus) {
	rec.makeStale(rec.at)
	switch stored := r.storeUnlessOutdated(rec, status, nil); {
	case rec.inspect: // an inspection is already due and will decide
	case stored:
		r.retryLater(rec)
	default: // a list has confirmed the record since this inspection began
		r.request(rec, CausePeriod)
	}
}

// storeUnlessOutdated stores and publishes a result that contradicts the record or is superseded,
// so that even a pod that keeps changing is published. The pod stays stale. If a newer list than
// the inspection's has confirmed the cached status, it stores nothing and returns false: the pod
// may have gone and come back, and the result would bring back removed containers.
func (r *reconciler) storeUnlessOutdated(rec *podRecord, status *PodStatus, err error) (stored bool) {
	made := rec.inspecting
	if rec.observed.After(made.at) {
		rec.sync = rec.sync || made.sync
		r.freshen(rec)
		return false
	}
	rec.observed = made.at // not rec.at: a newer list may have removed containers that the status shows
	recovered := r.store(rec, status, err, made.at, made.at)
	r.publishMade(rec, recovered)
	return true
}

// inspectionLate handles an inspection that is slow or has timed out. A slow inspection is logged, and known
// exits are published. A timed-out inspection counts as failed. Before the timeout, an unchanged pod stays fresh.
func (r *reconciler) inspectionLate(rec *podRecord, late schedule.Late) {
	if late.NowTimedOut {
		err := r.deadlineError(methodGetPodStatus)
		r.out.cancel = append(r.out.cancel, cancelCall{late.Call, err})
		r.inspectionFailed(rec, err)
		r.publishEnds(rec, CausePeriod, late.Began)
		r.forgetEnds(rec)
		return
	}
	r.out.info(2, "Inspection is slow", "pod", klog.KRef(rec.pod.Namespace, rec.pod.Name),
		"podUID", rec.UID, "since", late.Began)
	r.publishEnds(rec, CausePeriod, late.Began)
}

func (r *reconciler) deadlineError(method string) error {
	return fmt.Errorf("%s has not returned within %v: %w", method, r.cfg.Timeout, context.DeadlineExceeded)
}

// inspectionFailed stores an error, publishes the record, and requests another list and inspection
// after a back-off. The last good status stays in the cache.
func (r *reconciler) inspectionFailed(rec *podRecord, err error) {
	rec.stale = false
	r.store(rec, nil, err, rec.at, rec.at)
	rec.inspecting.pod, rec.inspecting.at, rec.inspecting.change = rec.pod, rec.at, rec.change
	r.publishMade(rec, false)
	r.retryLater(rec)
}

// store stores the result of an inspection. made is the list for which the inspection was made. observed is the
// newest list that confirms the result. recovered is true for the first status after an error: a PodSync is then due.
func (r *reconciler) store(rec *podRecord, status *PodStatus, err error, made, observed stamp) (recovered bool) {
	r.cache.store(rec.UID, status, err, made, observed, r.isHeld(rec))
	rec.inspectedFor = rec.inspecting.at
	pod := klog.KRef(rec.pod.Namespace, rec.pod.Name)
	r.out.info(4, "Wrote status", "pod", pod, "podUID", rec.UID, "err", err)
	switch {
	case err != nil:
		rec.failures++
		if rec.failures == 1 {
			r.out.error(err, "Cannot inspect pod; will try again until it can be", "pod", pod, "podUID", rec.UID)
		}
	case rec.failures > 0:
		recovered = true
		r.out.info(2, "Inspection succeeded again", "pod", pod, "podUID", rec.UID, "failures", rec.failures)
		rec.failures = 0
	}
	return recovered
}

// publishMade publishes the pod for which the inspection was made. The cache already holds the result.
func (r *reconciler) publishMade(rec *podRecord, recovered bool) {
	made := rec.inspecting
	u := r.updateOf(rec, made)
	u.sync = u.sync || recovered
	made.sync = false
	if made.change == rec.change {
		rec.change = nil
	}
	r.publish(rec, u)
}

// agrees reports whether a status and the listed pod contain the same containers and sandboxes in the same
// states. If the status has no sandboxes, they are not compared, because some runtimes do not inspect them.
func agrees(pod *Pod, status *PodStatus) bool {
	if !paired(pod.Containers, status.ContainerStatuses, func(s *Status) string { return s.ID.ID },
		func(c *Container, s *Status) bool { return plegStateOf(c) == plegStateIn(s.State) }) {
		return false
	}
	return len(status.SandboxStatuses) == 0 ||
		paired(pod.Sandboxes, status.SandboxStatuses, (*runtimeapi.PodSandboxStatus).GetId,
			func(c *Container, s *runtimeapi.PodSandboxStatus) bool {
				return (c.State == ContainerStateRunning) == isReady(s)
			})
}

// paired reports whether each listed container has one agreeing status, and there are no other statuses.
func paired[S any](listed []*Container, statuses []S, id func(S) string, agree func(*Container, S) bool) bool {
	if len(statuses) != len(listed) {
		return false
	}
	taken, byID := make(map[string]bool, len(listed)), finder(listed)
	for _, s := range statuses {
		c := byID(id(s))
		if c == nil || taken[c.ID.ID] || !agree(c, s) {
			return false
		}
		taken[c.ID.ID] = true
	}
	return true
}
