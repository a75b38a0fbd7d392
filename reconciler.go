package pleg

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/core/backoff"
	"github.com/kubepleg/pleg/internal/core/calls"
	"github.com/kubepleg/pleg/internal/core/schedule"
)

// maxRetryWait bounds the back-off of a failing inspection, unless a period is longer.
const maxRetryWait = 10 * time.Second

// reconciler lists, compares, inspects, stores and publishes. It is a deterministic function of its
// inputs: it starts no goroutine and reads no clock. Its effects are its outputs, and its writes to
// the cache and the broadcaster.
//
// This file contains the step. lists.go and inspections.go handle the results of calls, requests.go handles
// requests, updates.go publishes, podrecords.go compares records with lists, exits.go merges exits,
// cachewriter.go writes the cache, and record.go declares the data. A file uses only declarations of files
// later in this list; order_test.go contains the order of all files. docs/INTERNALS.md contains the rules.
type reconciler struct {
	cfg     schedule.Config
	sched   *schedule.Scheduler
	records *podRecords
	cache   *PodCache
	updates *broadcaster
	metrics *metrics
	backOff backoff.Policy

	// all is the open request for a full list. A list that was dropped for some pods answers it too.
	all     request
	relists relists
	// firstFull is the stamp of the first successful full list.
	firstFull stamp
	// fullBegan is when the last full list began; zero after Start.
	fullBegan time.Time

	// The health check reads the fields below.

	// fullSucceeded is when the last successful full list began; zero for none.
	fullSucceeded time.Time
	// listErr is the last full list's error; nil if it succeeded. listErrAt is when that list failed.
	listErr   error
	listErrAt time.Time
	// listFailingSince is when the first of the consecutive failed full lists began.
	listFailingSince time.Time
	// lastInspection is when the last successful inspection ended; at first, when New was called.
	lastInspection time.Time
	// synced is true once the first full list is complete; see HasSynced.
	synced bool

	out outputs // the outputs of the current step
}

func newReconciler(cfg schedule.Config, now time.Time, cache *PodCache, updates *broadcaster, m *metrics) *reconciler {
	return &reconciler{
		cfg: cfg, sched: schedule.New(cfg), cache: cache, lastInspection: now,
		records: &podRecords{byUID: make(map[types.UID]*podRecord), earlyExits: make(earlyExits)},
		updates: updates, metrics: m, backOff: backoff.Policy{First: cfg.Period, Longest: maxRetryWait}}
}

// step handles the inputs at the time now, and returns the outputs.
func (r *reconciler) step(now time.Time, in *inputs) outputs {
	r.out = outputs{}
	r.sched.Now = now
	r.cache.advance(now)
	r.takeExits(in.exits)
	// Results come before requests, because a result may answer a request. Sorting them makes a run repeatable.
	slices.SortStableFunc(in.results, func(a, b *result) int { return cmp.Compare(a.call.UID, b.call.UID) })
	for _, res := range in.results {
		r.takeResult(res)
	}
	r.takeRequests(in)
	r.expire()
	r.beginCalls()
	r.completeRelists()
	r.out.wake = r.sched.Wake()
	return r.out
}

// takeExits handles exit events. Exits of one pod are published together. Each exit is also a hint:
// its pod is listed, or all pods if the UID is unknown. The exit of a sandbox is only a hint. The
// exit of an unknown container is kept for a while; see earlyExits.
func (r *reconciler) takeExits(exits []ContainerExit) {
	pods := make(map[types.UID]struct{})
	for _, e := range exits {
		rec, c := r.findContainer(e)
		if rec == nil {
			r.records.earlyExits.add(e, r.sched.Now)
		} else if e.PodUID = rec.UID; c != nil && r.takeExit(rec, c, e) {
			pods[rec.UID] = struct{}{}
		}
		r.requestPod(e.PodUID, CauseHint)
	}
	for _, uid := range sortedKeys(pods) {
		rec := r.records.byUID[uid]
		r.publishEnds(rec, CauseExit, time.Time{})
		r.retryLater(rec)
		r.plan(rec)
	}
}

// findContainer returns the record and the container of an exit event. It looks in the listed pod, then
// in the published pod. For a sandbox, the container is nil. For an unknown ID, both results are nil.
func (r *reconciler) findContainer(e ContainerExit) (*podRecord, *Container) {
	rec := r.records.byUID[cmp.Or(e.PodUID, r.records.owners[e.ContainerID])]
	if rec == nil {
		return nil, nil
	}
	for _, pod := range [...]*Pod{rec.pod, rec.published} {
		c := find(pod.containers(), e.ContainerID)
		if c != nil || find(pod.sandboxes(), e.ContainerID) != nil {
			return rec, c
		}
	}
	return nil, nil
}

// takeResult handles the result of a call.
func (r *reconciler) takeResult(res *result) {
	if calls.Panicked(res.err) {
		r.badData(badPanic, res.err.Error())
	}
	c := res.call
	answered := !c.TimedOut || res.err == nil
	if c.Kind == schedule.ListAll {
		r.sched.Returned(c, nil, answered)
		r.completeFullList(res)
		return
	}
	rec := r.records.byUID[c.UID]
	r.sched.Returned(c, &rec.Entry, answered)
	if c.Kind == schedule.ListPod {
		r.completePodList(rec, res)
	} else {
		r.completeInspection(rec, res)
	}
	r.plan(rec)
}

