package schedule

import (
	"container/list"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// reason is why a request of a pod waits for a time.
type reason int

const (
	// followUp is for a hinted pod: events run ahead of lists.
	followUp reason = iota
	// retry is for a pod that could not be inspected, or whose status contradicted its
	// list.
	retry
	// listFailed: a list of the pod has failed; the request is open, and tried again
	// then.
	listFailed
	// lateReason: the pod is to be inspected then, and not listed, for runtimes tell late why a
	// container has ended.
	lateReason
	// exitAhead is for a pod with an exit that no list has shown.
	exitAhead
	reasons
)

// causes are those of the lists that are asked for when the times come.
var causes = [reasons]string{followUp: CauseHint, retry: CausePeriod, exitAhead: CausePeriod}

// pod is what is open of one pod. There is one only while there is something.
type pod struct {
	uid types.UID // empty for all pods

	request
	// dueAt are the times for which requests wait, by their reason; zero for none.
	dueAt [reasons]time.Time
	// attempts counts the failed inspections and contradictions in a row.
	attempts int

	list       *Call // in flight
	inspection *Call // in flight
	inspect    bool  // one is to begin

	// unanswered is when the oldest inspection began since the runtime answered one.
	unanswered time.Time

	queued [queues]*list.Element // its places there
	alarm  time.Time
	index  int // among the alarms, from 1; 0 for none
}

func (s *Scheduler) getOrAdd(uid types.UID) *pod {
	p := s.pods[uid]
	if p == nil {
		p = &pod{uid: uid}
		s.pods[uid] = p
	}
	return p
}

// Request asks for a list of the pod that begins from now on.
func (s *Scheduler) Request(uid types.UID, cause string) {
	p := s.getOrAdd(uid)
	p.add(s.last.Number, cause, false)
	s.plan(p)
}

// RequestOf is Request from before the full list c, which is to answer it.
func (s *Scheduler) RequestOf(c *Call, uid types.UID) {
	p := s.getOrAdd(uid)
	p.add(c.Stamp.Number-1, c.Cause, false)
	s.plan(p)
}

// Hint is Request because an event of the runtime names the pod. Events may run ahead of
// lists, so that the answer is followed by one more.
func (s *Scheduler) Hint(uid types.UID) {
	p := s.getOrAdd(uid)
	p.add(s.last.Number, CauseHint, true)
	s.plan(p)
}

// Retry has the pod listed again after a back-off, which doubles from a period. While an inspection
// hangs, that is one list: the inspection that it asks for waits until the call returns.
func (s *Scheduler) Retry(uid types.UID) {
	p := s.getOrAdd(uid)
	p.attempts++
	p.dueAt[retry] = s.now.Add(s.retry.Wait(p.attempts))
	s.plan(p)
}

func (p *pod) endBackOff() { p.attempts, p.dueAt[retry] = 0, time.Time{} }

// PodListed notes that a list of the pod with this stamp is believed, or confirms what is
// known, and reports whether it answers a request. Newer ones stay open.
func (s *Scheduler) PodListed(uid types.UID, stamp Stamp) bool {
	p := s.pods[uid]
	if p == nil {
		return false
	}
	p.dueAt[listFailed], p.dueAt[exitAhead] = time.Time{}, time.Time{}
	answers, hinted := p.answer(stamp.Number)
	if hinted {
		p.dueAt[followUp] = s.now.Add(s.cfg.Period / followUpShare)
	}
	s.plan(p)
	return answers
}

// PodListFailed notes that a list of the pod has: its request stays open, and is tried
// again after a period unless a full list answers it. One that was answered meanwhile is
// not affected.
func (s *Scheduler) PodListFailed(uid types.UID) {
	if p := s.pods[uid]; p != nil && p.newest > 0 {
		p.dueAt[listFailed] = s.now.Add(s.cfg.Period)
		s.plan(p)
	}
}

// Inspect has the pod inspected as soon as there is a worker; one at a time.
func (s *Scheduler) Inspect(uid types.UID) { s.inspect(s.getOrAdd(uid)) }

// InspectChanged is Inspect for a pod that has changed: its next back-off begins anew.
func (s *Scheduler) InspectChanged(uid types.UID) {
	p := s.getOrAdd(uid)
	p.endBackOff()
	s.inspect(p)
}

// InspectLater has the pod inspected once more in a while.
func (s *Scheduler) InspectLater(uid types.UID) {
	p := s.getOrAdd(uid)
	p.dueAt[lateReason] = s.now.Add(lateReasonWait)
	s.plan(p)
}

// ListLater has the pod listed after a wait, of a period at least, unless it is listed before.
func (s *Scheduler) ListLater(uid types.UID, wait time.Duration) {
	p := s.getOrAdd(uid)
	p.dueAt[exitAhead] = s.now.Add(max(wait, s.cfg.Period))
	s.plan(p)
}

func (s *Scheduler) inspect(p *pod) {
	p.inspect = true
	if p.inspection != nil && p.inspection.Slow {
		s.noteHung(p)
	}
	s.plan(p)
}

// InspectionWanted reports whether an inspection of the pod is to begin.
func (s *Scheduler) InspectionWanted(uid types.UID) bool {
	p := s.pods[uid]
	return p != nil && p.inspect
}

// InspectionAgreed ends the back-off of a pod whose status agrees with its list. Unless again,
// an inspection that was to begin does not: it would tell the same.
func (s *Scheduler) InspectionAgreed(uid types.UID, again bool) {
	if p := s.pods[uid]; p != nil {
		p.endBackOff()
		p.inspect = p.inspect && again
		s.plan(p)
	}
}

// Gone drops all that is open of a pod's inspections; requests stay open.
func (s *Scheduler) Gone(uid types.UID) {
	p := s.pods[uid]
	if p == nil {
		return
	}
	p.inspect, p.dueAt[lateReason], p.dueAt[exitAhead] = false, time.Time{}, time.Time{}
	p.endBackOff()
	since := p.unanswered
	s.noteAnswered(p)
	if p.inspection != nil {
		p.unanswered = since // another pod may come under this UID, and wait for the same call
	}
	s.plan(p)
}

// Open reports whether anything of the pod is open: a request, a call in flight, a back-off or
// another time to come, a hang that has not been answered.
func (s *Scheduler) Open(uid types.UID) bool { return s.pods[uid] != nil }

// OpenPods returns how many pods have something open.
func (s *Scheduler) OpenPods() int { return len(s.pods) }

// Requested returns the pods with an open request, by UID.
func (s *Scheduler) Requested() []types.UID {
	if s.requested.Len() == 0 {
		return nil
	}
	uids := make([]types.UID, 0, s.requested.Len())
	for p := range s.requested.all {
		uids = append(uids, p.uid)
	}
	slices.Sort(uids)
	return uids
}

// InspectionOpen reports whether an inspection of the pod is in flight, or is to begin.
func (s *Scheduler) InspectionOpen(uid types.UID) bool {
	p := s.pods[uid]
	return p != nil && (p.inspect || p.inspection != nil)
}

// Moving reports whether what is open of the pod moves by itself: a call is in flight or
// is to begin, and neither is it slow, or waits only for slow ones, nor did the last list of
// the pod fail. A request that waits for a time does not move, nor one that waits for a full
// list, and a list that nobody waits for any more, because another has answered, moves nothing.
func (s *Scheduler) Moving(uid types.UID) bool {
	p := s.pods[uid]
	switch {
	case p == nil:
		return false
	case p.inspection != nil:
		return !p.inspection.Slow
	case p.inspect:
		return s.freeWorkers() > 0 || s.inspections > s.slow
	default:
		return s.cfg.ListsPods && p.newest > 0 && p.dueAt[listFailed].IsZero() && (p.list == nil || !p.list.Slow)
	}
}

// HungSince returns when the oldest inspection of the pod began that the
// runtime owes an answer to; zero unless one of these has been slow.
func (s *Scheduler) HungSince(uid types.UID) time.Time {
	if p := s.pods[uid]; p != nil && p.queued[hanging] != nil {
		return p.unanswered
	}
	return time.Time{}
}

// plan puts the pod where what is open of it says: into the queues, among the alarms,
// or away.
func (s *Scheduler) plan(p *pod) {
	covered := s.all.list != nil && p.newest <= s.full.covers // the full list in flight answers
	s.requested.set(p, p.newest > 0)
	s.toList.set(p, s.cfg.ListsPods && p.newest > 0 && p.list == nil && p.dueAt[listFailed].IsZero() && !covered)
	s.toInspect.set(p, p.inspect && p.inspection == nil)
	s.setAlarm(p)
	idle := p.newest == 0 && p.list == nil && p.inspection == nil && !p.inspect && p.alarm.IsZero()
	if idle && p.attempts == 0 && p.unanswered.IsZero() {
		delete(s.pods, p.uid)
	}
}

// setAlarm puts the pod, or all pods, among the alarms.
func (s *Scheduler) setAlarm(p *pod) {
	if alarm := p.nextAlarm(s.cfg); alarm != p.alarm {
		p.alarm = alarm
		s.alarms.update(p)
	}
}

func (p *pod) nextAlarm(cfg Config) time.Time {
	var next time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for _, at := range p.dueAt {
		earlier(at)
	}
	for _, c := range [...]*Call{p.list, p.inspection} {
		switch {
		case c == nil || c.Dead:
		case !c.Slow:
			earlier(c.Began.Add(min(cfg.Period, cfg.Timeout)))
		default:
			earlier(c.Began.Add(cfg.Timeout))
		}
	}
	return next
}
