// Package garbage contains functions that turn answers of a CRI server into bad data. A test
// injects them as faults of package criserver.
package garbage

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// item is a sandbox or container in a list, a status or an event.
type item struct {
	id       *string
	labels   *map[string]string
	state    func(int32)
	unname   func()
	setTimes func(int64)
}

// itemsOf returns the items of an answer of the CRI server.
func itemsOf(answer any) []item {
	var items []item
	switch a := answer.(type) {
	case *runtimeapi.ListPodSandboxResponse:
		for _, s := range a.Items {
			items = append(items, sandboxItem(s))
		}
	case *runtimeapi.ListContainersResponse:
		for _, c := range a.Containers {
			items = append(items, containerItem(c))
		}
	case *runtimeapi.PodSandboxStatusResponse:
		if a.Status != nil {
			items = append(items, sandboxStatusItem(a.Status))
		}
	case *runtimeapi.ContainerStatusResponse:
		if a.Status != nil {
			items = append(items, containerStatusItem(a.Status))
		}
	case *runtimeapi.ContainerEventResponse:
		items = append(items, item{id: &a.ContainerId})
		if a.PodSandboxStatus != nil {
			items = append(items, sandboxStatusItem(a.PodSandboxStatus))
		}
		for _, c := range a.ContainersStatuses {
			items = append(items, containerStatusItem(c))
		}
	}
	return items
}

func sandboxItem(s *runtimeapi.PodSandbox) item {
	return item{
		id: &s.Id, labels: &s.Labels,
		state:    func(n int32) { s.State = runtimeapi.PodSandboxState(n) },
		unname:   func() { s.Metadata = nil },
		setTimes: func(n int64) { s.CreatedAt = n },
	}
}

func containerItem(c *runtimeapi.Container) item {
	return item{
		id: &c.Id, labels: &c.Labels,
		state:    func(n int32) { c.State = runtimeapi.ContainerState(n) },
		unname:   func() { c.Metadata = nil },
		setTimes: func(n int64) { c.CreatedAt = n },
	}
}

func sandboxStatusItem(s *runtimeapi.PodSandboxStatus) item {
	return item{
		id: &s.Id, labels: &s.Labels,
		state:    func(n int32) { s.State = runtimeapi.PodSandboxState(n) },
		unname:   func() { s.Metadata = nil },
		setTimes: func(n int64) { s.CreatedAt = n },
	}
}

func containerStatusItem(c *runtimeapi.ContainerStatus) item {
	return item{
		id: &c.Id, labels: &c.Labels,
		state:    func(n int32) { c.State = runtimeapi.ContainerState(n) },
		unname:   func() { c.Metadata = nil },
		setTimes: func(n int64) { c.CreatedAt, c.StartedAt, c.FinishedAt = n, n, n },
	}
}

// NilMetadata is an Edit that removes the metadata of every sandbox and container.
func NilMetadata(answer any) {
	for _, i := range itemsOf(answer) {
		if i.unname != nil {
			i.unname()
		}
	}
}

// EmptyIDs is an Edit that clears the ID of every sandbox and container.
func EmptyIDs(answer any) {
	for _, i := range itemsOf(answer) {
		*i.id = ""
	}
}

// DuplicateIDs is an Edit that replaces every ID in the answer by the ID of the first item.
func DuplicateIDs(answer any) {
	items := itemsOf(answer)
	for _, i := range items {
		*i.id = *items[0].id
	}
}

// OtherIDs is an Edit that replaces every ID by an ID that does not exist.
func OtherIDs(answer any) {
	for _, i := range itemsOf(answer) {
		*i.id = "other-" + *i.id
	}
}

// UnknownStates is an Edit that sets the state of every sandbox and container to a value that the
// API does not define.
func UnknownStates(answer any) {
	for _, i := range itemsOf(answer) {
		if i.state != nil {
			i.state(77)
		}
	}
}

// MissingLabels is an Edit that removes all labels, including the kubelet's.
func MissingLabels(answer any) {
	for _, i := range itemsOf(answer) {
		if i.labels != nil {
			*i.labels = nil
		}
	}
}

// NegativeTimes is an Edit that sets every time to a time before 1970.
func NegativeTimes(answer any) {
	for _, i := range itemsOf(answer) {
		if i.setTimes != nil {
			i.setTimes(-1)
		}
	}
}

// NilStatus is an Edit that removes the status from a status answer or an event.
func NilStatus(answer any) {
	switch a := answer.(type) {
	case *runtimeapi.PodSandboxStatusResponse:
		a.Status = nil
	case *runtimeapi.ContainerStatusResponse:
		a.Status = nil
	case *runtimeapi.ContainerEventResponse:
		a.PodSandboxStatus, a.ContainersStatuses = nil, nil
	}
}
