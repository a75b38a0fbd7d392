package pleg

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxRetryBackoff is the longest time between two inspections of a pod that
// keeps failing; the shortest is the relist period.
const maxRetryBackoff = time.Minute

// errPodGone is the cause with which the inspection of a pod is cancelled that is
// no longer listed.
var errPodGone = errors.New("the pod is gone")

// inspection is what is going on about the status of one pod. There is one only
// for a pod that changed, is being inspected, or has failed to be.
type inspection struct {
	// call is the inspection under way; nil if there is none.
	call *call
	// wanted asks for an inspection, at once or after the call under way.
	wanted bool
	// changed is true from the listing that showed a change until an inspection
	// made for it, or for a later one, has landed.
	changed bool
	// listed and cause are the stamp and the cause of the newest such listing.
	listed stamp
	cause  Cause
	// sync asks for a PodSync when the next inspection lands.
	sync bool
	// turn is the pod's turn in the relist that showed the change.
	turn *turn

	// failures counts the failures in a row; retryAt is when the next attempt
	// is due.
	failures int
	retryAt  time.Time
	// unanswered is when the oldest attempt began since the runtime last
	// answered one; zero if it answered the last.
	unanswered time.Time

	barriers []*barrier
}

// hung tells whether the pod's inspection no longer holds a worker.
func (in *inspection) hung() bool { return in.call != nil && in.call.setAside }

// inspections are those under way or to come: one per pod, some at once.
type inspections struct {
	byPod   map[types.UID]*inspection
	queue   podSet // wait for a worker
	idle    int    // workers
	overdue overdue
	retry   alarm

	// probed is the healthy pod that was inspected last to see whether the
	// runtime still inspects any, and probeAt when that was.
	probed  types.UID
	probeAt time.Time
	// succeeded is when an inspection last succeeded.
	succeeded time.Time
	// hanging are the pods whose inspection took longer than a period and has
	// not been answered since, hangingSince is when there came to be any.
	hanging      map[types.UID]struct{}
	hangingSince time.Time
}

func newInspections(workers int) inspections {
	return inspections{
		byPod:   make(map[types.UID]*inspection),
		queue:   newPodSet(),
		idle:    workers,
		overdue: newOverdue(),
		hanging: make(map[types.UID]struct{}),
	}
}

// hangs notes that the inspection of a pod hangs.
func (n *inspections) hangs(uid types.UID, now time.Time) {
	if len(n.hanging) == 0 {
		n.hangingSince = now
	}
	n.hanging[uid] = struct{}{}
}

// answered notes that the runtime has answered an inspection of a pod.
func (n *inspections) answered(uid types.UID, in *inspection) {
	in.unanswered = time.Time{}
	delete(n.hanging, uid)
}

func (n *inspections) of(uid types.UID) *inspection {
	in := n.byPod[uid]
	if in == nil {
		in = &inspection{}
		n.byPod[uid] = in
	}
	return in
}

// want has a pod inspected as soon as there is a worker for it; at most one
// inspection of it is under way at a time.
func (n *inspections) want(uid types.UID, in *inspection) {
	in.wanted = true
	in.retryAt = time.Time{}
	if in.call == nil {
		n.queue.add(uid)
	}
}

// await makes a barrier wait for every pod whose inspection is under way or
// about to be, and not for those that hang.
func (n *inspections) await(b *barrier) {
	for uid, in := range n.byPod {
		_, queued := n.queue.has[uid]
		if queued || in.call != nil && !in.call.setAside && (!in.call.stale || in.wanted) {
			in.barriers = append(in.barriers, b)
			b.left++
		}
	}
}

// reinspect has a known pod inspected and a PodSync sent.
func (l *loop) reinspect(uid types.UID) {
	if l.records.get(uid) == nil {
		return
	}
	in := l.inspections.of(uid)
	in.sync = true
	if in.cause == "" {
		in.cause = CauseDemand
	}
	l.inspections.want(uid, in)
}

// retryFailed has every pod whose inspection failed inspected again now.
func (l *loop) retryFailed() {
	for _, uid := range sortedKeys(l.inspections.byPod) {
		if in := l.inspections.byPod[uid]; in.call == nil { // it waits for a worker, or for the end of its back-off
			l.inspections.want(uid, in)
		}
	}
}

// startInspections begins the inspections that are due and find a worker.
func (l *loop) startInspections(now time.Time) {
	n := &l.inspections
	if n.retry.rings(now) {
		l.queueRetries(now)
	}
	if at := l.nextProbe(); !at.IsZero() && !now.Before(at) {
		l.probe(now)
	}
	for n.idle > 0 && n.queue.len() > 0 {
		uid := n.queue.pop()
		if in := n.byPod[uid]; in != nil { // else it is gone
			l.startInspection(uid, in, now)
		}
	}
}

