package pleg

import (
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
)

// NewGenericPLEG returns a generator that writes statuses to cache and events to eventChannel. If
// the gate PLEGOnDemandRelist is off, the generator makes only full lists and reads no event
// stream.
func NewGenericPLEG(logger klog.Logger, runtime kubecontainer.Runtime, eventChannel chan *PodLifecycleEvent,
	relistDuration *RelistDuration, cache kubecontainer.Cache, clock clock.Clock) PodLifecycleEventGenerator {
	var options []pleg.Option
	if !onDemand() {
		options = append(options, pleg.WithPollingOnly())
	}
	return newGenericPLEG(logger, runtime, eventChannel, relistDuration, cache, clock, options...)
}

// RequestRelist requests a list of the pod at once. It does nothing if the gate PLEGOnDemandRelist
// is off.
func (g *GenericPLEG) RequestRelist(uid types.UID) {
	if onDemand() {
		g.GenericPLEG.RequestRelist(uid)
	}
}

func onDemand() bool { return utilfeature.DefaultFeatureGate.Enabled(features.PLEGOnDemandRelist) }
