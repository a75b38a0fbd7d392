// Package container replaces cache.go in the kubelet's package of the same name. The file
// standin.go declares types of the kubelet's package, so that this package can be compiled, vetted
// and linted here. That file is not copied into the kubelet.
package container

import kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

// PodStatus is the kubelet's type.
type PodStatus = kubecontainer.PodStatus

// Status is the kubelet's type.
type Status = kubecontainer.Status

// These states are the kubelet's constants.
const (
	ContainerStateRunning = kubecontainer.ContainerStateRunning
	ContainerStateExited  = kubecontainer.ContainerStateExited
)