// queueRetries queues the pods whose back-off is over.
func (l *loop) queueRetries(now time.Time) {
	for _, uid := range sortedKeys(l.inspections.byPod) {
		in := l.inspections.byPod[uid]
		switch {
		case in.retryAt.IsZero():
		case now.Before(in.retryAt):
			l.inspections.retry.set(in.retryAt)
		default:
			l.inspections.want(uid, in)
		}
	}
}

func (l *loop) startInspection(uid types.UID, in *inspection, now time.Time) {
	n := &l.inspections
	n.idle--
	c := &call{
		kind: callGetPodStatus, uid: uid, pod: l.records.get(uid), stamp: l.records.stampOf(uid), started: now,
		cause: in.cause, listed: in.listed, sync: in.sync, turn: in.turn,
	}
	in.call, in.wanted, in.sync, in.turn, in.cause = c, false, false, nil, ""
	if in.unanswered.IsZero() {
		in.unanswered = now
	}
	if in.failures > 0 {
		l.g.metrics.inspectionRetries.Inc()
	}
	c.ctx, c.cancel = context.WithCancelCause(l.g.context.get())
	n.overdue.watch(c, l.g)
	l.g.calls.add(c)
	g := l.g
	go func() {
		landed := landing{call: c}
		defer func() {
			g.calls.remove(c)
			g.box.land(landed)
		}()
		landed.make(func() { landed.status, landed.err = g.runtime.GetPodStatus(c.ctx, c.pod) })
	}()
}

// inspectionOverdue sets an inspection aside that has taken longer than a period:
// it gives its worker back, and neither Relist nor the other pods of its relist
// wait for it any longer. One past its deadline has failed.
func (l *loop) inspectionOverdue(c *call, now time.Time) {
	in := l.inspections.byPod[c.uid]
	if !c.setAside {
		c.setAside = true
		l.inspections.idle++
		l.skip(c.turn, now)
		l.skip(in.turn, now)
		c.turn, in.turn = nil, nil
		l.noteHang(in, c, now)
		in.passAll()
	}
	if !now.Before(c.started.Add(l.g.opts.inspectionTimeout)) {
		c.expired = true
		err := deadlineError(c, l.g.opts.inspectionTimeout)
		c.cancel(err)
		switch {
		case in.outran(c):
			in.sync = in.sync || c.sync
			l.failBlocked(c.uid, in, now)
		case !c.stale:
			l.failInspection(in, c, err, now)
		}
	}
}

// noteHang notes that the inspection of a pod hangs; the pod may be another than
// the one that it began for, under the same UID.
func (l *loop) noteHang(in *inspection, c *call, now time.Time) {
	pod := l.records.get(c.uid)
	if pod == nil {
		return
	}
	if in.unanswered.IsZero() {
		in.unanswered = c.started
	}
	l.inspections.hangs(c.uid, now)
	l.g.vitals.trouble(c.uid, in, pod, nil)
	l.g.logger.V(2).Info("Inspection takes long", "pod", podName(pod), "since", c.started)
}

// failBlocked announces a pod that cannot be inspected because a call past its
// deadline has not come back. What that call brings is outrun by now; when it
// comes, the pod is inspected again.
func (l *loop) failBlocked(uid types.UID, in *inspection, now time.Time) {
	in.call.stale = true
	l.failInspection(in, &call{
		kind: callGetPodStatus, uid: uid, pod: l.records.get(uid), stamp: l.records.stampOf(uid),
		cause: in.cause, listed: in.listed, sync: in.sync,
	}, deadlineError(in.call, l.g.opts.inspectionTimeout), now)
	in.sync = false
}

// landInspection takes in the answer of an inspection.
func (l *loop) landInspection(landed landing) {
	n, c := &l.inspections, landed.call
	now := l.g.clock.Now()
	in := n.byPod[c.uid]
	in.call = nil
	delete(n.overdue.calls, c)
	if !c.setAside {
		n.idle++
	}
	c.cancel(nil)
	status, err := landed.status, landed.err
	if err == nil {
		status, err = l.validStatus(status, c)
	}
	switch {
	case c.stale: // outrun
		n.answered(c.uid, in)
	case c.stopped(err):
		l.takeBack(in, c, now)
		return
	case in.outrunAtOnce(c):
		n.answered(c.uid, in)
		in.sync = in.sync || c.sync
		l.skip(c.turn, now)
	case err == nil:
		l.takeStatus(in, c, status, now)
	case !c.expired: // an expired one has failed already
		n.answered(c.uid, in)
		l.failInspection(in, c, err, now)
	}
	l.settle(c.uid, in, c.stamp)
}

