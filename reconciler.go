package pleg

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/calls"
	"github.com/kubepleg/pleg/internal/schedule"
)

// reconciler is the data flow from top to bottom: list, compare, inspect, store, publish.
// It is a function of its inputs: it starts no goroutine and reads no clock. Its effects
// are its writes to the cache and the broadcaster, in order, and its outputs. This file has
// the step and what it does with requests; lists.go and inspections.go have what it does with
// the results of calls.
//
// Its rules, each with the counterexample that needs it, are in docs/DESIGN.md.
type reconciler struct {
	cfg       reconcilerConfig
	sched     *schedule.Scheduler
	records   *podRecords
	cache     *cacheWriter
	publisher publisher
	metrics   *metrics

	relists relists
	failing failingPods
	health  healthState

	lastFull   time.Time // when the last full list began; zero after a start
	lastCanary types.UID // the pod that was last inspected as a canary
	// answeredBesideList are the pods that were inspected since a full list began that hangs.
	answeredBesideList map[types.UID]struct{}

	compared []comparison // scratch
	out      outputs      // of the present step
}

// reconcilerConfig does not change.
type reconcilerConfig struct {
	schedule.Config
	owner cacheOwner // the generator
}

func newReconciler(cfg reconcilerConfig, now time.Time, cache writtenCache, updates *broadcaster, m *metrics) *reconciler {
	sched, records := schedule.New(cfg.Config), newPodRecords()
	writer := newCacheWriter(cache, cfg.owner, records)
	sched.Advance(now)
	r := &reconciler{
		cfg: cfg, sched: sched, records: records, cache: writer,
		publisher: publisher{updates: updates, syncing: make(map[types.UID]*podRecord)},
		metrics:   m,
		relists:   relists{records: records, sched: sched},
		failing:   failingPods{sched: sched, byUID: make(map[types.UID]*podRecord)},
		health:    healthState{lastInspection: now},
	}
	writer.log, r.publisher.log = &r.out.log, &r.out.log
	return r
}

// badData counts bad data, and logs the first of each kind.
func (r *reconciler) badData(reason badReason, object string) {
	log := func(message string, keysAndValues ...any) { r.out.log.info(0, message, keysAndValues...) }
	r.metrics.badData(log, reason, object)
}

// step takes in the inputs and the time, and returns the calls to begin and to cancel.
func (r *reconciler) step(now time.Time, in *inputs) outputs {
	r.out = outputs{log: stepLog{verbosity: in.verbosity}}
	r.advance(now)
	for _, e := range in.exits {
		r.containerExited(e)
	}
	// Results come before requests, which they may answer. They are taken by pod, so that a run can
	// be repeated.
	slices.SortStableFunc(in.results, func(a, b *result) int { return cmp.Compare(a.call.UID, b.call.UID) })
	for _, res := range in.results {
		r.takeResult(res)
	}
	r.takeRequests(in)
	for _, late := range r.sched.Expire() {
		r.callLate(late)
	}
	r.beginCalls()
	r.completeRelists()
	r.noteHealth()
	r.out.wake = r.sched.Wake()
	return r.out
}

// noteHealth takes what others keep into the health state. The rest of it is noted as it
// happens.
func (r *reconciler) noteHealth() {
	r.health.pods, r.health.tally = r.records.present, r.records.tally
	r.health.listHangs, r.health.answered = r.sched.FullListHangs(), len(r.answeredBesideList)
	r.health.unconfirmed = r.records.unconfirmedExits()
}

// advance sets the time.
func (r *reconciler) advance(now time.Time) {
	r.sched.Advance(now)
	r.publisher.now = now
	r.cache.advance(now)
}

// takeResult takes in the result of a call.
func (r *reconciler) takeResult(res *result) {
	if calls.Panicked(res.err) {
		r.badData(badRuntimePanic, res.err.Error())
	}
	r.sched.Returned(res.call, !res.call.Dead || res.err == nil)
	switch res.call.Kind {
	case schedule.ListAll:
		r.completeFullList(res)
	case schedule.ListPod:
		r.completePodList(res)
	case schedule.Inspect:
		r.completeInspection(res)
	}
}

