package pleg

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// cacheWriter writes to a Cache, and does without the companions that it lacks.
type cacheWriter struct {
	Cache
	holder FreshnessHolder // nil: freshness is held back by not updating the time
	// held counts the pods that are; owed is the newest global time meanwhile, zero
	// for none. Only without a holder.
	held int
	owed time.Time
}

func newCacheWriter(c Cache) *cacheWriter {
	w := &cacheWriter{Cache: c}
	w.holder, _ = c.(FreshnessHolder)
	return w
}

// hold keeps a pod as fresh as it is.
func (w *cacheWriter) hold(uid types.UID) {
	if w.holder != nil {
		w.holder.Hold(uid)
		return
	}
	w.held++
}

// release ends that.
func (w *cacheWriter) release(uid types.UID) {
	if w.holder != nil {
		w.holder.Release(uid)
		return
	}
	w.held--
	if w.held == 0 && !w.owed.IsZero() {
		w.UpdateTime(w.owed)
		w.owed = time.Time{}
	}
}

// confirmAll says that a full list confirms every pod that is not held.
func (w *cacheWriter) confirmAll(at time.Time, records map[types.UID]*podRecord) {
	if w.held == 0 {
		w.UpdateTime(at)
		return
	}
	w.owed = at
	for uid, rec := range records {
		if rec.pod != nil && rec.held == 0 {
			w.SetObservedTime(uid, at)
		}
	}
}
