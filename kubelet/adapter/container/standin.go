// Package container replaces cache.go in the kubelet's package of this name. The file standin.go has
// the types of that package under their names, so that this package can be compiled, vetted and linted
// here. It is not copied.
package container

import kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

// PodStatus is the kubelet's.
type PodStatus = kubecontainer.PodStatus

// Status is the kubelet's.
type Status = kubecontainer.Status

// The states are the kubelet's.
const (
	ContainerStateRunning = kubecontainer.ContainerStateRunning
	ContainerStateExited  = kubecontainer.ContainerStateExited
)
