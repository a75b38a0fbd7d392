package schedule

import "time"

// canary is what is inspected to see what the runtime still answers: one healthy pod now and then
// while others hang, to see whether it inspects none or only not those, and all known pods in turn
// while a full list hangs, because only inspections tell what has become of them.
type canary struct {
	since     time.Time // a pod hangs
	last      time.Time // a canary was due, or a round of all pods began
	succeeded time.Time // an inspection
	inRound   bool      // a round of all pods is under way
}

// roundPeriods is how many periods pass from one round of all pods to the next at least.
const roundPeriods = 2

func (s *Scheduler) noteHung(p *pod) {
	if s.hung.Len() == 0 {
		s.canary.since = s.now
	}
	s.hung.set(p, true)
}

func (s *Scheduler) noteAnswered(p *pod) {
	p.unanswered = time.Time{}
	s.hung.set(p, false)
}

// InspectionSucceeded notes that one has, of whatever pod: no canary is needed for a while, and
// the back-off of the pods that hang begins anew, for what held them up may be over.
func (s *Scheduler) InspectionSucceeded() {
	s.canary.succeeded = s.now
	first := s.now.Add(s.retry.Wait(1))
	for p := range s.hung.all {
		p.attempts = 0
		if p.dueAt[retry].After(first) {
			p.dueAt[retry] = first
			s.setAlarm(p)
		}
	}
}

// TakeCanary reports whether a pod is to be inspected now. While a full list hangs it does for one
// pod after another, until EndRound.
func (s *Scheduler) TakeCanary() bool {
	if due := s.canaryDue(); due.IsZero() || s.now.Before(due) {
		return false
	}
	if !s.canary.inRound {
		s.canary.inRound, s.canary.last = s.FullListHangs(), s.now
	}
	return true
}

// EndRound notes that all pods have had their turn. The next comes two periods after this one began,
// and a period from now at least.
func (s *Scheduler) EndRound() {
	s.canary.inRound = false
	if latest := s.now.Add(-s.cfg.Period); s.canary.last.Before(latest) {
		s.canary.last = latest
	}
}

func (s *Scheduler) canaryDue() time.Time {
	if s.FullListHangs() {
		return s.roundDue()
	}
	var round time.Time
	if s.all.list != nil {
		round = s.fullListHangsAt()
	}
	if s.hung.Len() == 0 {
		return round
	}
	latest := s.canary.since
	for _, t := range [...]time.Time{s.canary.last, s.canary.succeeded} {
		if t.After(latest) {
			latest = t
		}
	}
	due := latest.Add(max(s.cfg.Threshold/canariesPerThreshold, s.cfg.Period))
	if !round.IsZero() && round.Before(due) {
		return round
	}
	return due
}

// roundDue is canaryDue while a full list hangs: rounds take half of the workers, and leave half of
// the slow inspections that release theirs to pods of which somebody wants to know.
func (s *Scheduler) roundDue() time.Time {
	busy := s.inspections-s.slow+s.toInspect.Len() >= max(1, s.cfg.Workers/2)
	switch {
	case busy || s.slow >= MaxSlow/2:
		return time.Time{}
	case s.canary.inRound:
		return s.now
	}
	if due := s.canary.last.Add(roundPeriods * s.cfg.Period); due.After(s.now) {
		return due
	}
	return s.now
}
