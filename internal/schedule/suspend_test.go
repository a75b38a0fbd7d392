package schedule_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/schedule"
)

// Nothing begins for a suspended pod, and what is requested of it waits. When it is resumed
// it is listed before it is inspected.
func TestSuspendedPod(t *testing.T) {
	s := newScript(t)
	s.Suspend("a")
	s.Request("a", "hint")
	s.Inspect("a")
	s.step(0)
	s.same("open", s.Requested(), []types.UID{"a"})
	s.same("moving", s.Moving("a"), false)
	s.Resume("a")
	s.does("G1 a hint")
	s.same("moving", s.Moving("a"), true)
	s.same("answered", s.listed("G1"), []types.UID{"a"})
	s.does("Ia")
	s.inspected("Ia")
	s.forgotten()
}

// A call that is in flight when its pod is suspended returns as any other.
func TestSuspendedBesideCalls(t *testing.T) {
	s := newScript(t)
	s.Request("a", "demand")
	s.Inspect("a")
	s.step(0, "G1 a demand", "Ia")
	s.Suspend("a")
	s.inspected("Ia")
	s.fails("G1")
	s.does()
	s.same("open", s.Requested(), []types.UID{"a"})
	s.Resume("a")
	s.step(period, "G2 a demand") // the list has failed: not before a period
	s.listed("G2")
	s.forgotten()
}

// A change of a pod ends the back-off of its inspections.
func TestChangeEndsTheBackOff(t *testing.T) {
	s := newScript(t)
	s.Retry("a", "hint")
	s.Retry("a", "hint")
	s.step(0)
	s.wakes(2 * period)
	s.InspectChanged("a")
	s.same("open", s.InspectionOpen("a"), true)
	s.does("Ia")
	s.same("open in flight", s.InspectionOpen("a"), true)
	s.inspected("Ia")
	s.same("open after that", s.InspectionOpen("a"), false)
	s.Retry("a", "hint")
	s.wakes(period)
}

// Where the runtime lists no single pods, a request moves while a full list is to come that
// is neither slow nor follows one that failed.
func TestMovingWithoutPodLists(t *testing.T) {
	s := newScript(t, func(cfg *schedule.Config) { cfg.ListsPods = false })
	s.Request("a", "demand")
	s.same("with no list to come", s.Moving("a"), false)
	s.RequestAll("demand")
	s.same("with a list to come", s.Moving("a"), true)
	s.step(0, "F1 demand")
	s.same("with a list in flight", s.Moving("a"), true)
	s.wakes(period)
	s.step(period)
	s.same("when it is slow", s.Moving("a"), false)
	s.fails("F1")
	s.same("after it has failed", s.Moving("a"), false)
	s.step(2*period, "F2 demand")
	s.same("with the next in flight", s.Moving("a"), false)
	s.listed("F2")
	s.forgotten()
}
