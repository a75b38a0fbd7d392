package pleg

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// windowShare is the part of a relist period for which the updates of one full list
// wait for each other.
const windowShare = 20

// window orders the updates of the pods that one full list found changed by UID,
// although their inspections complete as they please, so that a run can be repeated.
// It closes when all of them are there or its time is up, for a pod that hangs must not
// delay another; what comes later goes by itself.
type window struct {
	awaited map[types.UID]struct{}
	ready   []update
	closes  time.Time // zero while it is closed
}

func newWindow() window { return window{awaited: make(map[types.UID]struct{})} }

// open begins a window for some pods. The one before is closed.
func (w *window) open(changes []podChange, closes time.Time) {
	for _, change := range changes {
		if change.verdict == changed {
			w.awaited[change.rec.uid] = struct{}{}
		}
	}
	if len(w.awaited) > 0 {
		w.closes = closes
	}
}

// add keeps an update until the window closes, and reports whether it did: that of a
// pod that it does not await, and has none of, goes by itself.
func (w *window) add(u update) bool {
	if w.closes.IsZero() {
		return false
	}
	if _, awaited := w.awaited[u.uid]; awaited {
		delete(w.awaited, u.uid)
		w.ready = append(w.ready, u)
		return true
	}
	i := slices.IndexFunc(w.ready, func(ready update) bool { return ready.uid == u.uid })
	if i < 0 {
		return false
	}
	w.ready[i], _ = updates{}.Coalesce(update{}, w.ready[i], u)
	return true
}

// skip has the window not wait for a pod.
func (w *window) skip(uid types.UID) { delete(w.awaited, uid) }

// due reports whether the window is to be closed.
func (w *window) due(now time.Time) bool {
	return !w.closes.IsZero() && (len(w.awaited) == 0 || !now.Before(w.closes))
}

// close returns what there is, by UID.
func (w *window) close() []update {
	ready := w.ready
	slices.SortFunc(ready, func(a, b update) int { return strings.Compare(string(a.uid), string(b.uid)) })
	clear(w.awaited)
	w.ready, w.closes = ready[:0:0], time.Time{}
	return ready
}
