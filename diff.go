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

// containerChanged means that a container or sandbox enters the state unknown; created counts as
// unknown. Its pod is inspected, so that the cache is right. It is never delivered.
const containerChanged PodLifeCycleEventType = "ContainerChanged"

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
	find := finder[*Container]{list: new}
	for i, was := range old {
		is := find.at(i, was.ID.ID)
		ts = appendStep(ts, was, is, sandbox)
	}
	return ts
}

func appendNew(ts []transition, old, new []*Container, sandbox bool) []transition {
	find := finder[*Container]{list: old}
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
		return append(ts, transition{containerChanged, is, sandbox})
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
		if t.kind != containerChanged {
			n++
		}
	}
	return n
}

// finder finds an item of a list by its ID: at the expected place, else by walking a short
// list, else in a map. The first of an ID counts.
type finder[T identified] struct {
	list []T
	byID map[string]int // indices in list; made when a long list is walked for the first time
}

type identified interface{ id() string }

func (c *Container) id() string { return c.ID.ID }
func (s *Status) id() string    { return s.ID.ID }

// longList is the length from which on a map is cheaper than walking the list. No ordinary
// pod has as many containers.
const longList = 64

// containersOf finds the containers of a pod; a nil pod has none.
func containersOf(pod *Pod) (f finder[*Container]) {
	if pod != nil {
		f.list = pod.Containers
	}
	return f
}

// sandboxesOf finds the sandboxes of a pod; a nil pod has none.
func sandboxesOf(pod *Pod) (f finder[*Container]) {
	if pod != nil {
		f.list = pod.Sandboxes
	}
	return f
}

// statusesIn finds statuses.
func statusesIn(list []*Status) finder[*Status] { return finder[*Status]{list: list} }

// at returns the item with an ID, which is expected at index i; nil for none.
func (f *finder[T]) at(i int, id string) (item T) {
	if i = f.index(i, id); i >= 0 {
		item = f.list[i]
	}
	return item
}

// index returns the index of the item with an ID, which is expected at i; -1 for none.
func (f *finder[T]) index(i int, id string) int {
	if i < len(f.list) && f.list[i].id() == id {
		return i
	}
	if len(f.list) <= longList {
		return slices.IndexFunc(f.list, func(item T) bool { return item.id() == id })
	}
	if f.byID == nil {
		f.byID = make(map[string]int, len(f.list))
		for i, item := range slices.Backward(f.list) {
			f.byID[item.id()] = i
		}
	}
	if i, is := f.byID[id]; is {
		return i
	}
	return -1
}
