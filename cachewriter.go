package pleg

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// cacheWriter writes the records' statuses and freshness to a Cache, and stands in for the
// companion that it may lack.
type cacheWriter struct {
	cache   Cache
	holder  FreshnessHolder // nil: freshness is held back by not updating the time
	lister  lister          // nil: the cache tells nobody what is listed and not inspected
	records *podRecords
	log     *stepLog
	// held are the pods whose freshness is held back.
	held []*podRecord
	// due is the newest UpdateTime that held pods keep from a cache without a holder; zero
	// for none.
	due time.Time
}

// lister is a PodCache, whose look-ups tell listed pods from unknown ones.
type lister interface{ setListed(uid types.UID) }

func newCacheWriter(c Cache, records *podRecords) *cacheWriter {
	w := &cacheWriter{cache: c, records: records}
	w.holder, _ = c.(FreshnessHolder)
	w.lister, _ = c.(lister)
	return w
}

// store puts the result of an inspection into the cache. The inspection was made for the
// list stamped made; observed is how fresh the pod is with it.
func (w *cacheWriter) store(rec *podRecord, status *PodStatus, err error, made, observed stamp) {
	if status != nil {
		status.TimeStamp = made.Time
		if len(status.IPs) == 0 {
			last, _ := w.cache.Get(rec.uid)
			status.IPs = inheritedIPs(last, status)
		}
	}
	w.cache.Set(rec.uid, status, err, observed.Time)
	if w.log.enabled(4) {
		w.log.info(4, "Wrote status", "pod", klog.KRef(rec.pod.Namespace, rec.pod.Name), "podUID", rec.uid, "err", err)
	}
}

// remove removes a pod that is absent.
func (w *cacheWriter) remove(uid types.UID) { w.cache.Delete(uid) }

// setListed tells the cache of a pod that it may have no status of.
func (w *cacheWriter) setListed(uid types.UID) {
	if w.lister != nil {
		w.lister.setListed(uid)
	}
}

// hold has the cache keep a pod as fresh as it is: no full list makes it fresher.
func (w *cacheWriter) hold(rec *podRecord) {
	if rec.held > 0 {
		return
	}
	w.held = append(w.held, rec)
	rec.held = len(w.held)
	if w.holder != nil {
		w.holder.Hold(rec.uid)
	}
}

// freshen makes a pod that is not dirty as fresh as the newest list that showed the
// record, and releases it unless it is unconfirmed.
func (w *cacheWriter) freshen(rec *podRecord) {
	if !rec.dirty {
		w.cache.SetObservedTime(rec.uid, w.records.listedStamp(rec).Time)
	}
	w.holdOrRelease(rec)
}

// holdOrRelease holds a pod that is dirty or of which lists conflict, and no other.
func (w *cacheWriter) holdOrRelease(rec *podRecord) {
	if rec.dirty || rec.unconfirmed {
		w.hold(rec)
	} else if rec.held > 0 {
		w.release(rec)
	}
}

// release ends hold.
func (w *cacheWriter) release(rec *podRecord) {
	last := len(w.held) - 1
	w.held[rec.held-1], w.held[last].held = w.held[last], rec.held
	w.held[last], rec.held = nil, 0
	w.held = w.held[:last]
	switch {
	case w.holder != nil:
		w.holder.Release(rec.uid)
	case last == 0 && !w.due.IsZero():
		w.cache.UpdateTime(w.due)
		w.due = time.Time{}
	}
}

// freshenAll makes every pod that is not held as fresh as a full list.
func (w *cacheWriter) freshenAll(at time.Time) {
	if w.holder != nil || len(w.held) == 0 {
		w.cache.UpdateTime(at)
		return
	}
	w.due = at
	for uid, rec := range w.records.byUID {
		if rec.pod != nil && rec.held == 0 {
			w.cache.SetObservedTime(uid, at)
		}
	}
}

// inheritedIPs returns the addresses of a pod whose status has none. When its network has
// been torn down, they are the last that it had; a ready sandbox without addresses does
// not inherit those of the last.
func inheritedIPs(last, status *PodStatus) []string {
	if last == nil {
		return status.IPs
	}
	for _, s := range status.SandboxStatuses {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			return status.IPs
		}
	}
	return last.IPs
}
