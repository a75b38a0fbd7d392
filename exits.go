package pleg

import (
	"slices"
	"time"
)

// A container only goes forward: created, running, exited. What a list, a status or an exit
// event has shown exited has exited, and what shows it running later is behind. This file is
// the door: every list (withEnds), status (takeStatus) and exit event (takeExit) enters the
// records through it. See rules 20 to 22 of docs/CONTRACT.md.
//
// A runtime may start a container again under its ID. Then it has another life. Lists show that
// when one shows it exited and a later one running, statuses when StartedAt is another. Starts
// and ends are never compared: a runtime that is short of CPU stamps a start after the end of
// the same life.

// end is the death of a container.
type end struct {
	// at is when the container exited in its newest life that has ended; zero if not known.
	at time.Time
	// counted is true when pleg_container_exits_total has the death.
	counted bool
	// again is true while the container has another life, which has not ended.
	again bool
}

// hasExited reports whether a status, nil for none, shows an exit.
func hasExited(s *Status) bool { return s != nil && s.State == ContainerStateExited }

// showsExited reports whether a pod, nil for none, shows a container exited.
func (p *Pod) showsExited(id string) bool {
	c := p.container(id)
	return c != nil && c.State == ContainerStateExited
}

// container returns the container with an ID; nil for none, and for a nil pod.
func (p *Pod) container(id string) *Container {
	find := containersOf(p)
	return find.at(0, id)
}

