// Package schedule decides what to ask a container runtime next, and when: lists of
// all pods, lists of one pod, inspections. It knows UIDs and stamps, and never a pod,
// a goroutine, a lock or a clock: its user hands it the time and makes the calls.
//
// A pod has two slots for requests: now, and not before a time. A request stays open
// until a list answers it that began after it; it never joins a call in flight, and a
// call that fails leaves it open.
package schedule

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/backoff"
)

const (
	// PodListsAtOnce is how many pods are listed by themselves at one time. When more
	// wait, all pods are listed instead: the two calls of one full list cost about as
	// much as those of eight single ones on a node of some hundred containers.
	PodListsAtOnce = 8
	// MaxRetryWait bounds the back-off of a pod that cannot be inspected.
	MaxRetryWait = time.Minute
	// followUpShare is the part of a period after which the list of a hinted pod is
	// followed by one more, for events run ahead of lists.
	followUpShare = 20
	// canariesPerThreshold is how often within the health threshold a healthy pod is
	// inspected while others hang.
	canariesPerThreshold = 6
	// maxFree bounds the memory that is kept to be used again.
	maxFree = 1024
)

// Stamp is given out when a list begins. Lists are ordered by Number alone; Time is
// what readers compare theirs with, and two stamps may share it.
type Stamp struct {
	Time   time.Time
	Number uint64
}

// After reports whether the list of s began after that of other.
func (s Stamp) After(other Stamp) bool { return s.Number > other.Number }

// Later returns the later of two stamps.
func Later(a, b Stamp) Stamp {
	if b.After(a) {
		return b
	}
	return a
}

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

// Call is one call to the runtime, from its beginning to its return. Its memory may be
// used for another then.
type Call struct {
	Kind  Kind
	UID   types.UID // empty for ListAll
	Cause string    // the first reason for it
	Stamp Stamp     // of the list; that of an inspection is its user's affair
	Began time.Time

	// Slow: it has taken longer than a period and gave its place to another.
	// Dead: its deadline has passed. It has failed, its answer is not used, and no
	// other call of its kind is made for the pod until it returns.
	Slow, Dead bool
}

// Config does not change after New.
type Config struct {
	Period time.Duration
	// ConnectedPeriod replaces Period while the event stream is connected and no
	// reader waits; not if it is shorter.
	ConnectedPeriod time.Duration
	// Timeout is the deadline of a call, Threshold that of the health check.
	Timeout, Threshold time.Duration
	// Workers is how many inspections run at once.
	Workers int
	// ListsPods: the runtime can list one pod. If not, requests are answered by full
	// lists.
	ListsPods bool
}

// Scheduler is the schedule. It is not safe for concurrent use.
type Scheduler struct {
	cfg   Config
	retry backoff.Policy

	// now never goes back: where the clock does, ahead grows by as much.
	clock, now time.Time
	ahead      time.Duration
	last       Stamp

	full      fullList
	pods      map[types.UID]*pod // those that something is open of
	requested int                // of these, how many have an open request
	alarms    alarms
	overdue   []Overdue

	listing    queue // pods to list
	listers    int   // places free for that
	inspecting queue // pods to inspect
	workers    int   // places free for that
	canary     canary
	scratch    []*pod
	begun      []*Call
	free       []*Call // inspections that have returned, to be used again
	freePods   []*pod  // the same of pods
}

// fullList is the list of all pods.
type fullList struct {
	call     *Call // in flight
	memory   Call  // of it
	periodic bool
	next     time.Time // by the period
	relist   bool      // somebody waits for one to begin

	// want is the request that no single pod can serve; 0 for none.
	want   uint64
	cause  string
	hinted bool
	// notBefore keeps lists that are asked for to half of the time.
	notBefore time.Time
	// failed: the newest one did. instead is the number of the one in flight while
	// pods whose request it answers are not listed by themselves; 0 for none.
	failed  bool
	instead uint64

	connected bool
}

