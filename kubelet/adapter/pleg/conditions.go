package pleg

import "github.com/kubepleg/pleg"

// conditions is empty: from 1.36 on, the kubelet has no watch conditions.
type conditions struct{}

// convert returns an event in the kubelet's form.
func (conditions) convert(e *pleg.PodLifecycleEvent) *PodLifecycleEvent { return convertEvent(e) }
