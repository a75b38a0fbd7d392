package pleg

// exits are the deaths of a pod's containers, by ID, that are not counted yet, because no
// status has shown how the container ended, and those of containers that went from exited
// to unknown, which will be seen to die again; counted is true for these. Usually there are
// none, and the map is nil.
type exits map[string]bool

// deaths are what the deaths in an update are counted by.
type deaths struct {
	before   finder       // the containers as they were published before
	existed  initialState // what was so before there was anybody to see it
	statuses statusFinder
	count    func(end *Status) // nil if it was not seen
}

// mayBeExit reports whether a transition is of interest where no death is left to count.
func (t transition) mayBeExit() bool {
	return !t.sandbox && (t.kind == ContainerDied || t.kind == ContainerChanged)
}

// add counts the deaths in the transitions of an update, and those that its statuses show
// the end of: each death of a container once.
func (x *exits) add(ts []transition, d *deaths) {
	for i, t := range ts {
		if !t.sandbox {
			x.step(i, t, d)
		}
	}
	for id, counted := range *x {
		if !counted && d.countEnded(0, id) {
			delete(*x, id)
		}
	}
	if len(*x) == 0 {
		*x = nil
	}
}

// step takes in transition i.
func (x *exits) step(i int, t transition, d *deaths) {
	id := t.container.ID.ID
	counted, known := (*x)[id]
	switch t.kind {
	case ContainerDied:
		switch {
		case counted:
			delete(*x, id)
		case !known && !d.existed.has(i, t) && !d.countEnded(i, id):
			x.put(id, false)
		}
	case ContainerChanged:
		if !known && d.hadExited(id) {
			x.put(id, true)
		}
	case ContainerStarted, ContainerRemoved:
		if known && !counted && !d.countEnded(i, id) {
			d.count(nil)
		}
		delete(*x, id)
	default: // no transition
	}
}

func (x *exits) put(id string, counted bool) {
	if *x == nil {
		*x = make(exits)
	}
	(*x)[id] = counted
}

// countEnded counts a death if a status shows how the container ended, and reports whether
// it does.
func (d *deaths) countEnded(i int, id string) bool {
	s := d.statuses.at(i, id)
	if s == nil || s.State != ContainerStateExited {
		return false
	}
	d.count(s)
	return true
}

// hadExited reports whether a container was published as exited.
func (d *deaths) hadExited(id string) bool {
	return plegStateOf(d.before.at(0, id)) == plegExited
}
