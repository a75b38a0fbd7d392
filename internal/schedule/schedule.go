// Package schedule decides what to ask a container runtime next, and when: lists of
// all pods, lists of one pod, inspections. It knows UIDs and stamps, and never a pod,
// a goroutine, a lock or a clock: its user hands it the time and makes the calls.
//
// A request of a pod is open now, or waits for a time. An open request stays so until a
// list answers it that began after it; it never joins a call in flight, and a call that
// fails leaves it open.
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
	// MaxSlow is how many slow inspections release their worker. Those beyond keep it, so that a
	// runtime that hangs is not asked about ever more pods.
	MaxSlow = 64
	// MaxRetryWait bounds the back-off of a pod that cannot be inspected, unless a period is
	// longer.
	MaxRetryWait = 10 * time.Second
	// followUpShare is the part of a period after which the list of a hinted pod is
	// followed by one more, for events run ahead of lists.
	followUpShare = 20
	// lateReasonWait is how long after a death its pod is inspected once more: containerd 2 has
	// told that a container was killed for want of memory 10 to 500 ms late.
	lateReasonWait = 2 * time.Second
	// canariesPerThreshold is how often within the health threshold a healthy pod is
	// inspected while others hang.
	canariesPerThreshold = 6
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

// Call is one call to the runtime, from its beginning to its return.
type Call struct {
	Kind  Kind
	UID   types.UID // empty for ListAll
	Cause string    // the first reason for it
	Stamp Stamp     // of the list; that of an inspection is its user's affair
	Began time.Time

	// Slow: it has taken longer than a period, and another may take its place; see MaxSlow.
	// Dead: its deadline has passed. It has failed, its answer is not used, and no
	// other call of its kind is made for the pod until it returns.
	Slow, Dead bool

	pod *pod // nil for ListAll
}

// Config does not change after New.
type Config struct {
	Period time.Duration
	// ConnectedPeriod replaces Period while the event stream is connected and Begin is not
	// told otherwise; not if it is shorter.
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

	now  time.Time
	last Stamp

	all    pod // all pods: their list in flight, the request of one, and the alarm
	full   fullList
	pods   map[types.UID]*pod // those that something is open of
	alarms alarms
	late   []LateCall

	requested   queue // pods with an open request
	toList      queue // pods to list
	listSlots   int   // slots free for that
	toInspect   queue // pods to inspect
	inspections int   // in flight
	slow        int   // of these
	hung        queue // pods of whose unanswered inspections one was slow
	canary      canary
	begun       []*Call
}

// fullList is when all pods are listed, besides what is open of them.
type fullList struct {
	periodic bool
	next     time.Time // by the period
	relist   bool      // somebody waits for one to begin
	// notBefore is when a list that is asked for may begin: the newest one took as long
	// before, or a period. RequestRelist's does not wait for it.
	notBefore time.Time
	// failed: the newest one did. hintAnswered: it answered a hint, which may have run
	// ahead of it.
	failed, hintAnswered bool
	// covers: requests of pods up to this number are left to the list in flight, and make no
	// single-pod list; 0 for none.
	covers uint64

	// took is how long the newest one took that has succeeded.
	took time.Duration

	connected bool
}

// New returns an idle schedule.
func New(cfg Config) *Scheduler {
	return &Scheduler{
		cfg: cfg, retry: backoff.Policy{First: cfg.Period, Longest: MaxRetryWait},
		pods: make(map[types.UID]*pod), requested: queue{which: requesting},
		toList: queue{which: listing}, listSlots: PodListsAtOnce,
		toInspect: queue{which: inspecting}, hung: queue{which: hanging},
	}
}

// Advance sets the time.
func (s *Scheduler) Advance(now time.Time) { s.now = now }

// Now returns the time.
func (s *Scheduler) Now() time.Time { return s.now }

// Since returns how long ago a time is.
func (s *Scheduler) Since(t time.Time) time.Duration { return s.now.Sub(t) }

// Last returns the newest stamp that was given out.
func (s *Scheduler) Last() Stamp { return s.last }

// stamp gives one out. Its time does not go back, so that what is newer can always be
// stored.
func (s *Scheduler) stamp() Stamp {
	s.last.Number++
	if s.now.After(s.last.Time) {
		s.last.Time = s.now
	}
	return s.last
}

// SetPeriodic switches the full lists of every period on, the first at once, or off.
func (s *Scheduler) SetPeriodic(on bool) {
	s.full.periodic, s.full.next = on, s.now
}

// SetConnected notes whether the event stream is. There is no resume, so that each
// connection is followed by a full list.
func (s *Scheduler) SetConnected(connected bool) {
	s.full.connected = connected
	if connected {
		s.HintAll()
	}
}

// Connected reports whether the event stream is.
func (s *Scheduler) Connected() bool { return s.full.connected }

// RequestRelist asks for a full list that begins now, or when the one in flight has
// returned.
func (s *Scheduler) RequestRelist() { s.full.relist = true }

