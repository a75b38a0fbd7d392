package agent

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/manifest"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/runtime"
)

// reconcile gives every wanted pod a worker, and has the workers of others remove theirs. A pod waits until one of
// its name or its UID is gone.
func (a *Agent) reconcile(ctx context.Context) {
	wanted := a.toReconcile()
	if wanted == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	names := map[klog.ObjectRef]types.UID{}
	for uid, w := range a.workers {
		pod := w.pod.Load()
		names[klog.KObj(pod)] = uid
		if want := wanted[uid]; want == nil || klog.KObj(want) != klog.KObj(pod) {
			w.unwant()
			w.signal()
		}
	}
	for uid, pod := range wanted {
		switch holder, taken := names[klog.KObj(pod)]; {
		case taken && holder != uid:
		case a.workers[uid] == nil:
			a.beginLocked(ctx, pod, false)
		case a.workers[uid].wanted.Err() == nil && a.workers[uid].pod.Swap(pod) != pod:
			a.workers[uid].signal()
		}
	}
}

// housekeep looks for what the events may not have told: pods in the runtime that nobody wants; and for what pods that
// are no more have left on disk.
func (a *Agent) housekeep(ctx context.Context) {
	a.reconcile(ctx)
	wanted := a.toReconcile()
	if wanted == nil {
		return
	}
	listed := a.generator.Pods()
	a.mu.Lock()
	for _, pod := range listed {
		if a.workers[pod.ID] != nil || wanted[pod.ID] != nil {
			continue
		}
		if orphan := a.orphan(pod.ID); orphan != nil {
			a.Logger.Info("A pod that nobody wants is removed", "pod", klog.KObj(orphan), "uid", pod.ID)
			a.beginLocked(ctx, orphan, true).unwant()
		}
	}
	exists := sets.KeySet(wanted).Union(sets.KeySet(a.workers))
	a.mu.Unlock()
	for _, pod := range listed {
		exists.Insert(pod.ID)
	}
	err := a.Runtime.Collect(exists.Has)
	for _, pod := range a.status.list(true) {
		if !exists.Has(pod.UID) {
			err = errors.Join(err, a.status.remove(&pod))
		}
	}
	if err != nil {
		a.Logger.Error(err, "Something is left on disk of pods that are no more")
	}
}

// wake has a pod synced.
func (a *Agent) wake(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.workers[uid]; w != nil {
		w.signal()
	}
}

// finished notes that a worker has ended: a pod may have waited for that.
func (a *Agent) finished(w *worker) {
	a.mu.Lock()
	delete(a.workers, w.uid)
	a.mu.Unlock()
	a.queue.Add(task{kind: reconcile})
}

// toReconcile returns the wanted pods; nil if it is too early, because not all is known: housekeeping will do it.
func (a *Agent) toReconcile() map[types.UID]*v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.generator.HasSynced() {
		return nil
	}
	a.reconciled = a.wanted != nil
	return a.wanted
}

// orphan returns a pod that is made of what the runtime has of it; nil if it is not known to be of this agent, or has
// names that no manifest may have: its files could be anywhere.
func (a *Agent) orphan(uid types.UID) *v1.Pod {
	seen, known, err := a.cache.Lookup(uid)
	if !known || seen == nil || err != nil || len(seen.SandboxStatuses) == 0 ||
		!a.Runtime.Owned(seen.SandboxStatuses[0]) {
		return nil
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Name: seen.Name, Namespace: seen.Namespace}}
	pod.Spec.TerminationGracePeriodSeconds = ptr.To(runtime.GracePeriod(seen.SandboxStatuses[0]))
	if len(manifest.ValidateNames(pod)) > 0 {
		return nil
	}
	return pod
}
