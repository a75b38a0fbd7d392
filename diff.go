package pleg

import (
	"slices"
)

// transition is one step in the life of a container or sandbox: a difference between two
// lists of its pod.
type transition struct {
	kind      PodLifeCycleEventType
	container *Container
	sandbox   bool
}

// plegState is the state of a container as events distinguish it. The table of transitions
// is the kubelet's.
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
	case ContainerStateCreated, ContainerStateUnknown:
		return plegUnknown
	default:
		return plegUnknown
	}
}

// withSandboxesBeingMade returns a listed pod, or a copy in which those sandboxes are unknown that
// are being made: they are not ready, have no containers, and the pod as it was known did not
// show them ready or dead. cri-dockerd lists a sandbox so between its creation and its start.
func withSandboxesBeingMade(old, pod *Pod) *Pod {
	if pod == nil {
		return nil
	}
	made := pod
	for i, s := range pod.Sandboxes {
		if s.State != ContainerStateExited || hasContainers(pod, s) || wasMade(old, s) {
			continue
		}
		if made == pod {
			copied := *pod
			copied.Sandboxes = slices.Clone(pod.Sandboxes)
			made = &copied
		}
		unknown := *s
		unknown.State = ContainerStateUnknown
		made.Sandboxes[i] = &unknown
	}
	return made
}

// hasContainers reports whether a sandbox has containers, as one that does not say where it is may
// be its.
func hasContainers(pod *Pod, sandbox *Container) bool {
	return slices.ContainsFunc(pod.Containers, func(c *Container) bool {
		return c.PodSandboxID == sandbox.ID.ID || c.PodSandboxID == ""
	})
}

// wasMade reports whether the pod as it was known showed a sandbox ready or dead.
func wasMade(old *Pod, sandbox *Container) bool {
	return old != nil && slices.ContainsFunc(old.Sandboxes, func(s *Container) bool {
		return s.ID.ID == sandbox.ID.ID && plegStateOf(s) != plegUnknown
	})
}

// appendTransitions appends the transitions of the containers and sandboxes of one pod
// between two lists of it; nil stands for an absent pod. Known containers come first, each
// list in its order, then new ones, so that the death of a container precedes the start of
// its successor.
func appendTransitions(ts []transition, old, new *Pod) []transition {
	if old == new {
		return ts
	}
	if old == nil {
		old = &Pod{}
	}
	if new == nil {
		new = &Pod{}
	}
	ts = appendKnown(ts, old.Containers, new.Containers, false)
	ts = appendKnown(ts, old.Sandboxes, new.Sandboxes, true)
	ts = appendNew(ts, old.Containers, new.Containers, false)
	ts = appendNew(ts, old.Sandboxes, new.Sandboxes, true)
	return ts
}

func appendKnown(ts []transition, old, new []*Container, sandbox bool) []transition {
	find := finderIn(new)
	for i, was := range old {
		is := find.at(i, was.ID.ID)
		ts = appendStep(ts, was, is, sandbox)
	}
	return ts
}

func appendNew(ts []transition, old, new []*Container, sandbox bool) []transition {
	find := finderIn(old)
	for i, is := range new {
		if find.at(i, is.ID.ID) == nil {
			ts = appendStep(ts, nil, is, sandbox)
		}
	}
	return ts
}

// appendStep is the table of transitions of one container; nil stands for an absent one.
func appendStep(ts []transition, was, is *Container, sandbox bool) []transition {
	from, to := plegStateOf(was), plegStateOf(is)
	if from == to {
		return ts
	}
	switch to {
	case plegRunning:
		return append(ts, transition{ContainerStarted, is, sandbox})
	case plegExited:
		return append(ts, transition{ContainerDied, is, sandbox})
	case plegUnknown:
		return append(ts, transition{ContainerChanged, is, sandbox})
	case plegAbsent:
		if from != plegExited {
			ts = append(ts, transition{ContainerDied, was, sandbox})
		}
		return append(ts, transition{ContainerRemoved, was, sandbox})
	}
	return ts
}

// deliverable counts the transitions that are delivered as events.
func deliverable(ts []transition) int {
	n := 0
	for _, t := range ts {
		if t.kind != ContainerChanged {
			n++
		}
	}
	return n
}

// finder finds an item of a list by its ID: at the expected place, else by walking a short
// list, else in a map. The first of an ID counts.
type finder[T any] struct {
	list []*T
	id   func(*T) string
	byID map[string]int // indices in list; nil for a short one
}

// longList is the length from which on a map is cheaper than walking the list. No ordinary
// pod has as many containers.
const longList = 64

func finderIn(list []*Container) finder[Container] {
	return newFinder(list, func(c *Container) string { return c.ID.ID })
}

func statusFinderIn(list []*Status) finder[Status] {
	return newFinder(list, func(s *Status) string { return s.ID.ID })
}

func newFinder[T any](list []*T, id func(*T) string) finder[T] {
	f := finder[T]{list: list, id: id}
	if len(list) > longList {
		f.byID = make(map[string]int, len(list))
		for i := len(list) - 1; i >= 0; i-- {
			f.byID[id(list[i])] = i
		}
	}
	return f
}

// at returns the item with an ID, which is expected at index i; nil for none.
func (f *finder[T]) at(i int, id string) *T {
	if i = f.index(i, id); i < 0 {
		return nil
	}
	return f.list[i]
}

// index returns the index of the item with an ID; -1 for none.
func (f *finder[T]) index(i int, id string) int {
	if i < len(f.list) && f.id(f.list[i]) == id {
		return i
	}
	if f.byID != nil {
		if i, ok := f.byID[id]; ok {
			return i
		}
		return -1
	}
	for i, item := range f.list {
		if f.id(item) == id {
			return i
		}
	}
	return -1
}
