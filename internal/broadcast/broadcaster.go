// Package broadcast delivers updates of keys to any number of subscribers, without
// loss and without ever waiting for one of them.
//
// Updates are coalesced for a subscriber that reads slower than they come: the newest
// undelivered update of a key replaces the older ones, and its events lead from the state
// that was delivered last to the newest. What is held for a subscriber is therefore
// bounded by the keys that exist and those that were delivered to it, however long it does
// not read.
//
// # Delivery
//
// Every subscriber gets the events of one key in order. Keys come in the order in
// which their updates were published, those of a coalesced key at the place of its
// first update that was not delivered. The first events of a subscriber describe the keys
// that exist when it subscribes, by key.
//
// Whoever publishes puts the events into the channels as far as they fit. What does
// not fit is left to a goroutine per subscription that waits for the reader; there is
// one between [Broadcaster.Start] and [Broadcaster.Halt] only, and in between
// [Broadcaster.Fill] puts in what has come to fit. A follower,
// [Broadcaster.Follow], needs neither: it takes its events itself.
//
// The package knows no clock: who publishes and who subscribes says what time it is.
package broadcast

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Rules say what updates of type U mean: each is the newest state of a key of type K,
// delivered to subscribers as events of type E. The zero U stands for a key of which
// nothing was delivered to a subscriber.
//
// The methods depend on their arguments only. They are called from several goroutines
// at once and with locks held, so they must not use the Broadcaster.
type Rules[K cmp.Ordered, U, E any] interface {
	// Key returns the key that the update is about.
	Key(update U) K
	// Gone reports whether nothing is left of the key after the update.
	Gone(update U) bool
	// Initial returns the newest update of a key as a subscriber is to get it that
	// begins now: the state, without requests that were for the subscribers of the time.
	Initial(update U) U
	// Events returns the events that lead a subscriber from delivered, its last state, to the
	// update. The slice must not be changed afterwards.
	Events(delivered, update U) []E
	// Coalesce returns one update in place of two of which the earlier was not
	// delivered, and how many transitions that discards. The state of coalesced is that
	// of later.
	Coalesce(delivered, earlier, later U) (coalesced U, discarded int)
}

// Broadcaster has the present state of each key, and the subscriptions. Its methods may be
// called from any goroutine; Start and Halt by one at a time.
type Broadcaster[K cmp.Ordered, U, E any] struct {
	// Set once by New.

	rules     Rules[K, U, E]
	discarded func(n int)

	// pumps counts the running pumps, for Halt to join.
	pumps sync.WaitGroup

	mu sync.Mutex

	// Guarded by mu. A subscription's own lock is taken inside this one, never the
	// other way round.

	// present is the newest update of each key that exists.
	present map[K]U
	subs    []*subscription[K, U, E]
	// stop ends the pumps; nil while there are to be none.
	stop chan struct{}
}

// New returns a broadcaster without keys or subscriptions. discarded is called with
// the number of transitions that some subscriber will never see, whenever there are
// any; with locks held, so it must not use the Broadcaster.
func New[K cmp.Ordered, U, E any](rules Rules[K, U, E], discarded func(n int)) *Broadcaster[K, U, E] {
	return &Broadcaster[K, U, E]{rules: rules, discarded: discarded, present: make(map[K]U)}
}

// Options say what a subscriber gets. The zero value stands for everything.
type Options[U, E any] struct {
	// Name is the subscriber's in Backlogs; several may have the same.
	Name string
	// Capacity is how many events wait for the subscriber before updates are coalesced.
	Capacity int
	// Begins is when the subscriber subscribes: what exists then is undelivered since
	// then.
	Begins time.Time
	// Lasting subscriptions survive Halt.
	Lasting bool
	// Events makes the subscriber's events in place of that of the rules, unless it is
	// nil.
	Events func(delivered, update U) []E
}

// Publish makes the update the state of its key and tells every subscriber of it. It
// never waits for a reader. at is the present time.
func (b *Broadcaster[K, U, E]) Publish(update U, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := b.rules.Key(update)
	before, existed := b.present[key]
	if b.rules.Gone(update) {
		delete(b.present, key)
	} else {
		b.present[key] = update
	}
	for _, s := range b.subs {
		if n := s.offer(key, state[U]{before, existed}, update, at); n > 0 {
			b.discarded(n)
		}
	}
}

// Subscribe returns a channel. Its events begin with what exists. It is closed when ctx ends,
// or at the next Halt unless it is lasting.
func (b *Broadcaster[K, U, E]) Subscribe(ctx context.Context, o Options[U, E]) chan E {
	s := newSubscription[K](b.rules, o)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(s)
	if b.stop != nil {
		b.startPumpLocked(s)
	}
	s.forget = context.AfterFunc(ctx, func() { b.unsubscribe(s) })
	return s.out
}

