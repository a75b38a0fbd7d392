package pleg

import (
	"slices"
	"time"
)

// A container only goes forward: created, running, exited. What any witness has seen to exit has
// exited: a list, a status, or an exit event. What shows it running after that is older, or wrong,
// and is taken as if it showed the exit. See rule 20 of docs/CONTRACT.md.

// exit is what is known of a container that has exited.
type exit struct {
	// counted: the death is in pleg_container_exits_total, or is from before the first list.
	counted bool
	// aheadSince is when it was seen, by the clock, while no list has shown it; else zero.
	aheadSince time.Time
}

// ahead reports whether no list has shown the exit.
func (e exit) ahead() bool { return !e.aheadSince.IsZero() }

// setExit notes what is known of a container.
func (r *podRecords) setExit(rec *podRecord, id string, e exit) {
	put(&rec.exits, id, e)
	if e.ahead() {
		put(&r.ahead, rec.uid, rec)
	}
}

// unconfirmedExits returns the exits of which only exit events have told, and drops the pods that
// have none any more.
func (r *podRecords) unconfirmedExits() (exits []UnconfirmedExit) {
	for _, uid := range sortedKeys(r.ahead) {
		rec := r.ahead[uid]
		if rec.pod == nil || !rec.hasExitsAhead() {
			delete(r.ahead, uid)
			continue
		}
		for _, s := range rec.publication.seen {
			if e := rec.exits[s.ID.ID]; e.ahead() && s.Unconfirmed {
				exits = append(exits, UnconfirmedExit{
					PodUID: uid, Namespace: rec.pod.Namespace, Name: rec.pod.Name,
					Container: s.Name, ContainerID: s.ID.ID, ExitCode: s.ExitCode, Since: e.aheadSince,
				})
			}
		}
	}
	return exits
}

// hasExitsAhead reports whether a container is known to have exited that no list shows so.
func (rec *podRecord) hasExitsAhead() bool {
	for _, e := range rec.exits {
		if e.ahead() {
			return true
		}
	}
	return false
}

// withExits returns a pod as it is listed, or a copy in which those containers have exited that are
// known to have.
func (rec *podRecord) withExits(pod *Pod) *Pod {
	if pod == nil || !rec.hasExitsAhead() {
		return pod
	}
	return withExited(pod, func(id string) bool { return rec.exits[id].ahead() })
}

// withExited returns a pod, or a copy in which some of its containers have exited.
func withExited(pod *Pod, exited func(id string) bool) *Pod {
	copied := pod
	for i, c := range pod.Containers {
		if c.State == ContainerStateExited || !exited(c.ID.ID) {
			continue
		}
		if copied == pod {
			shallow := *pod
			shallow.Containers = slices.Clone(pod.Containers)
			copied = &shallow
		}
		dead := *c
		dead.State = ContainerStateExited
		copied.Containers[i] = &dead
	}
	return copied
}

// catchUp takes in that a list of a pod is believed or confirms the record. It reports whether the
// list shows an exit that was ahead, and whether the runtime's status of one is to be had yet. Once a
// list that is believed shows an exit it is not ahead any more; one that only confirms the record
// leaves that to the next, which may have begun before the exit.
func (rec *podRecord) catchUp(listed *Pod, believed bool) (caughtUp, statusDue bool) {
	if !rec.hasExitsAhead() {
		return false, false
	}
	containers, before, statuses := containersOf(listed), containersOf(rec.pod), statusesIn(rec.publication.seen)
	for id, e := range rec.exits {
		c := containers.at(0, id)
		if !e.ahead() || c != nil && c.State != ContainerStateExited {
			continue
		}
		never := c == nil && before.at(0, id) == nil // no list has ever shown it: it may be from long ago
		switch {
		case believed && never:
			delete(rec.exits, id)
		case believed:
			e.aheadSince = time.Time{}
			rec.exits[id] = e
		}
		if never {
			continue
		}
		s := statuses.at(0, id)
		caughtUp, statusDue = true, statusDue || c != nil && s != nil && s.Unconfirmed
	}
	return caughtUp, statusDue
}

