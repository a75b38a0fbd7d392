package pleg

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/utils/clock"
)

// NewGenericPLEG returns a generator that writes statuses to cache and events to eventChannel.
func NewGenericPLEG(logger klog.Logger, runtime kubecontainer.Runtime, eventChannel chan *PodLifecycleEvent,
	relistDuration *RelistDuration, cache kubecontainer.Cache, clock clock.Clock) PodLifecycleEventGenerator {
	watched := &watchedRuntime{Runtime: runtime}
	if node, ok := runtime.(*nodeRuntime); ok {
		watched.Runtime = node.Runtime
		runtime = &nodeRuntime{watched, node.service, node.endpoint, node.timeout, node.ends}
	} else {
		runtime = watched
	}
	g := newGenericPLEG(logger, runtime, eventChannel, relistDuration, cache, clock)
	g.conditions.cache = cache
	watched.listed = g.reinspect
	return g
}

// SetPodWatchCondition requests an inspection of the pod at once, and with every full list until
// the condition holds. It replaces an earlier condition with the same key.
func (g *GenericPLEG) SetPodWatchCondition(uid types.UID, key string, condition WatchCondition) {
	g.conditions.set(uid, key, condition)
	g.RequestReinspect(uid)
}

// reinspect requests an inspection of each listed pod with conditions.
func (g *GenericPLEG) reinspect(listed []*kubecontainer.Pod) {
	for _, uid := range g.conditions.ofListed(listed) {
		g.RequestReinspect(uid)
	}
}
