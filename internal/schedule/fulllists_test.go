package schedule_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/schedule"
)

// Full lists come every period from when they are switched on, counted from the
// beginning of one to that of the next.
func TestPeriod(t *testing.T) {
	s := newScript(t)
	s.step(0)
	s.wakes(-1)
	s.SetPeriodic(true)
	s.does("F1 period")
	s.step(300 * ms)
	s.listed("F1")
	s.wakes(period)
	s.step(999 * ms)
	s.step(period, "F2 period")
	s.listed("F2")
	s.SetPeriodic(false)
	s.wakes(-1)
	s.step(10 * period)
	s.SetPeriodic(true)
	s.does("F3 period")
}

// A runtime that is slower than the period is given one to itself after each list.
func TestRuntimeSlowerThanThePeriod(t *testing.T) {
	for _, finish := range []func(*script, string){
		func(s *script, list string) { s.listed(list) },
		func(s *script, list string) { s.fails(list) },
	} {
		s := newScript(t)
		s.SetPeriodic(true)
		s.step(0, "F1 period")
		s.step(1500*ms, "F1 slow")
		finish(s, "F1")
		s.does()
		s.wakes(2500 * ms)
		s.step(2500*ms, "F2 period")
	}
}

// A pause after a list is no longer than a period, however far the clock was set forward
// during the list.
func TestPauseIsBounded(t *testing.T) {
	s := newScript(t)
	s.RequestRelist()
	s.step(0, "F1 demand")
	s.Advance(epoch.Add(time.Hour))
	s.listed("F1")
	s.RequestAll("demand")
	s.does()
	s.wakes(time.Hour + period)
	s.step(time.Hour+period, "F2 demand")
}

// A caller of Relist gets a list that begins after its request: at once, or when the one
// in flight has returned.
func TestRequestRelist(t *testing.T) {
	s := newScript(t)
	s.RequestRelist()
	s.step(0, "F1 demand")
	s.same("in flight", s.FullListInFlight(), true)
	s.RequestRelist()
	s.RequestRelist()
	s.does()
	s.step(500 * ms)
	s.listed("F1")
	s.does("F2 demand") // it does not wait for half of the time
	s.RequestRelist()
	s.WithdrawRelist()
	s.listed("F2")
	s.does()
	s.same("in flight", s.FullListInFlight(), false)
	s.wakes(-1)
}

// A request for a full list stays open until one succeeds that began after it. One that
// was asked for takes half of the time at most, and waits a period after a failure.
func TestRequestAll(t *testing.T) {
	s := newScript(t)
	s.RequestAll("hint")
	s.RequestAll("demand")
	s.step(0, "F1 hint")
	s.RequestAll("demand") // F1 does not answer it
	s.step(400 * ms)
	s.listed("F1")
	s.does()
	s.wakes(800 * ms)
	s.step(800*ms, "F2 hint") // the first cause that is open
	s.fails("F2")
	s.does()
	s.wakes(1800 * ms)
	s.step(1800*ms, "F3 hint")
	s.listed("F3")
	s.does()
	s.wakes(-1)
}

// The full lists of a period do not wait for half of the time, those of Relist neither.
func TestOnlyListsAskedForAreHeldToHalfOfTheTime(t *testing.T) {
	s := newScript(t)
	s.SetPeriodic(true)
	s.step(0, "F1 period")
	s.step(900 * ms)
	s.listed("F1")
	s.RequestAll("hint")
	s.step(period, "F2 period")
	s.listed("F2") // which answers the request as well
	s.wakes(2 * period)
}

// While the event stream is connected and no reader waits for a time to come, full
// lists are further apart.
func TestConnectedPeriod(t *testing.T) {
	connected := func(cfg *schedule.Config) { cfg.ConnectedPeriod = time.Minute }
	s := newScript(t, connected)
	s.SetPeriodic(true)
	s.SetConnected(true)
	s.step(0, "F1 hint")
	s.listed("F1")
	s.does()
	s.step(period, "F2 period")
	s.listed("F2")
	s.does()
	s.wakes(period + time.Minute)
	s.SetConnected(false)
	s.does()
	s.wakes(2 * period)
	s.step(2*period, "F3 period")
	s.listed("F3")
	s.wakes(3 * period)

	s.SetConnected(true)
	s.does("F4 hint")
	s.listed("F4")
	s.does()
	s.step(3*period, "F5 period")
	s.listed("F5")
	s.begin(true) // a reader has blocked
	s.wakes(4 * period)
	s.step(3500 * ms)
	s.begin(true) // which makes nothing later, nor sooner
	s.wakes(4 * period)
}

// A reader that waits for a time to come is served by the full lists, which keep their
// ordinary period.
func TestConnectedPeriodWhileAReaderWaits(t *testing.T) {
	s := newScript(t, func(cfg *schedule.Config) { cfg.ConnectedPeriod = time.Minute })
	s.SetPeriodic(true)
	s.SetConnected(true)
	for n := range 3 {
		s.Advance(epoch.Add(time.Duration(n) * period))
		begun := s.Begin(true)
		s.same("calls", len(begun), 1)
		s.Returned(begun[0], true)
		s.FullListed(begun[0])
		s.wakes(time.Duration(n+1) * period)
	}
}

