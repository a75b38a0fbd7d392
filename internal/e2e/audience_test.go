package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
)

// sent describes the events of one container or sandbox that a subscriber was sent.
type sent struct {
	started, died, removed time.Time
	// code is the exit code in the cache when the death was reported. It is nil if it was not
	// looked up, or if the runtime no longer had the container.
	code *int
	// reported is the exit code in the newest event that has an exit code; nil if no event has one.
	reported *int
	// trail describes every event, for failure texts.
	trail string
}

const clockLayout = "04:05.000000"

// any reports whether the subscriber was sent an event.
func (t sent) any() bool {
	return !t.started.IsZero() || !t.died.IsZero() || !t.removed.IsZero()
}

// hasCode reports whether an event contained the exit code.
func (t sent) hasCode() bool { return t.reported != nil }

// state returns the container's state after all events.
func (t sent) state() string {
	switch {
	case !t.removed.IsZero():
		return "gone"
	case !t.died.IsZero():
		return "exited"
	default:
		return "running"
	}
}

// listener is one subscriber and the events that it was sent. It checks rule 1 on every event:
// Started comes before Died, Died comes before Removed, and each comes at most once.
type listener struct {
	name string

	mu    sync.Mutex
	sent  map[string]sent
	wrong []string
	news  chan struct{} // closed and replaced at every event
}

func newListener(name string) *listener {
	return &listener{name: name, sent: make(map[string]sent), news: make(chan struct{})}
}

// hear stores one event. The argument code is the exit code in the cache; nil if it is unknown.
func (l *listener) hear(e *pleg.PodLifecycleEvent, code *int) {
	id, _ := e.Data.(string)
	if e.Type == pleg.PodSync {
		if e.Container == nil {
			return
		}
		id = e.Container.ID.ID
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.sent[id]
	if e.Type == pleg.PodSync && !t.any() {
		return
	}
	if !e.IsSandbox() && e.Status != nil && e.Status.State == pleg.ContainerStateExited {
		t.reported = &e.Status.ExitCode
	}
	t.trail += fmt.Sprintf("%s at %s of the listing begun at %s (%s); ", e.Type, now.Format(clockLayout),
		e.ListedAt.Format(clockLayout), e.Cause)
	complain := func() {
		l.wrong = append(l.wrong,
			fmt.Sprintf("%s: %s of %.12s out of order or again; it was sent: %s", l.name, e.Type, id, t.trail))
	}
	switch e.Type {
	case pleg.ContainerStarted:
		if t.any() {
			complain()
		}
		t.started = now
	case pleg.ContainerDied:
		if !t.died.IsZero() || !t.removed.IsZero() {
			complain()
		}
		t.died, t.code = now, code
	case pleg.ContainerRemoved:
		if t.died.IsZero() || !t.removed.IsZero() {
			complain()
		}
		t.removed = now
	case pleg.PodSync: // may only correct the exit code
	default:
		complain()
	}
	l.sent[id] = t
	close(l.news)
	l.news = make(chan struct{})
}

// await waits until the function what returns true for the events of one container or sandbox.
func (l *listener) await(ctx context.Context, id string, what func(sent) bool) error {
	for {
		l.mu.Lock()
		t, news := l.sent[id], l.news
		l.mu.Unlock()
		if what(t) {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("%s was sent of %.12s only this: %s%w", l.name, id, t.trail, ctx.Err())
		}
	}
}

// present returns the state of every container and sandbox that was not removed.
func (l *listener) present() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	states := make(map[string]string)
	for id, t := range l.sent {
		if s := t.state(); s != "gone" {
			states[id] = s
		}
	}
	return states
}

// uncoded describes a container whose exit code was in the cache but in no event. It returns "" if
// there is none.
func (l *listener) uncoded() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(l.sent)) {
		if t := l.sent[id]; t.code != nil && t.reported == nil {
			return fmt.Sprintf("%.12s: the cache said exit code %d, and no event did: %s", id, *t.code, t.trail)
		}
	}
	return ""
}

// judge returns the errors that the method hear found, and the differences between the events and
// the book.
func (l *listener) judge(b *book) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	wrong := slices.Clone(l.wrong)
	for _, id := range slices.Sorted(maps.Keys(l.sent)) {
		if w := b.judge(id, l.sent[id]); w != "" {
			wrong = append(wrong, l.name+": "+w)
		}
	}
	return wrong
}

// forget drops the containers that were removed.
func (l *listener) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := make(map[string]sent)
	for id, t := range l.sent {
		if t.state() != "gone" {
			kept[id] = t
		}
	}
	l.sent, l.wrong = kept, nil
}

// audience is all subscribers and cache readers of a generator, while faults are injected into the
// runtime. One subscriber reads without pauses. Others read slowly, stall, or come and go.
type audience struct {
	pleg  *pleg.GenericPLEG
	cache *pleg.PodCache
	// caches are the cache of pleg and the cache of the generator with exit events.
	caches []*pleg.PodCache

	// eager are the subscribers that read without pauses, one for each generator.
	eager []*listener
	// lasting are all subscribers that stay until the end, including the eager ones.
	lasting []*listener
	stop    context.CancelFunc
	joined  sync.WaitGroup

	mu    sync.Mutex
	guest []string // errors in the events of guests
	calm  bool     // true while no subscriber pauses
}

