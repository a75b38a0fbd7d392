package pleg

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/schedule"
)

// takeRequests takes in the requests of callers, readers and hints.
func (r *reconciler) takeRequests(in *inputs) {
	if in.periodic != nil {
		r.sched.SetPeriodic(*in.periodic)
		r.lastFull = time.Time{}
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
		r.silence.end(r.sched.Last())
	}
	if len(in.hints) > 0 || in.hintAll || in.lostHints {
		r.silence.end(r.sched.Last())
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
	if !rec.hasUninspectedChange() { // else the next inspection has the cause of that
		rec.cause = CauseDemand
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
		r.sched.Hint(uid)
		if !r.cfg.ListsPods {
			r.sched.HintAll()
		}
	}
}
