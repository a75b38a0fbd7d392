package schedule_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/schedule"
)

// A request is answered only by a list that began after it, full or of the pod alone.
func TestRequestIsAnsweredByALaterList(t *testing.T) {
	s := newScript(t)
	s.RequestRelist()
	s.step(0, "F1 demand")
	s.Request("a", "demand")
	s.does("G2 a demand") // although F1 is in flight
	s.same("answered by F1", s.listed("F1"), []types.UID(nil))
	s.same("open", s.Requested(), []types.UID{"a"})
	s.same("answered by G2", s.listed("G2"), []types.UID{"a"})
	s.forgotten()

	s.Request("a", "demand")
	s.does("G3 a demand")
	s.RequestRelist()
	s.does("F4 demand")
	s.same("answered by F4", s.listed("F4"), []types.UID{"a"})
	s.same("answered by G3", s.listed("G3"), []types.UID(nil))
	s.forgotten()
}

// A request never joins a call in flight: however many come meanwhile, one more list
// follows. Nor do they keep that call from answering the request that it was made for.
func TestRequestJoinsNoCallInFlight(t *testing.T) {
	s := newScript(t)
	s.Request("a", "demand")
	s.step(0, "G1 a demand")
	s.Request("a", "hint")
	s.Request("a", "hint")
	s.does() // one list of a pod at a time
	s.same("answered by G1", s.listed("G1"), []types.UID{"a"})
	s.same("open", s.Requested(), []types.UID{"a"})
	s.does("G2 a demand") // the first cause that is open
	s.same("answered by G2", s.listed("G2"), []types.UID{"a"})
	s.same("open", s.Requested(), []types.UID(nil))
	s.does()
	s.forgotten()
}

// A list of a pod that fails answers nothing: the request is tried again after a
// period, or is answered by a full list before. That comes within a period too.
func TestRequestOutlivesAFailedList(t *testing.T) {
	s := newScript(t, func(cfg *schedule.Config) { cfg.ConnectedPeriod = time.Minute })
	s.SetConnected(true)
	s.SetPeriodic(true)
	s.step(0, "F1 hint")
	s.listed("F1")
	s.does()
	s.step(period, "F2 period") // because a connection is an event that may run ahead
	s.listed("F2")
	s.wakes(period + time.Minute)

	s.step(2 * period)
	s.Request("a", "demand")
	s.does("G3 a demand")
	s.step(2500 * ms)
	s.fails("G3")
	s.does()
	s.same("moving", s.Moving("a"), false)
	s.step(3499 * ms)
	s.wakes(3500 * ms)
	s.step(3500*ms, "F4 period", "G5 a demand")
	s.fails("G5")
	s.same("answered by F4", s.listed("F4"), []types.UID{"a"})
	s.same("moving", s.Moving("a"), false)
	s.does()
	s.wakes(3500*ms + time.Minute) // and no list of the pod before
	s.forgotten()
}

// A list that fails after another has answered the request of its pod leaves nothing
// behind.
func TestListFailsWithoutARequest(t *testing.T) {
	s := newScript(t)
	s.Request("a", "demand")
	s.RequestRelist()
	s.step(0, "F1 demand", "G2 a demand")
	s.listed("F1")
	s.fails("G2")
	s.same("moving", s.Moving("a"), false)
	s.forgotten()
}

// The list of a hinted pod is followed by one more, a twentieth of a period after it
// has answered; once, whether it was a list of the pod or a full one.
func TestFollowUp(t *testing.T) {
	for _, full := range []bool{false, true} {
		s := newScript(t)
		s.Hint("a")
		want, list, second := []string{"G1 a hint"}, "G1", "G2 a hint"
		if full {
			s.RequestRelist()
			want, list, second = []string{"F1 demand", "G2 a hint"}, "F1", "G3 a hint"
		}
		s.step(0, want...)
		s.step(10 * ms)
		s.same("answered", s.listed(list), []types.UID{"a"})
		if full {
			s.fails("G2") // there is no request that it could keep open
		}
		s.step(59 * ms)
		s.wakes(60 * ms)
		s.step(60*ms, second)
		s.listed(second[:2])
		s.wakes(-1)
		s.forgotten()
	}
}

