package schedule

// Counts is what a schedule counts.
type Counts struct{ ToList, ToInspect, Alarms, ListSlots, Inspections, Slow, Hung int }

// Counts returns what the schedule counts now.
func (s *Scheduler) Counts() Counts {
	return Counts{
		ToList: s.toList.Len(), ToInspect: s.toInspect.Len(), Alarms: len(s.alarms),
		ListSlots: s.listSlots, Inspections: s.inspections, Slow: s.slow, Hung: s.hung,
	}
}
