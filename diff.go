package pleg

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// transition is a change of one container or sandbox between two lists of its pod.
type transition struct {
	kind      PodLifeCycleEventType
	container *Container
	sandbox   bool
}

// containerChanged is a change to the state created or unknown. It causes an inspection, no event.
const containerChanged PodLifeCycleEventType = "ContainerChanged"

// appendTransitions appends the transitions of a pod between two lists. A nil pod is absent. Known
// containers come before new containers, so that a death precedes the start of the replacement.
func appendTransitions(ts []transition, old, new *Pod) []transition {
	if old == new {
		return ts
	}
	ts = appendKnown(ts, old.containers(), new.containers(), false)
	ts = appendKnown(ts, old.sandboxes(), new.sandboxes(), true)
	ts = appendNew(ts, old.containers(), new.containers(), false)
	return appendNew(ts, old.sandboxes(), new.sandboxes(), true)
}

func appendKnown(ts []transition, old, new []*Container, sandbox bool) []transition {
	is := finder(new)
	for _, was := range old {
		ts = appendStep(ts, was, is(was.ID.ID), sandbox)
	}
	return ts
}

func appendNew(ts []transition, old, new []*Container, sandbox bool) []transition {
	was := finder(old)
	for _, is := range new {
		if was(is.ID.ID) == nil {
			ts = appendStep(ts, nil, is, sandbox)
		}
	}
	return ts
}

// appendStep appends the transitions of one container. A nil container is absent.
func appendStep(ts []transition, was, is *Container, sandbox bool) []transition {
	from, to := plegStateOf(was), plegStateOf(is)
	if from == to {
		return ts
	}
	if to != plegAbsent {
		return append(ts, transition{entered[to], is, sandbox})
	}
	if from != plegExited {
		ts = append(ts, transition{ContainerDied, was, sandbox})
	}
	return append(ts, transition{ContainerRemoved, was, sandbox})
}

// entered maps each state to the event for a container that enters the state.
var entered = [...]PodLifeCycleEventType{
	plegUnknown: containerChanged, plegRunning: ContainerStarted, plegExited: ContainerDied,
}

// deliverable deletes the transitions that no event reports.
func deliverable(ts []transition) []transition {
	return slices.DeleteFunc(ts, func(t transition) bool { return t.kind == containerChanged })
}

type identified interface{ id() string }

func (c *Container) id() string { return c.ID.ID }

func (s *Status) id() string {
	if s == nil { // only a status that Set stored can contain nil
		return ""
	}
	return s.ID.ID
}

// find returns the first item with the ID, or nil.
func find[T identified](list []T, id string) (found T) {
	for _, item := range list {
		if item.id() == id {
			return item
		}
	}
	return found
}

// finder returns a function that finds items of the list by ID. It searches a long list with a map.
func finder[T identified](list []T) func(id string) T {
	var byID map[string]T
	return func(id string) T {
		if len(list) <= 16 {
			return find(list, id)
		}
		if byID == nil {
			byID = make(map[string]T, len(list))
			for i := len(list) - 1; i >= 0; i-- { // backwards, so that byID keeps the first item with an ID
				byID[list[i].id()] = list[i]
			}
		}
		return byID[id]
	}
}

func (p *Pod) containers() []*Container {
	if p == nil {
		return nil
	}
	return p.Containers
}

func (p *Pod) sandboxes() []*Container {
	if p == nil {
		return nil
	}
	return p.Sandboxes
}

// The method in returns a copy of the container with another state.
func (c *Container) in(state State) *Container {
	is := *c
	is.State = state
	return &is
}

// itemsOf returns the containers and sandboxes of pods. It skips nil pods.
func itemsOf(pods ...*Pod) []*Container {
	all := make([]*Container, 0, 16) // stays on the stack if the caller does not keep it
	for _, pod := range pods {
		all = append(append(all, pod.containers()...), pod.sandboxes()...)
	}
	return all
}

// rewrite replaces each item of a list by f(item). If f returns nil, the item is dropped. The list
// is copied only if an item changes; changed is then true.
func rewrite[T any](list []*T, f func(*T) *T) (rewritten []*T, changed bool) {
	for i, item := range list {
		is := f(item)
		if !changed && (is != item || is == nil) {
			rewritten, changed = slices.Clone(list[:i]), true
		}
		if changed && is != nil {
			rewritten = append(rewritten, is)
		}
	}
	if !changed {
		return list, false
	}
	return rewritten, true
}

// put sets m[key], and makes the map first if it is nil.
func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = make(map[K]V)
	}
	(*m)[key] = value
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// listedStatus makes a status from a listed container.
func listedStatus(c *Container) *Status {
	return &Status{
		ID: c.ID, Name: c.Name, Image: c.Image, ImageID: c.ImageID, ImageRef: c.ImageRef, State: c.State,
		EndUnknown: isExited(c), ImageRuntimeHandler: c.ImageRuntimeHandler, Hash: c.Hash,
		CreatedAt: time.Unix(0, c.CreatedAt), RestartCount: int(c.Attempt), Labels: c.Labels,
		Annotations: c.Annotations, PodSandboxID: c.PodSandboxID,
	}
}

// withStatuses returns the list, with the statuses from others for the containers in others.
func withStatuses(list []*Status, others map[string]*Status) []*Status {
	list, _ = rewrite(list, func(s *Status) *Status { return cmp.Or(others[s.ID.ID], s) })
	return list
}

// withMissing returns the statuses in the order of the pod's containers, followed by the statuses of other
// containers. For a container without a status, it inserts the result of add, unless the result is nil.
func withMissing(statuses []*Status, pod *Pod, add func(*Container) *Status) []*Status {
	known, listed := finder(statuses), finder(pod.containers())
	all := make([]*Status, 0, len(statuses))
	for _, c := range pod.containers() {
		s := known(c.ID.ID)
		if s == nil {
			s = add(c)
		}
		if s != nil {
			all = append(all, s)
		}
	}
	for _, s := range statuses {
		if listed(s.id()) == nil {
			all = append(all, s)
		}
	}
	return all
}

func oneIf[T int | float64](is bool) T {
	if is {
		return 1
	}
	return 0
}

func emptyStatus(uid types.UID) *PodStatus { return &PodStatus{ID: uid} }

// listedSandbox makes a status from a listed sandbox.
func listedSandbox(c *Container) *runtimeapi.PodSandboxStatus {
	state := runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	if c.State == ContainerStateRunning {
		state = runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return &runtimeapi.PodSandboxStatus{Id: c.ID.ID, CreatedAt: c.CreatedAt, State: state}
}
