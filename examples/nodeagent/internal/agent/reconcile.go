package agent

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	names := map[klog.ObjectRef]types.UID{}
	for uid, pod := range a.workers.Pods() {
		names[klog.KObj(pod)] = uid
		if want := wanted[uid]; want == nil || klog.KObj(want) != klog.KObj(pod) {
			a.workers.Remove(ctx, pod)
		}
	}
	for uid, pod := range wanted {
		if holder, ok := names[klog.KObj(pod)]; !ok || holder == uid {
			a.workers.Run(ctx, pod)
		}
	}
}

// housekeep looks for what the events may not have told: pods in the runtime that nobody wants.
func (a *Agent) housekeep(ctx context.Context) {
	a.reconcile(ctx)
	wanted, workers := a.toReconcile(), a.workers.Pods()
	if wanted == nil {
		return
	}
	listed := a.generator.Pods()
	for _, pod := range listed {
		if workers[pod.ID] != nil || wanted[pod.ID] != nil {
			continue
		}
		if orphan := a.orphan(pod.ID); orphan != nil {
			a.config.Logger.Info("A pod that nobody wants is removed", "pod", klog.KObj(orphan), "uid", pod.ID)
			a.workers.Remove(ctx, orphan)
		}
	}
	a.status.Prune(ctx, func(uid types.UID) bool { return wanted[uid] != nil || listed.FindPodByID(uid) != nil })
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
		!a.config.Runtime.Owned(seen.SandboxStatuses[0]) {
		return nil
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Name: seen.Name, Namespace: seen.Namespace}}
	pod.Spec.TerminationGracePeriodSeconds = ptr.To(runtime.GracePeriod(seen.SandboxStatuses[0]))
	if len(manifest.ValidateNames(pod)) > 0 {
		return nil
	}
	return pod
}
