package pleg

import (
	"slices"
	"time"

	"github.com/kubepleg/pleg/internal/schedule"
)

// relists are the full lists that callers of Relist wait for, and those that have succeeded and
// whose pods are not all as fresh as they.
type relists struct {
	// waiting are the callers whose list is to begin, attached those whose list is in flight.
	waiting, attached []*relistCaller
	incomplete        []relist
}

// relist is a full list that has succeeded.
type relist struct {
	stamp   stamp
	began   time.Time
	callers []*relistCaller
	awaited []awaited
	// paused is true if the generator was stopped or started since: how long it took says nothing.
	paused bool
}

// awaited is a pod that a relist waits for: until it is as fresh as the list, and until the
// inspections have returned that were under way or due when the list completed, if somebody wants
// their PodSync or they follow a failure.
type awaited struct {
	rec  *podRecord
	made *snapshot // of the inspection that is awaited; nil for none
	next bool      // another inspection is awaited after it
}

// await notes what the list waits for of a pod; without callers, freshness alone.
func (l *relist) await(rec *podRecord) {
	a := awaited{rec: rec}
	if len(l.callers) > 0 {
		if rec.made != nil && (rec.made.sync || rec.failures > 0) {
			a.made = rec.made
		}
		a.next = rec.inspect && (rec.sync || rec.failures > 0)
	}
	if a.isAwaited(l.stamp) {
		l.awaited = append(l.awaited, a)
	}
}

// isAwaited reports whether there is something left to wait for.
func (a *awaited) isAwaited(at stamp) bool {
	if a.next && a.rec.made != nil && a.rec.made != a.made {
		a.made, a.next = a.rec.made, false
	}
	return at.After(a.rec.observedAt()) || a.made != nil && a.made == a.rec.made || a.next && a.rec.inspect
}

// begin attaches the callers that wait to the list that begins.
func (r *relists) begin() { r.attached, r.waiting = r.waiting, nil }

// stopped has the callers wait for another list.
func (r *relists) stopped() { r.waiting, r.attached = append(r.waiting, r.attached...), nil }

// paused notes that the generator was stopped or started.
func (r *relists) paused() {
	for i := range r.incomplete {
		r.incomplete[i].paused = true
	}
}

// failed returns the callers of the list in flight, which has failed.
func (r *relists) failed(err error) (callers []*relistCaller) {
	callers, r.attached = r.attached, nil
	return withError(callers, err)
}

// giveUp returns the callers that wait for a list to begin: none can after one that is dead.
func (r *relists) giveUp(err error) (callers []*relistCaller) {
	callers, r.waiting = r.waiting, nil
	return withError(callers, err)
}

func withError(callers []*relistCaller, err error) []*relistCaller {
	for _, c := range callers {
		c.err = err
	}
	return callers
}

// succeeded notes that the list in flight has. What it found has every pod that may be older than it.
func (r *relists) succeeded(c *schedule.Call, found []comparison, records *podRecords) {
	done := relist{stamp: c.Stamp, began: c.Began, callers: r.attached}
	if len(done.callers) == 0 {
		for _, f := range found {
			done.await(f.rec)
		}
	} else {
		for _, rec := range records.byUID {
			done.await(rec)
		}
	}
	r.attached, r.incomplete = nil, append(r.incomplete, done)
}

// complete takes away the lists that wait for no pod any more, and returns them. A pod of which
// nothing moves is not waited for.
func (r *relists) complete(moves func(*schedule.Pod) bool) (complete []relist) {
	r.incomplete = slices.DeleteFunc(r.incomplete, func(l relist) bool {
		waits := false
		for i := range l.awaited {
			waits = l.awaited[i].isAwaited(l.stamp) && moves(&l.awaited[i].rec.Pod) || waits
		}
		if !waits {
			complete = append(complete, l)
		}
		return !waits
	})
	return complete
}