// New returns an idle schedule.
func New(cfg Config) *Scheduler {
	return &Scheduler{
		cfg: cfg, retry: backoff.Policy{First: cfg.Period, Longest: MaxRetryWait},
		pods:    make(map[types.UID]*pod),
		listing: queue{which: listing}, listers: PodListsAtOnce,
		inspecting: queue{which: inspecting}, workers: cfg.Workers,
	}
}

// Advance sets the time. If the clock has gone back since, it returns how far; deadlines
// then come as if the clock had stood still.
func (s *Scheduler) Advance(clock time.Time) (back time.Duration) {
	if clock.Before(s.clock) {
		back = s.clock.Sub(clock)
		s.ahead += back
	}
	s.clock, s.now = clock, clock.Add(s.ahead)
	return back
}

// Now returns the schedule's own time, which never goes back.
func (s *Scheduler) Now() time.Time { return s.now }

// Clock converts a time of the schedule to what the clock shows then.
func (s *Scheduler) Clock(now time.Time) time.Time { return now.Add(-s.ahead) }

// Since returns how long ago a time of the schedule is.
func (s *Scheduler) Since(t time.Time) time.Duration { return s.now.Sub(t) }

// Last returns the newest stamp that was given out.
func (s *Scheduler) Last() Stamp { return s.last }

// stamp gives one out. Its time does not go back, so that what is newer can always be
// stored.
func (s *Scheduler) stamp() Stamp {
	s.last.Number++
	if s.clock.After(s.last.Time) {
		s.last.Time = s.clock
	}
	return s.last
}

// SetPeriodic switches the full lists of every period on, the first at once, or off.
func (s *Scheduler) SetPeriodic(on bool) {
	s.full.periodic, s.full.next = on, s.now
}

// SetConnected notes whether the event stream is. There is no resume, so that each
// connection is followed by a full list.
func (s *Scheduler) SetConnected(connected bool, cause string) {
	s.full.connected = connected
	if connected {
		s.RequestAll(cause, true)
	} else {
		s.Hasten()
	}
}

// Hasten has the next full list come within the ordinary period.
func (s *Scheduler) Hasten() {
	if next := s.now.Add(s.cfg.Period); next.Before(s.full.next) {
		s.full.next = next
	}
}

// RequestRelist asks for a full list that begins now, or when the one in flight has
// returned.
func (s *Scheduler) RequestRelist() { s.full.relist = true }

// RequestAll asks for a full list soon. The request stays open until one succeeds.
func (s *Scheduler) RequestAll(cause string, hinted bool) {
	if s.full.want == 0 {
		s.full.cause = cause
	}
	s.full.want = s.last.Number + 1
	s.full.hinted = s.full.hinted || hinted
}

// Dead reports whether the full list in flight is past its deadline: none can begin.
func (s *Scheduler) Dead() bool { return s.full.call != nil && s.full.call.Dead }

// FullListInFlight reports whether a full list is in flight whose answer will count.
func (s *Scheduler) FullListInFlight() bool { return s.full.call != nil && !s.full.call.Dead }

// WithdrawRelist takes RequestRelist back.
func (s *Scheduler) WithdrawRelist() { s.full.relist = false }

// Begin returns the calls to begin now. They are valid until the next Begin as a
// list. blocked: some reader waits for a time to come.
func (s *Scheduler) Begin(blocked bool) []*Call {
	s.begun = s.begun[:0]
	if cause, due := s.fullListDue(); due {
		s.beginFull(cause, blocked)
	}
	for s.listers > 0 {
		p := s.listing.pop()
		if p == nil {
			break
		}
		s.listers--
		p.list = &Call{Kind: ListPod, UID: p.uid, Cause: p.cause, Stamp: s.stamp(), Began: s.now}
		s.begun = append(s.begun, p.list)
		s.plan(p)
	}
	for s.workers > 0 {
		p := s.inspecting.pop()
		if p == nil {
			break
		}
		s.workers--
		s.beginInspection(p)
	}
	return s.begun
}

