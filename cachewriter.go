package pleg

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// writtenCache is what the reconciler uses of a PodCache. The step scripts log what is written.
type writtenCache interface {
	Get(uid types.UID) (*PodStatus, error)
	Set(uid types.UID, status *PodStatus, err error, timestamp time.Time) (updated bool)
	SetObservedTime(uid types.UID, timestamp time.Time)
	Delete(uid types.UID)
	UpdateTime(timestamp time.Time)
	write(owner cacheOwner, call func())
	setListed(uid types.UID)
	advance(now time.Time)
	blockedPods() []types.UID
}

// cacheWriter writes the records' statuses and freshness to the cache.
type cacheWriter struct {
	cache   writtenCache
	owner   cacheOwner // the generator
	records *podRecords
	log     *stepLog
	// held are the pods whose status is older than their newest list, or of which lists
	// conflict. While there are any, the others are made fresh one by one; due is the time of
	// the newest full list that the cache is told when there are none any more, else zero.
	held map[types.UID]*podRecord
	due  time.Time
}

func newCacheWriter(c writtenCache, owner cacheOwner, records *podRecords) *cacheWriter {
	return &cacheWriter{cache: c, owner: owner, records: records, held: make(map[types.UID]*podRecord)}
}

// store puts the result of an inspection into the cache. The inspection was made for the
// list stamped made; observed is how fresh the pod is with it.
func (w *cacheWriter) store(rec *podRecord, status *PodStatus, err error, made, observed stamp) {
	w.write(func() {
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
}

// storeExits stores that containers have exited in the last status of their pod, which becomes no
// fresher by that.
func (w *cacheWriter) storeExits(rec *podRecord, exits map[string]*Status) {
	w.write(func() {
		last, err := w.cache.Get(rec.uid)
		status := *last
		status.ContainerStatuses = withStatuses(status.ContainerStatuses, exits)
		status.ActiveContainerStatuses = withStatuses(status.ActiveContainerStatuses, exits)
		if len(status.ContainerStatuses) > 0 { // else none is stored yet
			w.cache.Set(rec.uid, &status, err, w.records.observedStamp(rec).Time)
		}
	})
}

// write calls a function that writes the cache, unless another generator has it by now.
func (w *cacheWriter) write(call func()) { w.cache.write(w.owner, call) }

// advance tells the cache the time.
func (w *cacheWriter) advance(now time.Time) { w.write(func() { w.cache.advance(now) }) }

// remove removes a pod that is absent.
func (w *cacheWriter) remove(uid types.UID) { w.write(func() { w.cache.Delete(uid) }) }

// setObserved says how fresh a pod is.
func (w *cacheWriter) setObserved(uid types.UID, at time.Time) {
	w.write(func() { w.cache.SetObservedTime(uid, at) })
}

// setAllObserved says how fresh all pods are.
func (w *cacheWriter) setAllObserved(at time.Time) { w.write(func() { w.cache.UpdateTime(at) }) }

// setListed tells the cache of a pod that it may have no status of.
func (w *cacheWriter) setListed(uid types.UID) {
	w.write(func() { w.cache.setListed(uid) })
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
	for _, uid := range w.cache.blockedPods() {
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
