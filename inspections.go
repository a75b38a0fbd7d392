package pleg

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg/internal/schedule"
)

// beginInspection notes the inspection of a record. Its stamp is that of the newest list
// that showed this record, never that of a list that showed something else.
func (r *reconciler) beginInspection(c *schedule.Call) *Pod {
	rec := r.records.byUID[c.UID]
	at := r.records.listedStamp(rec)
	rec.inspection = inspection{call: c, snapshot: rec.snapshot(at), stamp: at}
	if rec.failures > 0 {
		r.metrics.inspectionRetries.Inc()
	}
	return rec.pod
}

// inspectCanary inspects the next pod by UID: a healthy one after the other, or any while a full
// list hangs. It reports false when there is none, and when all have had their turn.
func (r *reconciler) inspectCanary() bool {
	all := r.sched.FullListHangs()
	var first, next types.UID
	for uid, rec := range r.records.byUID {
		if rec.inspection.call != nil || !rec.isHealthy() && (!all || rec.pod == nil) {
			continue
		}
		if first == "" || uid < first {
			first = uid
		}
		if uid > r.lastCanary && (next == "" || uid < next) {
			next = uid
		}
	}
	if next == "" {
		r.sched.EndRound()
		r.lastCanary = ""
		if next = first; all || next == "" {
			return false
		}
	}
	r.lastCanary = next
	r.sched.Inspect(next)
	return all
}

// completeInspection takes in the result of an inspection. A dead one has failed already;
// that it came back shows that another may succeed. One that Stop cancelled counts as not
// begun.
func (r *reconciler) completeInspection(res *result) {
	c := res.call
	rec := r.records.byUID[c.UID]
	insp := rec.inspection
	rec.inspection = inspection{}
	switch {
	case rec.pod == nil:
		r.sched.Gone(c.UID)
		r.forgetIfAbsent(c.UID)
	case res.stopped || c.Dead && res.err == nil:
		r.sched.Inspect(c.UID)
	case c.Dead:
	default:
		r.inspected(rec, insp, res)
	}
	r.countExits(rec)
	r.failing.update(rec)
}

// answer is what an inspection of a pod that is present has returned.
type answer struct {
	inspection
	status *PodStatus // the generator's own copy
	err    error
	// lags: a list has shown an exit that the status does not know of. amends: code, reason or
	// message of one are others than was known.
	lags, amends bool
}

// inspected acts on the status, or the error, of a pod that is present.
func (r *reconciler) inspected(rec *podRecord, insp inspection, res *result) {
	a := &answer{inspection: insp, err: res.err}
	if a.err == nil {
		a.status, a.err = validStatus(res.status, insp.snapshot.pod, r.badData)
	}
	if a.err == nil {
		r.sched.InspectionSucceeded()
		r.health.lastInspection = r.sched.Now()
		if r.sched.FullListHangs() {
			put(&r.answeredBesideList, rec.uid, struct{}{})
		}
		r.takeExits(rec, a)
		r.noteEnds(rec, a)
		rec.publication.see(a.status, rec.pod, a.snapshot.pod)
	}
	switch {
	case rec.supersedes(&a.inspection):
		r.storeOlder(rec, a)
		r.sched.Inspect(rec.uid)
	case a.err != nil:
		r.inspectionFailed(rec, a.snapshot.syncs, a.err)
	case !a.lags && agrees(rec.pod, a.status):
		r.storeAgreeing(rec, a)
	default:
		r.contradicted(rec, a)
	}
	if a.err == nil {
		r.tellExits(rec, a.status.ContainerStatuses, a.snapshot.cause)
	}
}

// storeAgreeing stores a status that agrees with the record: the pod is as fresh as its
// newest list. An inspection that was to begin tells the same, unless a PodSync was
// requested since this one began.
func (r *reconciler) storeAgreeing(rec *podRecord, a *answer) {
	rec.dirty = false
	r.sched.InspectionAgreed(rec.uid, rec.publication.syncsRequested != a.snapshot.syncs)
	recovered := r.store(rec, a.status, nil, a.stamp, r.records.listedStamp(rec))
	r.cache.holdOrRelease(rec)
	r.publisher.publish(rec, a.snapshot, recovered || a.amends)
}

// contradicted: a status differs from the present record. Either may be older: the pod is
// as fresh as the list that the inspection was made for, and is listed again: after a
// back-off, or at once if the status is too old to be stored.
func (r *reconciler) contradicted(rec *podRecord, a *answer) {
	rec.markDirty(r.records.listedStamp(rec))
	r.cache.holdOrRelease(rec)
	switch stored := r.storeOlder(rec, a); {
	case r.sched.InspectionWanted(rec.uid):
	case stored:
		r.sched.Retry(rec.uid)
	default: // a list has shown the record since it began: the next status is newer than that
		r.requestNow(rec.uid, schedule.CausePeriod)
	}
}

// storeOlder stores and publishes a result of a superseded inspection, or one that contradicts the
// record, as of the list that it was made for, so that a pod which keeps changing is delivered too;
// the pod stays dirty. If what the cache holds is newer it does nothing, and reports so.
func (r *reconciler) storeOlder(rec *podRecord, a *answer) (stored bool) {
	if rec.observed.After(a.stamp) {
		if a.amends { // the next inspection tells
			r.publisher.requestSync(rec)
		}
		return false
	}
	rec.observed = a.stamp
	recovered := r.store(rec, a.status, a.err, a.stamp, a.stamp)
	r.publisher.publish(rec, a.snapshot, recovered || a.amends)
	return true
}

