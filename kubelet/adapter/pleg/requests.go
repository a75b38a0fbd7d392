package pleg

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/utils/clock"
)

// NewGenericPLEG returns a generator that writes statuses to cache and events to eventChannel.
func NewGenericPLEG(runtime kubecontainer.Runtime, eventChannel chan *PodLifecycleEvent, relistDuration *RelistDuration,
	cache kubecontainer.Cache, clock clock.Clock) PodLifecycleEventGenerator {
	return newGenericPLEG(klog.Background(), runtime, eventChannel, relistDuration, cache, clock)
}

// RequestRelist requests a list of the pod at once. The kubelet's own generator logs requests that
// it drops. This generator drops none, so it ignores the logger.
func (g *GenericPLEG) RequestRelist(_ klog.Logger, uid types.UID) { g.GenericPLEG.RequestRelist(uid) }