// callLate acts on a call that has become slow or dead.
func (r *reconciler) callLate(late schedule.LateCall) {
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

// beginCalls begins the calls that are due.
func (r *reconciler) beginCalls() {
	if len(r.relists.waiting) > 0 {
		r.sched.RequestRelist()
	}
	for more := true; more && r.sched.TakeCanary(); {
		more = r.inspectCanary()
	}
	due := r.sched.Begin(true)
	r.out.begin = make([]beginCall, 0, len(due))
	for _, c := range due {
		begin := beginCall{c, nil}
		switch c.Kind {
		case schedule.ListAll:
			r.beginFullList(c)
		case schedule.ListPod:
			begin.pod = r.records.getOrAdd(c.UID).pod // a record, so that what overlaps with the list is noticed
			r.out.log.info(5, "Relisting pod", "podUID", c.UID, "cause", c.Cause)
		case schedule.Inspect:
			begin.pod = r.beginInspection(c)
		}
		r.out.begin = append(r.out.begin, begin)
	}
}

// completeRelists completes the relists whose pods are all as fresh as they.
func (r *reconciler) completeRelists() {
	if r.sched.FullListDead() { // no other can begin
		r.out.relisted = append(r.out.relisted, r.relists.giveUp(r.health.listErr)...)
		r.sched.WithdrawRelist()
	}
	r.relists.complete(func(w relist) {
		r.out.relisted = append(r.out.relisted, w.callers...)
		if !w.paused {
			r.metrics.relistDuration.Observe(r.sched.Since(w.began).Seconds())
		}
		r.health.synced = true // see HasSynced; at the first of them, and from then on
	})
}

// takeRequests takes in the requests of callers, readers and hints.
func (r *reconciler) takeRequests(in *inputs) {
	if in.periodic != nil {
		r.sched.SetPeriodic(*in.periodic)
		r.lastFull = time.Time{}
		r.relists.paused()
	}
	r.relists.waiting = append(r.relists.waiting, in.relists...)
	for _, uid := range sortedKeys(in.requests) {
		r.requestNow(uid, schedule.CauseDemand)
	}
	for _, uid := range sortedKeys(in.readers) {
		r.cache.confirmAbsence(uid)
		r.sched.Request(uid, schedule.CauseDemand) // the full lists come every period while a reader is blocked
	}
	for _, uid := range sortedKeys(in.reinspects) {
		r.reinspect(uid)
	}
	for _, connected := range in.connected {
		r.sched.SetConnected(connected)
	}
	if len(in.hints) > 0 || in.hintAll || in.lostHints {
		r.takeHints(in)
	}
}

// requestNow asks for a list of one pod, or of all soon if the runtime cannot list one.
func (r *reconciler) requestNow(uid types.UID, cause string) {
	r.sched.Request(uid, cause)
	if !r.cfg.ListsPods {
		r.sched.RequestAll(cause)
	}
}

// reinspect has a pod inspected whose list may not have changed, and delivers a PodSync.
func (r *reconciler) reinspect(uid types.UID) {
	rec := r.records.byUID[uid]
	if rec == nil || rec.pod == nil {
		return
	}
	r.publisher.requestSync(rec)
	r.sched.Inspect(uid)
}

// takeHints asks for a list of every hinted pod, and of all where an event names none.
func (r *reconciler) takeHints(in *inputs) {
	if in.hintAll || in.lostHints {
		r.sched.HintAll()
	}
	if in.lostHints {
		for uid, rec := range r.records.byUID {
			if rec.pod != nil {
				put(&in.hints, uid, struct{}{})
			}
		}
	}
	for _, uid := range sortedKeys(in.hints) {
		if r.records.pod(uid) == nil && r.sched.OpenPods() >= maxHints {
			r.sched.HintAll()
			continue
		}
		r.hint(uid)
	}
}

// hint asks for a list of one pod, or of all soon if the runtime cannot list one, and for another.
func (r *reconciler) hint(uid types.UID) {
	r.sched.Hint(uid)
	if !r.cfg.ListsPods {
		r.sched.HintAll()
	}
}
