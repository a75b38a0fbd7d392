package schedule_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/schedule"
)

// So many pods are listed at once, and so many inspected, in the order in which they
// were asked for; one call of a kind for a pod.
func TestPlaces(t *testing.T) {
	s := newScript(t)
	s.requestMany(schedule.PodListsAtOnce)
	for _, uid := range []types.UID{"c", "a", "b", "c"} {
		s.Inspect(uid)
	}
	s.same("wanted", s.InspectionWanted("c"), true)
	s.step(0, append(lines(1, 0, schedule.PodListsAtOnce), "Ic", "Ia")...)
	s.same("wanted", s.InspectionWanted("c"), false)
	s.Request("d", "demand")
	s.Inspect("c") // once more, after the one in flight
	s.does()
	s.inspected("Ic")
	s.listed("G5")
	s.does("G9 d demand", "Ib")
	s.inspected("Ia")
	s.does("Ic")
}

// What is wanted of an inspection can be dropped; it then begins with the next.
func TestInspectionIsDropped(t *testing.T) {
	s := newScript(t)
	for _, uid := range []types.UID{"a", "b", "c", "d"} {
		s.Inspect(uid)
	}
	s.InspectionAgreed("a", false)
	s.Gone("b")
	s.step(0, "Ic", "Id")
	s.InspectionAgreed("c", false) // which is not one in flight
	s.same("in flight", s.Inspection("c") == s.flying["Ic"], true)
	s.inspected("Ic", "Id")
	s.does()
	s.forgotten()
}

// A call that takes longer than a period gives its slot to another, once: not again
// when it dies, nor when it returns. Until then no other is made for its pod.
func TestSlowInspectionFreesItsSlotOnce(t *testing.T) {
	s := newScript(t)
	for _, uid := range []types.UID{"a", "b", "c", "d", "e"} {
		s.Inspect(uid)
	}
	s.step(0, "Ia", "Ib")
	s.step(500 * ms)
	s.inspected("Ib")
	s.does("Ic")
	s.wakes(period)
	s.step(period, "Ia slow", "Id")
	s.same("moving", []bool{s.Moving("a"), s.Moving("c")}, []bool{false, true})
	s.Inspect("a")
	s.does()
	s.inspected("Ic")
	s.does("Ie")
	s.inspected("Id", "Ie")
	s.does()
	s.step(timeout, "Ia dead")
	s.same("hung since", s.HungSince("a"), epoch)
	s.inspectMany("x", "y", "z")
	s.does("Ix", "Iy")
	s.inspected("Ia")
	s.does() // it had given its slot before
	s.inspected("Ix")
	s.does("Iz")
	s.inspected("Iy", "Iz")
	s.does("Ia") // what was asked of it while it was dead
	s.inspected("Ia")
	s.forgotten()
}

func (s *script) inspectMany(uids ...types.UID) {
	for _, uid := range uids {
		s.Inspect(uid)
	}
}

// The same of lists of one pod. While one hangs, the next full list shows its pod too:
// it comes within a period of each request.
func TestSlowListFreesItsSlotOnce(t *testing.T) {
	s := newScript(t, func(cfg *schedule.Config) { cfg.ConnectedPeriod = time.Hour })
	s.connect()
	s.step(10 * period)
	const n = schedule.PodListsAtOnce
	s.requestMany(n)
	s.does(lines(3, 0, n)...)
	s.Request("a", "demand")
	s.step(10500 * ms)
	s.listed(names(4, n-1)...) // all but G3
	s.does("G11 a demand")
	s.listed("G11")
	s.step(11*period, "G3 slow")
	s.same("moving", s.Moving("p000"), false)
	s.wakes(12 * period) // the full list, hastened
	s.step(12*period, "F12 period")
	s.same("answered", s.listed("F12"), []types.UID{"p000"})
	s.wakes(10*period + timeout)
	s.step(20 * period)
	s.Request("p000", "demand")
	s.does()
	s.wakes(21 * period)
	s.step(21*period, "F13 period")
	s.listed("F13")
	s.step(10*period+timeout, "G3 dead")
	s.PodListFailed("p000")
	s.Request("p000", "demand")
	s.does()
	s.requestMany(n) // p000 is among them
	s.does(lines(14, 1, n-1)...)
	s.Request("a", "demand")
	s.Request("b", "demand")
	s.does("G21 a demand")
	s.returns("G3", true)
	s.does() // b waits: G3 had given its slot before
	s.listed("G21")
	s.does("G22 b demand")
}

// connect brings a script to where the next full list comes after the connected period.
func (s *script) connect() {
	s.t.Helper()
	s.SetPeriodic(true)
	s.SetConnected(true)
	s.step(0, "F1 hint")
	s.listed("F1")
	s.does()
	s.step(period, "F2 period")
	s.listed("F2")
}