// RequestAll asks for a full list soon. The request stays open until one succeeds.
func (s *Scheduler) RequestAll(cause string) { s.all.add(s.last.Number, cause, false) }

// HintAll is RequestAll because an event of the runtime may have been missed, or names no
// pod. Events may run ahead of lists, so that another full list comes within a period of
// the answer.
func (s *Scheduler) HintAll() { s.all.add(s.last.Number, CauseHint, true) }

// FullListDead reports whether the full list in flight is past its deadline: none can begin.
func (s *Scheduler) FullListDead() bool { return s.all.list != nil && s.all.list.Dead }

// FullListInFlight reports whether a full list is in flight whose answer will count.
func (s *Scheduler) FullListInFlight() bool { return s.all.list != nil && !s.all.list.Dead }

// FullListHangs reports whether the full list in flight has run for longer than a period, and twice as
// long as the newest that has succeeded: on some nodes every list takes its time.
func (s *Scheduler) FullListHangs() bool {
	return s.all.list != nil && !s.now.Before(s.fullListHangsAt())
}

func (s *Scheduler) fullListHangsAt() time.Time {
	return s.all.list.Began.Add(max(s.cfg.Period, min(2*s.full.took, MaxRetryWait)))
}

// WithdrawRelist takes RequestRelist back.
func (s *Scheduler) WithdrawRelist() { s.full.relist = false }

// Begin returns the calls to begin now. ordinary: full lists come every Period, whatever the
// stream announces.
func (s *Scheduler) Begin(ordinary bool) []*Call {
	s.begun = nil
	if latest := s.now.Add(s.cfg.Period); latest.Before(s.full.next) && s.hurries(ordinary) {
		s.full.next = latest
	}
	if cause, due := s.fullListDue(); due {
		s.beginFullList(cause, ordinary)
	}
	for s.listSlots > 0 {
		p := s.toList.pop()
		if p == nil {
			break
		}
		s.listSlots--
		p.list = &Call{Kind: ListPod, UID: p.uid, Cause: p.cause, Stamp: s.stamp(), Began: s.now, pod: p}
		s.begun = append(s.begun, p.list)
		s.plan(p)
	}
	for s.freeWorkers() > 0 {
		p := s.toInspect.pop()
		if p == nil {
			break
		}
		s.inspections++
		s.beginInspection(p)
	}
	return s.begun
}

// freeWorkers returns how many inspections may begin.
func (s *Scheduler) freeWorkers() int {
	return s.cfg.Workers - (s.inspections - s.slow) - max(0, s.slow-MaxSlow)
}

// period returns the time from one full list to the next.
func (s *Scheduler) period(ordinary bool) time.Duration {
	if s.full.connected && !ordinary {
		return max(s.cfg.Period, s.cfg.ConnectedPeriod)
	}
	return s.cfg.Period
}

// hurries reports whether the next full list is to come within Period even so: the stream
// is no longer connected, ordinary is new, the last list failed, it answered a hint,
// or a request is open that no list of its pod answers soon.
func (s *Scheduler) hurries(ordinary bool) bool {
	f := &s.full
	return s.all.list == nil && (!f.connected || ordinary || f.failed || f.hintAnswered || s.anyStuck())
}

// anyStuck reports whether a request waits for a full list, because the list of its pod
// hangs or has failed, or the runtime makes none.
func (s *Scheduler) anyStuck() bool {
	for p := range s.requested.all {
		if !s.cfg.ListsPods || p.list != nil && p.list.Slow || !p.dueAt[listFailed].IsZero() {
			return true
		}
	}
	return false
}

func (s *Scheduler) beginInspection(p *pod) {
	c := &Call{Kind: Inspect, UID: p.uid, Began: s.now, pod: p}
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
	case s.all.list != nil:
		return "", false
	case f.relist:
		return CauseDemand, true
	case s.all.newest > 0 && soon:
		return s.all.cause, true
	case s.manyWait() && soon:
		return s.toList.first().cause, true
	case f.periodic && !s.now.Before(f.next):
		return CausePeriod, true
	}
	return "", false
}

// manyWait reports whether so many pods wait that all are to be listed instead. After a
// full list that failed they are listed by themselves.
func (s *Scheduler) manyWait() bool {
	return s.toList.Len() > PodListsAtOnce && !s.full.failed
}

// The causes that the schedule itself gives.
const (
	CausePeriod = "period"
	CauseHint   = "hint"
	CauseDemand = "demand"
)

func (s *Scheduler) beginFullList(cause string, ordinary bool) {
	f := &s.full
	f.relist = false
	s.all.list = &Call{Kind: ListAll, Cause: cause, Stamp: s.stamp(), Began: s.now, pod: &s.all}
	s.setAlarm(&s.all)
	f.next = s.now.Add(s.period(ordinary))
	f.hintAnswered = false
	s.begun = append(s.begun, s.all.list)
	if s.manyWait() { // whatever it was begun for
		f.covers = s.all.list.Stamp.Number
		for p := s.toList.pop(); p != nil; p = s.toList.pop() {
			s.plan(p)
		}
	}
}

