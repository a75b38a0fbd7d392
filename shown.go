package pleg

// shown is the part of a pod that a relist compares, in one piece of memory: for each
// container and then each sandbox the state, the length of its ID, and the ID. Following
// the pointers of the known pod instead costs more than all else in a relist
// (BenchmarkIdleRelist with list=fresh). It is nil for an absent pod.
//
// Nothing else is compared, labels and annotations least of all: they may be of any size.
// That is safe because a list that shows the same hands its pod over all the same (see
// podRecords.compareAll), with the labels and whatever else is new in it.
type shown []byte

// sandboxesFollow stands where a state would.
const sandboxesFollow = 0xff

// record returns what a pod without bad data shows, in the same memory if it fits.
func (s shown) record(pod *Pod) shown {
	if pod == nil {
		return nil
	}
	s = s[:0]
	for _, c := range pod.Containers {
		s = s.add(c)
	}
	s = append(s, sandboxesFollow)
	for _, c := range pod.Sandboxes {
		s = s.add(c)
	}
	return s
}

func (s shown) add(c *Container) shown {
	n := len(c.ID.ID)
	return append(append(s, stateByte(c.State), byte(n), byte(n>>8), byte(n>>16), byte(n>>24)), c.ID.ID...)
}

// by reports whether a listed pod shows this: the same containers in the same order and
// states, and so no bad data either.
func (s shown) by(listed *Pod) bool {
	if s == nil {
		return false
	}
	rest, ok := s.match(listed.Containers)
	if !ok || len(rest) == 0 || rest[0] != sandboxesFollow {
		return false
	}
	rest, ok = rest[1:].match(listed.Sandboxes)
	return ok && len(rest) == 0
}

// match takes away what a list of containers shows, and reports whether it is there.
func (s shown) match(listed []*Container) (rest shown, ok bool) {
	const head = 5
	for _, c := range listed {
		if c == nil || len(s) < head+len(c.ID.ID) || s[0] != stateByte(c.State) {
			return nil, false
		}
		n := int(s[1]) | int(s[2])<<8 | int(s[3])<<16 | int(s[4])<<24
		if n != len(c.ID.ID) || string(s[head:head+n]) != c.ID.ID {
			return nil, false
		}
		s = s[head+n:]
	}
	return s, true
}

// stateByte tells the states apart; 0 is bad data.
func stateByte(s State) byte {
	switch s {
	case ContainerStateCreated:
		return 1
	case ContainerStateRunning:
		return 2
	case ContainerStateExited:
		return 3
	case ContainerStateUnknown:
		return 4
	default:
		return 0
	}
}