// asListed returns the pod as the lists have shown it, without the exits that are ahead of them.
func (rec *podRecord) asListed() *Pod {
	if !rec.hasExitsAhead() {
		return rec.pod
	}
	return withoutBadData(rec.listed, func(badReason, string) {})
}

// exitStatus returns the status of a container that has exited by an event, made of its last one.
func exitStatus(last *Status, c *Container, e ContainerExit, now time.Time) *Status {
	if last == nil {
		last = &Status{
			ID: c.ID, Name: c.Name, Image: c.Image, ImageID: c.ImageID, ImageRef: c.ImageRef,
			ImageRuntimeHandler: c.ImageRuntimeHandler, Hash: c.Hash, CreatedAt: time.Unix(0, c.CreatedAt),
			RestartCount: int(c.Attempt),
		}
	}
	s := *last
	s.State, s.ExitCode, s.FinishedAt, s.Unconfirmed = ContainerStateExited, e.ExitCode, e.FinishedAt, true
	s.Reason, s.Message = exitCompleted, ""
	if s.ExitCode != 0 {
		s.Reason = exitError
	}
	if s.FinishedAt.IsZero() {
		s.FinishedAt = now
	}
	return &s
}

// startedStatus returns the status of a container that a list shows running again, made of that of its
// earlier life. FinishedAt stays: by that a late exit event of that life is known.
func startedStatus(ended *Status) *Status {
	s := *ended
	s.State, s.StartedAt = ContainerStateRunning, time.Time{}
	s.ExitCode, s.Reason, s.Message, s.Unconfirmed = 0, "", "", false
	return &s
}

// strangers are exits of containers that no list has shown, by ID.
type strangers map[string]stranger

type stranger struct {
	ContainerExit
	begun stamp     // the newest list that had begun when it was told
	at    time.Time // when it was told
}

func (s *strangers) add(e ContainerExit, begun stamp, at time.Time) {
	if len(*s) < maxHints {
		put((*map[string]stranger)(s), e.ContainerID, stranger{e, begun, at})
	}
}

// adopt notes the exits that were told of the containers of a pod before a list showed them.
func (r *podRecords) adopt(rec *podRecord, listed *Pod) {
	if len(r.strangers) == 0 || listed == nil {
		return
	}
	for _, c := range listed.Containers {
		e, is := r.strangers[c.ID.ID]
		if !is {
			continue
		}
		delete(r.strangers, c.ID.ID)
		if _, known := rec.exits[c.ID.ID]; !known && c.State != ContainerStateExited {
			r.setExit(rec, c.ID.ID, exit{aheadSince: e.at})
			rec.publication.amend(exitStatus(nil, c, e.ContainerExit, e.at))
		}
	}
}

// forget drops those that a full list would have shown.
func (s strangers) forget(at stamp) {
	for id, e := range s {
		if at.After(e.begun) {
			delete(s, id)
		}
	}
}

// find returns the record that has a container or, with a nil container, a sandbox; nil if none has.
func (r *podRecords) find(e ContainerExit) (*podRecord, *Container) {
	if rec := r.byUID[e.PodUID]; rec != nil {
		if c, has := rec.find(e.ContainerID); has {
			return rec, c
		}
	}
	for _, rec := range r.byUID {
		if c, has := rec.find(e.ContainerID); has {
			return rec, c
		}
	}
	return nil, nil
}

func (rec *podRecord) find(id string) (c *Container, has bool) {
	if rec.pod == nil {
		return nil, false
	}
	is := func(c *Container) bool { return c.ID.ID == id }
	if i := slices.IndexFunc(rec.pod.Containers, is); i >= 0 {
		return rec.pod.Containers[i], true
	}
	return nil, slices.ContainsFunc(rec.pod.Sandboxes, is)
}

// withStatuses returns a copy of a list in which some statuses are others of the same container.
func withStatuses(list []*Status, others map[string]*Status) []*Status {
	list = slices.Clone(list)
	for i, s := range list {
		if other := others[s.ID.ID]; other != nil {
			list[i] = other
		}
	}
	return list
}
