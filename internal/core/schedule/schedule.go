// Package schedule decides which call to the container runtime begins next, and when: a full list, a pod list
// or an inspection. It makes the decisions about all pods: when full lists begin, how many calls run, which calls
// are slow, and which canaries are due. The reconciler decides what a pod needs, and calls [Scheduler.Plan].
//
// The package has no goroutine, lock or clock: the reconciler sets the time and makes the calls.
package schedule

import (
	"cmp"
	"container/list"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// PodListsAtOnce is how many pod lists run at once. If more pods wait, a full list is made
	// instead. With some hundred containers, a full list costs about as much as eight pod lists.
	PodListsAtOnce = 8
	// MaxSlow is how many slow inspections release their workers. Further slow inspections keep their
	// workers, so that a stuck runtime is sent a bounded number of calls.
	MaxSlow = 64
	// MaxStuckAfter is the longest time after which a full list is stuck, unless a period is longer.
	MaxStuckAfter = 10 * time.Second
	// canariesPerThreshold is how many canaries (healthy pods) are inspected per health threshold.
	canariesPerThreshold = 6
	// roundPeriods is the number of periods between two rounds that inspect all pods.
	roundPeriods = 2
)

// Stamp orders lists by their beginning. Number is unique. Readers compare Time; it is not unique.
type Stamp struct {
	Time   time.Time
	Number uint64
}

// After reports whether the list began after the other.
func (s Stamp) After(other Stamp) bool { return s.Number > other.Number }

// Kind is the kind of a call: a list of all pods, a list of one pod, or an inspection.
type Kind int

// The kinds of calls.
const (
	ListAll Kind = iota // a full list
	ListPod             // a pod list
	Inspect             // an inspection
)

// CausePeriod is the cause of a periodic full list.
const CausePeriod = "period"

// Call is a call to the runtime in progress.
type Call struct {
	Kind  Kind
	UID   types.UID // empty for ListAll
	Cause string    // why the call was made
	Stamp Stamp     // the stamp of the list; zero for an inspection
	Began time.Time

	// Slow is true once the call has run longer than a period. Its slot is then free for another call;
	// see MaxSlow. A full list becomes slow when it becomes stuck; see FullListsStuckSince.
	Slow bool
	// TimedOut is true once the call has timed out; it then counts as failed. Until it returns, no
	// other call of its kind is made for the pod.
	TimedOut bool
}

// Config is the configuration of a Scheduler. It is not changed after New.
type Config struct {
	// Period is the time from the start of one full list to the next.
	Period time.Duration
	// Timeout is the deadline of a call. Threshold is the threshold of the health check.
	Timeout, Threshold time.Duration
	// Workers is how many inspections run at once; see MaxSlow.
	Workers int
	// ListsPods is true if the runtime can list one pod. Otherwise full lists answer requests.
	ListsPods bool
}

// Scheduler decides which calls begin, and when. It is not safe for concurrent use.
type Scheduler struct {
	// Now is the present time. The reconciler sets it before every step.
	Now time.Time
	// Last is the newest stamp.
	Last Stamp
	// FullList is the full list in flight; nil for none.
	FullList *Call
	// FullListsStuckSince is when the first stuck full list began; zero for none. A full list is stuck
	// if it runs longer than a period, and longer than MaxStuckAfter or twice the last successful list
	// (the shorter). If it times out, full lists stay stuck until the runtime answers a later list.
	FullListsStuckSince time.Time

	cfg  Config
	full cadence
	// podsStuckSince is when the first of the stuck pods became stuck. lastCanary is when the last
	// canary was chosen, or when the last inspection of a round began.
	podsStuckSince, lastCanary time.Time

	toList, toInspect queue // in the order in which the pods began to wait
	alarms            alarms
	listSlots         int // how many pod lists may begin
	inspections       int // how many inspections are in flight
	slow              int // how many of the inspections in flight are slow
	stuck             int // how many pods are stuck
}

