package pleg

import "slices"

// lastStatuses are the newest statuses of the containers of a pod, also of containers that
// are gone while their end is still to be published or delivered. The list is shared, with
// the cache's status among others, and never modified.
type lastStatuses []*Status

// with returns these, and of older ones those of other containers of some pods; a nil pod
// has none.
func (l lastStatuses) with(older lastStatuses, pods ...*Pod) lastStatuses {
	find := statusFinderIn(l)
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
