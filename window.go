package pleg

import (
	"slices"
	"strings"
	"time"
)

// flushTimeout returns for how long the updates of one full list wait for each other.
func flushTimeout(period time.Duration) time.Duration { return max(period/20, 1) }

// window orders the updates of the pods that one full list found changed by UID,
// although their inspections complete as they please, so that a run can be repeated.
// It closes when all of them are there or its time is up, for a pod that hangs must not
// delay another. Later updates are published at once.
type window struct {
	number   uint64 // of the window, so that a record knows whether it is in it
	awaited  int
	ready    []*update
	closesAt time.Time // zero while it is closed
	closed   bool      // since takeClosed was last called
}

// open begins a window for some pods. The one before is closed.
func (w *window) open(compared []comparison, closesAt time.Time) {
	w.number++
	for _, found := range compared {
		if found.verdict == changed {
			found.rec.publication.window = windowEntry{number: w.number, awaited: true}
			w.awaited++
		}
	}
	if w.awaited > 0 {
		w.closesAt = closesAt
	}
}

// add keeps an update until the window closes, and reports whether it did: only those of
// the pods that the window was opened for.
func (w *window) add(rec *podRecord, u *update) bool {
	if !w.holds(rec) {
		return false
	}
	w.ready = append(w.ready, u)
	return true
}

// release calls publish with the updates of a pod that are ready, before the window closes.
// It does not wait for the pod any more.
func (w *window) release(rec *podRecord, publish func(*update)) {
	w.stopAwaiting(rec)
	rec.publication.window = windowEntry{}
	w.ready = slices.DeleteFunc(w.ready, func(u *update) bool {
		if u.uid == rec.uid {
			publish(u)
		}
		return u.uid == rec.uid
	})
}

// holds reports whether the window was opened for a pod, and is open.
func (w *window) holds(rec *podRecord) bool {
	return rec.publication.window.number == w.number && !w.closesAt.IsZero()
}

// stopAwaiting ends the waiting for a pod.
func (w *window) stopAwaiting(rec *podRecord) {
	if e := &rec.publication.window; e.number == w.number && e.awaited {
		e.awaited = false
		w.awaited--
	}
}

// takeClosed reports, once, that the window has closed.
func (w *window) takeClosed() bool {
	closed := w.closed
	w.closed = false
	return closed
}

// due reports whether the window is to be closed.
func (w *window) due(now time.Time) bool {
	return !w.closesAt.IsZero() && (w.awaited == 0 || !now.Before(w.closesAt))
}

// close calls publish with the updates that are ready, by UID; those of one pod in their
// order.
func (w *window) close(publish func(*update)) {
	slices.SortStableFunc(w.ready, func(a, b *update) int { return strings.Compare(string(a.uid), string(b.uid)) })
	for _, u := range w.ready {
		publish(u)
	}
	clear(w.ready)
	w.number++
	w.awaited, w.ready, w.closesAt, w.closed = 0, w.ready[:0], time.Time{}, true
}
