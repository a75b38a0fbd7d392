package pleg

import "github.com/kubepleg/pleg"

// conditions are what the kubelet waits for in statuses of pods: nothing, since 1.36.
type conditions struct{}

// convert returns an event in the kubelet's form.
func (conditions) convert(e *pleg.PodLifecycleEvent) *PodLifecycleEvent { return convertEvent(e) }
