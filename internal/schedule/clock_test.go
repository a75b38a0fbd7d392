package schedule_test

import (
	"testing"
	"time"

	"github.com/kubepleg/pleg/internal/schedule"
)

// Stamps do not go back with the clock, so that what is newer can always be stored.
func TestStampsDoNotGoBack(t *testing.T) {
	s := newScript(t)
	s.RequestRelist()
	s.step(0, "F1 demand")
	s.listed("F1")
	s.RequestRelist()
	s.step(-time.Hour, "F2 demand")
	s.same("stamp", s.Last(), schedule.Stamp{Time: epoch, Number: 2})
}

// The clock going forwards brings everything at once, each once.
func TestClockGoesForwards(t *testing.T) {
	s := newScript(t)
	s.SetPeriodic(true)
	s.step(0, "F1 period")
	s.listed("F1")
	s.Retry("a")
	s.step(time.Hour, "F2 period", "G3 a period")
	s.listed("F2", "G3")
	s.InspectionAgreed("a", false)
	s.wakes(time.Hour + period)
	s.forgotten()
}
