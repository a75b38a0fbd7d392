package schedule

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Reason is why a pod is to be listed not before a time.
type Reason int

const (
	// FollowUp is for a hinted pod: events run ahead of lists.
	FollowUp Reason = iota
	// Retry is for a pod that could not be inspected, or whose status contradicted its
	// list.
	Retry
	// Reader is for a blocked reader whose minTime was in the future.
	Reader
	// again: a list of the pod has failed; its request waits a while.
	again
	reasons
)

// pod is what is open of one pod. There is one only while there is something.
type pod struct {
	uid types.UID

	// want is the number from which on a list answers the newest open request; 0 for
	// none. hinted: an event is among the open requests.
	want   uint64
	cause  string
	hinted bool
	// later is the slot for requests that wait for a time, by their reason.
	later [reasons]time.Time
	// attempts counts the failed inspections and contradictions in a row.
	attempts   int
	retryCause string

	list       *Call // in flight
	listFailed bool  // the newest one did
	inspection *Call // in flight
	inspect    bool  // one is to begin

	// unanswered is when the oldest inspection began since the runtime answered one;
	// hung: one of these has been slow.
	unanswered time.Time
	hung       bool

	queued [queues]int // its places there; 0 for none
	alarm  time.Time
	index  int // among the alarms, from 1; 0 for none
}

func (s *Scheduler) pod(uid types.UID) *pod {
	p := s.pods[uid]
	if p == nil {
		p = s.newPod()
		p.uid = uid
		s.pods[uid] = p
	}
	return p
}

// Request asks for a list of the pod that begins from now on. hinted: an event of the
// runtime asks, which may run ahead of the list; the answer is followed by one more.
func (s *Scheduler) Request(uid types.UID, cause string, hinted bool) {
	p := s.pod(uid)
	s.request(p, cause, hinted)
	s.plan(p)
}

func (s *Scheduler) request(p *pod, cause string, hinted bool) {
	if p.want == 0 {
		p.cause = cause
		s.requested++
	}
	p.want = s.last.Number + 1
	p.hinted = p.hinted || hinted
	switch {
	case s.cfg.ListsPods:
		if p.list != nil && p.list.Slow {
			s.Hasten() // it hangs: the next full list shows the pod too
		}
	default:
		s.Hasten()
	}
}

// RequestAt asks for a list of the pod that begins not before a time.
func (s *Scheduler) RequestAt(uid types.UID, at time.Time, why Reason) {
	p := s.pod(uid)
	at = at.Add(s.ahead)
	if earlier := p.later[why]; why == Reader && !earlier.IsZero() && earlier.Before(at) {
		at = earlier // the other readers are served by the full lists
	}
	p.later[why] = at
	s.plan(p)
}

// Retry has the pod listed again after a back-off, which doubles from a period.
func (s *Scheduler) Retry(uid types.UID, cause string) {
	p := s.pod(uid)
	p.attempts++
	p.retryCause = cause
	p.later[Retry] = s.now.Add(s.retry.Wait(p.attempts))
	s.plan(p)
}

// ResetRetry ends the back-off of a pod; the next begins anew.
func (s *Scheduler) ResetRetry(uid types.UID) {
	if p := s.pods[uid]; p != nil {
		p.attempts, p.later[Retry] = 0, time.Time{}
		s.plan(p)
	}
}

func (p *pod) causeOf(why Reason) string {
	switch why {
	case FollowUp:
		return CauseHint
	case Retry:
		return p.retryCause
	default:
		return CauseDemand
	}
}

// Answer notes that a list of the pod with this stamp is believed, or confirms what is
// known, and reports whether it answers the open request.
func (s *Scheduler) Answer(uid types.UID, stamp Stamp) bool {
	p := s.pods[uid]
	if p == nil {
		return false
	}
	p.listFailed, p.later[again] = false, time.Time{}
	answers := p.want > 0 && p.want <= stamp.Number
	if answers {
		p.want = 0
		s.requested--
		if p.hinted {
			p.hinted = false
			p.later[FollowUp] = s.now.Add(s.cfg.Period / followUpShare)
		}
	}
	s.plan(p)
	return answers
}

// ListFailed notes that a list of the pod has: its request stays open, and is tried
// again after a period unless a full list answers it. One that was answered meanwhile is
// not affected.
func (s *Scheduler) ListFailed(uid types.UID) {
	s.Hasten()
	p := s.pods[uid]
	if p == nil || p.want == 0 {
		return
	}
	p.listFailed = true
	p.later[again] = s.now.Add(s.cfg.Period)
	s.plan(p)
}

