package schedule

// Counts contains the counters of a schedule.
type Counts struct{ ToList, ToInspect, Round, Alarms, ListSlots, Inspections, Slow, Stuck int }

// Counts returns the present counters. ToInspect does not include the round.
func (s *Scheduler) Counts() Counts {
	round := 0
	for e := s.toInspect.later; e != nil; e = e.Next() {
		round++
	}
	return Counts{
		s.toList.Len(), s.toInspect.Len() - round, round, len(s.alarms), s.listSlots, s.inspections, s.slow, s.stuck,
	}
}
