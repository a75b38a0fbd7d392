package pleg

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// failingPods are the pods whose inspection hangs or fails.
type failingPods struct {
	byUID   map[types.UID]FailingPod
	changed bool // since they were listed last
}

// note notes that the inspection of a pod hangs if since is not zero, and that it has failed
// if err is not nil.
func (f *failingPods) note(rec *podRecord, since time.Time, err error) {
	p := FailingPod{
		PodUID: rec.uid, Namespace: rec.pod.Namespace, Name: rec.pod.Name,
		HangingSince: since, Failures: rec.failures, Error: f.byUID[rec.uid].Error,
	}
	if err != nil {
		p.Error = err.Error()
	}
	f.byUID[rec.uid] = p
	f.changed = true
}

// answered notes that the inspection of a pod does not hang, and whether it has succeeded.
func (f *failingPods) answered(uid types.UID, succeeded bool) {
	p, ok := f.byUID[uid]
	if !ok {
		return
	}
	f.changed = true
	p.HangingSince = time.Time{}
	f.byUID[uid] = p
	if succeeded || p.Failures == 0 {
		delete(f.byUID, uid)
	}
}

// list returns them by UID.
func (f *failingPods) list() []FailingPod {
	f.changed = false
	list := make([]FailingPod, 0, len(f.byUID))
	for _, uid := range sortedKeys(f.byUID) {
		list = append(list, f.byUID[uid])
	}
	return list
}