func (s *Scheduler) beginInspection(p *pod) {
	c := &Call{}
	if n := len(s.free); n > 0 {
		c, s.free = s.free[n-1], s.free[:n-1]
	}
	*c = Call{Kind: Inspect, UID: p.uid, Began: s.now}
	p.inspection, p.inspect = c, false
	if p.unanswered.IsZero() {
		p.unanswered = s.now
	}
	s.begun = append(s.begun, c)
	s.plan(p)
}

// fullListDue reports whether a full list is to begin now, and why.
func (s *Scheduler) fullListDue() (cause string, due bool) {
	f := &s.full
	soon := !s.now.Before(f.notBefore)
	switch {
	case f.call != nil:
		return "", false
	case f.relist:
		return CauseDemand, true
	case f.want > 0 && soon:
		return f.cause, true
	case s.manyWait() && soon:
		return s.listing.first().cause, true
	case f.periodic && !s.now.Before(f.next):
		return CausePeriod, true
	}
	return "", false
}

// manyWait reports whether so many pods wait that all are to be listed instead. After a
// full list that failed they are listed by themselves.
func (s *Scheduler) manyWait() bool {
	return s.listing.len > PodListsAtOnce && !s.full.failed
}

// The causes that the schedule itself gives.
const (
	CausePeriod = "period"
	CauseHint   = "hint"
	CauseDemand = "demand"
)

func (s *Scheduler) beginFull(cause string, blocked bool) {
	f := &s.full
	f.relist = false
	f.memory = Call{Kind: ListAll, Cause: cause, Stamp: s.stamp(), Began: s.now}
	f.call = &f.memory
	period := s.cfg.Period
	if f.connected && !blocked {
		period = max(period, s.cfg.ConnectedPeriod)
	}
	f.next = s.now.Add(period)
	s.begun = append(s.begun, f.call)
	if s.manyWait() { // whatever it was begun for
		f.instead = f.call.Stamp.Number
		for p := s.listing.pop(); p != nil; p = s.listing.pop() {
			s.plan(p)
		}
	}
}

// Listed notes that the full list c has succeeded: it answers what asked for it. The
// requests for single pods are answered one by one.
func (s *Scheduler) Listed(c *Call) {
	f := &s.full
	f.failed = false
	if f.want > 0 && f.want <= c.Stamp.Number {
		f.want = 0
		if f.hinted { // by an event that may have run ahead of the list
			f.hinted = false
			s.Hasten()
		}
	}
	f.notBefore = s.now.Add(s.now.Sub(c.Began))
	s.leaveRoom()
}

// Failed notes that the full list in flight has failed: nothing is answered, and another
// comes within a period.
func (s *Scheduler) Failed() {
	f := &s.full
	f.failed = true
	f.notBefore = s.now.Add(s.cfg.Period)
	s.Hasten()
	s.leaveRoom()
	s.resumePodLists()
}

// leaveRoom has a runtime that is slower than the period wait for one.
func (s *Scheduler) leaveRoom() {
	if s.full.next.Before(s.now) {
		s.full.next = s.now.Add(s.cfg.Period)
	}
}

// resumePodLists lets the pods be listed by themselves whose request a full list did
// not answer that was begun in their place.
func (s *Scheduler) resumePodLists() {
	if s.full.instead == 0 {
		return
	}
	s.full.instead = 0
	for _, uid := range s.Requested() {
		s.plan(s.pods[uid])
	}
}

// Return notes that a call has returned. answered: the runtime has, in time and of its
// own; an inspection that has not been answered still counts as hung.
func (s *Scheduler) Return(c *Call, answered bool) {
	switch c.Kind {
	case ListAll:
		s.full.call = nil
		s.resumePodLists()
		return
	case ListPod:
		p := s.pods[c.UID]
		p.list = nil
		if !c.Slow {
			s.listers++
		}
		s.plan(p)
	case Inspect:
		p := s.pods[c.UID]
		p.inspection = nil
		if !c.Slow {
			s.workers++
		}
		if answered {
			s.answered(p)
		}
		s.plan(p)
	}
}

