package pleg

import (
	"slices"
	"time"

	"github.com/kubepleg/pleg/internal/schedule"
)

// relists are the full lists that are not yet complete, and the callers of Relist that wait for them.
type relists struct {
	// waiting are callers of Relist until a full list begins, attached while it is in flight.
	// incomplete are lists that succeeded and wait for pods.
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

// awaits reports whether the list waits for a pod: the pod was last observed by an older list. If
// the list has callers, it also waits for PodSyncs and for inspections after a failed one.
func (l *relist) awaits(rec *podRecord) bool {
	inspected := rec.inspect || rec.Inspection != nil
	return l.stamp.After(rec.observedAt()) ||
		len(l.callers) > 0 && (rec.sync || rec.inspecting != nil && rec.inspecting.sync || rec.failures > 0 && inspected)
}

// begin attaches the waiting callers to the list that begins.
func (r *relists) begin() { r.attached, r.waiting = r.waiting, nil }

// stopped makes the callers of a list that Stop cancelled wait for another list.
func (r *relists) stopped() { r.waiting, r.attached = append(r.waiting, r.attached...), nil }

// fail removes and returns callers, with an error.
func fail(callers *[]*relistCaller, err error) (failed []*relistCaller) {
	failed, *callers = *callers, nil
	for _, c := range failed {
		c.err = err
	}
	return failed
}

// succeeded adds the successful list in flight. found must contain every pod that it could wait for.
func (r *relists) succeeded(c *schedule.Call, found []comparison) {
	done := relist{stamp: c.Stamp, began: c.Began, callers: r.attached}
	for _, f := range found {
		if done.awaits(f.rec) {
			done.awaited = append(done.awaited, f.rec)
		}
	}
	r.attached, r.incomplete = nil, append(r.incomplete, done)
}

// complete removes and returns the lists that wait for no pod. moves reports whether a pod can
// proceed; a list does not wait for others.
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

// stillAwaited returns the awaited pods from the first that the list still waits for. Usually it looks at one.
func (l *relist) stillAwaited() []*podRecord {
	i := slices.IndexFunc(l.awaited, l.awaits)
	if i < 0 {
		return nil
	}
	return l.awaited[i:]
}
