package pleg

import runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

// transition is one step in the life of a container or sandbox, as the
// difference of two listings of its pod shows it.
type transition struct {
	kind      PodLifeCycleEventType
	container *Container
	sandbox   bool
}

// plegState is the state of a container in the terms of events. The table of
// transitions between them is the kubelet's.
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
	switch c.State {
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

// appendTransitions appends what happened to the containers and sandboxes of one
// pod between two listings of it, either of which may be nil for a pod that is
// not there. What was known before comes first, each list in its order, then what
// is new: so the death of a container stands before the start of its successor.
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

// appendStep is the table of transitions: from what a container was to what it
// is, nil for a container that is not there.
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

// deliverable counts the transitions that a subscriber would be told of.
func deliverable(ts []transition) int {
	n := 0
	for _, t := range ts {
		if t.kind != ContainerChanged {
			n++
		}
	}
	return n
}

// finder looks a container up in a list by its ID: where it was expected, else
// by walking a short list, else in a map.
type finder struct {
	list []*Container
	byID map[string]*Container
}

// longList is from where on a map is cheaper than walking the list. No pod that
// means well has as many containers.
const longList = 64

func finderIn(list []*Container) finder {
	f := finder{list: list}
	if len(list) > longList {
		f.byID = make(map[string]*Container, len(list))
		for _, c := range list {
			f.byID[c.ID.ID] = c
		}
	}
	return f
}

func (f *finder) at(i int, id string) *Container {
	if i < len(f.list) && f.list[i].ID.ID == id {
		return f.list[i]
	}
	if f.byID != nil {
		return f.byID[id]
	}
	for _, c := range f.list {
		if c.ID.ID == id {
			return c
		}
	}
	return nil
}

// agrees tells whether a status shows nothing else than the listing of its pod:
// no container or sandbox that was not listed, and none in another state.
func agrees(pod *Pod, status *PodStatus) bool {
	containers, sandboxes := finderIn(pod.Containers), finderIn(pod.Sandboxes)
	for i, s := range status.ContainerStatuses {
		listed := containers.at(i, s.ID.ID)
		if listed == nil || plegStateOf(listed) != plegStateOf(&Container{State: s.State}) {
			return false
		}
	}
	for i, s := range status.SandboxStatuses {
		listed := sandboxes.at(i, s.Id)
		if listed == nil || (listed.State == ContainerStateRunning) != (s.State == runtimeapi.PodSandboxState_SANDBOX_READY) {
			return false
		}
	}
	return true
}
