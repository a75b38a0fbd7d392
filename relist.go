package pleg

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// looksAtOnce is how many pods are listed by themselves at one time. When more
// than that wait for it, the whole node is listed instead: the two calls of one
// full list cost about as much as those of eight single ones on a node of some
// hundred containers.
const looksAtOnce = 8

// echoShare is the part of a relist period after which a pod is looked at once
// more when a hint brought a look that showed no change, for the hint may be ahead
// of the list: containerd announces that a sandbox was removed before it stops
// listing it.
const echoShare = 20

// fullRelist is the listing of the whole node, one at a time.
type fullRelist struct {
	call    *call
	running bool
	// begin makes the call; made once, so that a relist allocates nothing.
	begin func()

	// waiting are the callers of Relist whose relist is to begin, attached those
	// whose relist is under way.
	waiting, attached []*barrier

	// cause is set when somebody other than the period or Relist wants one, hinted
	// when a hint does, and notBefore is when it may be had: so that such lists
	// take up half of the time at most.
	cause  Cause
	hinted bool
	// standsFor are the looks in whose place the node is listed; failed says that
	// the last list was no good for that.
	standsFor map[types.UID]look
	failed    bool
	notBefore time.Time
	lastStart time.Time
}

func newFullRelist(g *GenericPLEG) fullRelist {
	c := &call{kind: callGetPods}
	return fullRelist{
		call:      c,
		standsFor: make(map[types.UID]look),
		begin: func() {
			landed := landing{call: c}
			defer func() {
				g.calls.remove(c)
				g.box.land(landed)
			}()
			landed.make(func() { landed.pods, landed.err = g.runtime.GetPods(c.ctx, true) })
		},
	}
}

// want asks for a full relist.
func (f *fullRelist) want(cause Cause, hinted bool) {
	if f.cause == "" {
		f.cause = cause
	}
	f.hinted = f.hinted || hinted
}

// startFull begins a full relist if one is due, wanted or waited for.
func (l *loop) startFull(now time.Time) {
	f := &l.full
	if f.running {
		if f.call.expired { // it has failed, and no other can be made
			f.waiting = completeAll(f.waiting)
		}
		return
	}
	switch {
	case len(f.waiting) > 0:
		f.call.cause = CauseDemand
	case f.cause != "" && !now.Before(f.notBefore):
		f.call.cause = f.cause
	case l.periodic && !now.Before(l.nextFull):
		f.call.cause = CausePeriod
	default:
		return
	}
	f.call.hinted = f.hinted
	f.cause, f.hinted = "", false
	f.waiting, f.attached = f.attached[:0], f.waiting
	f.running = true
	c := f.call
	c.expired = false
	c.stamp, c.started = l.stamp(now), now
	if c.ctx == nil || c.ctx.Err() != nil {
		c.ctx, c.cancel = context.WithCancelCause(l.g.context.get())
	}
	l.nextFull = now.Add(l.hints.period(now, l.g))
	if !f.lastStart.IsZero() {
		l.g.metrics.relistInterval.Observe(now.Sub(f.lastStart).Seconds())
	}
	f.lastStart = now
	if v := l.g.logger.V(5); v.Enabled() {
		v.Info("Relisting", "cause", c.cause)
	}
	l.g.calls.add(c)
	go f.begin()
}

// landFull takes in the answer of a full relist.
func (l *loop) landFull(landed landing) {
	f, c := &l.full, landed.call
	now := l.g.clock.Now()
	f.running = false
	f.notBefore = now.Add(now.Sub(c.started))
	if l.nextFull.Before(now) {
		l.nextFull = now.Add(l.g.period) // the runtime is slow: leave it room
	}
	switch {
	case c.stopped(landed.err):
		f.waiting = append(f.waiting, f.attached...)
		f.attached = f.attached[:0]
	case landed.err != nil:
		if !c.expired {
			l.failFull(landed.err, now)
		}
	default:
		l.takeFull(landed.pods, c, now)
	}
}

// failFull notes that a full relist failed. A list that failed says nothing, so
// nothing is changed.
func (l *loop) failFull(err error, now time.Time) {
	l.g.vitals.listFailed(err, now, l.g.logger)
	l.g.metrics.relistDuration.Observe(now.Sub(l.full.call.started).Seconds())
	l.shortenPeriod(now)
	l.full.failed = true
	for _, uid := range sortedKeys(l.full.standsFor) {
		l.wantLook(uid, l.full.standsFor[uid])
	}
	clear(l.full.standsFor)
	for _, b := range l.full.attached {
		if b.carried { // the list before has changed something
			l.await(b, l.full.call.stamp)
		} else {
			b.complete()
		}
	}
	l.full.attached = l.full.attached[:0]
}

