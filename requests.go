package pleg

import (
	"maps"
	"slices"
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
		r.readerBlocked(uid, in.readers[uid])
	}
	for _, uid := range sortedKeys(in.reinspects) {
		r.reinspect(uid)
	}
	for _, connected := range in.connected {
		r.sched.SetConnected(connected)
		r.silence.end(r.sched.Last())
	}
	if len(in.hints) > 0 || in.lostHints {
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

// readerBlocked asks for the lists that the blocked readers of a pod wait for: one now if
// the earliest minTime has passed, one at the next minTime. Later ones are answered by the
// full lists, for a reader that is blocked keeps them coming every period. If the runtime
// cannot list one pod, they answer all readers: unlike requestNow, this asks for none of them.
func (r *reconciler) readerBlocked(uid types.UID, t minTimes) {
	now := r.sched.Now()
	next := t.earliest
	if next.Before(now) {
		r.sched.Request(uid, schedule.CauseDemand)
		next = t.latest
	}
	if !next.Before(now) && !next.After(now.Add(r.cfg.Period)) {
		r.sched.RequestAt(uid, next.Add(1))
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

// takeHints asks for a list of every hinted pod.
func (r *reconciler) takeHints(in *inputs) {
	if in.lostHints {
		r.sched.HintAll()
		for uid, rec := range r.records.byUID {
			if rec.pod != nil {
				put(&in.hints, hint{uid: uid}, struct{}{})
			}
		}
	}
	r.resolveHints(in.hints)
	for _, h := range slices.SortedFunc(maps.Keys(in.hints), compareHints) {
		known := r.records.pod(h.uid) != nil
		if h.uid == "" || !known && r.sched.OpenPods() >= maxHints {
			r.sched.HintAll()
			continue
		}
		r.sched.Hint(h.uid)
		if !r.cfg.ListsPods {
			r.sched.HintAll()
		}
	}
}

// resolveHints replaces the hints that name only a container by those of its pod, where a
// record has it: in one walk over the records for all of them.
func (r *reconciler) resolveHints(hints map[hint]struct{}) {
	unresolved := false
	for h := range hints {
		unresolved = unresolved || h.uid == ""
	}
	if !unresolved {
		return
	}
	for uid, rec := range r.records.byUID {
		if rec.pod == nil {
			continue
		}
		for _, list := range [...][]*Container{rec.pod.Containers, rec.pod.Sandboxes} {
			for _, c := range list {
				byContainer := hint{containerID: c.ID.ID}
				if _, ok := hints[byContainer]; ok {
					delete(hints, byContainer)
					hints[hint{uid: uid}] = struct{}{}
				}
			}
		}
	}
}
