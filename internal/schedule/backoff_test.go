package schedule_test

import (
	"testing"
)

// A change of a pod ends the back-off of its inspections.
func TestChangeEndsTheBackOff(t *testing.T) {
	s := newScript(t)
	s.Retry("a")
	s.Retry("a")
	s.step(0)
	s.wakes(2 * period)
	s.InspectChanged("a")
	s.same("open", s.InspectionOpen("a"), true)
	s.does("Ia")
	s.same("open in flight", s.InspectionOpen("a"), true)
	s.inspected("Ia")
	s.same("open after that", s.InspectionOpen("a"), false)
	s.Retry("a")
	s.wakes(period)
}
