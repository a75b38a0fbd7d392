package pleg

import (
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// loop is the state of the one goroutine at a time that writes: to the records,
// to the cache and to the announcer. Nothing in it is locked.
type loop struct {
	g       *GenericPLEG
	records *podRecords
	mail    mail // the mail being worked on; its memory is used again

	full        fullRelist
	looks       looks
	inspections inspections
	hints       hints
	order       ordering

	// periodic is true while full relists come by themselves; nextFull is when.
	periodic bool
	nextFull time.Time

	last    stamp       // of the newest listing that has begun
	changes []podChange // scratch
	timer   clock.Timer // nil until first needed
}

func newLoop(g *GenericPLEG) loop {
	return loop{
		g:           g,
		records:     newPodRecords(),
		mail:        newMail(),
		full:        newFullRelist(g),
		looks:       newLooks(),
		inspections: newInspections(g.opts.inspectionWorkers),
		hints:       newHints(),
		order:       newOrdering(),
	}
}

// step does everything that is there to be done, and returns a channel that
// tells when there is more by the clock; nil if only mail can bring more.
func (l *loop) step() <-chan time.Time {
	l.takeMail()
	now := l.g.clock.Now()
	l.watchCalls(now)
	l.losePatience(now)
	l.startLooks(now)
	l.startFull(now)
	l.startInspections(now)
	return l.sleepUntil(l.nextAlarm(), now)
}

// takeMail works off the mail: what landed first, for a request may already be
// answered by it.
func (l *loop) takeMail() {
	l.mail.reset()
	l.g.box.take(&l.mail)
	for _, landed := range l.mail.landings {
		l.land(landed)
	}
	l.full.waiting = append(l.full.waiting, l.mail.relists...)
	for _, uid := range sortedKeys(l.mail.looks) {
		l.wantLook(uid, l.mail.looks[uid])
	}
	if l.mail.waiting || len(l.mail.later) > 0 {
		l.shortenPeriod(l.g.clock.Now())
	}
	for uid, after := range l.mail.later {
		l.looks.defers(uid, look{cause: CauseDemand, after: after})
	}
	for _, uid := range sortedKeys(l.mail.reinspect) {
		l.reinspect(uid)
	}
	l.takeHints()
}

// land brings a call's answer to where it belongs.
func (l *loop) land(landed landing) {
	c := landed.call
	l.g.countPanic(landed.err)
	switch c.kind {
	case callGetPods:
		l.landFull(landed)
	case callGetPod:
		l.landLook(landed)
	case callGetPodStatus:
		l.landInspection(landed)
	case callWatchEvents:
		// Comes back to the goroutine that follows the events.
	}
}

// countPanic counts a call in which the runtime panicked.
func (g *GenericPLEG) countPanic(err error) {
	if _, panicked := err.(*panicError); panicked { //nolint:errorlint // made by landing.make, never wrapped
		g.metrics.badData(badRuntimePanic, err.Error())
	}
}

// stamp returns the stamp of a listing about to begin. Its time never goes back,
// even where the clock does, so that what is newer can always be stored.
func (l *loop) stamp(now time.Time) stamp {
	l.last = stamp{time: later(l.last.time, now), number: l.last.number + 1}
	return l.last
}

// watchCalls sets aside the calls that have taken longer than a period, and gives
// up those past their deadline.
func (l *loop) watchCalls(now time.Time) {
	if l.full.running && !l.full.call.expired && !now.Before(l.full.call.started.Add(l.g.opts.inspectionTimeout)) {
		l.expireFull(now)
	}
	l.looks.overdue.check(now, l.g, l.lookOverdue)
	l.inspections.overdue.check(now, l.g, l.inspectionOverdue)
}

// nextAlarm returns when the clock will bring something to do; zero for never.
func (l *loop) nextAlarm() time.Time {
	var next alarm
	if l.periodic && !l.full.running {
		next.set(l.nextFull)
	}
	if l.full.running && !l.full.call.expired {
		next.set(l.full.call.started.Add(l.g.opts.inspectionTimeout))
	}
	if l.full.cause != "" && !l.full.running {
		next.set(l.full.notBefore)
	}
	next.set(l.looks.overdue.next.at)
	next.set(l.looks.deferred.at)
	next.set(l.inspections.overdue.next.at)
	next.set(l.inspections.retry.at)
	next.set(l.nextProbe())
	next.set(l.order.patience.at)
	return next.at
}

// sleepUntil sets the timer.
func (l *loop) sleepUntil(alarm, now time.Time) <-chan time.Time {
	if l.timer != nil && !l.timer.Stop() {
		select {
		case <-l.timer.C():
		default:
		}
	}
	if alarm.IsZero() {
		return nil
	}
	wait := alarm.Sub(now)
	if wait <= 0 {
		return alreadyPassed
	}
	if l.timer == nil {
		l.timer = l.g.clock.NewTimer(wait)
	} else {
		l.timer.Reset(wait)
	}
	return l.timer.C()
}

// alreadyPassed is always ready to receive from.
var alreadyPassed = func() <-chan time.Time {
	ch := make(chan time.Time)
	close(ch)
	return ch
}()

// alarm is the earliest of some points in time; zero for none.
type alarm struct{ at time.Time }

func (a *alarm) set(t time.Time) {
	if !t.IsZero() && (a.at.IsZero() || t.Before(a.at)) {
		a.at = t
	}
}

// rings tells whether the alarm has come, and if so unsets it.
func (a *alarm) rings(now time.Time) bool {
	if a.at.IsZero() || now.Before(a.at) {
		return false
	}
	a.at = time.Time{}
	return true
}

// overdue watches calls about one pod each for taking too long.
type overdue struct {
	calls map[*call]struct{}
	next  alarm
}

func newOverdue() overdue { return overdue{calls: make(map[*call]struct{})} }

func (o *overdue) watch(c *call, g *GenericPLEG) {
	o.calls[c] = struct{}{}
	o.next.set(c.checkpoint(g))
}

// check acts on the calls whose checkpoint has come, in the order of their pods.
// What act does about a call moves its checkpoint.
func (o *overdue) check(now time.Time, g *GenericPLEG, act func(c *call, now time.Time)) {
	if !o.next.rings(now) {
		return
	}
	var due []*call
	for c := range o.calls {
		if at := c.checkpoint(g); !at.IsZero() && !now.Before(at) {
			due = append(due, c)
		}
	}
	slices.SortFunc(due, func(a, b *call) int { return strings.Compare(string(a.uid), string(b.uid)) })
	for _, c := range due {
		act(c, now)
	}
	for c := range o.calls {
		o.next.set(c.checkpoint(g))
	}
}

// checkpoint is when a call about one pod is next looked at: when it is set
// aside, and when its deadline passes.
func (c *call) checkpoint(g *GenericPLEG) time.Time {
	aside, deadline := c.started.Add(g.period), c.started.Add(g.opts.inspectionTimeout)
	switch {
	case c.expired:
		return time.Time{}
	case !c.setAside && aside.Before(deadline):
		return aside
	default:
		return deadline
	}
}

// sortedKeys has what a map holds worked off in an order that can be repeated.
// It allocates nothing for an empty map.
func sortedKeys[V any](m map[types.UID]V) []types.UID {
	if len(m) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}

// podSet is a set of pods in the order in which they were added.
type podSet struct {
	has  map[types.UID]struct{}
	list []types.UID
}

func newPodSet() podSet { return podSet{has: make(map[types.UID]struct{})} }

func (s *podSet) add(uid types.UID) {
	if _, ok := s.has[uid]; !ok {
		s.has[uid] = struct{}{}
		s.list = append(s.list, uid)
	}
}

func (s *podSet) len() int { return len(s.list) }

func (s *podSet) pop() types.UID {
	uid := s.list[0]
	s.list = s.list[1:]
	delete(s.has, uid)
	return uid
}

func (s *podSet) clear() {
	clear(s.has)
	s.list = s.list[:0]
}