// outran tells whether a listing has shown another change since the one that an
// inspection was made for.
func (in *inspection) outran(c *call) bool { return in.changed && in.listed.after(c.stamp) }

// outrunAtOnce tells whether the clock stood still between the listing of an
// inspection and one that showed another change. To the cache the two are one, so
// that what the first brought would look as new as the second; it is left to the
// inspection that follows.
func (in *inspection) outrunAtOnce(c *call) bool {
	return in.outran(c) && !in.listed.time.After(c.stamp.time)
}

// takeBack has a pod inspected again whose inspection Stop cancelled, as if it had
// not begun, and had not hung.
func (l *loop) takeBack(in *inspection, c *call, now time.Time) {
	l.inspections.answered(c.uid, in)
	l.g.vitals.answers(c.uid)
	l.skip(c.turn, now)
	l.skip(in.turn, now)
	in.turn = nil
	in.sync = in.sync || c.sync
	if in.cause == "" {
		in.cause = c.cause
	}
	l.inspections.want(c.uid, in)
}

// settle queues a pod that is to be inspected again, and forgets one that is
// done.
func (l *loop) settle(uid types.UID, in *inspection, stamp stamp) {
	n := &l.inspections
	if in.wanted && in.retryAt.IsZero() {
		n.queue.add(uid)
		in.pass(stamp)
		return
	}
	in.passAll()
	if !in.wanted {
		delete(n.byPod, uid)
	}
}

// pass lets the barriers pass that wait for an inspection of a listing no later
// than upTo.
func (in *inspection) pass(upTo stamp) {
	kept := in.barriers[:0]
	for _, b := range in.barriers {
		if b.stamp.after(upTo) {
			kept = append(kept, b)
		} else {
			b.passed()
		}
	}
	in.barriers = kept
}

// passAll lets all of them pass.
func (in *inspection) passAll() { in.pass(stamp{number: math.MaxUint64}) }

// takeStatus stores and announces an inspection that succeeded.
func (l *loop) takeStatus(in *inspection, c *call, status *PodStatus, now time.Time) {
	if in.failures > 0 {
		c.sync = true // what was told of without a status has one now
		l.g.logger.V(2).Info("Inspection succeeded again", "pod", podName(c.pod), "failures", in.failures)
	}
	in.failures, in.unanswered = 0, time.Time{}
	if !in.retryAt.IsZero() { // it had expired, and came back after all
		in.wanted, in.retryAt = false, time.Time{}
	}
	l.inspections.succeeded = now
	delete(l.inspections.hanging, c.uid)
	l.g.vitals.inspected(c.uid, now)
	last, _ := l.g.cache.Get(c.uid)
	status.IPs = podIPs(last, status)
	l.records.inspected(c.uid, agrees(c.pod, status))
	l.store(in, c, status, nil)
	l.tell(c, now)
}

// failInspection stores the error of an inspection beside the last good status,
// announces what the listing showed all the same, and has the pod inspected again
// after a while.
func (l *loop) failInspection(in *inspection, c *call, err error, now time.Time) {
	in.failures++
	if in.failures == 1 {
		l.g.logger.Error(err, "Cannot inspect pod; will try again until it can be", "pod", podName(c.pod))
	}
	l.g.vitals.trouble(c.uid, in, c.pod, err)
	l.store(in, c, nil, err)
	l.tell(c, now)
	if !in.wanted {
		in.wanted, in.cause = true, c.cause
		in.retryAt = now.Add(l.backoff(in.failures))
		l.inspections.retry.set(in.retryAt)
	}
}

// backoff doubles from one period.
func (l *loop) backoff(failures int) time.Duration {
	wait := l.g.period
	for i := 1; i < failures && wait < maxRetryBackoff; i++ {
		wait *= 2
	}
	return max(min(wait, maxRetryBackoff), l.g.period)
}

// store puts the outcome of an inspection into the cache. If no listing has shown
// a change since, it is as fresh as the newest of them.
func (l *loop) store(in *inspection, c *call, status *PodStatus, err error) {
	if in.outran(c) {
		l.g.cache.Set(c.uid, status, err, c.stamp.time)
		return
	}
	l.g.cache.Set(c.uid, status, err, c.stamp.time)
	in.changed = false
	if stamp := l.records.stampOf(c.uid); stamp.after(c.stamp) && !l.records.disputed(c.uid) {
		l.g.cache.SetObservedTime(c.uid, stamp.time)
	}
	if v := l.g.logger.V(4); v.Enabled() {
		v.Info("Wrote status", "pod", podName(c.pod), "err", err)
	}
}

