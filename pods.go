package pleg

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Pods are pods as a list shows them. Its methods skip nil pods, and read only.
type Pods []*Pod

// FindPodByID returns the pod with a UID, nil if there is none.
func (p Pods) FindPodByID(uid types.UID) *Pod {
	for _, pod := range p {
		if pod != nil && pod.ID == uid {
			return pod
		}
	}
	return nil
}

// FindPodByFullName returns the first pod with a full name, as BuildPodFullName makes it,
// nil if there is none. While a pod is being replaced by one of its name, there are two.
func (p Pods) FindPodByFullName(podFullName string) *Pod {
	for _, pod := range p {
		if pod != nil && BuildPodFullName(pod.Name, pod.Namespace) == podFullName {
			return pod
		}
	}
	return nil
}

// FindPod returns FindPodByFullName, or FindPodByID if the full name is empty.
func (p Pods) FindPod(podFullName string, uid types.UID) *Pod {
	if podFullName != "" {
		return p.FindPodByFullName(podFullName)
	}
	return p.FindPodByID(uid)
}

// IsEmpty reports whether the pod is nil, or identifies nothing and has nothing in it:
// neither UID nor name, neither containers nor sandboxes.
func (p *Pod) IsEmpty() bool {
	return p == nil ||
		p.ID == "" && p.Name == "" && p.Namespace == "" && len(p.Containers) == 0 && len(p.Sandboxes) == 0
}

// FindContainerByName returns the newest container with a name, nil if there is none.
func (p *Pod) FindContainerByName(containerName string) *Container {
	if p == nil {
		return nil
	}
	for _, c := range p.Containers {
		if c != nil && c.Name == containerName {
			return c
		}
	}
	return nil
}

// FindContainerByID returns the container with an ID, nil if there is none. Type and ID
// must both be equal; sandboxes are not found.
func (p *Pod) FindContainerByID(id ContainerID) *Container {
	if p == nil {
		return nil
	}
	return findByID(p.Containers, id)
}

// FindSandboxByID returns the sandbox with an ID, nil if there is none. Type and ID must
// both be equal.
func (p *Pod) FindSandboxByID(id ContainerID) *Container {
	if p == nil {
		return nil
	}
	return findByID(p.Sandboxes, id)
}

func findByID(list []*Container, id ContainerID) *Container {
	for _, c := range list {
		if c != nil && c.ID == id {
			return c
		}
	}
	return nil
}

// BuildPodFullName returns the full name of a pod, which is unique on a node but for pods
// that are being replaced: "name_namespace". Neither part of it may have an underscore in
// Kubernetes.
func BuildPodFullName(name, namespace string) string { return name + "_" + namespace }

// ParsePodFullName is the inverse of BuildPodFullName. The error says what does not have
// that form: one underscore between two parts that are not empty.
func ParsePodFullName(podFullName string) (name, namespace string, err error) {
	name, namespace, found := strings.Cut(podFullName, "_")
	if !found || name == "" || namespace == "" || strings.Contains(namespace, "_") {
		return "", "", fmt.Errorf("parsing the full name of a pod: %q is not of the form name_namespace", podFullName)
	}
	return name, namespace, nil
}
