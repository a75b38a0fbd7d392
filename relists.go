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
		len(l.callers) > 0 && (rec.sync || rec.made != nil && rec.made.sync || rec.failures > 0 && inspected)
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

// succeeded notes that the list in flight has. What it found has every pod that may be older than it.
func (r *relists) succeeded(c *schedule.Call, found []comparison, records *podRecords) {
	done := relist{stamp: c.Stamp, began: c.Began, callers: r.attached}
	add := func(rec *podRecord) {
		if done.lacks(rec) {
			done.awaited = append(done.awaited, rec)
		}
	}
	for _, f := range found {
		add(f.rec)
	}
	if len(done.callers) > 0 {
		for _, rec := range records.byUID {
			add(rec)
		}
	}
	r.attached, r.incomplete = nil, append(r.incomplete, done)
}

// complete takes away the lists that wait for no pod any more, and returns them. A pod of which
// nothing moves is not waited for.
func (r *relists) complete(moves func(*schedule.Pod) bool) (complete []relist) {
	r.incomplete = slices.DeleteFunc(r.incomplete, func(l relist) bool {
		i := slices.IndexFunc(l.awaited, func(rec *podRecord) bool { return l.lacks(rec) && moves(&rec.Pod) })
		if i < 0 {
			complete = append(complete, l)
			return true
		}
		l.awaited[0], l.awaited[i] = l.awaited[i], l.awaited[0] // most often it is still this one in the next step
		return false
	})
	return complete
}
