package pleg

import (
	"fmt"
	"slices"
)

// badReason is a kind of bad data, and a value of the label reason of pleg_bad_data_total.
type badReason string

const (
	badNil       badReason = "nil"           // a nil pod, container, status, or item of a status
	badNoID      badReason = "no_id"         // a pod without a UID, or a container without an ID
	badDuplicate badReason = "duplicate_id"  // a UID or a container ID that occurs a second time
	badUID       badReason = "wrong_uid"     // a pod or a status of another pod than the requested one
	badState     badReason = "unknown_state" // a container with an unknown state
	badPanic     badReason = "panic"         // a panic in a call to the runtime
)

// reportBadData is called for each bad item. object contains the item, which is skipped or corrected.
type reportBadData func(reason badReason, object string)

// withoutBadData returns the pod or, if it contains bad data, a copy without nil containers, empty
// or repeated IDs, and invalid states. It never modifies the pod.
func withoutBadData(pod *Pod, report reportBadData) *Pod {
	if pod == nil {
		return nil
	}
	taken := make(map[string]bool, len(pod.Containers)+len(pod.Sandboxes))
	good := func(c *Container) *Container {
		switch {
		case c == nil:
			report(badNil, "container of pod "+string(pod.ID))
			return nil
		case c.ID.ID == "":
			report(badNoID, "container of pod "+string(pod.ID))
			return nil
		case taken[c.ID.ID]:
			report(badDuplicate, "container "+c.ID.ID)
			return nil
		}
		taken[c.ID.ID] = true
		if !slices.Contains(allStates[:], c.State) {
			report(badState, "container "+c.ID.ID)
			return c.in(ContainerStateUnknown)
		}
		return c
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

// validStatus returns a corrected copy of a status, or an error if it cannot be used. It never modifies the status.
func validStatus(status *PodStatus, pod *Pod, report reportBadData) (*PodStatus, error) {
	switch {
	case status == nil:
		report(badNil, "status of pod "+string(pod.ID))
		return nil, fmt.Errorf("the runtime returned no status of %s, and no error", podName(pod))
	case status.ID != "" && status.ID != pod.ID:
		report(badUID, "status of pod "+string(pod.ID))
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
	bad := func() { report(badNil, "item in the status of pod "+string(pod.ID)) }
	taken := make(map[string]bool)
	good.ContainerStatuses, _ = rewrite(withoutNil(good.ContainerStatuses, bad), func(s *Status) *Status {
		if taken[s.ID.ID] {
			report(badDuplicate, "status of container "+s.ID.ID)
			return nil
		}
		taken[s.ID.ID] = true
		if !slices.Contains(allStates[:], s.State) {
			report(badState, "status of container "+s.ID.ID)
			known := *s
			known.State = ContainerStateUnknown
			return &known
		}
		return s
	})
	good.ActiveContainerStatuses = withoutNil(good.ActiveContainerStatuses, bad)
	good.SandboxStatuses = withoutNil(good.SandboxStatuses, bad)
	return &good, nil
}

// withoutNil returns the list or, if it contains nil items, a copy without them.
func withoutNil[T any](list []*T, bad func()) []*T {
	good, _ := rewrite(list, func(item *T) *T {
		if item == nil {
			bad()
		}
		return item
	})
	return good
}

// podName returns the name of a pod for errors.
func podName(pod *Pod) string { return fmt.Sprintf("pod %s/%s (%s)", pod.Namespace, pod.Name, pod.ID) }
