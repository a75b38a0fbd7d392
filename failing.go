package pleg

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/schedule"
)

// failingPods are the pods whose inspection hangs or has failed.
type failingPods struct {
	sched *schedule.Scheduler
	byUID map[types.UID]*podRecord
	// changed are those that began to fail, fail still or fail no more in this step.
	changed []types.UID
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
	default:
		return
	}
	f.changed = append(f.changed, rec.uid)
}

// report makes reports say what has changed.
func (f *failingPods) report(reports map[types.UID]FailingPod) {
	for _, uid := range f.changed {
		rec, is := f.byUID[uid]
		if !is {
			delete(reports, uid)
			continue
		}
		p := FailingPod{
			PodUID: uid, Namespace: rec.pod.Namespace, Name: rec.pod.Name,
			HangingSince: f.sched.HungSince(uid), Failures: rec.failures,
		}
		if rec.err != nil {
			p.Error = rec.err.Error()
		}
		reports[uid] = p
	}
	f.changed = nil
}
