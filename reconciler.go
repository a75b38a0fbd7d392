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

// reconciler is the data flow from top to bottom: list, diff, inspect, store, publish.
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
	publisher publisher
	metrics   *metrics

	relists     relists
	failing     failingPods
	suspensions suspensions
	health      healthState

	lastFull time.Time // when the last full list began; zero after a start
	canary   types.UID // the pod that was inspected last as one

	changes []podChange // scratch
	out     outputs
}

// reconcilerConfig does not change.
type reconcilerConfig struct {
	schedule.Config
	logger klog.Logger
	// blocked counts the blocked readers, while which full lists come every period; nil
	// where they always do.
	blocked func() int
}

// list is the list of the current result.
type list struct {
	stamp     stamp
	before    stamp // of the previous full list
	cause     Cause
	forRelist bool // a caller of Relist waits for it
}

// errPodGone is the cause of cancelling the inspection of a pod that is no longer listed.
var errPodGone = errors.New("the pod is gone")

func newReconciler(cfg reconcilerConfig, now time.Time, cache Cache, updates *broadcaster, m *metrics) *reconciler {
	sched, records := schedule.New(cfg.Config), newPodRecords()
	writer := newCacheWriter(cache, records, cfg.logger)
	sched.Advance(now)
	return &reconciler{
		cfg: cfg, sched: sched, records: records, cache: writer,
		publisher: publisher{
			updates: updates, exited: m.exited, logger: cfg.logger, syncing: make(map[types.UID]*podRecord),
		},
		metrics: m,
		relists: relists{records: records, sched: sched, cache: writer},
		failing: failingPods{sched: sched, byUID: make(map[types.UID]*podRecord)},
		health:  healthState{asOf: now, lastInspection: now},
	}
}

// step takes in the inputs and the time, and returns the calls to begin and to cancel.
func (r *reconciler) step(clock time.Time, in *inputs) *outputs {
	r.out.reset()
	r.advance(clock)
	for _, res := range in.results { // first: they may answer a request
		r.complete(res)
	}
	r.takeRequests(in)
	for _, late := range r.sched.Expire() {
		r.late(late)
	}
	for s := r.suspensions.lapsed(r.sched.Now()); s != nil; s = r.suspensions.lapsed(r.sched.Now()) {
		r.cfg.logger.Error(nil, "A suspended pod was not resumed in time; it is listed again", "podUID", s.uid)
		r.resume(s)
	}
	r.beginCalls()
	if r.publisher.window.due(r.sched.Now()) {
		r.publisher.closeWindow()
	}
	r.completeRelists()
	if r.publisher.window.closed {
		r.publisher.window.closed = false
		r.forgetAbsent()
	}
	if r.failing.changed {
		r.health.failing = r.failing.list()
	}
	r.out.wake = r.wake()
	return &r.out
}

// advance sets the time.
func (r *reconciler) advance(clock time.Time) {
	if back := r.sched.Advance(clock); back > 0 {
		r.health.goBack(back)
		r.failing.changed = true
	}
	r.health.asOf, r.publisher.now = clock, clock
}

// wake returns when, by the clock, the next step is due.
func (r *reconciler) wake() time.Time {
	wake := r.sched.Wake()
	for _, t := range [...]time.Time{r.publisher.window.closes, r.suspensions.next()} {
		if t.IsZero() {
			continue
		}
		if at := r.sched.Clock(t); wake.IsZero() || at.Before(wake) {
			wake = at
		}
	}
	return wake
}

// suspend has nothing of a pod be stored or published until it is resumed. Like resume it
// is called between two steps, so that this holds when Suspend returns; the next step is
// due at once.
func (r *reconciler) suspend(clock time.Time, s *suspension) {
	r.advance(clock)
	rec := r.records.of(s.uid)
	r.publisher.window.release(rec, r.publisher.deliver) // what is stored is published before
	r.suspensions.add(s, r.sched.Now().Add(r.cfg.Timeout))
	r.records.suspend(rec)
	r.sched.Suspend(s.uid)
	r.cache.hold(rec)
	rec.inspection.discarded = true
}

