package pleg

import (
	"context"

	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/klog/v2"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/utils/clock"
)

// NewEventedPLEG returns genericPleg, because genericPleg itself reads the runtime's events.
func NewEventedPLEG(_ klog.Logger, _ kubecontainer.Runtime, _ internalapi.RuntimeService, _ chan *PodLifecycleEvent,
	_ kubecontainer.Cache, genericPleg PodLifecycleEventGenerator, _ int, _ *RelistDuration, _ clock.Clock,
) (PodLifecycleEventGenerator, error) {
	return genericPleg, nil
}

// Start starts the generator. A second Start does nothing, because the kubelet starts the generator
// twice if the gate EventedPLEG is on.
func (g *GenericPLEG) Start() { g.start(context.Background()) }

// Relist lists all pods.
func (g *GenericPLEG) Relist() { g.relist(context.Background()) }