// A pod moves while a call of it is in flight that is not slow, or is to begin; and while
// its inspection goes on, though a list of it hangs that another has answered for. What
// waits for a time does not move.
func TestMoving(t *testing.T) {
	s := newScript(t)
	moving := func(want bool) { t.Helper(); s.same("moving", s.Moving("a"), want) }
	moving(false)
	s.Request("a", "demand")
	moving(true)
	s.step(0, "G1 a demand")
	moving(true)
	s.step(period, "G1 slow")
	moving(false)
	s.RequestRelist()
	s.does("F2 demand")
	s.listed("F2")
	moving(false)
	s.Inspect("a")
	moving(true)
	s.does("Ia")
	s.Request("a", "demand")
	moving(true)
	s.step(2*period, "Ia slow")
	moving(false)
	s.inspected("Ia")
	moving(false)
	s.fails("G1")
	moving(false)
	s.step(3*period, "G3 a demand")
	moving(true)
	s.listed("G3")
	s.Retry("a")
	moving(false)
	s.InspectionAgreed("a", true)
	s.forgotten()
}

// With a timeout that is shorter than the period a call is slow and dead at once. Calls
// that are late together are told of by UID.
func TestTimeoutShorterThanThePeriod(t *testing.T) {
	s := newScript(t, func(cfg *schedule.Config) { cfg.Timeout = 300 * ms })
	s.inspectMany("b", "a")
	s.Request("c", "demand")
	s.step(0, "G1 c demand", "Ib", "Ia")
	s.wakes(300 * ms)
	s.step(300*ms, "Ia slow", "Ia dead", "Ib slow", "Ib dead", "G1 slow", "G1 dead")
	s.wakes(300*ms + threshold/6) // for a canary only
}

// An inspection that is given up hangs until the runtime has answered one, or the pod
// is gone; of a pod that comes under the UID meanwhile too, for it waits for the same
// call.
func TestHungSince(t *testing.T) {
	s := newScript(t)
	s.Inspect("a")
	s.step(0, "Ia")
	s.same("hung since", s.HungSince("a"), time.Time{})
	s.step(timeout, "Ia slow", "Ia dead")
	s.returns("Ia", false) // it was cancelled
	s.same("hung since", s.HungSince("a"), epoch)
	s.same("hung since, of another pod", s.HungSince("b"), time.Time{})
	s.Inspect("a")
	s.step(200*period, "Ia")
	s.same("hung since", s.HungSince("a"), epoch)
	s.Gone("a")
	s.same("hung since", s.HungSince("a"), time.Time{})
	s.step(201*period, "Ia slow")
	s.same("hung since", s.HungSince("a"), epoch)
	s.inspected("Ia")
	s.same("hung since", s.HungSince("a"), time.Time{})
	s.forgotten()

	s.Inspect("a")
	s.does("Ia")
	s.step(202*period, "Ia slow")
	s.returns("Ia", false)
	s.same("pods", s.OpenPods(), 1)
	s.Gone("a")
	s.forgotten()
}

// When an inspection succeeds, those that hang are not waited for any longer than at first.
func TestSuccessEndsTheBackOffOfPodsThatHang(t *testing.T) {
	s := newScript(t)
	s.Inspect("a")
	s.step(0, "Ia")
	s.step(timeout, "Ia slow", "Ia dead")
	s.returns("Ia", false)
	for range 4 {
		s.Retry("a")
	}
	s.Retry("b")
	s.Retry("b")
	s.wakes(timeout + 2*period) // of b
	s.InspectionSucceeded()
	s.wakes(timeout + period)
	s.step(timeout+period, "G1 a period")
	s.listed("G1")
	s.wakes(timeout + 2*period)
	s.step(timeout+2*period, "G2 b period")
	s.listed("G2")
	s.Retry("a")
	s.wakes(timeout + 3*period)
}

// Canaries: while an inspection hangs, a healthy pod is due to be inspected every sixth
// of the threshold, unless one has succeeded meanwhile.
func TestCanaries(t *testing.T) {
	const sixth = threshold / 6
	s := newScript(t)
	s.Inspect("a")
	s.step(0, "Ia")
	s.step(period, "Ia slow")
	s.same("due", s.TakeCanary(), false)
	s.wakes(period + sixth)
	s.step(period + sixth)
	s.same("due", s.TakeCanary(), true)
	s.same("due twice", s.TakeCanary(), false)
	s.wakes(period + 2*sixth)
	s.step(50 * period)
	s.InspectionSucceeded()
	s.wakes(50*period + sixth)
	s.step(50*period + sixth)
	s.same("due", s.TakeCanary(), true)
	s.inspected("Ia")
	s.wakes(-1)
	s.step(10 * time.Minute)
	s.same("due", s.TakeCanary(), false)
}

// There is one canary for all that hang, and none more often than a period.
func TestCanaryOfManyPods(t *testing.T) {
	s := newScript(t, func(cfg *schedule.Config) { cfg.Threshold = 2 * period })
	s.inspectMany("a", "b")
	s.step(0, "Ia", "Ib")
	s.step(period, "Ia slow", "Ib slow")
	s.wakes(2 * period)
	s.step(2 * period)
	s.same("due", s.TakeCanary(), true)
	s.wakes(3 * period)
	s.inspected("Ia")
	s.wakes(3 * period)
	s.Gone("b") // its call hangs still, but of no pod
	s.wakes(timeout)
	s.Inspect("b") // of one that has come under its UID
	s.wakes(3 * period)
}