// A connected period that is not longer than the ordinary one changes nothing.
func TestShortConnectedPeriod(t *testing.T) {
	s := newScript(t, func(cfg *schedule.Config) { cfg.ConnectedPeriod = 10 * ms })
	s.SetPeriodic(true)
	s.SetConnected(true)
	s.step(0, "F1 hint")
	s.listed("F1")
	s.step(period, "F2 period")
	s.listed("F2")
	s.wakes(2 * period)
}

// When more pods wait than are listed at once, all are listed instead: nothing else is
// listed for them, but for what is asked after that.
func TestManyRequestsBecomeOneFullList(t *testing.T) {
	s := newScript(t)
	const n = schedule.PodListsAtOnce + 1
	s.requestMany(n)
	s.step(0, "F1 demand")
	s.does()
	s.Request("p003", "hint")
	s.does("G2 p003 demand") // the cause of the oldest open request
	s.same("answered", len(s.listed("F1")), n)
	s.same("open", s.Requested(), []types.UID{"p003"})
	s.listed("G2")
	s.forgotten()

	s.requestMany(schedule.PodListsAtOnce)
	s.does(lines(3, 0, schedule.PodListsAtOnce)...) // so many are not more
	s.listed(names(3, schedule.PodListsAtOnce)...)
	s.forgotten()
}

// A full list in place of many that fails, hangs or returns without an answer lets
// the pods be listed by themselves, and no other takes its place until one succeeds.
func TestListInsteadOfManyDoesNotAnswer(t *testing.T) {
	const n = 10
	begin := func(t *testing.T) *script {
		s := newScript(t)
		s.requestMany(n)
		s.step(0, "F1 demand")
		return s
	}
	t.Run("fails", func(t *testing.T) {
		s := begin(t)
		s.fails("F1")
		s.does(lines(2, 0, 8)...)
		s.listed(names(2, 8)...)
		s.does(lines(10, 8, 2)...)
		s.listed(names(10, 2)...)
		s.requestMany(n)
		s.step(5*period, lines(12, 0, 8)...) // the newest full list has failed
		s.listed(names(12, 8)...)
		s.RequestRelist()
		s.does(append([]string{"F20 demand"}, lines(21, 8, 2)...)...)
		s.listed("F20")
		s.fails(names(21, 2)...)
		s.forgotten()
		s.requestMany(n)
		s.does("F23 demand") // one has succeeded again
	})
	t.Run("hangs", func(t *testing.T) {
		s := begin(t)
		s.wakes(period)
		s.step(period, append([]string{"F1 slow"}, lines(2, 0, 8)...)...)
		s.round()
		s.wakes(2 * period)
		s.listed(names(2, 8)...)
		s.does(lines(10, 8, 2)...)
		s.listed(names(10, 2)...)
		s.forgotten()
		s.wakes(3 * period)
		s.step(timeout, "F1 dead")
		s.FullListFailed()
		s.same("dead", s.FullListDead(), true)
		s.same("in flight", s.FullListInFlight(), false)
		s.requestMany(n)
		s.RequestRelist()
		s.does(lines(12, 0, 8)...) // no full list until it returns
		s.returns("F1", true)
		s.listed(names(12, 8)...)
		s.does(append([]string{"F20 demand"}, lines(21, 8, 2)...)...)
	})
	t.Run("is stopped", func(t *testing.T) {
		s := begin(t)
		s.returns("F1", true)
		s.does("F2 demand")
		s.same("answered", len(s.listed("F2")), n)
		s.forgotten()
	})
}

// Lists in place of many are asked for too: they take half of the time at most. Single
// lists go on meanwhile, and if all of their places are taken, the full list begins
// when its time has come.
func TestListInsteadOfManyTakesHalfOfTheTime(t *testing.T) {
	s := newScript(t)
	s.requestMany(10)
	s.step(0, "F1 demand")
	s.step(300 * ms)
	s.listed("F1")
	s.requestMany(20)
	s.does(lines(2, 0, 8)...)
	s.wakes(600 * ms)
	s.step(599 * ms)
	s.step(600*ms, "F10 demand")
}

// A full list that begins for another reason takes the place of many just as well, and
// without waiting for half of the time.
func TestAnyListTakesThePlaceOfMany(t *testing.T) {
	s := newScript(t)
	s.RequestRelist()
	s.step(0, "F1 demand")
	s.step(300 * ms)
	s.listed("F1")
	s.requestMany(10)
	s.RequestRelist()
	s.does("F2 demand")
	s.same("answered", len(s.listed("F2")), 10)
	s.forgotten()
}

// Nothing is begun beside a dead full list; what it owed is asked for when it returns.
func TestDeadFullList(t *testing.T) {
	s := newScript(t, func(cfg *schedule.Config) { cfg.Timeout = 300 * ms })
	s.SetPeriodic(true)
	s.step(0, "F1 period")
	s.wakes(300 * ms)
	s.step(300*ms, "F1 slow", "F1 dead") // before a period has passed
	s.FullListFailed()
	s.wakes(period) // a round of all pods
	s.step(5 * period)
	s.returns("F1", true)
	s.does("F2 period")
}