// Follower takes the events of Follow.
type Follower[E any] struct {
	// Handle is called with every event.
	Handle func(E)
	// CaughtUp is called once, when what was undelivered as Synced was closed has been handled.
	CaughtUp func()
	Synced   <-chan struct{}
}

// Follow calls the functions of f, in the caller's goroutine and with no lock held.
// The events begin with what exists, and come whether there was a Start or not. It
// returns the cause of ctx when that has ended, and nil at the next Halt unless it is
// lasting. After either no function is called again, and what was not handled is
// dropped. If a function panics, so does Follow, and the subscription has ended.
func (b *Broadcaster[K, U, E]) Follow(ctx context.Context, o Options[U, E], f Follower[E]) error {
	s := newSubscription[K](b.rules, o)
	s.followed = true
	b.subscribe(s)
	defer b.unsubscribe(s)
	synced := f.Synced
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.ended:
			return context.Cause(ctx)
		default:
		}
		select {
		case <-synced:
			synced = nil
			s.mark()
		default:
		}
		switch event, next := s.takeNext(); next {
		case nextEvent:
			f.Handle(event)
			continue
		case nextIsBehindMark:
			f.CaughtUp()
			continue
		case nothingNext:
		}
		select {
		case <-s.work:
		case <-synced:
		case <-s.ended:
		case <-ctx.Done():
		}
	}
}

func (b *Broadcaster[K, U, E]) subscribe(s *subscription[K, U, E]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(s)
}

// addLocked adds a subscription, which begins with what exists.
func (b *Broadcaster[K, U, E]) addLocked(s *subscription[K, U, E]) {
	for _, key := range slices.Sorted(maps.Keys(b.present)) {
		s.offer(key, state[U]{}, b.rules.Initial(b.present[key]), s.options.Begins)
	}
	b.subs = append(b.subs, s)
}

func (b *Broadcaster[K, U, E]) unsubscribe(s *subscription[K, U, E]) {
	b.mu.Lock()
	b.subs = slices.DeleteFunc(b.subs, func(other *subscription[K, U, E]) bool { return other == s })
	b.mu.Unlock()
	s.end()
}

// Fill puts into the channels what has come to fit since.
func (b *Broadcaster[K, U, E]) Fill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.subs {
		s.fill()
	}
}

// Start lets subscriptions wait for their readers, until Halt. Where they do already
// it does nothing.
func (b *Broadcaster[K, U, E]) Start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stop != nil {
		return
	}
	b.stop = make(chan struct{})
	for _, s := range b.subs {
		b.startPumpLocked(s)
	}
}

func (b *Broadcaster[K, U, E]) startPumpLocked(s *subscription[K, U, E]) {
	if s.followed {
		return
	}
	stop := b.stop
	s.pumpStarts()
	b.pumps.Go(func() { s.pump(stop) })
}

// Halt ends the waiting for readers, and returns when the goroutines of that have
// ended and every channel is closed that is not lasting. A lasting one keeps what was
// not delivered.
func (b *Broadcaster[K, U, E]) Halt() {
	b.stopPumps()
	b.pumps.Wait()
	for _, s := range b.takeTransient() {
		if s.forget != nil {
			s.forget()
		}
		s.end()
	}
}

func (b *Broadcaster[K, U, E]) stopPumps() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stop != nil {
		close(b.stop)
		b.stop = nil
	}
}

// takeTransient takes the subscriptions that are not lasting out of the broadcaster.
func (b *Broadcaster[K, U, E]) takeTransient() (taken []*subscription[K, U, E]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subs = slices.DeleteFunc(b.subs, func(s *subscription[K, U, E]) bool {
		if !s.options.Lasting {
			taken = append(taken, s)
		}
		return !s.options.Lasting
	})
	return taken
}

// Backlog is what one subscription has still to be delivered.
type Backlog struct {
	// Name is that of the subscription's options.
	Name string
	// Keys counts the keys of which there is something to be delivered.
	Keys int
	// Since is when the oldest update was published of which something is to be
	// delivered, or when the subscription began for what existed then; zero if there
	// is nothing.
	Since time.Time
}

// Backlogs returns the backlog of each subscription, in the order in which they began.
func (b *Broadcaster[K, U, E]) Backlogs() []Backlog {
	b.mu.Lock()
	defer b.mu.Unlock()
	backlogs := make([]Backlog, len(b.subs))
	for i, s := range b.subs {
		backlogs[i] = s.backlog()
	}
	return backlogs
}
