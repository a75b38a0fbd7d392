package pleg

import "slices"

// lastStatuses are the newest statuses of the containers of a pod, also of containers that
// are gone while their end is still to be published or delivered. The list is shared, with
// the cache's status among others, and never modified.
type lastStatuses []*Status

func (l lastStatuses) finder() finder[*Status] {
	return newFinder(l, func(s *Status) string { return s.ID.ID })
}

// with returns these, and of older ones those of other containers of two pods, nil for
// none.
func (l lastStatuses) with(older lastStatuses, a, b *Pod) lastStatuses {
	find := l.finder()
	more := kept(older, func(i int, s *Status) bool { return find.at(i, s.ID.ID) == nil })
	if len(more) == 0 { // the usual case
		return l
	}
	if more = lastStatuses(more).of(a, b); len(more) == 0 {
		return l
	}
	return slices.Concat(l, more)
}

// of returns those of the containers of two pods.
func (l lastStatuses) of(a, b *Pod) lastStatuses {
	if a == nil {
		a = &Pod{}
	}
	if b == nil {
		b = &Pod{}
	}
	inA, inB := finderIn(a.Containers), finderIn(b.Containers)
	return kept(l, func(i int, s *Status) bool {
		return inA.at(i, s.ID.ID) != nil || inB.at(i, s.ID.ID) != nil
	})
}
