// Package schedule decides which call a container runtime gets next, and when: lists of all
// pods, lists of one pod, inspections. It keeps what concerns all pods: the cadence of full
// lists, the slots for calls, which calls are slow, and canaries. What is wanted of one pod
// its user derives from what it knows and hands in with [Scheduler.Plan].
//
// The package knows no goroutine, lock or clock: its user sets the time and makes the calls.
package schedule

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// PodListsAtOnce is how many single-pod lists run at one time. If more pods wait, all pods
	// are listed instead: the two calls of a full list cost about as much as those of eight
	// single-pod lists on a node of some hundred containers.
	PodListsAtOnce = 8
	// MaxSlow is how many slow inspections release their worker. Those beyond keep it, so that
	// a stuck runtime is not asked about ever more pods.
	MaxSlow = 64
	// MaxHangingAfter bounds how long a full list may run before it counts as hanging, unless
	// a period is longer.
	MaxHangingAfter = 10 * time.Second
	// canariesPerThreshold is how often within the health threshold a healthy pod is inspected
	// while others hang.
	canariesPerThreshold = 6
	// roundPeriods is how many periods pass between the beginnings of two rounds of all pods.
	roundPeriods = 2
)

// Stamp is given out when a list begins. Number orders lists. Time is what readers compare
// with, and two stamps may share it.
type Stamp struct {
	Time   time.Time
	Number uint64
}

// After reports whether the list of s began after that of other.
func (s Stamp) After(other Stamp) bool { return s.Number > other.Number }

// Kind is what a call asks for.
type Kind int

// The kinds of calls.
const (
	// ListAll is a full list.
	ListAll Kind = iota
	// ListPod is a single-pod list.
	ListPod
	// Inspect is an inspection.
	Inspect
)

// CausePeriod is the cause of the full lists that come every period.
const CausePeriod = "period"

// Call is one call to the runtime, from its beginning to its return.
type Call struct {
	Kind  Kind
	UID   types.UID // empty for ListAll
	Cause string    // the first reason for it
	Stamp Stamp     // of the list; zero for an inspection
	Began time.Time

	// Slow is true when the call has run for longer than a period. Another call may take its
	// slot; see MaxSlow.
	Slow bool
	// Dead is true when the deadline of the call has passed. The call has failed, and no other
	// call of its kind is made for the pod until it returns.
	Dead bool
}

// Config does not change after New.
type Config struct {
	// Period is the time between the beginnings of two full lists.
	Period time.Duration
	// Timeout is the deadline of a call, Threshold that of the health check.
	Timeout, Threshold time.Duration
	// Workers is how many inspections run at once.
	Workers int
	// ListsPods is true if the runtime can list one pod. If not, full lists answer requests.
	ListsPods bool
}

// Scheduler is the schedule. It is not safe for concurrent use.
type Scheduler struct {
	// Now is the time. The user sets it before every step.
	Now time.Time
	// Last is the newest stamp that was given out.
	Last Stamp
	// FullList is the full list in flight; nil for none.
	FullList *Call

	cfg    Config
	full   cadence
	canary canary

	toList, toInspect queue // pods in the order in which they came to wait
	alarms            alarms
	listSlots         int // single-pod lists that may begin
	inspections       int // in flight
	slow              int // inspections in flight that are slow
	hung              int // pods with an inspection that hangs
}

// cadence is when full lists begin.
type cadence struct {
	periodic bool
	next     time.Time // the next full list of the period
	// notBefore is when a full list that is asked for may begin: the newest one took as long
	// before, or a period. A caller of Relist does not wait for it.
	notBefore time.Time
	requested bool          // a full list is asked for
	failed    bool          // the newest full list failed
	took      time.Duration // by the newest full list that succeeded
	// hangsSince is when the first full list began that hangs; zero when the runtime has
	// answered a full list since.
	hangsSince time.Time
}

// canary is which pods are inspected to see what the runtime still answers: one healthy pod
// now and then while others hang, and all pods in turn while full lists hang.
type canary struct {
	since     time.Time // when the first pod began to hang
	last      time.Time // when a canary was due, or a round of all pods began
	succeeded time.Time // when an inspection succeeded last
	inRound   bool      // a round of all pods is under way
}

// New returns an idle schedule.
func New(cfg Config) *Scheduler {
	return &Scheduler{cfg: cfg, listSlots: PodListsAtOnce, toInspect: queue{inspecting: true}}
}

// SetPeriodic switches the full lists of every period on, the first at once, or off.
func (s *Scheduler) SetPeriodic(on bool) {
	s.full.periodic, s.full.next = on, s.Now
	if !on && s.FullList == nil {
		s.endHang()
	}
}

// endHang notes that no full list hangs any more.
func (s *Scheduler) endHang() { s.full.hangsSince, s.canary.inRound = time.Time{}, false }