// takeRequests handles the requests of callers and blocked readers, and the hints.
func (r *reconciler) takeRequests(in *inputs) {
	if in.periodic != nil {
		r.sched.SetPeriodic(*in.periodic)
		r.fullBegan = time.Time{}
	}
	r.relists.waiting = append(r.relists.waiting, in.relists...)
	for _, uid := range sortedKeys(in.requests) {
		r.requestPod(uid, CauseDemand)
	}
	for _, uid := range sortedKeys(in.reinspects) {
		if rec := r.records.byUID[uid]; rec != nil && rec.pod != nil {
			rec.sync, rec.inspect = true, true
			r.plan(rec)
		}
	}
	for _, uid := range sortedKeys(in.hints) {
		r.requestPod(uid, CauseHint)
	}
}

// expire does the work that is due at the current time.
func (r *reconciler) expire() {
	woken, lates := r.sched.Expire()
	for _, p := range woken {
		rec, settle := r.records.byUID[p.UID], false
		for kind, at := range rec.due {
			if at.IsZero() || r.sched.Now.Before(at) {
				continue
			}
			rec.due[kind] = time.Time{}
			switch dueKind(kind) {
			case listFailed, dueKinds: // r.plan, below, tries the request again; dueKinds never occurs
			case endCheck:
				rec.inspect, settle = true, true
				if rec.inspecting != nil {
					rec.inspecting.inspectAgain = true
				}
			case followUp:
				r.request(rec, CauseHint)
			case retry:
				r.request(rec, CausePeriod)
			}
		}
		r.plan(rec)
		if settle && !r.sched.Moving(&rec.Entry) { // no inspection is about to settle the ends
			r.publishEnds(rec, CausePeriod, r.sched.Now)
			r.plan(rec)
		}
	}
	for _, late := range lates {
		r.callLate(late)
	}
}

// callLate handles a call that has become slow or has timed out.
func (r *reconciler) callLate(late schedule.Late) {
	c := late.Call
	if late.Entry == nil {
		if late.NowTimedOut {
			err := r.deadlineError(methodGetPods)
			r.out.cancel = append(r.out.cancel, cancelCall{c, err})
			r.fullListFailed(err, c)
		}
		r.planRequested()
		return
	}
	rec := r.records.byUID[c.UID]
	switch {
	case c.Kind == schedule.Inspect && rec.pod == nil:
		r.sched.Gone(&rec.Entry) // the call was cancelled when the pod disappeared
	case c.Kind == schedule.Inspect:
		r.inspectionLate(rec, late)
	case late.NowTimedOut:
		r.out.cancel = append(r.out.cancel, cancelCall{c, r.deadlineError(methodGetPod)})
		r.podListFailed(rec)
	}
	r.plan(rec)
}

// beginCalls begins the calls that are due.
func (r *reconciler) beginCalls() {
	if r.sched.TakeCanary() {
		r.chooseCanaries()
	}
	for _, c := range r.sched.Begin(len(r.relists.waiting) > 0, string(r.all.cause)) {
		begin := beginCall{c, nil}
		switch c.Kind {
		case schedule.ListAll:
			r.beginFullList(c)
		case schedule.ListPod:
			begin.pod = r.records.byUID[c.UID].pod
			r.out.info(5, "Relisting pod", "podUID", c.UID, "cause", c.Cause)
		case schedule.Inspect:
			begin.pod = r.beginInspection(r.records.byUID[c.UID])
		}
		r.out.begin = append(r.out.begin, begin)
	}
}

// chooseCanaries chooses the healthy pod that was inspected least recently. Once full lists are
// stuck, long before they time out, it chooses all pods instead; see FullListsStuckSince.
func (r *reconciler) chooseCanaries() {
	all := !r.sched.FullListsStuckSince.IsZero()
	pods := slices.DeleteFunc(r.records.present(), func(rec *podRecord) bool {
		return rec.Inspection != nil || !all && (rec.stale || rec.failures > 0)
	})
	slices.SortStableFunc(pods, func(a, b *podRecord) int { return a.lastInspected.Compare(b.lastInspected) })
	for _, rec := range pods {
		if !all {
			rec.inspect = true
			r.plan(rec)
			return
		}
		r.sched.AddToRound(&rec.Entry)
	}
}

// completeRelists completes each relist that no longer waits for a pod. While a timed-out full list is
// unanswered, no other full list can begin, so completeRelists fails the calls of Relist that wait for one.
func (r *reconciler) completeRelists() {
	if c := r.sched.FullList; c != nil && c.TimedOut {
		r.out.relisted = append(r.out.relisted, fail(&r.relists.waiting, r.listErr)...)
	}
	r.relists.incomplete = slices.DeleteFunc(r.relists.incomplete, func(l *succeededList) bool {
		if r.stillWaits(l) {
			return false
		}
		r.out.relisted = append(r.out.relisted, l.callers...)
		r.metrics.relistDuration.Observe(r.sched.Now.Sub(l.began).Seconds())
		r.synced = true // see HasSynced
		return true
	})
}
