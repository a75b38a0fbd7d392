// Package pleg is what takes the place of generic.go and evented.go in the kubelet's
// package of this name. The file standin.go has the types of that package under their
// names, so that this one compiles, is vetted and linted here; it is not copied.
package pleg

import kubepleg "k8s.io/kubernetes/pkg/kubelet/pleg"

// The kubelet's types.
type (
	PodLifecycleEvent          = kubepleg.PodLifecycleEvent
	PodLifeCycleEventType      = kubepleg.PodLifeCycleEventType
	PodLifecycleEventGenerator = kubepleg.PodLifecycleEventGenerator
	RelistDuration             = kubepleg.RelistDuration
)
