package pleg

import "slices"

// lastStatuses are the newest statuses of the containers of a pod, also of containers that
// are gone while their end is still to be published or delivered. The list is shared, with
// the cache's status among others, and never modified.
type lastStatuses []*Status

// finder returns a finder of these; a long list is worth a map.
func (l lastStatuses) finder() statusFinder {
	f := statusFinder{list: l}
	if len(l) > longList {
		f.fill()
	}
	return f
}

// statusFinder finds the status of a container by its ID, as finder does a container.
type statusFinder struct {
	list lastStatuses
	byID map[string]*Status // nil for a short list
}

func (f *statusFinder) fill() {
	f.byID = make(map[string]*Status, len(f.list))
	for _, s := range slices.Backward(f.list) { // the first of an ID counts
		f.byID[s.ID.ID] = s
	}
}

// at returns the status of a container, which is expected at index i; nil for none.
func (f *statusFinder) at(i int, id string) *Status {
	if i < len(f.list) && f.list[i].ID.ID == id {
		return f.list[i]
	}
	if f.byID != nil {
		return f.byID[id]
	}
	for _, s := range f.list {
		if s.ID.ID == id {
			return s
		}
	}
	return nil
}

// with returns these, and of older ones those of other containers that one of two pods has;
// nil for none.
func (l lastStatuses) with(older lastStatuses, a, b *Pod) lastStatuses {
	if l.startsWith(older) { // the usual case
		return l
	}
	find := l.finder()
	more := kept(older, func(i int, s *Status) bool { return find.at(i, s.ID.ID) == nil })
	if more = lastStatuses(more).of(a, b); len(more) == 0 {
		return l
	}
	return slices.Concat(l, more)
}

// startsWith reports whether the first of these are of the same containers as others.
func (l lastStatuses) startsWith(others lastStatuses) bool {
	if len(others) > len(l) {
		return false
	}
	for i, s := range others {
		if s != l[i] && s.ID.ID != l[i].ID.ID {
			return false
		}
	}
	return true
}

// of returns those of the containers of two pods, nil for none.
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
