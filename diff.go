package pleg

import "slices"

// transition is a difference between two lists of a pod, in one container or sandbox.
type transition struct {
	kind      PodLifeCycleEventType
	container *Container
	sandbox   bool
}

// containerChanged means that a container is now created or unknown: inspect its pod, but send no event.
const containerChanged PodLifeCycleEventType = "ContainerChanged"

// plegState is what events distinguish of a State. The states and their transitions are the kubelet's.
type plegState int

const (
	plegAbsent plegState = iota
	plegUnknown
	plegRunning
	plegExited
)

func plegStateOf(c *Container) plegState {
	if c == nil {
		return plegAbsent
	}
	return plegStateIn(c.State)
}

func plegStateIn(s State) plegState {
	switch s {
	case ContainerStateRunning:
		return plegRunning
	case ContainerStateExited:
		return plegExited
	default:
		return plegUnknown
	}
}

// appendTransitions appends the transitions of a pod between two lists; nil means absent. Known
// containers come before new ones, so that a death precedes the start of the replacement.
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

// appendStep appends the transitions of one container; nil means absent.
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

// entered has the event of a container that enters a state.
var entered = [...]PodLifeCycleEventType{
	plegUnknown: containerChanged, plegRunning: ContainerStarted, plegExited: ContainerDied,
}

func deliverable(ts []transition) int {
	n := 0
	for _, t := range ts {
		if t.kind != containerChanged {
			n++
		}
	}
	return n
}

type identified interface{ id() string }

func (c *Container) id() string { return c.ID.ID }

func (s *Status) id() string {
	if s == nil { // nil only in a status stored by Set
		return ""
	}
	return s.ID.ID
}

// find returns the first item with an ID; nil for none.
func find[T identified](list []T, id string) (found T) {
	for _, item := range list {
		if item.id() == id {
			return item
		}
	}
	return found
}

// finder returns find for many searches of one list. A long list is searched with a map.
func finder[T identified](list []T) func(id string) T {
	if len(list) <= 16 {
		return func(id string) T { return find(list, id) }
	}
	byID := make(map[string]T, len(list))
	for _, item := range slices.Backward(list) { // so that the first item with an ID wins
		byID[item.id()] = item
	}
	return func(id string) T { return byID[id] }
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

// in returns a copy of the container in another state.
func (c *Container) in(state State) *Container {
	is := *c
	is.State = state
	return &is
}

// itemsOf returns the containers and sandboxes of pods. It skips nil pods.
func itemsOf(pods ...*Pod) (all []*Container) {
	for _, pod := range pods {
		all = append(append(all, pod.containers()...), pod.sandboxes()...)
	}
	return all
}

// rewrite replaces each item of a list by f(item), and drops the item if that is nil. It copies the
// list only if an item changes; changed reports whether it did.
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
