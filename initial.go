package pleg

// initialState is what existed of a pod when a subscription began; nothing, if it is zero.
type initialState struct {
	all                   bool // everything that there is now
	containers, sandboxes finder
}

// initially returns the initial state of a pod: initial is the pod as it was then, nil if it
// did not exist, and now as it is at present.
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

// has reports whether transition i leads to a state that existed then.
func (s *initialState) has(i int, t transition) bool {
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
	left := &Pod{ID: pod.ID}
	containers, sandboxes := finderIn(other.Containers), finderIn(other.Sandboxes)
	left.Containers = kept(pod.Containers, func(i int, c *Container) bool { return containers.at(i, c.ID.ID) != nil })
	left.Sandboxes = kept(pod.Sandboxes, func(i int, c *Container) bool { return sandboxes.at(i, c.ID.ID) != nil })
	switch len(left.Containers) + len(left.Sandboxes) {
	case 0:
		return nil
	case len(pod.Containers) + len(pod.Sandboxes):
		return pod
	}
	return left
}

// kept returns the items of a list that are to be kept: the list itself if all of them are.
func kept[T any](list []T, keep func(i int, item T) bool) []T {
	for i, item := range list {
		if keep(i, item) {
			continue
		}
		left := append([]T(nil), list[:i]...) // nil, if there are none
		for j, item := range list[i+1:] {
			if keep(i+1+j, item) {
				left = append(left, item)
			}
		}
		return left
	}
	return list
}
