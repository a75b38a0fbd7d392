package pleg

import (
	"iter"
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
	sandboxes, changed := rewrite(pod.sandboxes(), func(s *Container) *Container {
		if s.State != ContainerStateExited || hasContainers(pod, s) || wasMade(old, s) {
			return s
		}
		return s.in(ContainerStateUnknown)
	})
	if !changed {
		return pod
	}
	copied := *pod
	copied.Sandboxes = sandboxes
	return &copied
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
	s := find(old.sandboxes(), 0, sandbox.ID.ID)
	return s != nil && plegStateOf(s) != plegUnknown
}

// appendTransitions appends the transitions of the containers and sandboxes of one pod
// between two lists of it; nil stands for an absent pod. Known containers come first, each
// list in its order, then new ones, so that the death of a container precedes the start of
// its successor.
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
	for i, was := range old {
		ts = appendStep(ts, was, is(i, was.ID.ID), sandbox)
	}
	return ts
}

func appendNew(ts []transition, old, new []*Container, sandbox bool) []transition {
	was := finder(old)
	for i, is := range new {
		if was(i, is.ID.ID) == nil {
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

type identified interface{ id() string }

func (c *Container) id() string { return c.ID.ID }

func (s *Status) id() string {
	if s == nil { // in a status that was Set
		return ""
	}
	return s.ID.ID
}

// index returns the index of the first item with an ID from index i on, where it is expected, and
// then from the beginning; -1 for none.
func index[T identified](list []T, i int, id string) int {
	for range list {
		if i >= len(list) {
			i = 0
		}
		if list[i].id() == id {
			return i
		}
		i++
	}
	return -1
}

// find returns the item that index finds; nil for none.
func find[T identified](list []T, i int, id string) (item T) {
	if i = index(list, i, id); i >= 0 {
		item = list[i]
	}
	return item
}

// finder returns find for the items of a list, for many of which it is called: a map has those of a
// long list from the first on that is not at its place.
func finder[T identified](list []T) func(i int, id string) T {
	var byID map[string]T
	return func(i int, id string) T {
		if len(list) <= 64 || i < len(list) && list[i].id() == id {
			return find(list, i, id)
		}
		if byID == nil {
			byID = make(map[string]T, len(list))
			for _, item := range slices.Backward(list) { // the first of an ID counts
				byID[item.id()] = item
			}
		}
		return byID[id]
	}
}

// containers returns the containers of a pod; a nil pod has none.
func (p *Pod) containers() []*Container {
	if p == nil {
		return nil
	}
	return p.Containers
}

// sandboxes returns the sandboxes of a pod; a nil pod has none.
func (p *Pod) sandboxes() []*Container {
	if p == nil {
		return nil
	}
	return p.Sandboxes
}

// in returns a copy of a container in another state.
func (c *Container) in(state State) *Container {
	is := *c
	is.State = state
	return &is
}

// containersOf returns the containers of some pods; a nil pod has none.
func containersOf(pods ...*Pod) iter.Seq[*Container] {
	return func(yield func(*Container) bool) {
		for _, pod := range pods {
			for _, c := range pod.containers() {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// container finds a container of a pod, which is expected at index i; nil for none.
func (p *Pod) container(i int, id string) *Container { return find(p.containers(), i, id) }

// rewrite returns a list with each item replaced by what f returns for it, and without those for
// which that is nil. It reports whether that is another list.
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
