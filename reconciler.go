package pleg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg/internal/calls"
	"github.com/kubepleg/pleg/internal/schedule"
)

// reconciler is the data flow from top to bottom: list, diff, inspect, store, announce.
// It is a function of its inputs: it starts no goroutine and reads no clock. Its effects
// are its writes to the cache and the broadcaster, in order, and its outputs.
//
// Its rules, each with the counterexample that needs it, are in
// docs/decisions/2026-11-21-rules-of-the-core.md.
type reconciler struct {
	cfg       reconcilerConfig
	sched     *schedule.Scheduler
	records   *podRecords
	cache     *cacheWriter
	announcer announcer
	metrics   *metrics

	relists relists
	failing failingPods
	status  status

	lastFull time.Time // when the last full list began; zero after a start
	canary   types.UID // the pod that was inspected last as one

	changes []podChange // scratch
	out     outputs
}

// reconcilerConfig does not change.
type reconcilerConfig struct {
	schedule.Config
	logger klog.Logger
	// blocked counts the blocked readers; nil if the cache cannot.
	blocked func() int
}

// list is the list of the current result.
type list struct {
	stamp  stamp
	before stamp // of the previous full list
	cause  Cause
	relist bool // a caller of Relist waits for it
}

// errPodGone is the cause of cancelling the inspection of a pod that is no longer listed.
var errPodGone = errors.New("the pod is gone")

func newReconciler(cfg reconcilerConfig, now time.Time, cache Cache, updates *broadcaster, m *metrics) *reconciler {
	records := newPodRecords()
	r := &reconciler{
		cfg: cfg, sched: schedule.New(cfg.Config), records: records, cache: newCacheWriter(cache, records, cfg.logger),
		announcer: announcer{updates: updates, cache: cache, logger: cfg.logger, owed: make(map[types.UID]*podRecord)},
		metrics:   m,
		failing:   failingPods{byUID: make(map[types.UID]FailingPod)},
		status:    status{asOf: now, lastInspection: now},
	}
	r.relists = relists{records: r.records, sched: r.sched, cache: r.cache}
	r.sched.Advance(now)
	return r
}

// step takes in the inputs and the time, and returns the calls to begin and to cancel.
func (r *reconciler) step(clock time.Time, in *inputs) *outputs {
	r.out.reset()
	if back := r.sched.Advance(clock); back > 0 {
		r.status.goBack(back)
	}
	r.status.asOf, r.announcer.now = clock, clock
	for _, res := range in.results { // first: they may answer a request
		r.complete(res)
	}
	r.takeRequests(in)
	for _, late := range r.sched.Overdue() {
		r.overdue(late)
	}
	r.beginCalls()
	if r.announcer.window.due(r.sched.Now()) {
		r.announcer.closeWindow()
	}
	r.completeRelists()
	if r.announcer.window.closed {
		r.announcer.window.closed = false
		r.forgetAbsent()
	}
	if r.failing.changed {
		r.status.failing = r.failing.list()
	}
	r.out.wake = r.wake()
	return &r.out
}

// wake returns when, by the clock, the next step is due.
func (r *reconciler) wake() time.Time {
	wake := r.sched.Wake()
	if closes := r.announcer.window.closes; !closes.IsZero() {
		if at := r.sched.Clock(closes); wake.IsZero() || at.Before(wake) {
			return at
		}
	}
	return wake
}

// takeRequests takes in the requests of callers, readers and hints.
func (r *reconciler) takeRequests(in *inputs) {
	if in.periodic != nil {
		r.sched.SetPeriodic(*in.periodic)
		r.lastFull = time.Time{}
		r.announcer.closeWindow()
	}
	r.relists.waiting = append(r.relists.waiting, in.relists...)
	for _, uid := range sortedKeys(in.requests) {
		if uid != "" {
			r.request(uid, CauseDemand, false)
		}
	}
	for _, uid := range sortedKeys(in.readers) {
		r.readerBlocked(uid, in.readers[uid])
	}
	for _, uid := range sortedKeys(in.reinspects) {
		if rec := r.records.byUID[uid]; rec != nil && rec.pod != nil {
			if !rec.change.pending || rec.inspection.call != nil && !rec.inspection.superseded {
				rec.cause = CauseDemand
			}
			r.announcer.owe(rec)
			r.sched.Inspect(uid)
		}
	}
	for _, connected := range in.stream {
		r.sched.SetConnected(connected, schedule.CauseHint)
	}
	if len(in.hints) > 0 || in.lostHints {
		r.takeHints(in)
	}
}