// inspectionLate logs an inspection that is slow; one that is dead has failed. A pod that has not
// changed stays as fresh as its lists until then.
func (r *reconciler) inspectionLate(late schedule.LateCall) {
	rec := r.records.byUID[late.UID]
	switch {
	case late.NowDead:
		r.out.cancel = append(r.out.cancel, cancelCall{late.Call, r.deadlineError(methodGetPodStatus)})
		if rec.pod != nil {
			r.inspectionDied(rec)
		}
		r.countExits(rec)
	case rec.pod != nil:
		r.out.log.info(2, "Inspection is slow", "pod", klog.KRef(rec.pod.Namespace, rec.pod.Name),
			"podUID", rec.uid, "since", late.Began)
	}
	r.failing.update(rec)
}

// inspectionDied is inspectionFailed for an inspection past its deadline.
func (r *reconciler) inspectionDied(rec *podRecord) {
	r.inspectionFailed(rec, rec.inspection.snapshot.syncs, r.deadlineError(methodGetPodStatus))
}

// deadlineError is the error of a call that is dead.
func (r *reconciler) deadlineError(method string) error {
	return fmt.Errorf("%s has not returned within %v: %w", method, r.cfg.Timeout, context.DeadlineExceeded)
}

// inspectionFailed stores an error beside the last good status, publishes the record with the
// PodSyncs up to a number, and has the pod listed and inspected again after a back-off.
func (r *reconciler) inspectionFailed(rec *podRecord, syncs uint64, err error) {
	rec.dirty = false
	at := r.records.listedStamp(rec)
	r.store(rec, nil, err, at, at)
	r.cache.holdOrRelease(rec)
	snapshot := rec.snapshot(at)
	snapshot.syncs = syncs
	r.publisher.publish(rec, snapshot, false)
	r.sched.Retry(rec.uid)
}

// store stores the result of an inspection, and reports whether it is a status after an error:
// then a PodSync is due.
func (r *reconciler) store(rec *podRecord, status *PodStatus, err error, made, observed stamp) (recovered bool) {
	r.cache.store(rec, status, err, made, observed)
	pod := klog.KRef(rec.pod.Namespace, rec.pod.Name)
	switch {
	case err != nil:
		rec.failures++
		if rec.failures == 1 {
			r.out.log.error(err, "Cannot inspect pod; will try again until it can be", "pod", pod, "podUID", rec.uid)
		}
	case rec.failures > 0:
		recovered = true
		r.out.log.info(2, "Inspection succeeded again", "pod", pod, "podUID", rec.uid, "failures", rec.failures)
		rec.failures = 0
	}
	rec.err = err
	return recovered
}

// agrees reports whether a status has the same containers and sandboxes as the list of its
// pod, in the same states. A status without any sandbox is not compared in its sandboxes:
// the runtime inspects none.
func agrees(pod *Pod, status *PodStatus) bool {
	if !paired(pod.Containers, status.ContainerStatuses, func(s *Status) string { return s.ID.ID },
		func(c *Container, s *Status) bool { return plegStateOf(c) == plegStateIn(s.State) }) {
		return false
	}
	return len(status.SandboxStatuses) == 0 ||
		paired(pod.Sandboxes, status.SandboxStatuses, (*runtimeapi.PodSandboxStatus).GetId,
			func(c *Container, s *runtimeapi.PodSandboxStatus) bool {
				ready := s.State == runtimeapi.PodSandboxState_SANDBOX_READY
				return (c.State == ContainerStateRunning) == ready
			})
}

// paired reports whether each of what is listed has one status, which agrees with it, and
// there are no others.
func paired[S any](listed []*Container, statuses []S, id func(S) string, agree func(*Container, S) bool) bool {
	if len(statuses) != len(listed) {
		return false
	}
	find := finder[*Container]{list: listed}
	taken := make([]bool, len(listed)) // on the stack for an ordinary pod
	for i, s := range statuses {
		at := find.index(i, id(s))
		if at < 0 || taken[at] || !agree(listed[at], s) {
			return false
		}
		taken[at] = true
	}
	return true
}

// failingPods are the pods whose inspection hangs or has failed.
type failingPods struct {
	sched *schedule.Scheduler
	byUID map[types.UID]*podRecord
	// changed are those that began to fail, fail still or fail no more in this step.
	changed []types.UID
}

// update notes whether a pod is one of them.
func (f *failingPods) update(rec *podRecord) {
	_, was := f.byUID[rec.uid]
	is := rec.pod != nil && (rec.failures > 0 || !f.sched.HungSince(rec.uid).IsZero())
	switch {
	case is:
		f.byUID[rec.uid] = rec
	case was:
		delete(f.byUID, rec.uid)
	default:
		return
	}
	f.changed = append(f.changed, rec.uid)
}

// report makes reports say what has changed.
func (f *failingPods) report(reports map[types.UID]FailingPod) {
	for _, uid := range f.changed {
		rec, is := f.byUID[uid]
		if !is {
			delete(reports, uid)
			continue
		}
		p := FailingPod{
			PodUID: uid, Namespace: rec.pod.Namespace, Name: rec.pod.Name,
			HangingSince: f.sched.HungSince(uid), Failures: rec.failures,
		}
		if rec.err != nil {
			p.Error = rec.err.Error()
		}
		reports[uid] = p
	}
	f.changed = nil
}