// Inspect has the pod inspected as soon as there is a worker; one at a time.
func (s *Scheduler) Inspect(uid types.UID) {
	p := s.pod(uid)
	p.inspect = true
	if p.inspection != nil && p.inspection.Slow {
		s.hangs(p)
	}
	s.plan(p)
}

// InspectionWanted reports whether an inspection of the pod is to begin.
func (s *Scheduler) InspectionWanted(uid types.UID) bool {
	p := s.pods[uid]
	return p != nil && p.inspect
}

// NoInspection drops what was wanted of a pod's inspection: it is gone, or has failed
// without one.
func (s *Scheduler) NoInspection(uid types.UID) {
	if p := s.pods[uid]; p != nil {
		p.inspect = false
		s.plan(p)
	}
}

// Gone drops all that is open of a pod's inspections; requests stay open.
func (s *Scheduler) Gone(uid types.UID) {
	p := s.pods[uid]
	if p == nil {
		return
	}
	p.inspect, p.attempts, p.later[Retry] = false, 0, time.Time{}
	since := p.unanswered
	s.answered(p)
	if p.inspection != nil {
		p.unanswered = since // another pod may come under this UID, and wait for the same call
	}
	s.plan(p)
}

// Open reports whether there is a request of the pod open or a call in flight.
func (s *Scheduler) Open(uid types.UID) bool { return s.pods[uid] != nil }

// Pods returns how many pods have something open.
func (s *Scheduler) Pods() int { return len(s.pods) }

// Requested returns the pods with an open request, by UID.
func (s *Scheduler) Requested() []types.UID {
	if s.requested == 0 {
		return nil
	}
	uids := make([]types.UID, 0, s.requested)
	for uid, p := range s.pods {
		if p.want > 0 {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}

// Inspecting reports whether an inspection of the pod is in flight, or is to begin.
func (s *Scheduler) Inspecting(uid types.UID) bool {
	p := s.pods[uid]
	return p != nil && (p.inspect || p.inspection != nil)
}

// Stuck reports whether what is open of the pod will not move by itself soon: a call
// that it takes is slow, or its list has failed. A list that nobody waits for any more,
// because another has answered, holds nothing up.
func (s *Scheduler) Stuck(uid types.UID) bool {
	p := s.pods[uid]
	switch {
	case p == nil:
		return false
	case p.inspection != nil:
		return p.inspection.Slow
	case p.inspect:
		return false
	default:
		return p.want > 0 && (p.listFailed || p.list != nil && p.list.Slow)
	}
}

// Unanswered returns when, by the clock, the oldest inspection of the pod began that
// the runtime owes an answer to.
func (s *Scheduler) Unanswered(uid types.UID) time.Time {
	if p := s.pods[uid]; p != nil && !p.unanswered.IsZero() {
		return s.Clock(p.unanswered)
	}
	return time.Time{}
}

// plan puts the pod where what is open of it says: into the queues, among the alarms,
// or away.
func (s *Scheduler) plan(p *pod) {
	instead := s.full.call != nil && p.want <= s.full.instead // the full list in flight answers
	if s.cfg.ListsPods && p.want > 0 && p.list == nil && p.later[again].IsZero() && !instead {
		s.listing.push(p)
	} else {
		s.listing.drop(p)
	}
	if p.inspect && p.inspection == nil {
		s.inspecting.push(p)
	} else {
		s.inspecting.drop(p)
	}
	p.alarm = p.nextAlarm(s.cfg)
	s.alarms.place(p)
	idle := p.want == 0 && p.list == nil && p.inspection == nil && !p.inspect && p.alarm.IsZero()
	if idle && p.attempts == 0 && p.unanswered.IsZero() {
		delete(s.pods, p.uid)
		if len(s.freePods) < maxFree {
			*p = pod{}
			s.freePods = append(s.freePods, p)
		}
	}
}

// newPod returns an empty pod, whose memory may have been another's.
func (s *Scheduler) newPod() *pod {
	n := len(s.freePods)
	if n == 0 {
		return &pod{}
	}
	p := s.freePods[n-1]
	s.freePods = s.freePods[:n-1]
	return p
}

func (p *pod) nextAlarm(cfg Config) time.Time {
	var next time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for _, at := range p.later {
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