// stamp gives one out. Its time does not go back, so that what is newer can always be stored.
func (s *Scheduler) stamp() Stamp {
	s.Last.Number++
	if s.Now.After(s.Last.Time) {
		s.Last.Time = s.Now
	}
	return s.Last
}

// Begin returns the calls that begin now. relist is true if a caller of Relist waits for a full
// list to begin, and requested is the cause of a request for a full list; empty for none.
func (s *Scheduler) Begin(relist bool, requested string) (begun []*Call) {
	s.full.requested = requested != ""
	if cause := s.fullListDue(relist, requested); cause != "" {
		s.FullList = &Call{Kind: ListAll, Cause: cause, Stamp: s.stamp(), Began: s.Now}
		s.full.next = s.Now.Add(s.cfg.Period)
		begun = append(begun, s.FullList)
		for s.toList.Len() > 0 { // the requests are older than the full list, which answers them
			s.toList.pop()
		}
	}
	for s.listSlots > 0 && s.toList.Len() > 0 {
		p := s.toList.pop()
		s.listSlots--
		p.List = &Call{Kind: ListPod, UID: p.UID, Cause: p.wants.Cause, Stamp: s.stamp(), Began: s.Now}
		begun = append(begun, p.List)
		s.setAlarm(p)
	}
	for s.freeWorkers() > 0 && s.toInspect.Len() > 0 {
		p := s.toInspect.pop()
		s.inspections++
		p.Inspection = &Call{Kind: Inspect, UID: p.UID, Began: s.Now}
		begun = append(begun, p.Inspection)
		s.setAlarm(p)
	}
	return begun
}

// freeWorkers returns how many inspections may begin.
func (s *Scheduler) freeWorkers() int {
	return s.cfg.Workers - (s.inspections - s.slow) - max(0, s.slow-MaxSlow)
}

// fullListDue returns why a full list begins now; empty if none does.
func (s *Scheduler) fullListDue(relist bool, requested string) (cause string) {
	soon := !s.Now.Before(s.full.notBefore)
	switch {
	case s.FullList != nil:
		return ""
	case relist:
		return "demand"
	case requested != "" && soon:
		return requested
	case s.manyWait() && soon:
		return s.toList.first().wants.Cause
	case s.full.periodic && !s.Now.Before(s.full.next):
		return CausePeriod
	}
	return ""
}

// manyWait reports whether so many pods wait that all are listed instead. After a full list
// that failed they are listed one by one.
func (s *Scheduler) manyWait() bool { return s.toList.Len() > PodListsAtOnce && !s.full.failed }

// FullListEnded notes that the full list c has succeeded, or has failed by an error or its
// deadline. It sets notBefore, a period ahead at most. A list of the period that is due already
// comes after a period.
func (s *Scheduler) FullListEnded(c *Call, succeeded bool) {
	wait := s.cfg.Period
	if succeeded {
		s.full.took = s.Now.Sub(c.Began)
		wait = min(wait, s.full.took)
	}
	s.full.failed = !succeeded
	s.full.notBefore = s.Now.Add(wait)
	if s.full.next.Before(s.Now) {
		s.full.next = s.Now.Add(s.cfg.Period)
	}
}

// Returned notes that a call of the pod p has returned, a full list if p is nil. It is called
// before anything that follows from the result. answered is false only for a call that failed
// after its deadline: what it asked about still hangs.
func (s *Scheduler) Returned(c *Call, p *Pod, answered bool) {
	switch c.Kind {
	case ListAll:
		s.FullList = nil
		if answered || !s.full.periodic {
			s.endHang()
		}
	case ListPod:
		p.List = nil
		if !c.Slow {
			s.listSlots++
		}
	case Inspect:
		p.Inspection = nil
		s.inspections--
		if c.Slow {
			s.slow--
		}
		if answered {
			s.setHung(p, time.Time{})
		}
	}
}

// Late is a call that has become slow, or dead.
type Late struct {
	*Call
	// Pod is the call's; nil for a full list.
	Pod *Pod
	// NowDead is true if the deadline of the call has passed, false if it has become slow.
	NowDead bool
}

// Expire acts on the times that have come. It returns the pods with such a time, to be planned
// again, and the calls that have become slow or dead, both by UID. Calls that have returned
// meanwhile are to be taken in before.
func (s *Scheduler) Expire() (woken []*Pod, late []Late) {
	late = s.appendLate(late, s.FullList, nil)
	s.full.hangsSince = s.HangsSince()
	for len(s.alarms) > 0 && !s.Now.Before(s.alarms[0].wake) {
		p := s.alarms[0]
		s.alarms.remove(p)
		p.wake = time.Time{}
		woken = append(woken, p)
	}
	slices.SortFunc(woken, func(a, b *Pod) int { return strings.Compare(string(a.UID), string(b.UID)) })
	for _, p := range woken {
		late = s.appendLate(late, p.List, p)
		late = s.appendLate(late, p.Inspection, p)
	}
	return woken, late
}

