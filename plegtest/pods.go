package plegtest

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
)

// runtimeType is the Type of all container IDs in this package.
const runtimeType = "plegtest"

// NewPod returns a pod in namespace "default" whose name is its UID. The pod contains a running
// sandbox "<uid>-sandbox". Containers without a PodSandboxID are put into that sandbox. Pass the
// containers newest first; a list returns them in this order. Nil containers are kept, for tests of
// bad data. To add labels, annotations or a runtime handler, set the fields before SetPod, or call
// UpdatePod.
func NewPod(uid types.UID, containers ...*pleg.Container) *pleg.Pod {
	sandbox := NewSandbox(string(uid)+"-sandbox", pleg.ContainerStateRunning)
	for _, c := range containers {
		if c != nil && c.PodSandboxID == "" {
			c.PodSandboxID = sandbox.ID.ID
		}
	}
	return &pleg.Pod{
		ID:         uid,
		Name:       string(uid),
		Namespace:  "default",
		Containers: containers,
		Sandboxes:  []*pleg.Container{sandbox},
	}
}

// NewContainer returns a container whose ID and name are id. An ID identifies a container on the
// whole node, so no two pods should use the same ID.
func NewContainer(id string, state pleg.State) *pleg.Container {
	return &pleg.Container{
		ID:    pleg.ContainerID{Type: runtimeType, ID: id},
		Name:  id,
		Image: "registry.example/" + id + ":1",
		State: state,
	}
}

// NewSandbox returns a sandbox as an item of a list. The state running means ready, exited means
// not ready.
func NewSandbox(id string, state pleg.State) *pleg.Container {
	return &pleg.Container{ID: pleg.ContainerID{Type: runtimeType, ID: id}, State: state}
}

// Created returns a container that has been created but not started; see NewContainer.
func Created(id string) *pleg.Container {
	return NewContainer(id, pleg.ContainerStateCreated)
}

// Running returns a running container; see NewContainer.
func Running(id string) *pleg.Container {
	return NewContainer(id, pleg.ContainerStateRunning)
}

// Exited returns a container that has exited; see NewContainer.
func Exited(id string) *pleg.Container {
	return NewContainer(id, pleg.ContainerStateExited)
}

// Unknown returns a container in the state "unknown"; see NewContainer.
func Unknown(id string) *pleg.Container {
	return NewContainer(id, pleg.ContainerStateUnknown)
}

// clonePod returns a deep copy of a pod.
func clonePod(pod *pleg.Pod) *pleg.Pod {
	if pod == nil {
		return nil
	}
	c := *pod
	c.Containers = cloneContainers(pod.Containers)
	c.Sandboxes = cloneContainers(pod.Sandboxes)
	c.Labels, c.Annotations = maps.Clone(pod.Labels), maps.Clone(pod.Annotations)
	return &c
}

func cloneContainers(list []*pleg.Container) []*pleg.Container {
	cloned := slices.Clone(list)
	for i, c := range cloned {
		if c != nil {
			copied := *c
			copied.Labels, copied.Annotations = maps.Clone(c.Labels), maps.Clone(c.Annotations)
			cloned[i] = &copied
		}
	}
	return cloned
}

// indexOf returns the index of a container in a list, or -1 if the list does not contain it.
func indexOf(list []*pleg.Container, id string) int {
	return slices.IndexFunc(list, func(c *pleg.Container) bool { return c != nil && c.ID.ID == id })
}

// running returns a copy of the pod with only its running containers and ready sandboxes, as in a
// list with all=false. It returns nil if there are none.
func running(pod *pleg.Pod) *pleg.Pod {
	if pod == nil {
		return nil
	}
	notRunning := func(c *pleg.Container) bool { return c == nil || c.State != pleg.ContainerStateRunning }
	c := *pod
	c.Containers = slices.DeleteFunc(slices.Clone(pod.Containers), notRunning)
	c.Sandboxes = slices.DeleteFunc(slices.Clone(pod.Sandboxes), notRunning)
	if len(c.Containers) == 0 && len(c.Sandboxes) == 0 {
		return nil
	}
	return &c
}