// tell announces what the listing of an inspection showed.
func (l *loop) tell(c *call, now time.Time) {
	listed := c.listed
	if listed.number == 0 { // no listing showed a change: a retry, or a reinspection
		listed = c.stamp
	}
	var b *batch
	if c.turn != nil {
		b = c.turn.batch
	}
	l.announce(announcement{uid: c.uid, pod: c.pod, sync: c.sync, listedAt: listed.time, cause: c.cause}, c.turn)
	l.release(b, now)
}

// skip gives up a turn that will not be taken.
func (l *loop) skip(t *turn, now time.Time) {
	if t != nil {
		t.skip()
		l.release(t.batch, now)
	}
}

// dropInspection forgets the inspection of a pod that is gone. One under way is
// cancelled, and what it brings is not wanted.
func (l *loop) dropInspection(uid types.UID) {
	in := l.inspections.byPod[uid]
	if in == nil {
		return
	}
	l.g.vitals.recovered(uid)
	delete(l.inspections.hanging, uid)
	now := l.g.clock.Now()
	l.skip(in.turn, now)
	c := in.call
	if c == nil {
		delete(l.inspections.byPod, uid)
	} else {
		l.skip(c.turn, now)
		c.turn, c.stale = nil, true
		c.cancel(errPodGone)
	}
	in.passAll()
	*in = inspection{call: c}
}

// validStatus returns a status that is fit to be stored: a copy, because what was
// handed over is not modified.
func (l *loop) validStatus(status *PodStatus, c *call) (*PodStatus, error) {
	switch {
	case status == nil:
		l.g.metrics.badData(badStatusNil, string(c.uid))
		return nil, fmt.Errorf("the runtime returned no status of %s, and no error", podName(c.pod))
	case status.ID != "" && status.ID != c.uid:
		l.g.metrics.badData(badStatusMismatch, string(c.uid))
		return nil, fmt.Errorf("the runtime returned the status of pod %s for %s", status.ID, podName(c.pod))
	}
	good := *status
	good.ID, good.TimeStamp = c.uid, c.stamp.time
	bad := func() { l.g.metrics.badData(badStatusNilItem, string(c.uid)) }
	good.ContainerStatuses = withoutNil(good.ContainerStatuses, bad)
	good.ActiveContainerStatuses = withoutNil(good.ActiveContainerStatuses, bad)
	good.SandboxStatuses = withoutNil(good.SandboxStatuses, bad)
	return &good, nil
}

// withoutNil returns the list itself, or a copy without its nil items.
func withoutNil[T any](list []*T, bad func()) []*T {
	for i, item := range list {
		if item != nil {
			continue
		}
		good := append(make([]*T, 0, len(list)), list[:i]...)
		for _, item := range list[i:] {
			if item == nil {
				bad()
			} else {
				good = append(good, item)
			}
		}
		return good
	}
	return list
}

// podIPs returns the addresses of a pod: when its network has been torn down, the
// last that it had. A ready sandbox that has none yet does not inherit those of
// the one before it.
func podIPs(last, status *PodStatus) []string {
	if len(status.IPs) > 0 || last == nil {
		return status.IPs
	}
	for _, s := range status.SandboxStatuses {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			return status.IPs
		}
	}
	return last.IPs
}

// While inspections hang, a healthy pod is inspected now and then, so that it
// shows whether the runtime inspects none or only not those. probesPerThreshold
// is how often within the health threshold.
const probesPerThreshold = 6

// nextProbe returns when the next probe is due; zero while nothing hangs.
func (l *loop) nextProbe() time.Time {
	n := &l.inspections
	if len(n.hanging) == 0 {
		return time.Time{}
	}
	every := max(l.g.opts.relistThreshold/probesPerThreshold, l.g.period)
	return later(later(n.hangingSince, n.succeeded), n.probeAt).Add(every)
}

// probe inspects the healthy pod whose turn it is.
func (l *loop) probe(now time.Time) {
	n := &l.inspections
	n.probeAt = now
	var first, next types.UID
	for uid, rec := range l.records.byUID {
		if rec.pod == nil || n.byPod[uid] != nil {
			continue
		}
		if first == "" || uid < first {
			first = uid
		}
		if uid > n.probed && (next == "" || uid < next) {
			next = uid
		}
	}
	if next == "" {
		next = first
	}
	if next == "" {
		return
	}
	n.probed = next
	in := n.of(next)
	in.cause = CausePeriod
	n.want(next, in)
}