// FullListed notes that the full list c has succeeded: it answers what asked for it. The
// requests for single pods are answered one by one.
func (s *Scheduler) FullListed(c *Call) {
	s.full.failed = false
	if _, hinted := s.all.answer(c.Stamp.Number); hinted {
		s.full.hintAnswered = true
	}
	s.full.took = s.now.Sub(c.Began)
	s.pauseFullLists(s.full.took)
}

// FullListFailed notes that the full list in flight has failed: nothing is answered, and another
// comes within a period.
func (s *Scheduler) FullListFailed() {
	s.full.failed = true
	s.pauseFullLists(s.cfg.Period)
}

// pauseFullLists sets notBefore when a full list has ended, a period ahead at most. The one of
// the period, if it is due already, comes after a period.
func (s *Scheduler) pauseFullLists(wait time.Duration) {
	s.full.notBefore = s.now.Add(min(wait, s.cfg.Period))
	if s.full.next.Before(s.now) {
		s.full.next = s.now.Add(s.cfg.Period)
	}
}

// resumePodLists lets the pods be listed by themselves whose request a full list was to
// answer and has not.
func (s *Scheduler) resumePodLists() {
	if s.full.covers == 0 {
		return
	}
	s.full.covers = 0
	for _, uid := range s.Requested() {
		s.plan(s.pods[uid])
	}
}

// Returned notes that a call has returned. It is called before whatever the result leads to.
// answered is false only for an inspection that has failed after its deadline: its pod still counts
// as hung.
func (s *Scheduler) Returned(c *Call, answered bool) {
	p := c.pod
	switch c.Kind {
	case ListAll:
		p.list = nil
		s.canary.inRound = false
		s.setAlarm(p)
		s.resumePodLists()
		return
	case ListPod:
		p.list = nil
		if !c.Slow {
			s.listSlots++
		}
	case Inspect:
		p.inspection = nil
		s.inspections--
		if c.Slow {
			s.slow--
		}
		if answered {
			s.noteAnswered(p)
		}
	}
	s.plan(p)
}

// LateCall is a call that has become slow, or dead.
type LateCall struct {
	*Call
	// NowDead: its deadline has passed; if not, it has become slow.
	NowDead bool
}

// Expire acts on the times that have come. It opens the requests that waited for them, and
// returns the calls in flight that have become slow or dead, by UID. What has returned
// meanwhile is to be taken in before.
func (s *Scheduler) Expire() []LateCall {
	s.late = nil
	var expired []*pod
	for len(s.alarms) > 0 && !s.now.Before(s.alarms[0].alarm) {
		p := s.alarms[0]
		s.alarms.remove(p)
		expired = append(expired, p)
	}
	slices.SortFunc(expired, func(a, b *pod) int { return strings.Compare(string(a.uid), string(b.uid)) })
	for _, p := range expired {
		s.expire(p)
	}
	return s.late
}

func (s *Scheduler) expire(p *pod) {
	for why, at := range p.dueAt {
		if !at.IsZero() && !s.now.Before(at) {
			p.dueAt[why] = time.Time{}
			switch reason(why) {
			case listFailed: // it is open still, unless it was answered
			case lateReason:
				s.inspect(p)
			default:
				p.add(s.last.Number, causes[why], false)
			}
		}
	}
	if s.noteLate(p.list) {
		if p == &s.all {
			s.resumePodLists()
		} else {
			s.listSlots++
		}
	}
	if s.noteLate(p.inspection) {
		s.slow++
		s.noteHung(p)
	}
	p.alarm = time.Time{}
	if p == &s.all {
		s.setAlarm(p)
	} else {
		s.plan(p)
	}
}

// noteLate notes that a call is slow or dead, and reports whether it is slow from now on.
func (s *Scheduler) noteLate(c *Call) (becameSlow bool) {
	if c == nil {
		return false
	}
	dead := !s.now.Before(c.Began.Add(s.cfg.Timeout))
	if !c.Slow && (dead || !s.now.Before(c.Began.Add(s.cfg.Period))) {
		c.Slow, becameSlow = true, true
		s.late = append(s.late, LateCall{c, false})
	}
	if dead && !c.Dead {
		c.Dead = true
		s.late = append(s.late, LateCall{c, true})
	}
	return becameSlow
}

// Wake returns when there is more to do; zero for never.
func (s *Scheduler) Wake() time.Time {
	var next time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if s.all.list == nil {
		if s.full.periodic {
			earlier(s.full.next)
		}
		if s.all.newest > 0 || s.manyWait() {
			earlier(s.full.notBefore)
		}
	}
	if len(s.alarms) > 0 {
		earlier(s.alarms[0].alarm)
	}
	earlier(s.canaryDue())
	return next
}