// assemble starts the audience of the generator g. One more subscriber reads from the generator
// named exits, which uses exit events.
func assemble(g, exits generator, b *book, pods func() []types.UID) *audience {
	ctx, stop := context.WithCancel(context.Background())
	a := &audience{pleg: g.GenericPLEG, cache: g.cache, caches: []*pleg.PodCache{g.cache, exits.cache}, stop: stop}
	eager, byExits := newListener("the eager subscriber"), newListener("the subscriber with exit events")
	watcher := newListener("the reader of Watch")
	slow := newListener("the slow subscriber")
	staller := newListener("the stalling subscriber")
	a.eager = []*listener{eager, byExits}
	a.lasting = []*listener{eager, byExits, watcher, slow, staller}
	a.joined.Go(func() { a.listen(ctx, eager, g.cache, g.Subscribe(ctx, pleg.WithCapacity(1<<16)), nil) })
	a.joined.Go(func() { a.listen(ctx, byExits, exits.cache, exits.Subscribe(ctx, pleg.WithCapacity(1<<16)), nil) })
	a.joined.Go(func() { a.listen(ctx, watcher, g.cache, g.Watch(), nil) })
	a.joined.Go(func() {
		a.listen(ctx, slow, g.cache, g.Subscribe(ctx, pleg.WithCapacity(1)),
			func() time.Duration { return 20 * time.Millisecond })
	})
	a.joined.Go(func() {
		a.listen(ctx, staller, g.cache, g.Subscribe(ctx, pleg.WithCapacity(10)), func() time.Duration {
			if rand.IntN(50) == 0 {
				return 5 * time.Second
			}
			return 0
		})
	})
	for i := range 3 {
		a.joined.Go(func() { a.visit(ctx, fmt.Sprintf("guest %d", i), b) })
	}
	for range 4 {
		a.joined.Go(func() { a.readCache(ctx, pods) })
	}
	return a
}

// dismiss stops the audience. It returns when all its goroutines have ended.
func (a *audience) dismiss() {
	a.stop()
	a.joined.Wait()
}

// listen reads events until the channel is closed or ctx ends. It pauses after each event.
func (a *audience) listen(ctx context.Context, l *listener, cache *pleg.PodCache,
	events <-chan *pleg.PodLifecycleEvent, pause func() time.Duration) {
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			l.hear(e, exitCode(cache, e))
		case <-ctx.Done():
			return
		}
		if pause == nil || a.isCalm() {
			continue
		}
		select {
		case <-time.After(pause()):
		case <-ctx.Done():
		}
	}
}

// exitCode returns the container's exit code in the cache if e reports a death; nil otherwise.
func exitCode(cache *pleg.PodCache, e *pleg.PodLifecycleEvent) *int {
	if e.Type != pleg.ContainerDied || e.IsSandbox() {
		return nil
	}
	s, err := cache.Get(e.ID)
	if err != nil {
		return nil
	}
	id, _ := e.Data.(string)
	if c := containerIn(s, id); c != nil && c.State == pleg.ContainerStateExited {
		return &c.ExitCode
	}
	return nil
}

// visit subscribes for up to four seconds, again and again, until ctx ends.
func (a *audience) visit(ctx context.Context, name string, b *book) {
	for ctx.Err() == nil {
		l := newListener(name)
		stay, leave := context.WithTimeout(ctx, time.Duration(rand.IntN(4000))*time.Millisecond)
		a.listen(context.Background(), l, a.cache, a.pleg.Subscribe(stay, pleg.WithCapacity(rand.IntN(100)-1)), nil)
		leave()
		wrong := l.wrongAfterVisit(b)
		a.mu.Lock()
		a.guest = append(a.guest, wrong...)
		a.mu.Unlock()
	}
}

// wrongAfterVisit judges the events of a guest. It skips exit codes, and containers that are not
// yet in the book.
func (l *listener) wrongAfterVisit(b *book) []string {
	l.mu.Lock()
	for id, t := range l.sent {
		if _, ok := b.get(id); !ok {
			delete(l.sent, id)
		} else {
			t.code, t.reported = nil, nil
			l.sent[id] = t
		}
	}
	l.mu.Unlock()
	return l.judge(b)
}

// readCache waits for statuses in the cache again and again. Some of its timeouts are too short for
// a status. The results are checked by churn.read, which knows what happened to the containers.
func (a *audience) readCache(ctx context.Context, pods func() []types.UID) {
	for ctx.Err() == nil {
		if uids := pods(); len(uids) > 0 && !a.isCalm() {
			reading, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(1000))*time.Millisecond)
			_, _, _ = a.cache.LookupNewerThan(reading, uids[rand.IntN(len(uids))], time.Now())
			cancel()
		}
		select {
		case <-time.After(time.Duration(rand.IntN(100)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (a *audience) isCalm() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calm
}

func (a *audience) setCalm(calm bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calm = calm
}
