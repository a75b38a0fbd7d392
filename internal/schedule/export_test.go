package schedule

// Counts is what a schedule counts.
type Counts struct{ ToList, ToInspect, Alarms, ListSlots, Inspections, Slow, Hung int }

// Counts returns what the schedule counts now.
func (s *Scheduler) Counts() Counts {
	return Counts{s.toList.Len(), s.toInspect.Len(), len(s.alarms), s.listSlots, s.inspections, s.slow, s.stuck}
}