// appendLate notes whether a call has become slow or dead since.
func (s *Scheduler) appendLate(late []Late, c *Call, p *Pod) []Late {
	if c == nil {
		return late
	}
	dead := !s.Now.Before(c.Began.Add(s.cfg.Timeout))
	if !c.Slow && (dead || !s.Now.Before(c.Began.Add(s.cfg.Period))) {
		c.Slow = true
		late = append(late, Late{c, p, false})
		switch c.Kind {
		case ListPod:
			s.listSlots++
		case Inspect:
			s.slow++
			s.setHung(p, c.Began)
		case ListAll: // there is one, whether it is slow or not
		}
	}
	if dead && !c.Dead {
		c.Dead = true
		late = append(late, Late{c, p, true})
	}
	return late
}

// nextLate returns when a call becomes slow or dead next; zero for never.
func (s *Scheduler) nextLate(c *Call) time.Time {
	switch {
	case c == nil || c.Dead:
		return time.Time{}
	case !c.Slow:
		return c.Began.Add(min(s.cfg.Period, s.cfg.Timeout))
	}
	return c.Began.Add(s.cfg.Timeout)
}

// Wake returns when there is more to do; zero for never.
func (s *Scheduler) Wake() (next time.Time) {
	if s.FullList == nil {
		if s.full.periodic {
			next = s.full.next
		}
		if s.full.requested || s.manyWait() {
			next = earlier(next, s.full.notBefore)
		}
	}
	if len(s.alarms) > 0 {
		next = earlier(next, s.alarms[0].wake)
	}
	return earlier(next, earlier(s.nextLate(s.FullList), s.canaryDue()))
}

// earlier returns the earlier of two times, of which zero stands for none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// HangsSince returns when the full list began that hangs; zero if none does. A full list hangs
// when it has run for longer than a period, and for twice as long as the newest that succeeded
// or ten seconds. If it is given up at its deadline, the hang lasts until a later one returns.
func (s *Scheduler) HangsSince() time.Time {
	if s.full.hangsSince.IsZero() && s.hangs(s.FullList) {
		return s.FullList.Began
	}
	return s.full.hangsSince
}

func (s *Scheduler) hangs(c *Call) bool { return c != nil && !s.Now.Before(s.hangsAt(c)) }

func (s *Scheduler) hangsAt(c *Call) time.Time {
	return c.Began.Add(max(s.cfg.Period, min(2*s.full.took, MaxHangingAfter)))
}

// setHung notes since when an inspection of the pod hangs; zero if none does. An older hang
// stays.
func (s *Scheduler) setHung(p *Pod, since time.Time) {
	switch {
	case p.HungSince.IsZero() == since.IsZero():
		return
	case since.IsZero():
		s.hung--
	case s.hung == 0:
		s.canary.since = s.Now
		fallthrough
	default:
		s.hung++
	}
	p.HungSince = since
}

// InspectionSucceeded notes that an inspection has, of any pod: no canary is needed for a while.
func (s *Scheduler) InspectionSucceeded() { s.canary.succeeded = s.Now }

// TakeCanary reports whether a pod is to be inspected as a canary now. While full lists hang it
// does so for one pod after another, until EndRound.
func (s *Scheduler) TakeCanary() bool {
	if due := s.canaryDue(); due.IsZero() || s.Now.Before(due) {
		return false
	}
	if !s.canary.inRound {
		s.canary.inRound, s.canary.last = !s.HangsSince().IsZero(), s.Now
	}
	return true
}

// EndRound notes that all pods have had their turn. The next round begins two periods after
// this one began, and a period from now at least.
func (s *Scheduler) EndRound() {
	s.canary.inRound = false
	if latest := s.Now.Add(-s.cfg.Period); s.canary.last.Before(latest) {
		s.canary.last = latest
	}
}

// canaryDue returns when the next canary is due; zero for never.
func (s *Scheduler) canaryDue() (due time.Time) {
	if !s.HangsSince().IsZero() {
		return s.roundDue()
	}
	if s.FullList != nil {
		due = s.hangsAt(s.FullList)
	}
	if s.hung == 0 {
		return due
	}
	latest := s.canary.since
	for _, t := range [...]time.Time{s.canary.last, s.canary.succeeded} {
		if t.After(latest) {
			latest = t
		}
	}
	return earlier(due, latest.Add(max(s.cfg.Threshold/canariesPerThreshold, s.cfg.Period)))
}

// roundDue is canaryDue while full lists hang. Rounds take half of the workers, and leave half
// of the slow inspections that release theirs to the pods that somebody asks for.
func (s *Scheduler) roundDue() time.Time {
	busy := s.inspections-s.slow+s.toInspect.Len() >= max(1, s.cfg.Workers/2)
	switch {
	case busy || s.slow >= MaxSlow/2:
		return time.Time{}
	case s.canary.inRound:
		return s.Now
	}
	if due := s.canary.last.Add(roundPeriods * s.cfg.Period); due.After(s.Now) {
		return due
	}
	return s.Now
}