// The newest hint moves the follow-up. A request without a hint does not.
func TestFollowUpIsMovedByTheNewestHint(t *testing.T) {
	s := newScript(t)
	s.Hint("a")
	s.step(0, "G1 a hint")
	s.listed("G1")
	s.step(40 * ms)
	s.Hint("a")
	s.does("G2 a hint")
	s.listed("G2")
	s.step(50 * ms)
	s.wakes(90 * ms)
	s.Request("a", "demand")
	s.does("G3 a demand")
	s.listed("G3")
	s.wakes(90 * ms)
	s.step(90*ms, "G4 a hint")
	s.listed("G4")
	s.forgotten()
}

// A hint that comes while the pod is listed for another reason is among the open
// requests: what answers it is followed up.
func TestHintBesideARequest(t *testing.T) {
	s := newScript(t)
	s.Request("a", "demand")
	s.Hint("a")
	s.step(0, "G1 a demand")
	s.listed("G1")
	s.wakes(50 * ms)
}

// What waits for different reasons waits side by side, and is one request when the
// times come together.
func TestReasonsWaitSideBySide(t *testing.T) {
	s := newScript(t)
	s.Hint("a")
	s.step(0, "G1 a hint")
	s.listed("G1") // the next is in 50 ms
	s.Retry("a")   // in a period
	s.step(50*ms, "G2 a hint")
	s.listed("G2")
	s.Hint("a")
	s.step(50*ms, "G3 a hint")
	s.listed("G3")
	s.step(2*period, "G4 a hint") // by the order of the reasons
	s.listed("G4")
	s.InspectionAgreed("a", true)
	s.forgotten()
}

// A back-off doubles from a period to ten seconds, and begins anew after a reset and when
// the pod is gone.
func TestRetryDoubles(t *testing.T) {
	s := newScript(t)
	wait := func() time.Duration { return s.Wake().Sub(s.Now()) }
	var waits []time.Duration
	for range 6 {
		s.Retry("a")
		waits = append(waits, wait())
	}
	s.same("waits", waits, []time.Duration{
		period, 2 * period, 4 * period, 8 * period, 10 * time.Second, 10 * time.Second,
	})
	s.InspectionAgreed("a", true)
	s.forgotten()
	s.Retry("a")
	s.same("after a reset", wait(), period)
	s.Retry("a")
	s.Gone("a")
	s.forgotten()
	s.Retry("a")
	s.same("after the pod was gone", wait(), period)
	s.step(period, "G1 a period")
	s.listed("G1")
	s.Retry("a")
	s.same("attempts outlive lists", wait(), 2*period)
}

// What is asked about a pod that nothing is open of is no reason to remember it.
func TestNothingOpen(t *testing.T) {
	s := newScript(t)
	s.InspectionAgreed("a", true)
	s.InspectionAgreed("a", false)
	s.Gone("a")
	s.same("answers", s.PodListed("a", s.Last()), false)
	s.same("open", s.Open("a"), false)
	s.same("inspection wanted", s.InspectionWanted("a"), false)
	s.same("inspection", s.Inspection("a") == nil, true)
	s.same("moving", s.Moving("a"), false)
	s.same("hangs not", s.HungSince("a").IsZero(), true)
	s.same("requested", s.Requested(), []types.UID(nil))
	s.step(0)
	s.wakes(-1)
	s.forgotten()
}

// A runtime that cannot list one pod has requests answered by the full lists, the next
// of which comes within a period.
func TestRuntimeListsNoPods(t *testing.T) {
	s := newScript(t, func(cfg *schedule.Config) {
		cfg.ListsPods, cfg.ConnectedPeriod = false, time.Minute
	})
	s.SetPeriodic(true)
	s.SetConnected(true)
	s.step(0, "F1 hint")
	s.listed("F1")
	s.does()
	s.step(period, "F2 period")
	s.listed("F2")
	s.wakes(period + time.Minute)
	s.step(10 * period)
	s.Request("a", "demand")
	s.does()
	s.wakes(11 * period)
	s.step(11*period, "F3 period")
	s.same("answered", s.listed("F3"), []types.UID{"a"})
	s.forgotten()
}

// Stamps are ordered by number alone: two may share their time.
func TestStamps(t *testing.T) {
	s := newScript(t)
	s.Request("a", "demand")
	s.Request("b", "demand")
	s.step(0, "G1 a demand", "G2 b demand")
	a, b := s.flying["G1"].Stamp, s.flying["G2"].Stamp
	s.same("times", a.Time, b.Time)
	s.same("after", []bool{a.After(b), b.After(a), a.After(a)}, []bool{false, true, false})
	s.same("later", []schedule.Stamp{schedule.Later(a, b), schedule.Later(b, a)}, []schedule.Stamp{b, b})
	s.same("last", s.Last(), b)
}
