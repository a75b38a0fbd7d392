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

// agrees reports whether a status shows what the list of its pod shows: the same
// containers and sandboxes, in the same states. A status without any sandbox is of a
// runtime that inspects none.
func agrees(pod *Pod, status *PodStatus) bool {
	containers := finderIn(pod.Containers)
	if !paired(len(pod.Containers), status.ContainerStatuses, func(i int, s *Status) (string, bool) {
		listed := containers.at(i, s.ID.ID)
		return s.ID.ID, listed != nil && plegStateOf(listed) == plegStateIn(s.State)
	}) {
		return false
	}
	if len(status.SandboxStatuses) == 0 {
		return true
	}
	sandboxes := finderIn(pod.Sandboxes)
	return paired(len(pod.Sandboxes), status.SandboxStatuses, func(i int, s *runtimeapi.PodSandboxStatus) (string, bool) {
		listed := sandboxes.at(i, s.Id)
		ready := s.State == runtimeapi.PodSandboxState_SANDBOX_READY
		return s.Id, listed != nil && (listed.State == ContainerStateRunning) == ready
	})
}

// paired reports whether there are n statuses, each of another ID and of something
// that is listed in the same state.
func paired[S any](n int, statuses []S, pair func(i int, s S) (id string, agrees bool)) bool {
	if len(statuses) != n {
		return false
	}
	ids := make(map[string]struct{}, 8) // stays on the stack for an ordinary pod
	for i, s := range statuses {
		id, ok := pair(i, s)
		if !ok {
			return false
		}
		ids[id] = struct{}{}
	}
	return len(ids) == n
}
