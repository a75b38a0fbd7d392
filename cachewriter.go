package pleg

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg/internal/calls"
)

// cacheWriter writes the records' statuses and freshness to a Cache.
type cacheWriter struct {
	cache    Cache
	podCache generatorsCache // nil if it is another Cache
	owner    cacheOwner      // the generator
	records  *podRecords
	log      *stepLog
	badData  reportBadData
	// held are the pods whose status is older than their newest list, or of which lists
	// conflict. While there are any, the others are made fresh one by one; due is the time of
	// the newest full list that the cache is told when there are none any more, else zero.
	held map[types.UID]*podRecord
	due  time.Time
}

func newCacheWriter(c Cache, owner cacheOwner, records *podRecords) *cacheWriter {
	w := &cacheWriter{cache: c, owner: owner, records: records, held: make(map[types.UID]*podRecord)}
	w.podCache, _ = c.(generatorsCache)
	return w
}

// store puts the result of an inspection into the cache. The inspection was made for the
// list stamped made; observed is how fresh the pod is with it. The error that it returns is
// that of a cache which panicked.
func (w *cacheWriter) store(rec *podRecord, status *PodStatus, err error, made, observed stamp) error {
	panicked := w.guard(func() {
		if status != nil {
			status.TimeStamp = made.Time
			if len(status.IPs) == 0 {
				last, _ := w.cache.Get(rec.uid)
				status.IPs = inheritedIPs(last, status)
			}
		}
		w.cache.Set(rec.uid, status, err, observed.Time)
	})
	if w.log.enabled(4) {
		w.log.info(4, "Wrote status", "pod", klog.KRef(rec.pod.Namespace, rec.pod.Name), "podUID", rec.uid, "err", err)
	}
	return panicked
}

// storeExits stores that containers have exited in the last status of their pod, which becomes no
// fresher by that.
func (w *cacheWriter) storeExits(rec *podRecord, exits map[string]*Status) {
	_ = w.guard(func() {
		last, err := w.cache.Get(rec.uid)
		status := *last
		status.ContainerStatuses = withStatuses(status.ContainerStatuses, exits)
		status.ActiveContainerStatuses = withStatuses(status.ActiveContainerStatuses, exits)
		if len(status.ContainerStatuses) > 0 { // else none is stored yet
			w.cache.Set(rec.uid, &status, err, w.records.observedStamp(rec).Time)
		}
	})
}

// guard calls a cache, which may be a user's and panic: nothing else of a step may be lost by that.
func (w *cacheWriter) guard(call func()) (panicked error) {
	defer func() {
		if p := recover(); p != nil {
			panicked = fmt.Errorf("the cache panicked: %s", calls.PanicText(p))
			w.badData(badCachePanic, panicked.Error())
		}
	}()
	if w.podCache == nil {
		call()
	} else {
		w.podCache.write(w.owner, call)
	}
	return nil
}

// advance tells the cache the time.
func (w *cacheWriter) advance(now time.Time) {
	if w.podCache != nil {
		_ = w.guard(func() { w.podCache.advance(now) })
	}
}

// remove removes a pod that is absent.
func (w *cacheWriter) remove(uid types.UID) { _ = w.guard(func() { w.cache.Delete(uid) }) }

// setObserved says how fresh a pod is.
func (w *cacheWriter) setObserved(uid types.UID, at time.Time) {
	_ = w.guard(func() { w.cache.SetObservedTime(uid, at) })
}

// setAllObserved says how fresh all pods are.
func (w *cacheWriter) setAllObserved(at time.Time) { _ = w.guard(func() { w.cache.UpdateTime(at) }) }

// setListed tells the cache of a pod that it may have no status of.
func (w *cacheWriter) setListed(uid types.UID) {
	if w.podCache != nil {
		_ = w.guard(func() { w.podCache.setListed(uid) })
	}
}

// freshen makes a pod that is not dirty as fresh as the newest list that showed the
// record.
func (w *cacheWriter) freshen(rec *podRecord) {
	if !rec.dirty {
		w.setObserved(rec.uid, w.records.listedStamp(rec).Time)
	}
	w.holdOrRelease(rec)
}

// holdOrRelease holds a pod that is dirty or of which lists conflict, and no other.
func (w *cacheWriter) holdOrRelease(rec *podRecord) {
	if rec.isHeld() {
		w.held[rec.uid] = rec
		return
	}
	delete(w.held, rec.uid)
	if len(w.held) == 0 && !w.due.IsZero() {
		w.setAllObserved(w.due)
		w.due = time.Time{}
	}
}

// freshenAll makes every pod that is not held as fresh as a full list, and so the absence of
// those that readers wait for.
func (w *cacheWriter) freshenAll(at time.Time) {
	if len(w.held) == 0 {
		w.setAllObserved(at)
		return
	}
	w.due = at
	for uid, rec := range w.records.byUID {
		if rec.pod != nil && !rec.isHeld() {
			w.setObserved(uid, at)
		}
	}
	if w.podCache == nil {
		return
	}
	for _, uid := range w.podCache.blockedPods() {
		w.confirmAbsence(uid)
	}
}

// confirmAbsence makes the absence of a pod that a reader waits for as fresh as the newest full
// list, where other pods keep that from the cache.
func (w *cacheWriter) confirmAbsence(uid types.UID) {
	rec := w.records.byUID[uid]
	if w.due.IsZero() || rec != nil && (rec.pod != nil || rec.isHeld()) {
		return
	}
	w.setObserved(uid, w.due)
	if rec == nil { // else it is removed when the record is forgotten
		w.remove(uid)
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
