package schedule

import "time"

// canary is the healthy pod that is inspected now and then while others hang, to see
// whether the runtime inspects none or only not those.
type canary struct {
	hung      int // pods
	since     time.Time
	last      time.Time // a canary was due
	succeeded time.Time // an inspection
}

func (s *Scheduler) noteHung(p *pod) {
	if p.hung {
		return
	}
	p.hung = true
	if s.canary.hung == 0 {
		s.canary.since = s.now
	}
	s.canary.hung++
}

func (s *Scheduler) noteAnswered(p *pod) {
	p.unanswered = time.Time{}
	if p.hung {
		p.hung = false
		s.canary.hung--
	}
}

// InspectionSucceeded notes that one has, of whatever pod: no canary is needed for a while.
func (s *Scheduler) InspectionSucceeded() { s.canary.succeeded = s.now }

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
	c := &s.canary
	if c.hung == 0 {
		return time.Time{}
	}
	latest := c.since
	for _, t := range [...]time.Time{c.last, c.succeeded} {
		if t.After(latest) {
			latest = t
		}
	}
	return latest.Add(max(s.cfg.Threshold/canariesPerThreshold, s.cfg.Period))
}
