package agent

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/runtime"
)

// hear takes in what other goroutines have.
func (a *Agent) hear(ctx context.Context) {
	pods, changed, finished := a.inbox.takeNews()
	if changed {
		a.wanted = make(map[types.UID]*v1.Pod, len(pods))
		for _, pod := range pods {
			a.wanted[pod.UID] = pod
		}
	}
	if changed || finished {
		a.reconcile(ctx)
	}
}

// reconcile gives every wanted pod a worker, and has the workers of others remove theirs. A pod waits until one of
// its name is gone.
func (a *Agent) reconcile(ctx context.Context) {
	if a.wanted == nil || !a.generator.HasSynced() {
		return // housekeeping will
	}
	names := map[klog.ObjectRef]types.UID{}
	for uid, pod := range a.workers.Pods() {
		names[klog.KObj(pod)] = uid
		if a.wanted[uid] == nil {
			a.workers.Remove(ctx, pod)
		}
	}
	for uid, pod := range a.wanted {
		if holder, ok := names[klog.KObj(pod)]; !ok || holder == uid {
			a.workers.Run(ctx, pod)
		}
	}
}

// housekeep looks for what the events may not have told: pods in the runtime that nobody wants.
func (a *Agent) housekeep(ctx context.Context) {
	if a.wanted == nil || !a.generator.HasSynced() {
		return
	}
	workers := a.workers.Pods()
	if len(workers) < len(a.wanted) {
		a.reconcile(ctx)
	}
	listed := a.generator.Pods()
	for _, pod := range listed {
		if workers[pod.ID] != nil || a.wanted[pod.ID] != nil {
			continue
		}
		if orphan := a.orphan(pod.ID); orphan != nil {
			a.config.Logger.Info("A pod that nobody wants is removed", "pod", klog.KObj(orphan), "uid", pod.ID)
			a.workers.Remove(ctx, orphan)
		}
	}
	a.status.Prune(func(uid types.UID) bool { return a.wanted[uid] != nil || listed.FindPodByID(uid) != nil })
}

// orphan returns a pod that is made of what the runtime has of it; nil if it is not known to be of this agent.
func (a *Agent) orphan(uid types.UID) *v1.Pod {
	seen, known, err := a.cache.Lookup(uid)
	if !known || seen == nil || err != nil || len(seen.SandboxStatuses) == 0 || !a.runtime.Owned(seen.SandboxStatuses[0]) {
		return nil
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Name: seen.Name, Namespace: seen.Namespace}}
	pod.Spec.TerminationGracePeriodSeconds = ptr.To(runtime.GracePeriod(seen.SandboxStatuses[0]))
	return pod
}