// completeAll completes barriers and returns the empty list.
func completeAll(list []*barrier) []*barrier {
	for _, b := range list {
		b.complete()
	}
	clear(list)
	return list[:0]
}

// expireFull gives up a full relist past its deadline. If the runtime does not
// heed its context there is no other one until it comes back, and if it then has
// an answer after all, that is as good as any of its stamp.
func (l *loop) expireFull(now time.Time) {
	c := l.full.call
	c.expired = true
	err := deadlineError(c, l.g.opts.inspectionTimeout)
	c.cancel(err)
	l.failFull(err, now)
}

func deadlineError(c *call, timeout time.Duration) error {
	return fmt.Errorf("%s has not returned within %v: %w", c.kind, timeout, context.DeadlineExceeded)
}

// takeFull takes in a full list.
func (l *loop) takeFull(pods []*Pod, c *call, now time.Time) {
	l.changes = l.records.landAll(pods, c.stamp, l.last, l.changes[:0], l.g.metrics.badData)
	if slices.ContainsFunc(l.changes, func(change podChange) bool { return change.disputed }) {
		l.carryOver()
	}
	l.apply(l.changes, c, now)
	l.g.cache.UpdateTime(c.stamp.time)
	l.judgeHints(l.changes, c, now)
	clear(l.changes)
	if c.hinted {
		l.shortenPeriod(now) // the hint may have been ahead of the list
	}

	l.full.failed = false
	clear(l.full.standsFor)
	l.g.vitals.listed(c.started, l.records.present, l.records.tally, l.g.logger)
	if len(l.full.attached) > 0 {
		l.retryFailed()
	}
	for _, b := range l.full.attached {
		l.await(b, c.stamp)
	}
	l.full.attached = l.full.attached[:0]
	if !c.expired { // or else it was counted at its deadline
		l.measureRelist(c.started, c.stamp, now)
	}
}

// carryOver has the callers of Relist wait for one more list, which begins at once
// and settles what the one that has landed left disputed. Nobody waits for a third:
// a pod may be disputed for as long as it goes on changing.
func (l *loop) carryOver() {
	f := &l.full
	kept := f.attached[:0]
	for _, b := range f.attached {
		if b.carried {
			kept = append(kept, b)
		} else {
			b.carried = true
			f.waiting = append(f.waiting, b)
		}
	}
	f.attached = kept
}

// measureRelist reports how long the relist has taken, once it is complete.
func (l *loop) measureRelist(started time.Time, stamp stamp, now time.Time) {
	if len(l.inspections.byPod) == 0 {
		l.g.metrics.relistDuration.Observe(now.Sub(started).Seconds())
		return
	}
	l.await(&barrier{then: func() {
		l.g.metrics.relistDuration.Observe(l.g.clock.Now().Sub(started).Seconds())
	}}, stamp)
}

// await makes a barrier wait for the inspections that are under way.
func (l *loop) await(b *barrier, stamp stamp) {
	b.stamp = stamp
	b.left = 1
	l.inspections.await(b)
	b.passed()
}

// apply stores and announces what a listing changed. Whatever it did not change
// is fresh as of its stamp; a changed pod is held back until its inspection.
func (l *loop) apply(changes []podChange, c *call, now time.Time) {
	var b *batch
	if len(changes) > 1 {
		b = l.order.begin(now)
	}
	for _, change := range changes {
		if l.g.source != nil {
			l.hints.noteRemoved(change)
		}
		switch {
		case change.disputed:
			l.podDisputed(change, c)
		case change.new == nil:
			l.podGone(change, c, b)
		default:
			l.podChanged(change, c, b, now)
		}
	}
	l.release(b, now)
}

// podDisputed has a pod looked at once more, and holds its freshness back until
// that has settled what is true of it.
func (l *loop) podDisputed(change podChange, c *call) {
	l.g.cache.MarkChanged(change.uid, c.stamp.time)
	l.wantLook(change.uid, look{cause: c.cause})
}

// podGone forgets a pod.
func (l *loop) podGone(change podChange, c *call, b *batch) {
	l.dropInspection(change.uid)
	l.g.cache.Delete(change.uid)
	l.g.cache.SetObservedTime(change.uid, c.stamp.time) // before it is told of
	news := announcement{uid: change.uid, listedAt: c.stamp.time, cause: c.cause}
	l.announce(news, b.turn(change.uid))
}

