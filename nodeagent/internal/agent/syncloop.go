package agent

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg/nodeagent/internal/manifest"
)

// housekeepingPeriod is how often the agent looks for what unwanted pods have left. patience is how
// long the runtime may be unhealthy before the agent logs an error. It is not 0, because the runtime
// counts as unhealthy until the first list has ended.
const housekeepingPeriod, patience = 2 * time.Second, time.Second

// syncBackoff is how long syncLoop waits while there are runtime errors: 100 ms, and then twice as
// long each time, up to 5 s.
var syncBackoff = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Cap: 5 * time.Second, Steps: 100}

// syncLoop assigns pods to workers until ctx ends. It never waits for the runtime. While there are
// runtime errors, it does nothing, and neither do the workers.
func (a *Agent) syncLoop(ctx context.Context) {
	housekeeping := time.NewTicker(housekeepingPeriod)
	defer housekeeping.Stop()
	backoff, began, logged := syncBackoff, time.Time{}, false
	for ctx.Err() == nil {
		if err := a.runtimeState.runtimeErrors(); err != nil {
			now := a.Clock.Now()
			if backoff == syncBackoff {
				began = now
			}
			if !logged && now.Sub(began) >= patience {
				a.Logger.Error(err, "Skipping pod synchronization")
				logged = true
			}
			sleep(ctx, backoff.Step())
			continue
		}
		if logged {
			a.Logger.Info("Pods are synchronized again")
		}
		backoff, logged = syncBackoff, false
		if a.skipped.Swap(false) {
			a.wakeWorkers()
		}
		a.syncLoopIteration(ctx, a.configCh, housekeeping.C)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// syncLoopIteration waits for a change of the wanted pods or for the time of housekeeping, and
// handles it.
func (a *Agent) syncLoopIteration(ctx context.Context, configCh <-chan struct{}, housekeepingCh <-chan time.Time) {
	select {
	case <-ctx.Done():
	case <-configCh:
		a.handlePods(ctx)
	case <-housekeepingCh:
		a.handlePods(ctx)
		a.handlePodCleanups(ctx)
	}
}

// podsKnown returns the wanted pods, and whether both they and the existing pods are known.
func (a *Agent) podsKnown() (wanted map[types.UID]*v1.Pod, known bool) {
	wanted, known = a.podManager.getPods()
	return wanted, known && a.generator.HasSynced()
}

// handlePods starts a worker for every wanted pod, and makes workers remove unwanted pods. A new pod
// waits until an old pod with the same name or UID is gone.
func (a *Agent) handlePods(ctx context.Context) {
	wanted, known := a.podsKnown()
	if !known {
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
			a.podWorkers.Wake(uid)
		}
	}
	for uid, pod := range wanted {
		switch holder, taken := names[klog.KObj(pod)]; {
		case taken && holder != uid:
		case a.workers[uid] == nil:
			a.addWorkerLocked(ctx, pod, false)
		case a.workers[uid].wanted.Err() == nil && a.workers[uid].pod.Swap(pod) != pod:
			a.podWorkers.Wake(uid)
		}
	}
}

// handlePodCleanups removes what is left of pods that nobody wants: pods in the runtime, files on
// disk, and statuses. It ignores pods with invalid names, because the names become parts of paths.
func (a *Agent) handlePodCleanups(ctx context.Context) {
	wanted, known := a.podsKnown()
	if !known {
		return
	}
	exists := sets.KeySet(wanted)
	a.mu.Lock()
	exists.Insert(sets.KeySet(a.workers).UnsortedList()...)
	a.mu.Unlock()
	for _, pod := range a.generator.Pods() {
		if exists.Has(pod.ID) {
			continue
		}
		seen, _, err := a.cache.Lookup(pod.ID)
		if orphan := a.Runtime.Orphan(seen); err == nil && orphan != nil && len(manifest.ValidateNames(orphan)) == 0 {
			a.Logger.Info("A pod that nobody wants is removed", "pod", klog.KObj(orphan), "uid", pod.ID)
			a.mu.Lock()
			a.addWorkerLocked(ctx, orphan, true).unwant()
			a.mu.Unlock()
		}
		exists.Insert(pod.ID)
	}
	err := errors.Join(a.Runtime.Collect(exists.Has), a.statusManager.RemoveOrphanedStatuses(exists.Has))
	if err != nil {
		a.Logger.Error(err, "Something is left on disk of pods that are no more")
	}
}