// resume ends a suspension unless it has lapsed. If it was the last of the pod, that is
// listed, by a list that begins from now on.
func (r *reconciler) resume(s *suspension) {
	if !r.suspensions.remove(s) {
		return
	}
	rec := r.records.byUID[s.uid]
	if r.records.resume(rec, r.sched.Last()) {
		r.requestNow(s.uid, schedule.CauseDemand)
		r.sched.Resume(s.uid)
	}
}

// takeRequests takes in the requests of callers, readers and hints.
func (r *reconciler) takeRequests(in *inputs) {
	if in.periodic != nil {
		r.sched.SetPeriodic(*in.periodic)
		r.lastFull = time.Time{}
		r.publisher.closeWindow()
	}
	r.relists.waiting = append(r.relists.waiting, in.relists...)
	for _, uid := range sortedKeys(in.requests) {
		r.requestNow(uid, schedule.CauseDemand)
	}
	for _, uid := range sortedKeys(in.readers) {
		r.readerBlocked(uid, in.readers[uid])
	}
	for _, uid := range sortedKeys(in.reinspects) {
		r.reinspect(uid)
	}
	for _, connected := range in.stream {
		r.sched.SetConnected(connected)
	}
	if len(in.hints) > 0 || in.lostHints {
		r.takeHints(in)
	}
}

// requestNow asks for a list of one pod, or of all if the runtime cannot list one.
func (r *reconciler) requestNow(uid types.UID, cause string) {
	r.sched.Request(uid, cause)
	if !r.cfg.ListsPods {
		r.sched.RequestAll(cause)
	}
}

// readerBlocked asks for the lists that the blocked readers of a pod wait for: one now if
// the earliest minTime has passed, one at the next minTime. Later ones are answered by the
// full lists, for a reader that is blocked keeps them coming every period.
func (r *reconciler) readerBlocked(uid types.UID, t minTimes) {
	clock := r.sched.Clock(r.sched.Now())
	next := t.earliest
	if next.Before(clock) {
		r.sched.Request(uid, schedule.CauseDemand)
		next = t.latest
	}
	if !next.Before(clock) && !next.After(clock.Add(r.cfg.Period)) {
		r.sched.RequestAt(uid, next.Add(1))
	}
}

// reinspect has a pod inspected whose list may not have changed, and delivers a PodSync.
func (r *reconciler) reinspect(uid types.UID) {
	rec := r.records.byUID[uid]
	if rec == nil || rec.pod == nil {
		return
	}
	if !rec.published.change.pending || rec.inspection.call != nil && !rec.inspection.superseded {
		rec.cause = CauseDemand
	}
	r.publisher.requestSync(rec)
	r.sched.Inspect(uid)
}

// takeHints asks for a list of every hinted pod.
func (r *reconciler) takeHints(in *inputs) {
	if in.lostHints {
		r.sched.HintAll()
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
			r.sched.HintAll()
			continue
		}
		r.sched.Hint(h.uid)
		if !r.cfg.ListsPods {
			r.sched.HintAll()
		}
	}
}

// complete takes in the result of a call.
func (r *reconciler) complete(res *result) {
	if calls.Panicked(res.err) {
		r.metrics.badData(badRuntimePanic, res.err.Error())
	}
	switch res.call.Kind {
	case schedule.ListAll:
		r.completeFullList(res)
	case schedule.ListPod:
		r.completePodList(res)
	case schedule.Inspect:
		r.completeInspection(res)
	}
}