// podChanged has a pod inspected, and holds its freshness back until then.
func (l *loop) podChanged(change podChange, c *call, b *batch, now time.Time) {
	l.g.cache.MarkChanged(change.uid, c.stamp.time)
	in := l.inspections.of(change.uid)
	in.changed = true
	in.listed, in.cause = c.stamp, c.cause
	if in.turn == nil && !in.hung() {
		in.turn = b.turn(change.uid)
	}
	l.inspections.want(change.uid, in)
	switch {
	case in.call == nil || !in.call.setAside:
	case in.call.expired:
		l.failBlocked(change.uid, in, now)
	default:
		l.noteHang(in, in.call, now)
	}
}

// looks are the listings of one pod at a time.
type looks struct {
	// wanted are the pods that wait for a look, with what is wanted; queue has
	// their order.
	wanted map[types.UID]look
	queue  podSet
	// inFlight has the calls under way, one per pod.
	inFlight map[types.UID]*call
	// again are the pods to look at once more when their call has come back.
	again map[types.UID]look
	// later are the pods to look at once a time has passed, which their want
	// names; deferred is the earliest of these times.
	later    map[types.UID]look
	deferred alarm
	// idle counts the calls that may still be begun.
	idle    int
	overdue overdue
}

func newLooks() looks {
	return looks{
		wanted:   make(map[types.UID]look),
		queue:    newPodSet(),
		inFlight: make(map[types.UID]*call),
		again:    make(map[types.UID]look),
		later:    make(map[types.UID]look),
		idle:     looksAtOnce,
		overdue:  newOverdue(),
	}
}

// wantLook asks for a listing of one pod, or of the node where that cannot be
// had. While one is under way, one more follows it and serves everybody who has
// asked meanwhile.
func (l *loop) wantLook(uid types.UID, want look) {
	k := &l.looks
	switch {
	case uid == "":
	case l.g.getter == nil:
		l.full.want(want.cause, want.hinted)
	case !want.after.IsZero() && !l.g.clock.Now().After(want.after):
		k.defers(uid, want)
	case k.inFlight[uid] != nil:
		if k.inFlight[uid].stamp.time.After(want.after) && !want.after.IsZero() {
			return // the one under way will do
		}
		if k.inFlight[uid].setAside { // it hangs: the next full relist shows the pod too
			l.shortenPeriod(l.g.clock.Now())
		}
		mergeInto(k.again, uid, want)
	default:
		mergeInto(k.wanted, uid, want)
		k.queue.add(uid)
	}
}

// mergeInto makes one look of one that waits and one that is wanted besides.
func mergeInto(waiting map[types.UID]look, uid types.UID, want look) {
	if earlier, ok := waiting[uid]; ok {
		want.after = later(want.after, earlier.after)
		want.hinted = want.hinted || earlier.hinted
		want.echo = want.echo && earlier.echo
	}
	waiting[uid] = want
}

// defers puts a look off until a time has passed.
func (k *looks) defers(uid types.UID, want look) {
	if earlier, ok := k.later[uid]; ok {
		hinted := earlier.hinted || want.hinted
		if earlier.after.Before(want.after) && !(earlier.echo && want.echo) { // the last hint may be ahead too
			want = earlier
		}
		want.hinted = hinted
	}
	k.later[uid] = want
	k.deferred.set(want.after.Add(1))
}

// startLooks begins the looks that are due and find room; or a full relist when
// that is cheaper.
func (l *loop) startLooks(now time.Time) {
	k := &l.looks
	if k.deferred.rings(now) {
		for _, uid := range sortedKeys(k.later) {
			if want := k.later[uid]; now.After(want.after) {
				delete(k.later, uid)
				l.wantLook(uid, want)
			} else {
				k.deferred.set(want.after.Add(1))
			}
		}
	}
	if k.queue.len() > looksAtOnce && !l.full.running && !l.full.failed && !now.Before(l.full.notBefore) {
		for _, uid := range k.queue.list {
			l.full.want(k.wanted[uid].cause, k.wanted[uid].hinted)
			l.full.standsFor[uid] = k.wanted[uid]
		}
		k.queue.clear()
		clear(k.wanted)
		return
	}
	for k.idle > 0 && k.queue.len() > 0 {
		uid := k.queue.pop()
		want := k.wanted[uid]
		delete(k.wanted, uid)
		l.startLook(uid, want, now)
	}
}