// cadence decides when full lists begin.
type cadence struct {
	periodic bool
	next     time.Time // when the next periodic full list begins
	// notBefore is the earliest time for a requested full list. The pause is as long as the last full
	// list, at most a period. After a failed list, it is a period. Relist ignores notBefore.
	notBefore time.Time
	requested bool          // a full list was requested
	failed    bool          // the last full list failed
	took      time.Duration // the duration of the last successful full list
}

// New returns an idle schedule.
func New(cfg Config) *Scheduler {
	return &Scheduler{
		cfg: cfg, listSlots: PodListsAtOnce,
		toList:    queue{place: func(p *Entry) **list.Element { return &p.toList }},
		toInspect: queue{place: func(p *Entry) **list.Element { return &p.toInspect }},
	}
}

// SetPeriodic starts or stops the periodic full lists. If it starts them, a full list is due now.
func (s *Scheduler) SetPeriodic(on bool) {
	s.full.periodic, s.full.next = on, s.Now
	if !on && s.FullList == nil {
		s.endStuck()
	}
}

// endStuck records that full lists are no longer stuck, and ends the round.
func (s *Scheduler) endStuck() {
	s.FullListsStuckSince = time.Time{}
	for s.toInspect.later != nil {
		s.toInspect.set(s.toInspect.later.Value.(*Entry), false)
	}
}

// stamp returns a new stamp. Its time never decreases: the cache rejects a status of an older list.
func (s *Scheduler) stamp() Stamp {
	s.Last.Number++
	if s.Now.After(s.Last.Time) {
		s.Last.Time = s.Now
	}
	return s.Last
}

