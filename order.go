package pleg

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// patienceShare is the part of a relist period for which news that is ready waits
// for that of pods before it in the same relist.
const patienceShare = 20

// ordering announces the changes of one relist in the order of their UIDs,
// although their inspections land as they please, so that a run can be replayed.
// It has little patience: news waits a twentieth of a period for what stands
// before it and then goes first, for a pod that hangs must not delay another.
type ordering struct {
	batches []*batch
	// ready are the turns whose news is there and waits, by pod.
	ready    map[types.UID]*turn
	patience alarm
}

// batch is the pods that one relist found changed, by UID.
type batch struct {
	turns []*turn
	// ready counts the turns whose news is there.
	ready int
	// advanced is when the first turn last changed.
	advanced time.Time
}

// turn is a pod's place in a batch.
type turn struct {
	batch *batch // nil once the batch goes on without it
	uid   types.UID
	state turnState
	news  announcement
}

type turnState int

const (
	turnAwaited turnState = iota
	turnReady
	turnSkipped
)

func newOrdering() ordering { return ordering{ready: make(map[types.UID]*turn)} }

func (o *ordering) begin(now time.Time) *batch {
	b := &batch{advanced: now}
	o.batches = append(o.batches, b)
	return b
}

// turn appends a pod's turn; a nil batch has none.
func (b *batch) turn(uid types.UID) *turn {
	if b == nil {
		return nil
	}
	t := &turn{batch: b, uid: uid}
	b.turns = append(b.turns, t)
	return t
}

// announce publishes news in its turn: at once if it has none. News of a pod whose
// earlier news still waits takes the place of that.
func (l *loop) announce(news announcement, t *turn) {
	o := &l.order
	if waiting := o.ready[news.uid]; waiting != nil {
		news.sync = news.sync || waiting.news.sync
		waiting.news = news
		t.skip()
		return
	}
	if t == nil || t.batch == nil {
		l.publish(news)
		return
	}
	t.state, t.news = turnReady, news
	t.batch.ready++
	o.ready[news.uid] = t
}

// skip gives a turn up.
func (t *turn) skip() {
	if t != nil && t.state == turnAwaited {
		t.state = turnSkipped
	}
}

// release publishes what is ready at the front of a batch.
func (l *loop) release(b *batch, now time.Time) {
	if b == nil {
		return
	}
	n := 0
	for n < len(b.turns) && b.turns[n].state != turnAwaited {
		l.publishTurn(b.turns[n])
		n++
	}
	if n > 0 {
		b.turns, b.advanced = b.turns[n:], now
	}
	if b.ready > 0 {
		l.order.patience.set(b.advanced.Add(l.patience()))
	}
}

func (l *loop) patience() time.Duration { return max(l.g.period/patienceShare, 1) }

// losePatience publishes the news that has waited long enough, and goes on
// without the pods before it.
func (l *loop) losePatience(now time.Time) {
	o := &l.order
	kept := o.batches[:0]
	rings := o.patience.rings(now)
	for _, b := range o.batches {
		if rings && b.ready > 0 && !now.Before(b.advanced.Add(l.patience())) {
			l.goOnWithout(b, now)
		}
		if rings && b.ready > 0 {
			o.patience.set(b.advanced.Add(l.patience()))
		}
		if len(b.turns) > 0 {
			kept = append(kept, b)
		}
	}
	clear(o.batches[len(kept):])
	o.batches = kept
}

// goOnWithout publishes all that is ready in a batch; the pods before it are
// announced without a turn when they land.
func (l *loop) goOnWithout(b *batch, now time.Time) {
	n := 0
	for ; b.ready > 0; n++ {
		if t := b.turns[n]; t.state == turnAwaited {
			t.batch = nil
		} else {
			l.publishTurn(t)
		}
	}
	b.turns, b.advanced = b.turns[n:], now
	l.release(b, now)
}

func (l *loop) publishTurn(t *turn) {
	if t.state == turnReady {
		t.batch.ready--
		delete(l.order.ready, t.uid)
		l.publish(t.news)
	}
}

// publish tells the subscribers.
func (l *loop) publish(news announcement) {
	old := l.g.announcer.publish(news)
	if v := l.g.logger.V(2); v.Enabled() {
		l.logTransitions(old, news)
	}
}

// logTransitions tells of containers that finished, and of every transition.
func (l *loop) logTransitions(old *Pod, news announcement) {
	status, _ := l.g.cache.Get(news.uid)
	for _, t := range appendTransitions(nil, old, news.pod) {
		l.g.logger.V(4).Info("Transition", "podUID", news.uid, "containerID", t.container.ID.ID, "event", t.kind)
		if t.kind != ContainerDied || t.sandbox {
			continue
		}
		for _, s := range status.ContainerStatuses {
			if s.ID.ID == t.container.ID.ID && s.State == ContainerStateExited {
				l.g.logger.V(2).Info("Container finished", "podUID", news.uid, "containerID", s.ID.ID, "exitCode", s.ExitCode, "reason", s.Reason)
			}
		}
	}
}
