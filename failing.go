package pleg

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/schedule"
)

// failingPods are the pods whose inspection hangs or has failed.
type failingPods struct {
	sched   *schedule.Scheduler
	byUID   map[types.UID]*podRecord
	changed bool // since they were listed last
}

// update notes whether a pod is one of them.
func (f *failingPods) update(rec *podRecord) {
	_, was := f.byUID[rec.uid]
	is := rec.pod != nil && (rec.failures > 0 || !f.sched.HungSince(rec.uid).IsZero())
	switch {
	case is:
		f.byUID[rec.uid] = rec
	case was:
		delete(f.byUID, rec.uid)
	}
	f.changed = f.changed || is || was
}

// list returns them by UID.
func (f *failingPods) list() []FailingPod {
	f.changed = false
	list := make([]FailingPod, 0, len(f.byUID))
	for _, uid := range sortedKeys(f.byUID) {
		rec := f.byUID[uid]
		p := FailingPod{
			PodUID: uid, Namespace: rec.pod.Namespace, Name: rec.pod.Name,
			HangingSince: f.sched.HungSince(uid), Failures: rec.failures,
		}
		if rec.err != nil {
			p.Error = rec.err.Error()
		}
		list = append(list, p)
	}
	return list
}