// Recycle takes an inspection back that has returned and that nobody looks at any
// more.
func (s *Scheduler) Recycle(c *Call) {
	if len(s.free) < maxFree {
		s.free = append(s.free, c)
	}
}

// Overdue is a call that has become slow, or dead.
type Overdue struct {
	*Call
	// NowDead: its deadline has passed; if not, it has become slow.
	NowDead bool
}

// Overdue opens the requests that have waited for a time which has come, and returns the
// calls in flight that have become slow or dead since the last time, by UID. What has
// returned meanwhile is to be taken in before.
func (s *Scheduler) Overdue() []Overdue {
	s.overdue = s.overdue[:0]
	s.ring()
	return s.overdue
}

// ring acts on the alarms that have come.
func (s *Scheduler) ring() {
	if c := s.full.call; c != nil {
		if !c.Slow && !s.now.Before(c.Began.Add(s.cfg.Period)) {
			c.Slow = true
			s.resumePodLists()
		}
		if !c.Dead && !s.now.Before(c.Began.Add(s.cfg.Timeout)) {
			c.Dead = true
			s.overdue = append(s.overdue, Overdue{c, true})
		}
	}
	ringing := s.scratch[:0]
	for len(s.alarms) > 0 && !s.now.Before(s.alarms[0].alarm) {
		p := s.alarms[0]
		s.alarms.remove(p)
		ringing = append(ringing, p)
	}
	slices.SortFunc(ringing, func(a, b *pod) int { return strings.Compare(string(a.uid), string(b.uid)) })
	for _, p := range ringing {
		s.ringPod(p)
	}
	clear(ringing)
	s.scratch = ringing
}

func (s *Scheduler) ringPod(p *pod) {
	for why, at := range p.later {
		if !at.IsZero() && !s.now.Before(at) {
			p.later[why] = time.Time{}
			if Reason(why) != again { // that one is open still, unless it was answered
				s.request(p, p.causeOf(Reason(why)), false)
			}
		}
	}
	if s.late(p.list) {
		s.listers++
		s.Hasten() // the next full list shows the pod too
	}
	if s.late(p.inspection) {
		s.workers++
		s.hangs(p)
	}
	s.plan(p)
}

// late notes that a call about one pod is slow or dead, and reports whether it gives
// its place away.
func (s *Scheduler) late(c *Call) (givesPlace bool) {
	if c == nil {
		return false
	}
	dead := !s.now.Before(c.Began.Add(s.cfg.Timeout))
	if !c.Slow && (dead || !s.now.Before(c.Began.Add(s.cfg.Period))) {
		c.Slow, givesPlace = true, true
		s.overdue = append(s.overdue, Overdue{c, false})
	}
	if dead && !c.Dead {
		c.Dead = true
		s.overdue = append(s.overdue, Overdue{c, true})
	}
	return givesPlace
}

// Wake returns when, by the clock, there is more to do; zero for never.
func (s *Scheduler) Wake() time.Time {
	var next time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	f := &s.full
	if f.call != nil && f.periodic {
		earlier(s.now.Add(s.cfg.Period)) // to notice when the clock goes back: what hangs has hung for longer still
	}
	switch {
	case f.call == nil:
		if f.periodic {
			earlier(f.next)
		}
		if f.want > 0 || s.manyWait() {
			earlier(f.notBefore)
		}
	case !f.call.Dead:
		earlier(f.call.Began.Add(s.cfg.Timeout))
		if f.instead > 0 {
			earlier(f.call.Began.Add(s.cfg.Period))
		}
	}
	if len(s.alarms) > 0 {
		earlier(s.alarms[0].alarm)
	}
	earlier(s.canaryDue())
	if next.IsZero() {
		return next
	}
	return s.Clock(next)
}