// request asks for a list of one pod, or of all if the runtime cannot list one.
func (r *reconciler) request(uid types.UID, cause Cause, hinted bool) {
	r.sched.Request(uid, string(cause), hinted)
	if !r.cfg.ListsPods {
		r.sched.RequestAll(string(cause), hinted)
	}
}

// readerBlocked asks for the list that a blocked reader waits for. A minTime further in
// the future than a period is answered by the full lists.
func (r *reconciler) readerBlocked(uid types.UID, t minTimes) {
	clock := r.sched.Clock(r.sched.Now())
	if t.earliest.Before(clock) {
		r.sched.Request(uid, schedule.CauseDemand, false)
		t.earliest = t.latest
	}
	switch {
	case t.earliest.Before(clock):
	case t.earliest.After(clock.Add(r.cfg.Period)):
		r.sched.Hasten()
	default:
		r.sched.RequestAt(uid, t.earliest.Add(1), schedule.Reader)
		r.sched.Hasten()
	}
}

// takeHints asks for a list of every hinted pod.
func (r *reconciler) takeHints(in *inputs) {
	if in.lostHints {
		r.sched.RequestAll(schedule.CauseHint, true)
		for uid, rec := range r.records.byUID {
			if rec.pod != nil {
				in.hints[hint{uid: uid}] = struct{}{}
			}
		}
	}
	r.records.resolve(in.hints)
	for _, h := range slices.SortedFunc(maps.Keys(in.hints), compareHints) {
		known := r.records.get(h.uid) != nil
		if h.uid == "" || !known && r.sched.Pods() >= maxHints {
			r.sched.RequestAll(schedule.CauseHint, true)
			continue
		}
		r.request(h.uid, CauseHint, true)
	}
}

// complete takes in the result of a call.
func (r *reconciler) complete(res *result) {
	if calls.Panicked(res.err) {
		r.metrics.badData(badRuntimePanic, res.err.Error())
	}
	switch res.call.Kind {
	case schedule.ListAll:
		r.listedAll(res)
	case schedule.ListPod:
		r.listedPod(res)
	case schedule.Inspect:
		r.inspected(res)
	}
}

// listedAll takes in the result of a full list. A dead one has failed already: its answer
// is discarded, for it may be older than an absence that was forgotten since.
func (r *reconciler) listedAll(res *result) {
	c := res.call
	r.sched.Return(c, true)
	switch {
	case c.Dead:
	case res.stopped:
		r.relists.stopped()
	case res.err != nil:
		r.listFailed(res.err, c)
	default:
		r.takeAll(res.pods, c)
	}
	r.forgetAbsent()
}

// takeAll takes in a full list.
func (r *reconciler) takeAll(pods []*Pod, c *schedule.Call) {
	l := list{stamp: c.Stamp, before: r.records.full, cause: Cause(c.Cause), relist: len(r.relists.attached) > 0}
	unsettled := r.unsettled(l)
	r.changes = r.records.takeAll(pods, c.Stamp, r.sched.Last(), r.changes[:0], r.metrics.badData)
	if len(r.changes) > 0 {
		r.announcer.closeWindow()
		r.announcer.window.open(r.changes, r.sched.Now().Add(max(r.cfg.Period/windowShare, 1)))
	}
	for _, change := range r.changes {
		r.take(change, l)
	}
	clear(r.changes)
	if r.announcer.first.Number == 0 {
		r.announcer.firstList(c.Stamp, r.records)
	}
	for _, uid := range r.sched.Requested() { // what is left of the requests
		r.confirmRequested(uid, l)
	}
	for _, uid := range unsettled {
		r.confirmRequested(uid, l)
	}
	r.cache.confirmAll(c.Stamp.Time)
	r.sched.Listed(c)
	r.listSucceeded(c)
}

