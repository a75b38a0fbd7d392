// Package broadcast delivers updates of keys to subscribers. It loses no state and never waits for
// a reader.
//
// If a subscriber reads too slowly, updates are coalesced: the newest update of a key replaces the
// pending update. The events then lead from the last delivered update to the newest. A key is in
// the backlog only if it exists, existed at the subscription, or was sent.
//
// # Delivery
//
// A subscriber is sent the events of one key in order. Keys are ordered by when their pending
// update was first published. A new subscriber is first sent the existing keys, in ascending order.
//
// Publish puts as many events into the channels as fit. Between [Broadcaster.Start] and
// [Broadcaster.Halt], goroutines send the remaining events to slow readers. At other times,
// [Broadcaster.Fill] sends the events that fit. [Broadcaster.Follow] calls Fill after each event.
package broadcast

import (
	"cmp"
	"container/list"
	"context"
	"maps"
	"slices"
	"sync"
)

// Rules define updates of type U. An update is the newest state of a key of type K. The argument
// delivered is the last update that was delivered, or the zero value of U if there is none.
//
// The methods must depend on their arguments only. They are called with a lock held and must not
// use the Broadcaster.
type Rules[K cmp.Ordered, U any] interface {
	// Key returns the key of an update.
	Key(update U) K
	// Gone reports whether the key no longer exists after the update.
	Gone(update U) bool
	// Initial makes the first update for a new subscriber from the newest update. The result contains
	// no events that other subscribers have requested.
	Initial(update U) U
	// Coalesce merges two undelivered updates, earlier and later, into one with the state of later.
	// discarded is the number of transitions that are lost.
	Coalesce(delivered, earlier, later U) (coalesced U, discarded int)
}

// Broadcaster contains the newest update of each key, and the subscriptions. Its methods are safe
// for concurrent use, but each Start must be followed by Halt before the next Start.
type Broadcaster[K cmp.Ordered, U, E any] struct {
	rules     Rules[K, U]
	discarded func(n int)

	// pumps counts the running goroutines of the method pump. Halt waits for these goroutines.
	pumps sync.WaitGroup

	mu      sync.Mutex // guards the fields below, and the subscriptions
	present map[K]U    // the newest update of each key that exists
	subs    []*subscription[K, U, E]
	stop    chan struct{} // ends the pumps; nil unless started
}

// New returns an empty broadcaster. It calls discarded with the number of transitions that a
// subscriber misses because updates were coalesced. discarded is called with a lock held: it must
// not use the Broadcaster.
func New[K cmp.Ordered, U, E any](rules Rules[K, U], discarded func(n int)) *Broadcaster[K, U, E] {
	return &Broadcaster[K, U, E]{rules: rules, discarded: discarded, present: make(map[K]U)}
}

// Options are the options of a subscription.
type Options[U, E any] struct {
	// Capacity is the capacity of the channel. Updates that do not fit into it are coalesced.
	Capacity int
	// Lasting is true if the channel stays open at Halt.
	Lasting bool
	// Events returns the events that lead from the update delivered to the given update. It must obey
	// the conditions of Rules. The caller may keep the slice, but does not modify it.
	Events func(delivered, update U) []E
}

// Publish makes the update the newest of its key and delivers it. It never waits for a subscriber.
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

// Subscribe returns a channel of events. The channel is closed when ctx ends. Unless the
// subscription is lasting, the channel is also closed at the next Halt.
func (b *Broadcaster[K, U, E]) Subscribe(ctx context.Context, o Options[U, E]) chan E {
	return b.subscribe(ctx, o).out
}

// Follow calls handle with each event, in the caller's goroutine and without a lock, even without
// Start. When ctx ends, Follow returns the cause of ctx. At the next Halt, it returns nil. It drops
// the remaining events. If handle panics, Follow ends the subscription and panics.
func (b *Broadcaster[K, U, E]) Follow(ctx context.Context, o Options[U, E], handle func(E)) error {
	o.Capacity = max(o.Capacity, 1) // without Start, events are sent only into a buffer
	s := b.subscribe(ctx, o)
	defer s.unsubscribe()
	for event := range s.out {
		if s.ctx.Err() != nil {
			break
		}
		handle(event)
		b.Fill()
	}
	return context.Cause(ctx)
}

// subscribe adds a subscription, and queues the existing keys for it.
func (b *Broadcaster[K, U, E]) subscribe(ctx context.Context, o Options[U, E]) *subscription[K, U, E] {
	s := &subscription[K, U, E]{b: b, options: o, out: make(chan E, max(o.Capacity, 0)),
		pending: make(map[K]*list.Element)}
	s.ctx, s.end = context.WithCancel(ctx) // panics if ctx is nil
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(b.present)) {
		s.offerLocked(key, *new(U), b.rules.Initial(b.present[key]))
	}
	b.subs = append(b.subs, s)
	context.AfterFunc(s.ctx, s.unsubscribe)
	return s
}

// Fill sends the pending events that now fit into the channels.
func (b *Broadcaster[K, U, E]) Fill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.subs {
		s.deliverLocked()
	}
}

// Start begins to send events to slow readers, in goroutines of the method pump, until Halt.
func (b *Broadcaster[K, U, E]) Start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stop = make(chan struct{})
	for _, s := range b.subs {
		s.deliverLocked()
	}
}

// Halt stops the pumps and ends all subscriptions except lasting ones. These keep pending events.
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

// Backlog returns the number of subscriptions, and the number of keys with events that do not fit
// into a channel. A key counts once for each such subscription.
func (b *Broadcaster[K, U, E]) Backlog() (subscriptions, keys int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.subs {
		keys += s.undeliveredLocked()
	}
	return len(b.subs), keys
}
