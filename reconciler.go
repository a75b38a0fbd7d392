package pleg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
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
	cfg     reconcilerConfig
	sched   *schedule.Scheduler
	records *podRecords
	cache   *cacheWriter
	updates *broadcaster
	metrics *metrics

	window  window
	version uint64 // of the newest update

	// waiting are the callers of Relist whose list is to begin, attached those whose
	// list is in flight, awaiting the lists that have succeeded and whose pods are not
	// all as fresh as they.
	waiting, attached []*relistCaller
	awaiting          []relist
	held              []*podRecord             // those whose freshness is held back
	blocker           *podRecord               // one of these that a relist awaited last
	owed              map[types.UID]*podRecord // those with a PodSync that is due

	status         status
	failing        map[types.UID]FailingPod
	failingChanged bool
	lastFull       time.Time // when the last full list began; zero after a start
	canary         types.UID // the pod that was inspected last as one

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

// relist is a full list that has succeeded.
type relist struct {
	stamp  stamp
	began  time.Time     // in the schedule's time
	caller *relistCaller // nil: only its duration is to be measured
	syncs  []owedSync    // the PodSyncs that were owed when the list succeeded
}

// owedSync is a PodSync that a relist waits for.
type owedSync struct {
	rec    *podRecord
	number uint64
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

func newReconciler(
	cfg reconcilerConfig, now time.Time, cache *cacheWriter, updates *broadcaster, m *metrics,
) *reconciler {
	r := &reconciler{
		cfg: cfg, sched: schedule.New(cfg.Config), records: newPodRecords(),
		cache: cache, updates: updates, metrics: m,
		owed:    make(map[types.UID]*podRecord),
		failing: make(map[types.UID]FailingPod),
		status:  status{asOf: now, lastInspection: now},
	}
	r.sched.Advance(now)
	return r
}

// step takes in the inputs and the time, and returns the calls to begin and to cancel.
func (r *reconciler) step(clock time.Time, in *inputs) *outputs {
	r.out.reset()
	if back := r.sched.Advance(clock); back > 0 {
		r.status.goBack(back)
	}
	r.status.asOf = clock
	for _, res := range in.results { // first: they may answer a request
		r.complete(res)
	}
	r.takeRequests(in)
	for _, late := range r.sched.Overdue() {
		r.overdue(late)
	}
	r.beginCalls()
	if r.window.due(r.sched.Now()) {
		r.closeWindow()
	}
	r.completeRelists()
	if r.failingChanged {
		r.listFailing()
	}
	r.out.wake = r.wake()
	return &r.out
}

// wake returns when, by the clock, the next step is due.
func (r *reconciler) wake() time.Time {
	wake := r.sched.Wake()
	if closes := r.window.closes; !closes.IsZero() {
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
		r.closeWindow()
	}
	r.waiting = append(r.waiting, in.relists...)
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
			r.oweSync(rec)
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
	r.resolveHints(in.hints)
	for _, h := range slices.SortedFunc(maps.Keys(in.hints), compareHints) {
		known := r.records.get(h.uid) != nil
		if h.uid == "" || !known && r.sched.Pods() >= maxHints {
			r.sched.RequestAll(schedule.CauseHint, true)
			continue
		}
		r.request(h.uid, CauseHint, true)
	}
}

// resolveHints finds the pods of hints that name only a container, for all such hints in
// one walk over the records.
func (r *reconciler) resolveHints(hints map[hint]struct{}) {
	unresolved := false
	for h := range hints {
		unresolved = unresolved || h.uid == ""
	}
	if !unresolved {
		return
	}
	for uid, rec := range r.records.byUID {
		for id := range containerIDs(rec.pod) {
			if _, ok := hints[hint{containerID: id}]; ok {
				delete(hints, hint{containerID: id})
				hints[hint{uid: uid}] = struct{}{}
			}
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
		r.waiting = append(r.waiting, r.attached...)
		r.attached = r.attached[:0]
	case res.err != nil:
		r.listFailed(res.err, c)
	default:
		r.takeAll(res.pods, c)
	}
	r.forgetAbsent()
}

// takeAll takes in a full list.
func (r *reconciler) takeAll(pods []*Pod, c *schedule.Call) {
	l := list{stamp: c.Stamp, before: r.records.full, cause: Cause(c.Cause), relist: len(r.attached) > 0}
	unsettled := r.unsettled(l)
	r.changes = r.records.takeAll(pods, c.Stamp, r.sched.Last(), r.changes[:0], r.metrics.badData)
	if len(r.changes) > 0 {
		r.closeWindow()
		r.window.open(r.changes, r.sched.Now().Add(max(r.cfg.Period/windowShare, 1)))
	}
	for _, change := range r.changes {
		r.take(change, l)
	}
	clear(r.changes)
	for _, uid := range r.sched.Requested() { // what is left of the requests
		r.confirmRequested(uid, l)
	}
	for _, uid := range unsettled {
		r.confirmRequested(uid, l)
	}
	r.cache.confirmAll(c.Stamp.Time, r.records.byUID)
	r.sched.Listed(c)
	r.listSucceeded(c)
}

// unsettled returns the pods that a list for a caller of Relist has inspected again
// although they have not changed: those that fail, and those that are held.
func (r *reconciler) unsettled(l list) []types.UID {
	if !l.relist || len(r.failing)+len(r.held) == 0 {
		return nil
	}
	uids := sortedKeys(r.failing)
	for _, rec := range r.held {
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
	r.forgetAbsent()
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
		r.hold(rec)
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
	r.freshen(rec)
}

// changed: a list shows a change. The pod is inspected, and held until a status agrees.
func (r *reconciler) changed(rec *podRecord, transitions []transition, l list) {
	rec.change.add(transitions, l.stamp)
	rec.cause = l.cause
	rec.dirty = true
	r.hold(rec)
	r.sched.ResetRetry(rec.uid)
	r.sched.Inspect(rec.uid)
	rec.inspection.superseded = true
	if c := rec.inspection.call; c != nil && c.Slow { // of the pod that had its UID before, perhaps
		r.noteFailing(rec, nil)
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
	r.paySync(rec, rec.syncsOwed)
	rec.inspection.superseded = true
	if c := rec.inspection.call; c != nil {
		r.out.cancel = append(r.out.cancel, cancelCall{c, errPodGone})
	}
	rec.change.add(transitions, l.stamp)
	rec.cause = l.cause
	r.cache.Delete(rec.uid)
	r.freshen(rec)
	r.announce(rec, nil, inspection{change: rec.change.number, listed: l.stamp, cause: l.cause})
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
		r.forgetAbsent()
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
	r.store(rec, status, err, in.stamp)
	rec.failed = err != nil
	rec.observed = in.stamp
	r.announce(rec, in.pod, in)
}

// succeeded takes in a status of the present record. If the status agrees with the record,
// the pod is as fresh as its newest list. If it contradicts the record, either may be
// older: the pod is as fresh as the list that the inspection was made for, and is listed
// again after a back-off.
func (r *reconciler) succeeded(rec *podRecord, in inspection, status *PodStatus) {
	if agrees(rec.pod, status) {
		r.store(rec, status, nil, in.stamp)
		rec.dirty, rec.failed = false, false
		r.sched.ResetRetry(rec.uid)
		if rec.syncsOwed == in.syncs {
			r.sched.NoInspection(rec.uid)
		}
		r.freshen(rec)
		r.announce(rec, rec.pod, in)
		return
	}
	if !rec.dirty {
		rec.dirty, rec.observed = true, r.records.listedStamp(rec)
	}
	r.hold(rec)
	if !rec.observed.After(in.stamp) {
		r.store(rec, status, nil, in.stamp)
		rec.failed = false
		rec.observed = in.stamp
		r.announce(rec, in.pod, in)
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
	r.noteFailing(rec, err)
	r.store(rec, nil, err, r.records.listedStamp(rec))
	rec.failed, rec.dirty = true, false
	r.sched.NoInspection(rec.uid)
	r.freshen(rec)
	in.change, in.listed, in.cause = rec.change.number, rec.change.listed(r.records.listedStamp(rec)), rec.cause
	r.announce(rec, rec.pod, in)
	r.sched.Retry(rec.uid, string(rec.cause))
}

// store puts the result of an inspection into the cache.
func (r *reconciler) store(rec *podRecord, status *PodStatus, err error, at stamp) {
	if status != nil {
		last, _ := r.cache.Get(rec.uid)
		status.TimeStamp = at.Time
		status.IPs = podIPs(last, status)
	}
	r.cache.Set(rec.uid, status, err, at.Time)
	if v := r.cfg.logger.V(4); v.Enabled() {
		v.Info("Wrote status", "pod", klog.KRef(rec.pod.Namespace, rec.pod.Name), "podUID", rec.uid, "err", err)
	}
}

// hold has the cache keep a pod as fresh as it is: no full list makes it fresher.
func (r *reconciler) hold(rec *podRecord) {
	if rec.held == 0 {
		r.held = append(r.held, rec)
		rec.held = len(r.held)
		r.cache.hold(rec.uid)
	}
}

// freshen makes a pod that is not dirty as fresh as the newest list that showed the
// record, and releases it unless lists conflict.
func (r *reconciler) freshen(rec *podRecord) {
	if !rec.dirty {
		r.cache.SetObservedTime(rec.uid, r.records.listedStamp(rec).Time)
	}
	if rec.dirty || rec.conflicting {
		r.hold(rec)
		return
	}
	if place := rec.held; place > 0 {
		last := len(r.held) - 1
		r.held[place-1], r.held[last].held = r.held[last], place
		r.held[last], rec.held = nil, 0
		r.held = r.held[:last]
		r.cache.release(rec.uid)
	}
}

// announce hands the update of a pod to the window or the subscribers: the cache holds the
// status for it. of is the pod as it was listed; in has the change, the cause and the
// PodSyncs that the update is for.
func (r *reconciler) announce(rec *podRecord, of *Pod, in inspection) {
	r.version++
	u := &update{
		uid: rec.uid, pod: of, version: r.version, follows: rec.version,
		sync: r.paySync(rec, in.syncs) || in.recovered, listedAt: in.listed.Time, cause: in.cause,
	}
	switch newest := in.change == rec.change.number; {
	case newest && !rec.change.pending: // it has been announced
	case newest && rec.change.whole:
		u.transitions = rec.change.transitions
	default:
		u.transitions = appendTransitions(nil, rec.announced, of)
	}
	if in.change == rec.change.number {
		rec.change.pending = false
	}
	appears := (rec.announced == nil) != (of == nil)
	if len(u.transitions) == 0 && !u.sync && !appears {
		r.window.skip(rec)
		return
	}
	rec.announced, rec.version = of, u.version
	if of == nil {
		rec.version = 0
	}
	r.logTransitions(u)
	if !r.window.add(rec, u) {
		r.updates.Publish(u)
	}
}

func (r *reconciler) closeWindow() { r.window.close(r.updates.Publish) }

// logTransitions logs every transition, and the exit code of containers that finished.
func (r *reconciler) logTransitions(u *update) {
	v := r.cfg.logger.V(2)
	if !v.Enabled() {
		return
	}
	status, _ := r.cache.Get(u.uid)
	for _, t := range u.transitions {
		id := t.container.ID.ID
		r.cfg.logger.V(4).Info("Transition", "podUID", u.uid, "containerID", id, "event", t.kind)
		if t.kind != ContainerDied || t.sandbox {
			continue
		}
		for _, s := range status.ContainerStatuses {
			if s.ID.ID == id && s.State == ContainerStateExited {
				v.Info("Container finished", "podUID", u.uid, "containerID", id, "exitCode", s.ExitCode, "reason", s.Reason)
			}
		}
	}
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
		r.window.skip(rec)
		r.noteFailing(rec, nil)
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
	if len(r.waiting) > 0 {
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
	r.attached, r.waiting = r.waiting, r.attached[:0]
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
	r.records.forget(r.sched.Open, func(uid types.UID) {
		r.cache.Delete(uid)
	})
}

// completeRelists completes the relists that no pod is older than. A stuck pod is not
// waited for.
func (r *reconciler) completeRelists() {
	if r.sched.Dead() { // none can begin
		r.out.relisted = append(r.out.relisted, r.waiting...)
		r.waiting = r.waiting[:0]
		r.sched.WithdrawRelist()
	}
	if len(r.awaiting) == 0 {
		return
	}
	r.awaiting = slices.DeleteFunc(r.awaiting, func(w relist) bool {
		if r.isAwaited(w) {
			return false
		}
		r.closeWindow()
		if w.caller != nil {
			r.out.relisted = append(r.out.relisted, w.caller)
		} else {
			r.metrics.relistDuration.Observe(r.sched.Since(w.began).Seconds())
		}
		return true
	})
}

// isAwaited reports whether a pod that is not stuck is older than a list, or is owed a
// PodSync from before it.
func (r *reconciler) isAwaited(w relist) bool {
	for _, s := range w.syncs {
		if s.rec.syncsPaid < s.number && !r.sched.Stuck(s.rec.uid) {
			return true
		}
	}
	awaited := func(rec *podRecord) bool {
		return rec.held > 0 && w.stamp.After(r.records.observedStamp(rec)) && !r.sched.Stuck(rec.uid)
	}
	if r.blocker != nil && awaited(r.blocker) {
		return true
	}
	r.blocker = nil
	for i := len(r.held) - 1; i >= 0; i-- { // the last to be inspected first
		if awaited(r.held[i]) {
			r.blocker = r.held[i]
			return true
		}
	}
	return false
}

// listSucceeded notes a successful full list.
func (r *reconciler) listSucceeded(c *schedule.Call) {
	if r.status.listErr != nil {
		r.cfg.logger.Info("Relist succeeded again")
	}
	r.status.lastList, r.status.listErr = r.sched.Clock(c.Began), nil
	r.status.pods, r.status.tally = r.records.present, r.records.tally
	r.awaiting = append(r.awaiting, relist{stamp: c.Stamp, began: c.Began})
	if len(r.attached) == 0 {
		return
	}
	var syncs []owedSync
	for _, rec := range r.owed {
		syncs = append(syncs, owedSync{rec, rec.syncsOwed})
	}
	for _, caller := range r.attached {
		r.awaiting = append(r.awaiting, relist{c.Stamp, c.Began, caller, syncs})
	}
	r.attached = r.attached[:0]
}

// oweSync notes that a PodSync is due with the result of the next inspection of a pod.
func (r *reconciler) oweSync(rec *podRecord) {
	rec.syncsOwed++
	r.owed[rec.uid] = rec
}

// paySync notes that the PodSyncs up to a number are delivered, and reports whether one
// of them was still due.
func (r *reconciler) paySync(rec *podRecord, number uint64) bool {
	if rec.syncsPaid >= number {
		return false
	}
	rec.syncsPaid = number
	if rec.syncsPaid == rec.syncsOwed {
		delete(r.owed, rec.uid)
	}
	return true
}

// listFailed notes a failed full list. It changes nothing.
func (r *reconciler) listFailed(err error, c *schedule.Call) {
	r.sched.Failed(c)
	r.metrics.relistDuration.Observe(r.sched.Since(c.Began).Seconds())
	if r.status.listErr == nil || r.status.listErr.Error() != err.Error() {
		r.cfg.logger.Error(err, "Cannot list pods; will try again every period")
	}
	r.status.listErr, r.status.listErrAt = err, r.status.asOf
	r.out.relisted = append(r.out.relisted, r.attached...)
	r.attached = r.attached[:0]
}

// noteFailing notes that the inspection of a pod hangs, or has failed.
func (r *reconciler) noteFailing(rec *podRecord, err error) {
	p := FailingPod{
		PodUID: rec.uid, Namespace: rec.pod.Namespace, Name: rec.pod.Name,
		HangingSince: r.sched.Unanswered(rec.uid), Failures: rec.failures, Error: r.failing[rec.uid].Error,
	}
	if err != nil {
		p.Error = err.Error()
	}
	r.failing[rec.uid] = p
	r.failingChanged = true
}

// answers notes that the inspection of a pod does not hang, and whether it has succeeded.
func (r *reconciler) answers(rec *podRecord, succeeded bool) {
	if succeeded && rec.pod != nil {
		r.sched.Succeeded()
		r.status.lastInspection = r.status.asOf
	}
	p, ok := r.failing[rec.uid]
	if !ok {
		return
	}
	r.failingChanged = true
	p.HangingSince = time.Time{}
	r.failing[rec.uid] = p
	if succeeded || p.Failures == 0 {
		delete(r.failing, rec.uid)
	}
	if succeeded && rec.failures > 0 {
		if rec.pod != nil {
			r.cfg.logger.V(2).Info("Inspection succeeded again",
				"pod", klog.KRef(rec.pod.Namespace, rec.pod.Name), "podUID", rec.uid, "failures", rec.failures)
		}
		rec.failures = 0
	}
}

func (r *reconciler) listFailing() {
	r.failingChanged = false
	r.status.failing = make([]FailingPod, 0, len(r.failing))
	for _, uid := range sortedKeys(r.failing) {
		r.status.failing = append(r.status.failing, r.failing[uid])
	}
}

// podIPs returns the addresses of a pod. When its network has been torn down, they are the
// last that it had; a ready sandbox without addresses does not inherit those of the last.
func podIPs(last, status *PodStatus) []string {
	if len(status.IPs) > 0 || last == nil {
		return status.IPs
	}
	for _, s := range status.SandboxStatuses {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			return status.IPs
		}
	}
	return last.IPs
}

// sortedKeys returns the keys of a map in a fixed order. It allocates nothing for an empty
// map.
func sortedKeys[V any](m map[types.UID]V) []types.UID {
	if len(m) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}

func containerIDs(pod *Pod) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		if pod == nil {
			return
		}
		for _, list := range [...][]*Container{pod.Containers, pod.Sandboxes} {
			for _, c := range list {
				if !yield(c.ID.ID) {
					return
				}
			}
		}
	}
}