// unsettled returns the pods that a list for a caller of Relist has inspected again
// although they have not changed: those that fail, and those that are held.
func (r *reconciler) unsettled(l list) []types.UID {
	if !l.relist || len(r.failing.byUID)+len(r.cache.held) == 0 {
		return nil
	}
	uids := sortedKeys(r.failing.byUID)
	for _, rec := range r.cache.held {
		uids = append(uids, rec.uid)
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

// confirmRequested answers the requests of a pod that the full list confirms.
func (r *reconciler) confirmRequested(uid types.UID, l list) {
	if !r.records.confirms(uid, l.stamp) {
		return
	}
	asked := r.sched.Answer(uid, l.stamp) || l.relist
	if rec := r.records.byUID[uid]; rec != nil {
		r.confirmed(rec, l, asked)
	}
}

// listedPod takes in the result of a single-pod list.
func (r *reconciler) listedPod(res *result) {
	c := res.call
	r.sched.Return(c, true)
	switch {
	case c.Dead || res.stopped:
	case calls.Is(res.err, ErrPodNotFound):
		r.takeOne(nil, c)
	case res.err != nil:
		r.cfg.logger.V(4).Info("Cannot list pod", "podUID", c.UID, "err", res.err)
		r.sched.ListFailed(c.UID)
	case res.pod == nil:
		r.metrics.badData(badPodNil, string(c.UID))
		r.sched.ListFailed(c.UID)
	case res.pod.ID != c.UID:
		r.metrics.badData(badPodMismatch, fmt.Sprintf("%s instead of %s", res.pod.ID, c.UID))
		r.sched.ListFailed(c.UID)
	default:
		r.takeOne(res.pod, c)
	}
	r.forgetIfAbsent(c.UID)
}

// takeOne takes in a single-pod list; pod is nil if the pod is absent.
func (r *reconciler) takeOne(pod *Pod, c *schedule.Call) {
	r.metrics.podRelistDuration.Observe(r.sched.Since(c.Began).Seconds())
	rec := r.records.of(c.UID)
	change := r.records.takeOne(rec, pod, c.Stamp, r.sched.Last(), r.metrics.badData)
	r.take(change, list{stamp: c.Stamp, cause: Cause(c.Cause)})
	r.status.pods, r.status.tally = r.records.present, r.records.tally
}

// take acts on the verdict of a list about one pod.
func (r *reconciler) take(change podChange, l list) {
	rec := change.rec
	switch change.verdict {
	case ignored:
		return
	case conflicting: // which of the two read the runtime later is unknown: list again
		r.sched.Request(rec.uid, string(l.cause), false)
		r.cache.hold(rec)
		return
	case confirmed, changed:
	}
	asked := r.sched.Answer(rec.uid, l.stamp) || l.relist
	switch {
	case change.verdict == confirmed:
		r.confirmed(rec, l, asked)
	case rec.pod == nil:
		r.gone(rec, change.transitions, l)
	default:
		r.changed(rec, change.transitions, l)
	}
}

// confirmed: a list shows the record unchanged. If it answers a request, a pod whose
// inspection failed or contradicted the record is inspected again; retries begin here
// only.
func (r *reconciler) confirmed(rec *podRecord, l list, asked bool) {
	if l.relist && rec.failed && !rec.dirty && !rec.inspection.dead() {
		rec.dirty, rec.observed = true, schedule.Later(rec.own, l.before)
	}
	if asked && (rec.dirty || rec.failed) && rec.pod != nil {
		if !rec.change.pending {
			rec.cause = l.cause
		}
		r.sched.Inspect(rec.uid)
	}
	r.cache.freshen(rec)
}

// changed: a list shows a change. The pod is inspected, and held until a status agrees.
func (r *reconciler) changed(rec *podRecord, transitions []transition, l list) {
	rec.change.add(transitions, l.stamp)
	rec.cause = l.cause
	rec.dirty = true
	r.cache.hold(rec)
	r.sched.ResetRetry(rec.uid)
	r.sched.Inspect(rec.uid)
	rec.inspection.superseded = true
	if c := rec.inspection.call; c != nil && c.Slow { // of the pod that had its UID before, perhaps
		r.failing.note(rec, r.sched.Unanswered(rec.uid), nil)
	}
	if rec.inspection.dead() { // no other can begin: the pod is announced with an error
		r.fail(rec, rec.inspection, r.deadlineError(methodGetPodStatus))
	}
}

// gone: a list shows that the pod is absent. Nothing has to be inspected: it is announced.
func (r *reconciler) gone(rec *podRecord, transitions []transition, l list) {
	r.sched.Gone(rec.uid)
	r.answers(rec, true)
	rec.dirty, rec.failed, rec.failures = false, false, 0
	r.announcer.pay(rec, rec.syncsOwed)
	rec.inspection.superseded = true
	if c := rec.inspection.call; c != nil {
		r.out.cancel = append(r.out.cancel, cancelCall{c, errPodGone})
	}
	rec.change.add(transitions, l.stamp)
	rec.cause = l.cause
	r.cache.remove(rec.uid)
	r.cache.freshen(rec)
	r.announcer.announce(rec, nil, inspection{change: rec.change.number, listed: l.stamp, cause: l.cause})
}

// inspected takes in the result of an inspection.
func (r *reconciler) inspected(res *result) {
	c := res.call
	rec := r.records.byUID[c.UID]
	in := rec.inspection
	rec.inspection = inspection{}
	r.sched.Return(c, !c.Dead || res.err == nil)
	status, err := res.status, res.err
	if err == nil && rec.pod != nil && !c.Dead {
		status, err = validStatus(status, in.pod, r.metrics.badData)
	}
	switch {
	case rec.pod == nil:
		r.sched.Gone(c.UID)
		r.forgetIfAbsent(c.UID)
	case c.Dead: // it has failed already; that it came back shows that another may succeed
		if err == nil {
			r.answers(rec, false)
			r.sched.Inspect(c.UID)
		}
	case res.stopped: // as if it had not begun
		r.answers(rec, false)
		r.sched.Inspect(c.UID)
	case in.superseded:
		in.recovered = err == nil && rec.failures > 0
		r.answers(rec, err == nil)
		r.superseded(rec, in, status, err)
	case err != nil:
		r.fail(rec, in, err)
	default:
		in.recovered = rec.failures > 0
		r.answers(rec, true)
		r.succeeded(rec, in, status)
	}
	r.sched.Recycle(c)
}

// superseded: the record has changed since the inspection began. Its result is stored and
// announced unless the cache holds a newer one, so that a pod which keeps changing is
// delivered too. The pod stays dirty and is inspected again.
func (r *reconciler) superseded(rec *podRecord, in inspection, status *PodStatus, err error) {
	r.sched.Inspect(rec.uid)
	if rec.observed.After(in.stamp) {
		return
	}
	r.cache.store(rec, status, err, in.stamp)
	rec.failed = err != nil
	rec.observed = in.stamp
	r.announcer.announce(rec, in.pod, in)
}

// succeeded takes in a status of the present record. If the status agrees with the record,
// the pod is as fresh as its newest list. If it contradicts the record, either may be
// older: the pod is as fresh as the list that the inspection was made for, and is listed
// again after a back-off.
func (r *reconciler) succeeded(rec *podRecord, in inspection, status *PodStatus) {
	if agrees(rec.pod, status) {
		r.cache.store(rec, status, nil, in.stamp)
		rec.dirty, rec.failed = false, false
		r.sched.ResetRetry(rec.uid)
		if rec.syncsOwed == in.syncs {
			r.sched.NoInspection(rec.uid)
		}
		r.cache.freshen(rec)
		r.announcer.announce(rec, rec.pod, in)
		return
	}
	if !rec.dirty {
		rec.dirty, rec.observed = true, r.records.listedStamp(rec)
	}
	r.cache.hold(rec)
	if !rec.observed.After(in.stamp) {
		r.cache.store(rec, status, nil, in.stamp)
		rec.failed = false
		rec.observed = in.stamp
		r.announcer.announce(rec, in.pod, in)
	}
	if !r.sched.InspectionWanted(rec.uid) {
		r.sched.Retry(rec.uid, string(in.cause))
	}
}

// fail stores an error beside the last good status, announces the record, and has the pod
// listed and inspected again after a back-off.
func (r *reconciler) fail(rec *podRecord, in inspection, err error) {
	rec.failures++
	if rec.failures == 1 {
		r.cfg.logger.Error(err, "Cannot inspect pod; will try again until it can be",
			"pod", klog.KRef(rec.pod.Namespace, rec.pod.Name), "podUID", rec.uid)
	}
	r.failing.note(rec, r.sched.Unanswered(rec.uid), err)
	r.cache.store(rec, nil, err, r.records.listedStamp(rec))
	rec.failed, rec.dirty = true, false
	r.sched.NoInspection(rec.uid)
	r.cache.freshen(rec)
	in.change, in.listed, in.cause = rec.change.number, rec.change.listed(r.records.listedStamp(rec)), rec.cause
	r.announcer.announce(rec, rec.pod, in)
	r.sched.Retry(rec.uid, string(rec.cause))
}

// overdue acts on a call that has become slow or dead.
func (r *reconciler) overdue(late schedule.Overdue) {
	c := late.Call
	rec := r.records.byUID[c.UID]
	switch {
	case c.Kind == schedule.ListAll:
		err := r.deadlineError(methodGetPods)
		r.out.cancel = append(r.out.cancel, cancelCall{c, err})
		r.listFailed(err, c)
		r.forgetAbsent()
	case c.Kind == schedule.ListPod && late.NowDead:
		r.out.cancel = append(r.out.cancel, cancelCall{c, r.deadlineError(methodGetPod)})
		r.sched.ListFailed(c.UID)
	case c.Kind == schedule.ListPod || rec.pod == nil && !late.NowDead:
	case !late.NowDead:
		r.announcer.window.skip(rec)
		r.failing.note(rec, r.sched.Unanswered(rec.uid), nil)
		r.cfg.logger.V(2).Info("Inspection is slow", "pod", klog.KRef(rec.pod.Namespace, rec.pod.Name),
			"podUID", c.UID, "since", r.sched.Clock(c.Began))
	default:
		err := r.deadlineError(methodGetPodStatus)
		r.out.cancel = append(r.out.cancel, cancelCall{c, err})
		if rec.pod != nil {
			r.fail(rec, rec.inspection, err)
		}
	}
}

func (r *reconciler) deadlineError(method string) error {
	return fmt.Errorf("%s has not returned within %v: %w", method, r.cfg.Timeout, context.DeadlineExceeded)
}

// beginCalls begins the calls that are due.
func (r *reconciler) beginCalls() {
	if len(r.relists.waiting) > 0 {
		r.sched.RequestRelist()
	}
	if r.sched.CanaryDue() {
		r.inspectCanary()
	}
	for _, c := range r.sched.Begin(r.cfg.blocked == nil || r.cfg.blocked() > 0) {
		begin := beginCall{c, nil}
		switch c.Kind {
		case schedule.ListAll:
			r.beginFull(c)
		case schedule.ListPod:
			begin.pod = r.records.of(c.UID).pod // a record, so that what overlaps with the list is noticed
			r.cfg.logger.V(5).Info("Relisting pod", "podUID", c.UID, "cause", c.Cause)
		case schedule.Inspect:
			begin.pod = r.beginInspection(c)
		}
		r.out.begin = append(r.out.begin, begin)
	}
}

func (r *reconciler) beginFull(c *schedule.Call) {
	r.relists.begin()
	if !r.lastFull.IsZero() {
		r.metrics.relistInterval.Observe(c.Began.Sub(r.lastFull).Seconds())
	}
	r.lastFull = c.Began
	if v := r.cfg.logger.V(5); v.Enabled() {
		v.Info("Relisting", "cause", c.Cause)
	}
}

// beginInspection notes the inspection of a record. Its stamp is that of the newest list
// that showed this record, never that of a list that showed something else.
func (r *reconciler) beginInspection(c *schedule.Call) *Pod {
	rec := r.records.byUID[c.UID]
	at := r.records.listedStamp(rec)
	c.Cause = string(rec.cause)
	rec.inspection = inspection{
		call: c, pod: rec.pod, stamp: at, change: rec.change.number, listed: rec.change.listed(at),
		cause: rec.cause, syncs: rec.syncsOwed,
	}
	if rec.failures > 0 {
		r.metrics.inspectionRetries.Inc()
	}
	return rec.pod
}

// inspectCanary inspects the next healthy pod by UID.
func (r *reconciler) inspectCanary() {
	var first, next types.UID
	for uid, rec := range r.records.byUID {
		if rec.pod == nil || rec.dirty || rec.failed || rec.inspection.call != nil {
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
	rec := r.records.byUID[uid]
	if rec == nil || rec.pod != nil || r.sched.FullListInFlight() || r.isOpen(rec) {
		return
	}
	delete(r.records.byUID, uid)
	r.cache.remove(uid)
}

// isOpen reports whether something of an absent pod is still to come: a call, a request,
// or its update from the window, which one of a pod that comes back must not overtake.
func (r *reconciler) isOpen(rec *podRecord) bool {
	return r.sched.Open(rec.uid) || r.announcer.window.holds(rec)
}

// completeRelists completes the relists whose pods are all as fresh as they.
func (r *reconciler) completeRelists() {
	if r.sched.Dead() { // none can begin
		r.out.relisted = append(r.out.relisted, r.relists.waiting...)
		r.relists.waiting = r.relists.waiting[:0]
		r.sched.WithdrawRelist()
	}
	r.relists.complete(func(w relist) {
		if w.caller != nil {
			r.announcer.closeWindow() // what is ready is delivered when Relist returns
			r.out.relisted = append(r.out.relisted, w.caller)
		} else {
			r.metrics.relistDuration.Observe(r.sched.Since(w.began).Seconds())
			r.status.synced = true
		}
	})
}

// listSucceeded notes a successful full list.
func (r *reconciler) listSucceeded(c *schedule.Call) {
	if r.status.listErr != nil {
		r.cfg.logger.Info("Relist succeeded again")
	}
	r.status.lastList, r.status.listErr = r.sched.Clock(c.Began), nil
	r.status.pods, r.status.tally = r.records.present, r.records.tally
	r.relists.succeeded(c.Stamp, c.Began, r.announcer.owed, r.failing.byUID)
}

// listFailed notes a failed full list. It changes nothing.
func (r *reconciler) listFailed(err error, c *schedule.Call) {
	r.sched.Failed()
	r.metrics.relistDuration.Observe(r.sched.Since(c.Began).Seconds())
	if r.status.listErr == nil || r.status.listErr.Error() != err.Error() {
		r.cfg.logger.Error(err, "Cannot list pods; will try again every period")
	}
	r.status.listErr, r.status.listErrAt = err, r.status.asOf
	r.out.relisted = append(r.out.relisted, r.relists.attached...)
	r.relists.attached = r.relists.attached[:0]
}

// answers notes that the inspection of a pod does not hang, and whether it has succeeded.
func (r *reconciler) answers(rec *podRecord, succeeded bool) {
	if succeeded && rec.pod != nil {
		r.sched.Succeeded()
		r.status.lastInspection = r.status.asOf
	}
	r.failing.answered(rec.uid, succeeded)
	if succeeded && rec.failures > 0 {
		if rec.pod != nil {
			r.cfg.logger.V(2).Info("Inspection succeeded again",
				"pod", klog.KRef(rec.pod.Namespace, rec.pod.Name), "podUID", rec.uid, "failures", rec.failures)
		}
		rec.failures = 0
	}
}