// Begin returns the calls that begin now. relist is true if a caller of Relist waits for a full
// list to begin. requested is the cause of a requested full list; empty if none is requested.
func (s *Scheduler) Begin(relist bool, requested string) (begun []*Call) {
	s.full.requested = requested != ""
	if cause := s.fullListDue(relist, requested); cause != "" {
		s.FullList = &Call{Kind: ListAll, Cause: cause, Stamp: s.stamp(), Began: s.Now}
		s.full.next = s.Now.Add(s.cfg.Period)
		begun = append(begun, s.FullList)
		for s.toList.Len() > 0 { // the full list answers these requests, because they are older
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
	for s.toInspect.Len() > 0 && s.mayInspect(s.toInspect.first()) {
		p := s.toInspect.pop()
		if !p.wants.Inspect {
			s.lastCanary = s.Now
		}
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

// mayInspect reports whether the inspection of a waiting pod may begin. A round uses half of the
// workers and half of MaxSlow. The rest is left for pods that need an inspection.
func (s *Scheduler) mayInspect(p *Entry) bool {
	if p.wants.Inspect {
		return s.freeWorkers() > 0
	}
	return s.inspections-s.slow < max(1, s.cfg.Workers/2) && s.slow < MaxSlow/2
}

// fullListDue returns the cause of a full list that begins now; empty for none.
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

// manyWait reports whether so many pods wait for a pod list that a full list is better. After a
// failed full list, it returns false, so that pods are listed one by one.
func (s *Scheduler) manyWait() bool { return s.toList.Len() > PodListsAtOnce && !s.full.failed }

// FullListEnded records that a full list succeeded, failed or timed out. It delays the next
// requested list; see notBefore. It delays an overdue periodic list to one period from now.
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

// Returned records that a call has returned. p is nil for a full list. Call Returned before
// handling the result. answered is false if the call timed out and then returned an error. The pod,
// or the full lists, then stay stuck.
func (s *Scheduler) Returned(c *Call, p *Entry, answered bool) {
	switch c.Kind {
	case ListAll:
		s.FullList = nil
		if answered || !s.full.periodic {
			s.endStuck()
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
			s.setStuck(p, time.Time{})
		}
	}
}

// Late is a call that has become slow or has timed out.
type Late struct {
	*Call
	// Entry is the entry of the pod; nil for a full list.
	Entry *Entry
	// NowTimedOut is true if the call has timed out, false if it has become slow.
	NowTimedOut bool
}

// Expire returns the pods whose alarm is due, and the calls that became slow or timed out, by UID.
// Before Expire, pass ended calls to Returned. After Expire, call Plan for these pods.
func (s *Scheduler) Expire() (woken []*Entry, late []Late) {
	late = s.appendLate(late, s.FullList, nil)
	for len(s.alarms) > 0 && !s.Now.Before(s.alarms[0].wake) {
		p := s.alarms[0]
		s.alarms.remove(p)
		p.wake = time.Time{}
		woken = append(woken, p)
	}
	slices.SortFunc(woken, func(a, b *Entry) int { return strings.Compare(string(a.UID), string(b.UID)) })
	for _, p := range woken {
		late = s.appendLate(late, p.List, p)
		late = s.appendLate(late, p.Inspection, p)
	}
	return woken, late
}

// appendLate appends the call once if it has become slow, and once if it has timed out.
func (s *Scheduler) appendLate(late []Late, c *Call, p *Entry) []Late {
	if c == nil {
		return late
	}
	if !c.Slow && !s.Now.Before(s.slowAt(c)) {
		c.Slow = true
		late = append(late, Late{c, p, false})
		switch c.Kind {
		case ListPod:
			s.listSlots++
		case Inspect:
			s.slow++
			s.setStuck(p, c.Began)
		case ListAll:
			s.FullListsStuckSince = cmp.Or(s.FullListsStuckSince, c.Began)
		}
	}
	if !c.TimedOut && !s.Now.Before(c.Began.Add(s.cfg.Timeout)) {
		c.TimedOut = true
		late = append(late, Late{c, p, true})
	}
	return late
}

// nextLate returns when the call will become slow or time out; zero for never.
func (s *Scheduler) nextLate(c *Call) time.Time {
	switch {
	case c == nil || c.TimedOut:
		return time.Time{}
	case !c.Slow:
		return s.slowAt(c)
	}
	return c.Began.Add(s.cfg.Timeout)
}

// slowAt returns when the call becomes slow.
func (s *Scheduler) slowAt(c *Call) time.Time {
	after := s.cfg.Period
	if c.Kind == ListAll {
		after = max(after, min(2*s.full.took, MaxStuckAfter))
	}
	return c.Began.Add(min(after, s.cfg.Timeout))
}

// Wake returns when Begin or Expire must next be called; zero for never.
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

// earlier returns the earlier of two times. It ignores a zero time.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// setStuck makes the pod stuck since a time, unless it is stuck. A zero time ends the stuck state.
func (s *Scheduler) setStuck(p *Entry, since time.Time) {
	switch {
	case p.StuckSince.IsZero() == since.IsZero():
		return
	case since.IsZero():
		s.stuck--
	case s.stuck == 0:
		s.podsStuckSince = s.Now
		fallthrough
	default:
		s.stuck++
	}
	p.StuckSince = since
}

// TakeCanary returns true if the caller must choose a canary, or a round if full lists are stuck.
func (s *Scheduler) TakeCanary() bool {
	if due := s.canaryDue(); due.IsZero() || s.Now.Before(due) {
		return false
	}
	s.lastCanary = s.Now
	return true
}

// AddToRound adds a pod without an inspection to the round, behind pods that need an inspection.
func (s *Scheduler) AddToRound(p *Entry) {
	if p.toInspect == nil {
		s.toInspect.addLater(p)
	}
}

// canaryDue returns when canaries must be chosen next; zero for never. While pods are stuck, one
// healthy pod is chosen at intervals. While full lists are stuck, a round begins two periods after
// the last inspection of the previous round began.
func (s *Scheduler) canaryDue() (due time.Time) {
	switch {
	case s.toInspect.later != nil:
		return time.Time{}
	case !s.FullListsStuckSince.IsZero():
		return slices.MaxFunc([]time.Time{s.Now, s.lastCanary.Add(roundPeriods * s.cfg.Period)}, time.Time.Compare)
	}
	if s.stuck > 0 {
		last := slices.MaxFunc([]time.Time{s.podsStuckSince, s.lastCanary}, time.Time.Compare)
		due = earlier(due, last.Add(max(s.cfg.Threshold/canariesPerThreshold, s.cfg.Period)))
	}
	return due
}
