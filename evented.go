package pleg

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// The times of the event stream.
const (
	// reconnectFirst and reconnectLongest bound the wait between two connections, from
	// one to the next of which it doubles, with jitter.
	reconnectFirst   = time.Second
	reconnectLongest = time.Minute
	// stableStream is how long a stream must have lasted for the wait to begin
	// anew at reconnectFirst.
	stableStream = time.Minute
	// unsupportedRetry is the wait after which a runtime without events is asked
	// again: it may have been upgraded, or configured.
	unsupportedRetry = 5 * time.Minute
	// ProvingTime is how long an event stream must have been connected, and have
	// announced every change, to count as proven live; see
	// WithProvenRelistPeriod.
	ProvingTime = time.Minute
)

// followEvents keeps a stream of the runtime's events open until ctx ends. What
// comes of it are hints: which pod to look at now, never what is to be seen.
func (g *GenericPLEG) followEvents(ctx context.Context) {
	wait := reconnectBackoff{}
	for {
		g.vitals.streamConnecting(g.clock.Now())
		lasted, err := g.followOnce(ctx)
		if ctx.Err() != nil {
			g.vitals.streamEnded(StreamOff, err, g.clock.Now(), time.Time{})
			return
		}
		state, pause := StreamBroken, time.Duration(0)
		if is(err, ErrEventsUnsupported) {
			state, pause = StreamUnsupported, jittered(unsupportedRetry)
			wait = reconnectBackoff{}
			g.logger.V(2).Info("The runtime has no event stream; polling only", "err", err, "nextTry", pause)
		} else {
			pause = wait.next(lasted)
			g.metrics.streamErrors.Inc()
			g.logger.V(2).Info("The runtime's event stream broke", "err", err, "lasted", lasted, "nextTry", pause)
		}
		g.vitals.streamEnded(state, err, g.clock.Now(), g.clock.Now().Add(pause))
		timer := g.clock.NewTimer(pause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			g.vitals.streamEnded(StreamOff, err, g.clock.Now(), time.Time{})
			return
		}
	}
}

