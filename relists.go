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
	awaited []*podRecord
}

// lacks reports whether a pod is older than the list or, if there are callers, whether a PodSync of
// it is due, or an inspection after one that failed.
func (l *relist) lacks(rec *podRecord) bool {
	inspected := rec.inspect || rec.Inspection != nil
	return l.stamp.After(rec.observedAt()) ||
		len(l.callers) > 0 && (rec.sync || rec.inspecting != nil && rec.inspecting.sync || rec.failures > 0 && inspected)
}

// begin attaches the callers that wait to the list that begins.
func (r *relists) begin() { r.attached, r.waiting = r.waiting, nil }

// stopped has the callers wait for another list.
func (r *relists) stopped() { r.waiting, r.attached = append(r.waiting, r.attached...), nil }

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

// succeeded notes that the list in flight has. What it found has every pod of which something is
// open.
func (r *relists) succeeded(c *schedule.Call, found []comparison) {
	done := relist{stamp: c.Stamp, began: c.Began, callers: r.attached}
	for _, f := range found {
		if done.lacks(f.rec) {
			done.awaited = append(done.awaited, f.rec)
		}
	}
	r.attached, r.incomplete = nil, append(r.incomplete, done)
}

// complete takes away the lists that wait for no pod any more, and returns them. A pod of which
// nothing moves is not waited for.
func (r *relists) complete(moves func(*schedule.Pod) bool) (complete []relist) {
	kept := r.incomplete[:0]
	for _, l := range r.incomplete {
		l.awaited = l.stillAwaited()
		if slices.ContainsFunc(l.awaited, func(rec *podRecord) bool { return moves(&rec.Pod) }) {
			kept = append(kept, l)
		} else {
			complete = append(complete, l)
		}
	}
	clear(r.incomplete[len(kept):])
	r.incomplete = kept
	return complete
}

// stillAwaited returns the awaited pods from the first on that lacks something. That is one
// look in most steps.
func (l *relist) stillAwaited() []*podRecord {
	i := slices.IndexFunc(l.awaited, l.lacks)
	if i < 0 {
		return nil
	}
	return l.awaited[i:]
}
