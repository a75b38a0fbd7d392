package pleg

import "fmt"

// badReason is a kind of bad data, and the value of the label "reason" of the
// metric that counts it.
type badReason string

const (
	badPodNil             badReason = "nil_pod"
	badPodNoUID           badReason = "pod_without_uid"
	badPodDuplicate       badReason = "duplicate_pod_uid"
	badPodMismatch        badReason = "wrong_pod_uid"
	badContainerNil       badReason = "nil_container"
	badContainerNoID      badReason = "container_without_id"
	badContainerDuplicate badReason = "duplicate_container_id"
	badContainerState     badReason = "unknown_container_state"
	badStatusNil          badReason = "nil_status"
	badStatusNilItem      badReason = "nil_item_in_status"
	badStatusMismatch     badReason = "wrong_status_uid"
	badRuntimePanic       badReason = "runtime_panic"
)

// badReasons are all of them.
var badReasons = [...]badReason{
	badPodNil, badPodNoUID, badPodDuplicate, badPodMismatch,
	badContainerNil, badContainerNoID, badContainerDuplicate, badContainerState,
	badStatusNil, badStatusNilItem, badStatusMismatch, badRuntimePanic,
}

// reportBadData is called for every item of bad data that is skipped or read as something
// else, with the object that has it.
type reportBadData func(reason badReason, object string)

// withoutBadData returns the pod without its bad data: no container is nil, IDs are
// neither empty nor repeated, and states are known. A pod without bad data is returned as
// it is; another is copied, because listed pods are never modified.
func withoutBadData(pod *Pod, report reportBadData) *Pod {
	if pod == nil {
		return nil
	}
	taken := make(map[string]bool, len(pod.Containers)+len(pod.Sandboxes))
	good := func(c *Container) *Container {
		reason, object := badData(pod, c, taken)
		switch reason {
		case "":
			return c
		case badContainerState:
			report(reason, object)
			return c.in(ContainerStateUnknown)
		default:
			report(reason, object)
			return nil
		}
	}
	containers, bad := rewrite(pod.Containers, good)
	sandboxes, alsoBad := rewrite(pod.Sandboxes, good)
	if !bad && !alsoBad {
		return pod
	}
	copied := *pod
	copied.Containers, copied.Sandboxes = containers, sandboxes
	return &copied
}

// badData returns what is bad about a container of a pod, with the object that has it; the empty
// reason for nothing. taken has the IDs of those before it.
func badData(pod *Pod, c *Container, taken map[string]bool) (reason badReason, object string) {
	switch {
	case c == nil:
		return badContainerNil, string(pod.ID)
	case c.ID.ID == "":
		return badContainerNoID, string(pod.ID)
	case taken[c.ID.ID]:
		return badContainerDuplicate, c.ID.ID
	}
	taken[c.ID.ID] = true
	switch c.State {
	case ContainerStateCreated, ContainerStateRunning, ContainerStateExited, ContainerStateUnknown:
		return "", ""
	default:
		return badContainerState, c.ID.ID
	}
}

// validStatus returns a status that can be stored: a copy, because the runtime's is never
// modified.
func validStatus(status *PodStatus, pod *Pod, report reportBadData) (*PodStatus, error) {
	switch {
	case status == nil:
		report(badStatusNil, string(pod.ID))
		return nil, fmt.Errorf("the runtime returned no status of %s, and no error", podName(pod))
	case status.ID != "" && status.ID != pod.ID:
		report(badStatusMismatch, string(pod.ID))
		return nil, fmt.Errorf("the runtime returned the status of pod %s for %s", status.ID, podName(pod))
	}
	good := *status
	good.ID = pod.ID
	if good.Labels == nil {
		good.Labels = pod.Labels
	}
	if good.Annotations == nil {
		good.Annotations = pod.Annotations
	}
	bad := func() { report(badStatusNilItem, string(pod.ID)) }
	good.ContainerStatuses = withoutNil(good.ContainerStatuses, bad)
	good.ActiveContainerStatuses = withoutNil(good.ActiveContainerStatuses, bad)
	good.SandboxStatuses = withoutNil(good.SandboxStatuses, bad)
	return &good, nil
}

// withoutNil returns the list itself, or a copy without its nil items.
func withoutNil[T any](list []*T, bad func()) []*T {
	good, _ := rewrite(list, func(item *T) *T {
		if item == nil {
			bad()
		}
		return item
	})
	return good
}

// podName is how errors name a pod.
func podName(pod *Pod) string {
	return fmt.Sprintf("pod %s/%s (%s)", pod.Namespace, pod.Name, pod.ID)
}