// followOnce follows one stream until it breaks or ctx ends, and returns how long
// it had been connected and why it ended.
func (g *GenericPLEG) followOnce(ctx context.Context) (lasted time.Duration, err error) {
	s := &stream{g: g, call: &call{kind: callWatchEvents, started: g.clock.Now()}, ended: make(chan error, 1)}
	s.call.ctx, s.call.cancel = context.WithCancelCause(g.context.get())
	defer s.call.cancel(nil)
	if !g.streaming.CompareAndSwap(false, true) {
		return 0, errStreamLeftBehind
	}
	g.calls.add(s.call)
	go s.watch()
	select {
	case err = <-s.ended:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	connectedAt, heard := s.close()
	if !connectedAt.IsZero() {
		lasted = g.clock.Since(connectedAt)
		g.box.put(func(m *mail) { m.stream = append(m.stream, streamNews{}) })
	}
	switch {
	case err != nil:
	case !heard && lasted < stableStream:
		err = ErrEventsUnsupported // how CRI-O says that events are switched off
	default:
		err = errStreamEnded
	}
	return lasted, err
}

// errStreamLeftBehind says that the stream from before Stop has still not ended,
// because the runtime does not heed its context.
var errStreamLeftBehind = errors.New("the stream from before has not ended yet")

// errStreamEnded stands for the reason that a runtime did not give.
var errStreamEnded = errors.New("the runtime ended the stream")

// reconnectBackoff is the wait before the next connection.
type reconnectBackoff struct{ last time.Duration }

func (b *reconnectBackoff) next(lasted time.Duration) time.Duration {
	switch {
	case b.last == 0 || lasted >= stableStream:
		b.last = reconnectFirst
	default:
		b.last = min(2*b.last, reconnectLongest)
	}
	return jittered(b.last)
}

// jittered returns a wait between three quarters of d and d, so that the agents
// of many nodes do not come back all at once.
func jittered(d time.Duration) time.Duration {
	return d - rand.N(d/4+1) //nolint:gosec // spreads load; not a secret
}

// hints is what the runtime's events have said: which pods to look at, and
// whether they may be relied on to say so.
type hints struct {
	connected   bool
	connectedAt time.Time
	// provenAt is from when on the stream counts as proven live.
	provenAt time.Time

	// heard is when the last hint about a pod came, back to a period before
	// lastFull, the stamp of the last full listing.
	heard    map[types.UID]time.Time
	lastFull time.Time
	// suspects are the pods in which a full listing found a change that no hint
	// had announced, and since when; the hint may be on its way.
	suspects map[types.UID]time.Time
	// unseen are the containers by pod that hints spoke of and no listing has
	// shown, with the last listing that had begun when the hint came.
	unseen map[types.UID]map[string]stamp
	// removed are the containers that are known to be gone, so that late and
	// repeated events about them are not news.
	removed recentIDs
}

func newHints() hints {
	return hints{
		heard:    make(map[types.UID]time.Time),
		suspects: make(map[types.UID]time.Time),
		unseen:   make(map[types.UID]map[string]stamp),
	}
}

// maxUnseen bounds the containers of one pod that only hints spoke of.
const maxUnseen = 100

// takeHints has every pod looked at that a hint is about.
func (l *loop) takeHints() {
	h := &l.hints
	now := l.g.clock.Now()
	for _, news := range l.mail.stream {
		h.connected, h.connectedAt = news.connected, now
		if h.connected {
			h.provenAt = now.Add(ProvingTime)
			l.full.want(CauseHint, true) // there is no resume: what was missed is seen now
		} else {
			l.shortenPeriod(now)
		}
	}
	if l.mail.lostHints {
		l.full.want(CauseHint, true)
	}
	if len(l.mail.hints) == 0 {
		return
	}
	l.mail.resolveHints(l.records)
	for _, hint := range slices.SortedFunc(maps.Keys(l.mail.hints), compareHints) {
		if hint.uid == "" {
			l.full.want(CauseHint, true) // of a container that no listing has shown
			continue
		}
		h.heard[hint.uid] = now
		delete(h.suspects, hint.uid)
		h.noteUnseen(hint, l.records.get(hint.uid), l.last)
		l.wantLook(hint.uid, look{cause: CauseHint, hinted: true})
	}
	if len(h.heard) > maxHints || len(l.looks.wanted) > maxHints {
		l.forgetHints(now)
	}
}

// forgetHints forgets the pods that hints spoke of, because there are too many of
// them while no list lands; one full relist stands for all.
func (l *loop) forgetHints(now time.Time) {
	h := &l.hints
	clear(h.heard)
	clear(h.unseen)
	clear(h.suspects)
	h.connectedAt, h.provenAt = now, now.Add(ProvingTime)
	l.looks.forgetHints()
	l.full.want(CauseHint, true)
}

func compareHints(a, b hint) int {
	return cmp.Or(cmp.Compare(a.uid, b.uid), cmp.Compare(a.containerID, b.containerID))
}

// resolveHints finds the pods of the hints that name only a container, in one
// walk over the records for all of them.
func (m *mail) resolveHints(records *podRecords) {
	lost := false
	for h := range m.hints {
		lost = lost || h.uid == ""
	}
	if !lost {
		return
	}
	for uid, rec := range records.byUID {
		for id := range containerIDs(rec.pod) {
			if _, ok := m.hints[hint{containerID: id}]; ok {
				delete(m.hints, hint{containerID: id})
				m.hints[hint{uid, id}] = struct{}{}
			}
		}
	}
}

func (h *hints) noteUnseen(hint hint, pod *Pod, last stamp) {
	if hint.containerID == "" || hasContainer(pod, hint.containerID) || h.removed.has(hint.containerID) {
		return
	}
	ids := h.unseen[hint.uid]
	if ids == nil {
		ids = make(map[string]stamp)
		h.unseen[hint.uid] = ids
	}
	if len(ids) < maxUnseen {
		ids[hint.containerID] = last
	}
}

// noteRemoved remembers the containers that a listing showed to be gone.
func (h *hints) noteRemoved(change podChange) {
	for _, t := range appendTransitions(nil, change.old, change.new) {
		if t.kind == ContainerRemoved {
			h.removed.add(t.container.ID.ID)
		}
	}
}

// judgeHints holds a full listing against the hints before it: what they had
// not announced, and what of that which they had is not there.
func (l *loop) judgeHints(changes []podChange, c *call, now time.Time) {
	h := &l.hints
	if l.g.source == nil {
		return
	}
	for _, uid := range sortedKeys(h.unseen) {
		l.judgeUnseen(uid, c)
	}
	// A hint may be a little ahead of the list, and counts for a period more.
	since := h.lastFull.Add(-l.g.period)
	if h.connected && h.connectedAt.Before(h.lastFull) {
		for _, change := range changes {
			if at, ok := h.heard[change.uid]; !change.disputed && !change.rechecked && (!ok || at.Before(since)) {
				h.suspects[change.uid] = now
				l.shortenPeriod(now)
			}
		}
	}
	for uid, since := range h.suspects {
		if now.Sub(since) >= l.g.period {
			delete(h.suspects, uid)
			l.g.metrics.unannounced.Inc()
			h.provenAt = now.Add(ProvingTime)
			l.shortenPeriod(now)
			l.g.logger.V(2).Info("A change came without an event", "podUID", uid)
		}
	}
	for uid, at := range h.heard {
		if at.Before(since) {
			delete(h.heard, uid)
		}
	}
	h.lastFull = c.stamp.time
}

// judgeHintsOf is the same for a listing of one pod.
func (l *loop) judgeHintsOf(c *call) {
	if l.hints.unseen[c.uid] != nil {
		l.judgeUnseen(c.uid, c)
	}
}

// judgeUnseen finds the containers of a pod that came and went between two
// listings, so that only hints told of them. The pod gets a PodSync; what they
// were is not known and not made up.
func (l *loop) judgeUnseen(uid types.UID, c *call) {
	h := &l.hints
	ids := h.unseen[uid]
	pod := l.records.get(uid)
	gone := 0
	for id, last := range ids {
		if !c.stamp.after(last) {
			continue // the hint is newer than the listing
		}
		delete(ids, id)
		if !hasContainer(pod, id) && !h.removed.has(id) {
			h.removed.add(id)
			gone++
		}
	}
	if len(ids) == 0 {
		delete(h.unseen, uid)
	}
	if gone == 0 {
		return
	}
	l.g.metrics.unseen.Add(float64(gone))
	l.syncPod(uid, pod, c)
}

// syncPod sends a PodSync: with the inspection that the pod waits for, with one
// made for it if what the cache has is in doubt, or at once if it is fresh.
func (l *loop) syncPod(uid types.UID, pod *Pod, c *call) {
	in := l.inspections.byPod[uid]
	switch {
	case pod == nil:
	case l.records.disputed(uid):
		l.reinspect(uid)
	case in == nil || !in.changed:
		l.announce(announcement{uid: uid, pod: pod, sync: true, listedAt: c.stamp.time, cause: c.cause}, nil)
	case in.call != nil && !in.wanted:
		in.call.sync = true
	default:
		in.sync = true
	}
}

// period is the time until the next full relist: longer while the stream is
// proven live, if that was asked for.
func (h *hints) period(now time.Time, g *GenericPLEG) time.Duration {
	if g.opts.provenPeriod > g.period && h.connected && !now.Before(h.provenAt) && g.blockedReaders() <= 0 {
		return g.opts.provenPeriod
	}
	return g.period
}

// shortenPeriod makes the next full relist come within the ordinary period.
func (l *loop) shortenPeriod(now time.Time) {
	if next := now.Add(l.g.period); next.Before(l.nextFull) {
		l.nextFull = next
	}
}

// recentIDs remembers at least the last recentGeneration IDs, and no more than
// twice as many.
type recentIDs struct{ young, old map[string]struct{} }

const recentGeneration = 4096

func (r *recentIDs) add(id string) {
	if r.young == nil || len(r.young) >= recentGeneration {
		r.young, r.old = make(map[string]struct{}), r.young
	}
	r.young[id] = struct{}{}
}

func (r *recentIDs) has(id string) bool {
	_, young := r.young[id]
	_, old := r.old[id]
	return young || old
}

func hasContainer(pod *Pod, id string) bool {
	if pod == nil {
		return false
	}
	is := func(c *Container) bool { return c.ID.ID == id }
	return slices.ContainsFunc(pod.Containers, is) || slices.ContainsFunc(pod.Sandboxes, is)
}

func containerIDs(pod *Pod) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		if pod == nil {
			return
		}
		for _, list := range [...][]*Container{pod.Containers, pod.Sandboxes} {
			for _, c := range list {
				if !yield(c.ID.ID) {
					return
				}
			}
		}
	}
}
