package schedule_test

import (
	"testing"
	"time"

	"github.com/kubepleg/pleg/internal/schedule"
)

// Where the clock goes back, everything comes as late as if it had stood still: nothing
// waits for it to make up. Wake is in its terms; stamps do not go back.
func TestClockGoesBack(t *testing.T) {
	s := newScript(t)
	s.SetPeriodic(true)
	s.step(0, "F1 period")
	s.listed("F1")
	s.Inspect("a")
	s.step(400*ms, "Ia")
	s.same("back", s.Advance(epoch.Add(-time.Hour)), time.Hour+400*ms)
	s.same("back again", s.Advance(epoch.Add(-time.Hour)), time.Duration(0))
	s.does()
	s.wakes(-time.Hour + 600*ms)
	s.same("time passed", s.Since(s.Now()), time.Duration(0))
	s.Request("b", "demand")
	s.step(-time.Hour+300*ms, "G2 b demand")
	s.same("stamp", s.Last(), schedule.Stamp{Time: epoch, Number: 2})
	s.same("back a little", s.Advance(epoch.Add(-time.Hour+200*ms)), 100*ms)
	s.step(-time.Hour+500*ms, "F3 period")
	s.step(-time.Hour+900*ms, "Ia slow")
	s.same("began, by this clock", s.HungSince("a"), epoch.Add(-time.Hour-100*ms))
	s.same("now", s.Clock(s.Now()), epoch.Add(-time.Hour+900*ms))
}

// The clock going forwards brings everything at once, each once.
func TestClockGoesForwards(t *testing.T) {
	s := newScript(t)
	s.SetPeriodic(true)
	s.step(0, "F1 period")
	s.listed("F1")
	s.Retry("a", "demand")
	s.step(time.Hour, "F2 period", "G3 a demand")
	s.listed("F2", "G3")
	s.InspectionAgreed("a", false)
	s.wakes(time.Hour + period)
	s.forgotten()
}
