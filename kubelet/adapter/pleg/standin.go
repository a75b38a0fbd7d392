// Package pleg replaces generic.go and evented.go in the kubelet's package of this name. The file
// standin.go has the types of that package under their names, so that this package can be compiled,
// vetted and linted here. It is not copied.
package pleg

import kubepleg "k8s.io/kubernetes/pkg/kubelet/pleg"

type (
	// PodLifecycleEvent is the kubelet's.
	PodLifecycleEvent = kubepleg.PodLifecycleEvent
	// PodLifeCycleEventType is the kubelet's.
	PodLifeCycleEventType = kubepleg.PodLifeCycleEventType
	// PodLifecycleEventGenerator is the kubelet's.
	PodLifecycleEventGenerator = kubepleg.PodLifecycleEventGenerator
	// RelistDuration is the kubelet's.
	RelistDuration = kubepleg.RelistDuration
)
