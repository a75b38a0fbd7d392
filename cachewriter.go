package pleg

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// cacheWriter writes to a Cache, and stands in for the companion that it may lack.
type cacheWriter struct {
	Cache
	holder FreshnessHolder // nil if the cache does not implement it
	// Without a holder: held counts the pods that are held, and owed is the newest
	// UpdateTime that they keep from the cache, zero for none.
	held int
	owed time.Time
}

func newCacheWriter(c Cache) *cacheWriter {
	w := &cacheWriter{Cache: c}
	w.holder, _ = c.(FreshnessHolder)
	return w
}

// hold keeps a pod as fresh as it is until release.
func (w *cacheWriter) hold(uid types.UID) {
	if w.holder != nil {
		w.holder.Hold(uid)
		return
	}
	w.held++
}

// release ends hold.
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

// confirmAll makes every pod that is not held as fresh as a full list.
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
