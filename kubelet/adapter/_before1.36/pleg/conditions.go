package pleg

import (
	"context"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/kubepleg/pleg"
)

// conditions are the kubelet's watch conditions on the statuses of pods, by pod and key.
type conditions struct {
	cache kubecontainer.Cache // set once by NewGenericPLEG

	mu   sync.Mutex
	pods map[types.UID]map[string]*WatchCondition // guarded by mu
}

func (c *conditions) set(uid types.UID, key string, condition WatchCondition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pods == nil {
		c.pods = make(map[types.UID]map[string]*WatchCondition)
	}
	if c.pods[uid] == nil {
		c.pods[uid] = make(map[string]*WatchCondition)
	}
	c.pods[uid][key] = &condition
}

// ofListed returns the pods with conditions. It drops the conditions of pods that are not in
// listed.
func (c *conditions) ofListed(listed []*kubecontainer.Pod) []types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.pods, func(uid types.UID, _ map[string]*WatchCondition) bool {
		return !slices.ContainsFunc(listed, func(pod *kubecontainer.Pod) bool { return pod.ID == uid })
	})
	return slices.Collect(maps.Keys(c.pods))
}

// meet checks the conditions of a pod, and removes the conditions that hold. It reports whether it
// removed any.
func (c *conditions) meet(uid types.UID) bool {
	c.mu.Lock()
	open := maps.Clone(c.pods[uid])
	c.mu.Unlock()
	if len(open) == 0 {
		return false
	}
	status, err := c.cache.Get(uid)
	if err != nil {
		return false
	}
	// Call the conditions without the lock, because a condition may set another one.
	maps.DeleteFunc(open, func(_ string, condition *WatchCondition) bool { return !(*condition)(status) })
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, condition := range open {
		if c.pods[uid][key] == condition {
			delete(c.pods[uid], key)
		}
	}
	if len(c.pods[uid]) == 0 {
		delete(c.pods, uid)
	}
	return len(open) > 0
}

// convert returns an event in the kubelet's form. A PodSync becomes a ConditionMet if a condition
// of the pod holds now.
func (c *conditions) convert(e *pleg.PodLifecycleEvent) *PodLifecycleEvent {
	converted := convertEvent(e)
	if e.Type == pleg.PodSync && c.meet(e.ID) {
		converted.Type = ConditionMet
	}
	return converted
}

// watchedRuntime is a runtime that passes the pods of each full list to the function listed.
type watchedRuntime struct {
	kubecontainer.Runtime
	listed func([]*kubecontainer.Pod)
}

// GetPods implements kubecontainer.Runtime.
func (r *watchedRuntime) GetPods(ctx context.Context, all bool) ([]*kubecontainer.Pod, error) {
	pods, err := r.Runtime.GetPods(ctx, all)
	if err == nil {
		r.listed(pods)
	}
	return pods, err
}
