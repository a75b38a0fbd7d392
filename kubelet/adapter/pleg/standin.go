// Package pleg replaces generic.go and evented.go in the kubelet's package of the same name. The
// file standin.go declares types of the kubelet's package, so that this package can be compiled,
// vetted and linted here. That file is not copied into the kubelet.
package pleg

import kubepleg "k8s.io/kubernetes/pkg/kubelet/pleg"

type (
	// PodLifecycleEvent is the kubelet's type.
	PodLifecycleEvent = kubepleg.PodLifecycleEvent
	// PodLifeCycleEventType is the kubelet's type.
	PodLifeCycleEventType = kubepleg.PodLifeCycleEventType
	// PodLifecycleEventGenerator is the kubelet's type.
	PodLifecycleEventGenerator = kubepleg.PodLifecycleEventGenerator
	// RelistDuration is the kubelet's type.
	RelistDuration = kubepleg.RelistDuration
)