// forgetHints forgets the looks that only hints want and that have not begun.
func (k *looks) forgetHints() {
	queue := k.queue.list
	k.queue = newPodSet()
	for _, uid := range queue {
		if want := k.wanted[uid]; want.cause == CauseHint && want.after.IsZero() {
			delete(k.wanted, uid)
		} else {
			k.queue.add(uid)
		}
	}
}

func (l *loop) startLook(uid types.UID, want look, now time.Time) {
	k := &l.looks
	k.idle--
	c := &call{kind: callGetPod, uid: uid, pod: l.records.get(uid), stamp: l.stamp(now), started: now, cause: want.cause, hinted: want.hinted, echo: want.echo}
	c.ctx, c.cancel = context.WithCancelCause(l.g.context.get())
	k.inFlight[uid] = c
	k.overdue.watch(c, l.g)
	l.g.calls.add(c)
	if v := l.g.logger.V(5); v.Enabled() {
		v.Info("Relisting pod", "podUID", uid, "cause", want.cause)
	}
	g := l.g
	go func() {
		landed := landing{call: c}
		defer func() {
			g.calls.remove(c)
			g.box.land(landed)
		}()
		landed.make(func() { landed.pod, landed.err = g.getter.GetPod(c.ctx, uid) })
	}()
}

// lookOverdue takes the place of a look that is slow, or gives it up. Nothing
// depends on it: the next full relist shows the pod too.
func (l *loop) lookOverdue(c *call, now time.Time) {
	if !c.setAside {
		c.setAside = true
		l.looks.idle++
		l.shortenPeriod(now)
	}
	if !now.Before(c.started.Add(l.g.opts.inspectionTimeout)) {
		c.expired = true
		c.cancel(deadlineError(c, l.g.opts.inspectionTimeout))
	}
}

// landLook takes in the answer of a look at one pod.
func (l *loop) landLook(landed landing) {
	k, c := &l.looks, landed.call
	now := l.g.clock.Now()
	delete(k.inFlight, c.uid)
	delete(k.overdue.calls, c)
	if !c.setAside {
		k.idle++
	}
	c.cancel(nil)
	if again, ok := k.again[c.uid]; ok {
		delete(k.again, c.uid)
		l.wantLook(c.uid, again)
	}
	pod, err := landed.pod, landed.err
	if c.stopped(err) {
		return
	}
	if is(err, ErrPodNotFound) {
		l.takeLook(nil, c, now)
		return
	}
	if err == nil && pod != nil && pod.ID == c.uid {
		l.takeLook(pod, c, now)
		return
	}
	l.shortenPeriod(now) // the next full relist shows the pod too
	switch {
	case err != nil:
		l.g.logger.V(4).Info("Cannot list pod", "podUID", c.uid, "err", err)
	case pod == nil:
		l.g.metrics.badData(badPodNil, string(c.uid))
	default:
		l.g.metrics.badData(badPodMismatch, fmt.Sprintf("%s instead of %s", pod.ID, c.uid))
	}
}

// takeLook takes in a listing of one pod; nil for one that is absent.
func (l *loop) takeLook(pod *Pod, c *call, now time.Time) {
	l.g.metrics.podRelistDuration.Observe(now.Sub(c.started).Seconds())
	change, changed, verdict := l.records.landOne(c.uid, pod, c.stamp, l.last, l.g.metrics.badData)
	switch {
	case verdict == outrun:
		l.echo(c, now)
		return
	case verdict == overlapped:
		l.wantLook(c.uid, look{cause: c.cause, hinted: c.hinted, echo: c.echo})
		return
	case changed:
		l.apply([]podChange{change}, c, now)
		if l.nextFull.After(now.Add(l.g.period)) { // too far away to make up for a hint that was ahead in part
			l.echo(c, now)
		}
	default:
		l.echo(c, now)
	}
	if in := l.inspections.byPod[c.uid]; in == nil || !in.changed {
		l.g.cache.SetObservedTime(c.uid, c.stamp.time)
	}
	l.judgeHintsOf(c)
	l.g.vitals.counted(l.records.present, l.records.tally)
}

// echo has a pod looked at once more that a hint brought a look at, for the hint
// may have been ahead of the list.
func (l *loop) echo(c *call, now time.Time) {
	if c.hinted && !c.echo {
		l.looks.defers(c.uid, look{cause: CauseHint, after: now.Add(l.g.period / echoShare), hinted: true, echo: true})
	}
}