// completeFullList takes in the result of a full list. A dead one has failed already: its
// answer is discarded, for it may be older than an absence that was forgotten since.
func (r *reconciler) completeFullList(res *result) {
	c := res.call
	r.sched.Return(c, true)
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

// applyFullList compares a full list with the records, and acts on what it says about each
// pod.
func (r *reconciler) applyFullList(pods []*Pod, c *schedule.Call) {
	l := list{stamp: c.Stamp, before: r.records.full, cause: Cause(c.Cause), forRelist: len(r.relists.attached) > 0}
	retried := r.retriedBy(l)
	r.changes = r.records.compareAll(pods, c.Stamp, r.sched.Last(), r.changes[:0], r.metrics.badData)
	if len(r.changes) > 0 {
		r.publisher.closeWindow()
		r.publisher.window.open(r.changes, r.sched.Now().Add(max(r.cfg.Period/windowShare, 1)))
	}
	for _, change := range r.changes {
		r.apply(change, l)
	}
	clear(r.changes)
	if r.publisher.first.Number == 0 {
		r.publisher.firstList(c.Stamp, r.records)
	}
	for _, uid := range r.sched.Requested() { // what is left of the requests
		r.confirmUnchanged(uid, l)
	}
	for _, uid := range retried {
		r.confirmUnchanged(uid, l)
	}
	r.cache.confirmAll(c.Stamp.Time)
	r.sched.FullListed(c)
	r.fullListSucceeded(c)
}

// retriedBy returns the pods that a list for a caller of Relist has inspected again
// although they have not changed: those that fail, and those that are held.
func (r *reconciler) retriedBy(l list) []types.UID {
	if !l.forRelist || len(r.failing.byUID)+len(r.cache.held) == 0 {
		return nil
	}
	uids := sortedKeys(r.failing.byUID)
	for _, rec := range r.cache.held {
		uids = append(uids, rec.uid)
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

// confirmUnchanged answers the request of a pod that the full list confirms.
func (r *reconciler) confirmUnchanged(uid types.UID, l list) {
	if !r.records.confirms(uid, l.stamp) {
		return
	}
	asked := r.sched.PodListed(uid, l.stamp) || l.forRelist
	if rec := r.records.byUID[uid]; rec != nil {
		r.confirmed(rec, schedule.Later(rec.own, l.before), l, asked)
	}
}

// completePodList takes in the result of a single-pod list.
func (r *reconciler) completePodList(res *result) {
	c := res.call
	r.sched.Return(c, true)
	switch {
	case c.Dead || res.stopped:
	case calls.Is(res.err, ErrPodNotFound):
		r.applyPodList(nil, c)
	case res.err != nil:
		r.cfg.logger.V(4).Info("Cannot list pod", "podUID", c.UID, "err", res.err)
		r.sched.PodListFailed(c.UID)
	case res.pod == nil:
		r.metrics.badData(badPodNil, string(c.UID))
		r.sched.PodListFailed(c.UID)
	case res.pod.ID != c.UID:
		r.metrics.badData(badPodMismatch, fmt.Sprintf("%s instead of %s", res.pod.ID, c.UID))
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
	rec := r.records.of(c.UID)
	change := r.records.compareOne(rec, pod, c.Stamp, r.sched.Last(), r.metrics.badData)
	r.apply(change, list{stamp: c.Stamp, cause: Cause(c.Cause)})
	r.health.pods, r.health.tally = r.records.present, r.records.tally
}

// apply acts on what a list says about one pod.
func (r *reconciler) apply(change podChange, l list) {
	rec := change.rec
	switch change.verdict {
	case ignored:
		return
	case conflicting: // which of the two read the runtime later is unknown: list again
		r.sched.Request(rec.uid, string(l.cause))
		r.cache.hold(rec)
		return
	case confirmed, changed:
	}
	asked := r.sched.PodListed(rec.uid, l.stamp) || l.forRelist
	switch {
	case change.verdict == confirmed:
		r.confirmed(rec, change.was, l, asked)
	case rec.pod == nil:
		r.gone(rec, change.transitions, l)
	default:
		r.changed(rec, change.transitions, l)
	}
}

// confirmed: a list shows the record unchanged, which lists up to was had shown. If the
// list was asked for, a pod whose inspection failed, or whose status contradicted the
// record, is inspected again: the back-off of both ends here. A caller of Relist waits for
// that inspection.
func (r *reconciler) confirmed(rec *podRecord, was stamp, l list, asked bool) {
	switch again := asked && rec.pod != nil; {
	case again && rec.dirty && rec.inspection.dead(): // it died while the pod was suspended
		r.failDead(rec)
	case again && (rec.dirty || rec.failures > 0):
		if l.forRelist && !rec.inspection.dead() {
			rec.freeze(was)
		}
		if !rec.published.change.pending {
			rec.cause = l.cause
		}
		r.sched.Inspect(rec.uid)
	}
	r.cache.freshen(rec)
}

// changed: a list shows a change. The pod is inspected, and held until a status agrees.
func (r *reconciler) changed(rec *podRecord, transitions []transition, l list) {
	rec.published.change.add(transitions, l.stamp)
	rec.cause = l.cause
	r.cache.hold(rec)
	if rec.published.version == 0 {
		r.cache.setListed(rec.uid)
	}
	r.sched.InspectChanged(rec.uid)
	rec.inspection.superseded = true
	if rec.inspection.dead() { // no other can begin: the pod is published with an error
		r.failDead(rec)
	}
	r.failing.update(rec)
}

// gone: a list shows that the pod is absent. Nothing has to be inspected: it is published.
func (r *reconciler) gone(rec *podRecord, transitions []transition, l list) {
	r.sched.Gone(rec.uid)
	rec.dirty, rec.err, rec.failures = false, nil, 0
	r.failing.update(rec)
	rec.inspection.superseded = true
	if c := rec.inspection.call; c != nil {
		r.out.cancel = append(r.out.cancel, cancelCall{c, errPodGone})
	}
	rec.published.change.add(transitions, l.stamp)
	r.publisher.syncsDone(rec, rec.published.syncsRequested) // what is gone has no PodSync
	r.cache.remove(rec.uid)
	r.cache.freshen(rec)
	r.publisher.publish(rec, rec.published.snapshot(nil, l.stamp, l.cause), false)
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

// failDead is fail for an inspection that is dead.
func (r *reconciler) failDead(rec *podRecord) {
	r.fail(rec, rec.inspection.of.syncs, r.deadlineError(methodGetPodStatus))
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

// late acts on a call that has become slow or dead.
func (r *reconciler) late(late schedule.LateCall) {
	c := late.Call
	switch {
	case c.Kind == schedule.Inspect:
		r.inspectionLate(late)
	case !late.NowDead:
	case c.Kind == schedule.ListPod:
		r.out.cancel = append(r.out.cancel, cancelCall{c, r.deadlineError(methodGetPod)})
		r.sched.PodListFailed(c.UID)
	default:
		err := r.deadlineError(methodGetPods)
		r.out.cancel = append(r.out.cancel, cancelCall{c, err})
		r.fullListFailed(err, c)
		r.forgetAbsent()
	}
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

func (r *reconciler) deadlineError(method string) error {
	return fmt.Errorf("%s has not returned within %v: %w", method, r.cfg.Timeout, context.DeadlineExceeded)
}

// beginCalls begins the calls that are due.
func (r *reconciler) beginCalls() {
	if len(r.relists.waiting) > 0 {
		r.sched.RequestRelist()
	}
	if r.sched.TakeCanary() {
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
	return r.sched.Open(rec.uid) || r.publisher.window.holds(rec)
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
			r.publisher.closeWindow() // what is ready is delivered when Relist returns
			r.out.relisted = append(r.out.relisted, w.caller)
		} else {
			r.metrics.relistDuration.Observe(r.sched.Since(w.began).Seconds())
			r.health.synced = true
		}
	})
}

// fullListSucceeded notes a successful full list.
func (r *reconciler) fullListSucceeded(c *schedule.Call) {
	if r.health.listErr != nil {
		r.cfg.logger.Info("Relist succeeded again")
	}
	r.health.lastList, r.health.listErr = r.sched.Clock(c.Began), nil
	r.health.pods, r.health.tally = r.records.present, r.records.tally
	r.relists.succeeded(c.Stamp, c.Began, r.publisher.syncing, r.failing.byUID)
}

// fullListFailed notes a failed full list. It changes nothing.
func (r *reconciler) fullListFailed(err error, c *schedule.Call) {
	r.sched.FullListFailed()
	r.metrics.relistDuration.Observe(r.sched.Since(c.Began).Seconds())
	if r.health.listErr == nil || r.health.listErr.Error() != err.Error() {
		r.cfg.logger.Error(err, "Cannot list pods; will try again every period")
	}
	r.health.listErr, r.health.listErrAt = err, r.health.asOf
	r.out.relisted = append(r.out.relisted, r.relists.attached...)
	r.relists.attached = r.relists.attached[:0]
}
