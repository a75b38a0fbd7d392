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

// with returns these, and of older ones those of other containers of some pods; a nil pod
// has none.
func (l lastStatuses) with(older lastStatuses, pods ...*Pod) lastStatuses {
	find := l.finder()
	more := kept(older, func(i int, s *Status) bool { return find.at(i, s.ID.ID) == nil })
	if len(more) == 0 { // the usual case
		return l
	}
	var among []finder
	for _, pod := range pods {
		if pod != nil {
			among = append(among, finderIn(pod.Containers))
		}
	}
	more = kept(more, func(i int, s *Status) bool {
		return slices.ContainsFunc(among, func(f finder) bool { return f.at(i, s.ID.ID) != nil })
	})
	if len(more) == 0 {
		return l
	}
	return slices.Concat(l, more)
}