// withEnds returns a pod as it is listed, or a copy in which those containers have exited that
// are known to have, although no believed list has shown it.
func (rec *podRecord) withEnds(listed *Pod) *Pod {
	if listed == nil || len(rec.seen) == 0 {
		return listed
	}
	return withExited(listed, func(id string) bool { return hasExited(rec.seen[id]) && !rec.listed.showsExited(id) })
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

// confirmable reports whether a list is the first to show an exit that is unconfirmed: the
// runtime's status of it can be had.
func (rec *podRecord) confirmable(listed *Pod) bool {
	return listed != nil && slices.ContainsFunc(listed.Containers, func(c *Container) bool {
		s := rec.seen[c.ID.ID]
		return c.State == ContainerStateExited && s != nil && s.Unconfirmed && !rec.listed.showsExited(c.ID.ID)
	})
}

// awaitsExits reports whether the record shows an exit that the lists do not show yet, or that
// is unconfirmed.
func (rec *podRecord) awaitsExits() bool {
	return rec.pod != nil && len(rec.seen) > 0 && slices.ContainsFunc(rec.pod.Containers, func(c *Container) bool {
		s := rec.seen[c.ID.ID]
		return c.State == ContainerStateExited && hasExited(s) && (s.Unconfirmed || !rec.listed.showsExited(c.ID.ID))
	})
}

// takeExit takes in an exit event.
func (r *reconciler) takeExit(e ContainerExit) {
	rec, c := r.find(e)
	if rec == nil {
		r.takeStranger(e)
		return
	}
	r.hint(rec.UID)
	id, last, known := e.ContainerID, rec.seen[e.ContainerID], rec.ends[e.ContainerID]
	running := c != nil && c.State != ContainerStateExited
	switch {
	case c == nil: // a sandbox: its status says more
		return
	case hasExited(last):
		return
	case running && known != nil && known.again && !e.FinishedAt.After(known.at): // of an earlier life
		return
	}
	rec.see(exitStatus(last, c, e, r.sched.Now))
	if rec.pod.container(id) == c && running {
		rec.pod = rec.withEnds(rec.pod)
		r.died(rec, id)
		r.metrics.countTransitions(1, CauseExit)
	}
	if rec.made != nil { // what it is made for is published when it returns
		rec.made.pod = withExited(rec.made.pod, func(other string) bool { return other == id })
	}
	r.publishExits(rec, CauseExit)
	r.retryLater(rec)
	r.plan(rec)
}

// takeStranger takes in an exit event of a container that no list has shown. Its pod, or all pods,
// are listed for it.
func (r *reconciler) takeStranger(e ContainerExit) {
	r.records.strangers.add(e, r.sched.Now)
	if e.PodUID != "" {
		r.hint(e.PodUID)
	} else {
		r.requestAll(CauseHint)
	}
}

// find returns the record that has the container of an exit event, and the container as it is
// listed, or else published; a nil container for a sandbox, and a nil record if none has it.
func (r *reconciler) find(e ContainerExit) (*podRecord, *Container) {
	id := e.ContainerID
	for _, uid := range r.cache.podsWithContainer(id) {
		rec := r.records.byUID[uid]
		if rec == nil {
			continue
		}
		for _, pod := range [...]*Pod{rec.pod, rec.published} {
			if c := pod.container(id); c != nil {
				return rec, c
			}
		}
		return rec, nil
	}
	return nil, nil
}

// takeStatus takes in a status of the record: it has exited in it what is known to have, and
// what it shows exited is known from then on. It reports whether the status is behind a list,
// which has shown an exit that is unconfirmed.
func (r *reconciler) takeStatus(rec *podRecord, status *PodStatus) (behind bool) {
	var ends map[string]*Status // of containers that the status shows otherwise
	first := statusesIn(status.ContainerStatuses)
	for _, s := range status.ContainerStatuses {
		id := s.ID.ID
		last, known := rec.seen[id], rec.ends[id]
		switch {
		case first.at(0, id) != s: // bad data: the first counts
		case hasExited(s):
			ofEarlierLife := known != nil && known.again && !s.FinishedAt.After(known.at)
			if !ofEarlierLife {
				r.takeEnd(rec, s)
			}
		case !hasExited(last) || rec.pod.container(id) != nil && !rec.pod.showsExited(id):
			rec.see(s)
		case startedAgain(last, s):
			rec.see(s)
			other := *rec.raw // the list that shows it is compared, even if it is the same
			rec.raw = &other
			r.request(rec, CausePeriod)
		default:
			if last.Unconfirmed && s.State == ContainerStateRunning { // of the rest this status knows more
				last = exitStatus(s, nil, ContainerExit{ExitCode: last.ExitCode, FinishedAt: last.FinishedAt}, last.FinishedAt)
				rec.see(last)
			}
			put(&ends, id, last)
			behind = behind || last.Unconfirmed && rec.listed.showsExited(id)
		}
	}
	if len(ends) > 0 {
		status.ContainerStatuses = withStatuses(status.ContainerStatuses, ends)
		status.ActiveContainerStatuses = withStatuses(status.ActiveContainerStatuses, ends)
	}
	rec.made.pod = withExited(rec.made.pod, func(id string) bool { return hasExited(rec.seen[id]) })
	status.ContainerStatuses = rec.withExitsOf(rec.published, status.ContainerStatuses,
		func(s *Status) bool { return s.Unconfirmed }) // no inspection has shown it yet, and this one may be older
	if len(rec.seen) > len(status.ContainerStatuses) {
		rec.forgetStatuses(status)
	}
	return behind
}

// startedAgain reports whether a status shows another life than the one that has ended. The start
// of a life that no inspection has shown is not known.
func startedAgain(ended, s *Status) bool {
	return !s.StartedAt.IsZero() && !s.StartedAt.Equal(ended.StartedAt) && !(ended.StartedAt.IsZero() && ended.Unconfirmed)
}

// takeEnd takes in a status that shows the end of a container.
func (r *reconciler) takeEnd(rec *podRecord, s *Status) {
	id := s.ID.ID
	rec.see(s)
	if c := rec.pod.container(id); c != nil && c.State != ContainerStateExited {
		rec.pod = rec.withEnds(rec.pod)
		r.died(rec, id)
		r.metrics.countTransitions(1, CausePeriod)
	}
	if e := rec.ends[id]; e != nil {
		r.countEnd(rec, s, e)
	}
}

// see keeps the newest status of a container.
func (rec *podRecord) see(s *Status) { put(&rec.seen, s.ID.ID, s) }

// forgetStatuses drops the statuses of containers that nobody knows any more: they are not in a
// status, nil for none, and neither listed nor published.
func (rec *podRecord) forgetStatuses(status *PodStatus) {
	pods := []*Pod{rec.pod, rec.published}
	if rec.made != nil {
		pods = append(pods, rec.made.pod)
	}
	known := make(map[string]struct{}, len(rec.seen))
	for _, pod := range pods {
		if pod != nil {
			for _, c := range pod.Containers {
				known[c.ID.ID] = struct{}{}
			}
		}
	}
	if status != nil {
		for _, s := range status.ContainerStatuses {
			known[s.ID.ID] = struct{}{}
		}
	}
	for id := range rec.seen {
		if _, is := known[id]; !is {
			delete(rec.seen, id)
		}
	}
}

// died notes the death of a container, whoever showed it. It is counted when its end is known.
func (r *reconciler) died(rec *podRecord, id string) {
	e := rec.ends[id]
	switch {
	case e == nil:
		e = &end{}
		put(&rec.ends, id, e)
	case !e.again: // its state was unknown in between
		return
	}
	e.again, e.counted = false, false
	if s := rec.seen[id]; hasExited(s) {
		r.countEnd(rec, s, e)
	}
}

// countEnd counts a death once its end is known. An unconfirmed one waits for the reason. A
// reason other than Completed may be reported late, so the pod is inspected once more.
func (r *reconciler) countEnd(rec *podRecord, s *Status, e *end) {
	e.at = later(e.at, s.FinishedAt)
	if e.counted || s.Unconfirmed {
		return
	}
	e.counted = true
	r.metrics.countExit(s)
	if s.Reason != exitCompleted {
		rec.due[lateReason] = r.sched.Now.Add(lateReasonWait)
	}
}

// forgetEnds drops the deaths of containers that are listed no more, once no inspection is due
// that may show how they ended. It counts those that were not counted.
func (r *reconciler) forgetEnds(rec *podRecord) {
	hung := rec.Inspection != nil && rec.Inspection.Dead
	if rec.pod != nil && !hung && (rec.inspect || rec.made != nil) {
		return // an inspection may show them
	}
	for id, e := range rec.ends {
		if rec.pod.container(id) != nil {
			continue
		}
		if !e.counted && !e.again {
			s := rec.seen[id]
			if !hasExited(s) {
				s = nil
			}
			r.metrics.countExit(s)
		}
		delete(rec.ends, id)
	}
}

// noteTransitions notes the deaths in what a list shows, and which containers were started
// again. existed is true for a pod that appears in the first full list: what that shows dead had
// died before.
func (r *reconciler) noteTransitions(rec *podRecord, transitions []transition, existed bool) {
	for _, t := range transitions {
		id := t.container.ID.ID
		switch e := rec.ends[id]; {
		case t.sandbox || t.kind == ContainerRemoved:
		case t.kind == ContainerDied && existed && rec.listed.showsExited(id):
			put(&rec.ends, id, &end{counted: true})
		case t.kind == ContainerDied:
			r.died(rec, id)
		default:
			if s := rec.seen[id]; hasExited(s) {
				rec.see(startedStatus(s, t.container.State))
			}
			if e != nil && t.kind == ContainerStarted {
				e.again = true
			}
		}
	}
}

// publishExits stores and publishes the exits that are known and not published. What else has
// changed of the pod waits for its inspection. So do exits of containers that are new, unless
// that inspection is slow.
func (r *reconciler) publishExits(rec *podRecord, cause Cause) {
	if rec.published == nil { // its first inspection is awaited
		return
	}
	pod := withExited(rec.published, func(id string) bool {
		return hasExited(rec.seen[id])
	})
	if rec.Inspection != nil && rec.Inspection.Slow {
		pod, rec.made.pod = rec.withNewExits(pod), rec.withNewExits(rec.made.pod)
	}
	if pod == rec.published {
		return
	}
	r.cache.storeExits(rec, pod)
	r.publish(rec, &update{uid: rec.UID, pod: pod, listedAt: rec.observedAt().Time, cause: cause})
}

// withNewExits returns a pod, or a copy with the containers that are new in the record and have
// exited by a status or an exit event.
func (rec *podRecord) withNewExits(pod *Pod) *Pod {
	if rec.pod == nil {
		return pod
	}
	for i, c := range rec.pod.Containers {
		if c.State != ContainerStateExited || !hasExited(rec.seen[c.ID.ID]) || pod.container(c.ID.ID) != nil {
			continue
		}
		shallow := *pod
		shallow.Containers = slices.Insert(slices.Clone(pod.Containers), min(i, len(pod.Containers)), c)
		pod = &shallow
	}
	return pod
}

// withExitsOf returns a list of statuses, or a copy with those of containers that a published pod, nil
// for none, shows exited and the list lacks. Newer ones come first.
func (rec *podRecord) withExitsOf(published *Pod, list []*Status, counts func(*Status) bool) []*Status {
	if rec.pod == nil || published == nil {
		return list
	}
	for _, c := range published.Containers {
		s := rec.seen[c.ID.ID]
		if hasExited(s) && counts(s) && rec.pod.container(c.ID.ID) != nil &&
			!slices.ContainsFunc(list, func(s *Status) bool { return s.ID.ID == c.ID.ID }) {
			list = append([]*Status{s}, list...)
		}
	}
	return list
}

// endedOtherwise reports whether two statuses of a container, either of which may be nil, show ends
// of another exit code, reason or message.
func endedOtherwise(a, b *Status) bool {
	return hasExited(a) && hasExited(b) && (a.ExitCode != b.ExitCode || a.Reason != b.Reason || a.Message != b.Message)
}

// exitStatus returns the status of a container that has exited by an event, made of its last one
// or, without one, of the container as it is listed.
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

// startedStatus returns the status of a container that a list shows in a state before its end again,
// made of that of its earlier life.
func startedStatus(ended *Status, state State) *Status {
	s := *ended
	s.State, s.StartedAt, s.FinishedAt = state, time.Time{}, time.Time{}
	s.ExitCode, s.Reason, s.Message, s.Unconfirmed = 0, "", "", false
	return &s
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

// strangers are exits of containers that no list has shown, by ID. They are kept until a full list
// completes that began a period later.
type strangers map[string]stranger

type stranger struct {
	ContainerExit
	at time.Time // when the event came
}

// maxStrangers bounds the memory of exits, in case a runtime sends garbage. What is beyond the
// lists show.
const maxStrangers = 10000

func (s strangers) add(e ContainerExit, at time.Time) {
	if len(s) < maxStrangers {
		s[e.ContainerID] = stranger{e, at}
	}
}

// adopt has the record know the exits of containers that a list is the first to show.
func (s strangers) adopt(rec *podRecord, listed *Pod) {
	if len(s) == 0 || listed == nil {
		return
	}
	for _, c := range listed.Containers {
		if e, is := s[c.ID.ID]; is {
			delete(s, c.ID.ID)
			if rec.seen[c.ID.ID] == nil {
				rec.see(exitStatus(nil, c, e.ContainerExit, e.at))
			}
		}
	}
}

// forget drops those that came before a time.
func (s strangers) forget(before time.Time) {
	for id, e := range s {
		if e.at.Before(before) {
			delete(s, id)
		}
	}
}
