package schedule

// Counts is what a schedule counts.
type Counts struct{ ToList, ToInspect, Round, Alarms, ListSlots, Inspections, Slow, Stuck int }

// Counts returns what the schedule counts now. ToInspect leaves out the round.
func (s *Scheduler) Counts() Counts {
	round := 0
	for e := s.toInspect.later; e != nil; e = e.Next() {
		round++
	}
	return Counts{
		s.toList.Len(), s.toInspect.Len() - round, round, len(s.alarms), s.listSlots, s.inspections, s.slow, s.stuck,
	}
}
