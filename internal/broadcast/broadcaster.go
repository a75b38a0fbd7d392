// Package broadcast delivers updates of keys to any number of subscribers. It loses no state,
// and it never waits for a subscriber.
//
// A subscriber that reads more slowly than updates are published has them coalesced: the newest
// update of a key replaces the pending one, and its events lead from the update that was
// delivered last to the newest. So what waits for a subscriber is bounded, however long it does
// not read: by the keys that exist, those that were delivered to it, and those that existed when
// it subscribed.
//
// # Delivery
//
// A subscriber gets the events of one key in order. Keys come in the order in which their
// pending updates were published first. A subscriber begins with the keys that exist, in
// ascending order.
//
// Publish puts events into the channels as far as they fit. Between [Broadcaster.Start] and
// [Broadcaster.Halt], a goroutine sends the rest to a reader that is slow. At other times,
// [Broadcaster.Fill] sends what fits by then. [Broadcaster.Follow] needs neither: it takes its
// events in the caller's goroutine.
package broadcast

import (
	"cmp"
	"container/list"
	"context"
	"maps"
	"slices"
	"sync"
)

// Rules define updates of type U: each is the newest state of a key of type K, and is delivered
// as events of type E. In place of a delivered update, the zero U means that nothing of the key
// was delivered.
//
// The results of the methods depend on their arguments only. The methods are called with a lock
// held, so they must not use the Broadcaster.
type Rules[K cmp.Ordered, U, E any] interface {
	// Key returns the key of an update.
	Key(update U) K
	// Gone reports whether nothing is left of the key after the update.
	Gone(update U) bool
	// Initial returns the newest update of a key as the first update for a new subscriber: the
	// state, without requests of the subscribers before it.
	Initial(update U) U
	// Events returns the events that lead from delivered, the last update that the subscriber
	// got, to update. The caller may keep the slice, but does not modify it.
	Events(delivered, update U) []E
	// Coalesce returns one update in place of earlier, which was not delivered, and later. It
	// also returns the number of transitions that are lost by that. The state of the result is
	// the state of later.
	Coalesce(delivered, earlier, later U) (coalesced U, discarded int)
}

// Broadcaster has the newest update of each key, and the subscriptions. Its methods are safe for
// concurrent use, except that Start and Halt must not run at the same time.
type Broadcaster[K cmp.Ordered, U, E any] struct {
	// Set once by New.

	rules     Rules[K, U, E]
	discarded func(n int)

	// pumps are the running pumps, for Halt to join.
	pumps sync.WaitGroup

	mu sync.Mutex

	// Guarded by mu, as are the subscriptions.

	present map[K]U // the newest update of each key that exists
	subs    []*subscription[K, U, E]
	stop    chan struct{} // ends the pumps; nil before Start and after Halt
}

// New returns a broadcaster without keys or subscriptions. It calls discarded with the number of
// transitions that a subscriber will not get because updates were coalesced. A lock is held then,
// so discarded must not use the Broadcaster.
func New[K cmp.Ordered, U, E any](rules Rules[K, U, E], discarded func(n int)) *Broadcaster[K, U, E] {
	return &Broadcaster[K, U, E]{rules: rules, discarded: discarded, present: make(map[K]U)}
}

// Options are the options of a subscription. The zero value is valid.
type Options[U, E any] struct {
	// Name is the name of the subscription in Backlogs. Several may have the same.
	Name string
	// Capacity is the number of events that wait for the subscriber before updates are coalesced.
	Capacity int
	// Lasting is true for a channel that stays open at Halt.
	Lasting bool
	// Events replaces Rules.Events for this subscription, unless it is nil.
	Events func(delivered, update U) []E
}

// Publish makes the update the newest of its key, and delivers it to every subscriber. It never
// waits for a subscriber.
func (b *Broadcaster[K, U, E]) Publish(update U) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := b.rules.Key(update)
	before := b.present[key]
	if b.rules.Gone(update) {
		delete(b.present, key)
	} else {
		b.present[key] = update
	}
	for _, s := range b.subs {
		s.offerLocked(key, before, update)
	}
}

// Subscribe returns a channel of events. The channel is closed when ctx ends, and at the next
// Halt unless the subscription is lasting.
func (b *Broadcaster[K, U, E]) Subscribe(ctx context.Context, o Options[U, E]) chan E {
	s := b.subscribe(ctx, o, make(chan E, max(o.Capacity, 0)))
	context.AfterFunc(s.ctx, s.unsubscribe)
	return s.out
}

// Follow calls handle with each event, in the caller's goroutine and with no lock held, whether
// Start was called or not. It returns the cause of ctx when ctx has ended, and nil at the next
// Halt. It drops the events that are left then. If handle panics, Follow ends the subscription and
// panics.
func (b *Broadcaster[K, U, E]) Follow(ctx context.Context, o Options[U, E], handle func(E)) error {
	s := b.subscribe(ctx, o, nil)
	defer s.unsubscribe()
	for s.ctx.Err() == nil {
		if event, ok := s.take(); ok {
			handle(event)
			continue
		}
		select {
		case <-s.work:
		case <-s.ctx.Done():
		}
	}
	return context.Cause(ctx)
}

// subscribe adds a subscription, which begins with the keys that exist. A follower has no channel.
func (b *Broadcaster[K, U, E]) subscribe(ctx context.Context, o Options[U, E], out chan E) *subscription[K, U, E] {
	if o.Events == nil {
		o.Events = b.rules.Events
	}
	s := &subscription[K, U, E]{
		b: b, options: o, out: out, work: make(chan struct{}, 1), pending: make(map[K]*list.Element),
	}
	s.ctx, s.end = context.WithCancel(ctx) // panics if ctx is nil
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(b.present)) {
		s.offerLocked(key, *new(U), b.rules.Initial(b.present[key]))
	}
	b.subs = append(b.subs, s)
	return s
}

// Fill puts into each channel the events that fit by now.
func (b *Broadcaster[K, U, E]) Fill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.subs {
		s.deliverLocked()
	}
}

// Start has slow readers waited for. A second Start does nothing.
func (b *Broadcaster[K, U, E]) Start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stop != nil {
		return
	}
	b.stop = make(chan struct{})
	for _, s := range b.subs {
		s.deliverLocked()
	}
}

// Halt ends what Start started, and every subscription that is not lasting. Lasting subscriptions
// keep what was not delivered.
func (b *Broadcaster[K, U, E]) Halt() {
	b.mu.Lock()
	if b.stop != nil {
		close(b.stop)
		b.stop = nil
	}
	b.mu.Unlock()
	b.pumps.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range slices.Clone(b.subs) {
		if !s.options.Lasting {
			s.removeLocked()
		}
	}
}

// Backlog is what was not delivered to one subscriber yet.
type Backlog struct {
	Name string // Options.Name
	// Keys is the number of keys with events that are not in the subscriber's channel, or that
	// its follower has not taken.
	Keys int
}

// Backlogs returns the backlog of each subscription, oldest subscription first.
func (b *Broadcaster[K, U, E]) Backlogs() []Backlog {
	b.mu.Lock()
	defer b.mu.Unlock()
	backlogs := make([]Backlog, len(b.subs))
	for i, s := range b.subs {
		backlogs[i] = Backlog{Name: s.options.Name, Keys: s.undeliveredLocked()}
	}
	return backlogs
}
