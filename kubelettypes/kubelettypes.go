// Package kubelettypes has helpers of the kubelet, under their own names, for code that is ported
// from it. A new agent does not need it: a pleg.PodCache finds pods by UID, container, name and
// address.
package kubelettypes

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// Pods are pods as a list shows them. Its methods skip nil pods and modify nothing.
type Pods []*pleg.Pod

// FindPodByID returns the pod with a UID, nil if there is none.
func (p Pods) FindPodByID(uid types.UID) *pleg.Pod { return pleg.Pods(p).FindPodByID(uid) }

// FindPodByFullName returns the first pod with a full name, as BuildPodFullName makes it, nil if
// there is none. Two pods have it while one replaces the other.
func (p Pods) FindPodByFullName(podFullName string) *pleg.Pod {
	for _, pod := range p {
		if pod != nil && BuildPodFullName(pod.Name, pod.Namespace) == podFullName {
			return pod
		}
	}
	return nil
}

// FindPod returns FindPodByFullName, or FindPodByID if the full name is empty.
func (p Pods) FindPod(podFullName string, uid types.UID) *pleg.Pod {
	if podFullName != "" {
		return p.FindPodByFullName(podFullName)
	}
	return p.FindPodByID(uid)
}

// BuildPodFullName returns the full name of a pod: "name_namespace". In Kubernetes neither part may
// have an underscore. On a node, only a pod and its replacement share a full name.
func BuildPodFullName(name, namespace string) string { return name + "_" + namespace }

// ParsePodFullName is the inverse of BuildPodFullName. It returns an error unless exactly one
// underscore separates two non-empty parts.
func ParsePodFullName(podFullName string) (name, namespace string, err error) {
	name, namespace, found := strings.Cut(podFullName, "_")
	if !found || name == "" || namespace == "" || strings.Contains(namespace, "_") {
		return "", "", fmt.Errorf("parsing the full name of a pod: %q is not of the form name_namespace", podFullName)
	}
	return name, namespace, nil
}

// BuildContainerID returns the ID of a container of a runtime, such as "containerd".
func BuildContainerID(typ, id string) pleg.ContainerID { return pleg.ContainerID{Type: typ, ID: id} }

// SandboxToContainerState returns the state that a sandbox has as a container: running if
// it is ready, exited if it is not, else unknown.
func SandboxToContainerState(state runtimeapi.PodSandboxState) pleg.State {
	switch state {
	case runtimeapi.PodSandboxState_SANDBOX_READY:
		return pleg.ContainerStateRunning
	case runtimeapi.PodSandboxState_SANDBOX_NOTREADY:
		return pleg.ContainerStateExited
	default:
		return pleg.ContainerStateUnknown
	}
}

// ConvertPodStatusToRunningPod returns what must be stopped to stop a pod: the pod with its running
// containers and all its sandboxes, newest first, as a list would show them. The IDs of the
// sandboxes get the type runtimeName. Source is that of the status.
func ConvertPodStatusToRunningPod(runtimeName string, podStatus *pleg.PodStatus) pleg.Pod {
	if podStatus == nil {
		return pleg.Pod{}
	}
	pod := pleg.Pod{ID: podStatus.ID, Name: podStatus.Name, Namespace: podStatus.Namespace, Source: podStatus.Source}
	for _, s := range podStatus.ContainerStatuses {
		if s == nil || s.State != pleg.ContainerStateRunning {
			continue
		}
		c := &pleg.Container{
			ID: s.ID, State: s.State, Name: s.Name, Image: s.Image, ImageID: s.ImageID, ImageRef: s.ImageRef,
			ImageRuntimeHandler: s.ImageRuntimeHandler, Hash: s.Hash, PodSandboxID: s.PodSandboxID,
			Labels: s.Labels, Annotations: s.Annotations, Source: s.Source,
		}
		if !s.CreatedAt.IsZero() {
			c.CreatedAt = s.CreatedAt.UnixNano()
		}
		pod.Containers = append(pod.Containers, c)
	}
	for _, s := range podStatus.SandboxStatuses {
		if s == nil {
			continue
		}
		pod.Sandboxes = append(pod.Sandboxes, &pleg.Container{
			ID: BuildContainerID(runtimeName, s.GetId()), State: SandboxToContainerState(s.GetState()),
			CreatedAt: s.GetCreatedAt(), Attempt: s.GetMetadata().GetAttempt(),
			Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
		})
		if len(pod.Sandboxes) == 1 { // the newest
			pod.Labels, pod.Annotations, pod.RuntimeHandler = s.GetLabels(), s.GetAnnotations(), s.GetRuntimeHandler()
		}
		pod.CreatedAt = max(pod.CreatedAt, uint64(max(0, s.GetCreatedAt()))) //nolint:gosec // not negative
	}
	return pod
}
