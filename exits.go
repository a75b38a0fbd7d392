package pleg

import "slices"

// exitReasons are the values of the label reason of pleg_container_exits_total. All but the
// last two are the words of CRI runtimes: containerd's, "seccomp killed" of CRI-O, and
// ContainerCannotRun of cri-dockerd.
var exitReasons = [...]string{
	"Completed", "ContainerCannotRun", "Error", "OOMKilled", "StartError", "Unknown", "seccomp killed",
	exitOther, exitUnseen,
}

const (
	exitOther  = "other"  // another reason, or none
	exitUnseen = "unseen" // the container was gone before an inspection saw its end
)

// exitReason returns the value of the label for a container that has exited.
func exitReason(s *Status) string {
	if slices.Contains(exitReasons[:], s.Reason) && s.Reason != exitUnseen {
		return s.Reason
	}
	return exitOther
}

// exits are the deaths of a pod's containers that are not counted yet, because no status has
// shown how the container ended, and those of containers that went from exited to unknown,
// which will be seen to die again. Usually there are none.
type exits []exit

type exit struct {
	id      string
	counted bool
}

// deaths are what the deaths in an update are counted by.
type deaths struct {
	before   *Pod         // as it was published before
	existed  initialState // what was so before there was anybody to see it
	statuses finder[*Status]
	count    func(reason string)
}

// add counts the deaths in the transitions of an update, and those that its statuses show
// the end of: each death of a container once.
func (x *exits) add(ts []transition, d *deaths) {
	for i, t := range ts {
		if !t.sandbox {
			x.step(i, t, d)
		}
	}
	if len(*x) == 0 {
		return
	}
	*x = slices.DeleteFunc(*x, func(e exit) bool { return !e.counted && d.countEnded(0, e.id) })
	if len(*x) == 0 {
		*x = nil
	}
}

// step takes in transition i.
func (x *exits) step(i int, t transition, d *deaths) {
	id := t.container.ID.ID
	at := slices.IndexFunc(*x, func(e exit) bool { return e.id == id })
	switch t.kind {
	case ContainerDied:
		switch {
		case at >= 0 && (*x)[at].counted:
			*x = slices.Delete(*x, at, at+1)
		case at < 0 && !d.existed.was(i, t) && !d.countEnded(i, id):
			*x = append(*x, exit{id: id})
		}
	case ContainerChanged:
		if at < 0 && d.hadExited(id) {
			*x = append(*x, exit{id, true})
		}
	case ContainerStarted, ContainerRemoved:
		if at < 0 {
			return
		}
		if !(*x)[at].counted && !d.countEnded(i, id) {
			d.count(exitUnseen)
		}
		*x = slices.Delete(*x, at, at+1)
	default: // no transition
	}
}

// countEnded counts a death if a status shows how the container ended, and reports whether
// it does.
func (d *deaths) countEnded(i int, id string) bool {
	s := d.statuses.at(i, id)
	if s == nil || s.State != ContainerStateExited {
		return false
	}
	d.count(exitReason(s))
	return true
}

// hadExited reports whether a container was published as exited.
func (d *deaths) hadExited(id string) bool {
	if d.before == nil {
		return false
	}
	find := finderIn(d.before.Containers)
	return plegStateOf(find.at(0, id)) == plegExited
}
