package pleg

// initialState is what existed of a pod when a subscription began.
type initialState struct {
	all                   bool // everything that there is now
	containers, sandboxes finder
}

// initially returns that for a pod which existed as initial and is now as it is listed; nil
// stands for one that did not exist.
func initially(initial, now *Pod) (s initialState) {
	switch initial {
	case nil:
	case now:
		s.all = true
	default:
		s.containers, s.sandboxes = finderIn(initial.Containers), finderIn(initial.Sandboxes)
	}
	return s
}

// was reports whether transition i leads to a state that existed.
func (s *initialState) was(i int, t transition) bool {
	if s.all {
		return true
	}
	find := &s.containers
	if t.sandbox {
		find = &s.sandboxes
	}
	return plegStateOf(find.at(i, t.container.ID.ID)) == plegStateOf(t.container)
}

// among returns a pod with those of its containers and sandboxes that another one has, so
// that no more is held of it than exists; nil if there are none.
func among(pod, other *Pod) *Pod {
	if pod == nil || other == nil {
		return nil
	}
	left := &Pod{
		ID:         pod.ID,
		Containers: containersAmong(pod.Containers, other.Containers),
		Sandboxes:  containersAmong(pod.Sandboxes, other.Sandboxes),
	}
	switch len(left.Containers) + len(left.Sandboxes) {
	case 0:
		return nil
	case len(pod.Containers) + len(pod.Sandboxes):
		return pod
	}
	return left
}

func containersAmong(list, others []*Container) (left []*Container) {
	find := finderIn(others)
	for i, c := range list {
		if find.at(i, c.ID.ID) != nil {
			left = append(left, c)
		}
	}
	return left
}
