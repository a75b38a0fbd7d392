package schedule

import "time"

// canary is the healthy pod that is inspected now and then while others hang, to see
// whether the runtime inspects none or only not those.
type canary struct {
	since     time.Time // a pod hangs
	last      time.Time // a canary was due
	succeeded time.Time // an inspection
}

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

// TakeCanary reports whether a healthy pod is to be inspected now; then the next is due later.
func (s *Scheduler) TakeCanary() bool {
	at := s.canaryDue()
	if at.IsZero() || s.now.Before(at) {
		return false
	}
	s.canary.last = s.now
	return true
}

func (s *Scheduler) canaryDue() time.Time {
	if s.hung.Len() == 0 {
		return time.Time{}
	}
	latest := s.canary.since
	for _, t := range [...]time.Time{s.canary.last, s.canary.succeeded} {
		if t.After(latest) {
			latest = t
		}
	}
	return latest.Add(max(s.cfg.Threshold/canariesPerThreshold, s.cfg.Period))
}
