package pleg

import "github.com/kubepleg/pleg"

// conditions are the kubelet's watch conditions. From 1.36 on, there are none.
type conditions struct{}

// convert returns an event in the kubelet's form.
func (conditions) convert(e *pleg.PodLifecycleEvent) *PodLifecycleEvent { return convertEvent(e) }
