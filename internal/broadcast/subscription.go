package broadcast

import (
	"cmp"
	"sync"
	"time"
)

// state is the last update of a key that was delivered to a subscriber, or none.
type state[U any] struct {
	update U
	exists bool
}

// step leads a subscriber from the state of a key that was delivered to an update.
type step[U any] struct {
	delivered state[U]
	update    U
	since     time.Time // of the first update that is not delivered
	marked    bool      // it was pending at the mark
}

// subscription delivers to one subscriber. The delivered state of a key is kept only while
// an update of the key is pending: else it is the present state, which the broadcaster has.
//
// Events go into the channel as far as they fit, by whoever brings the update. What
// does not fit is left to the pump, which waits for the reader. A subscription that is
// followed has none: the follower takes its events.
type subscription[K cmp.Ordered, U, E any] struct {
	// Set once by Subscribe and Follow.

	rules    Rules[K, U, E]
	options  Options[U, E]
	followed bool
	out      chan E
	ended    chan struct{} // closed by end
	work     chan struct{} // wakes the pump or the follower
	forget   func() bool   // releases ctx; nil if it is followed

	mu sync.Mutex

	// Guarded by mu.

	// pending has the keys with an update of which no event has been committed.
	// order has these keys in the order in which the updates came, and keys that
	// were withdrawn.
	pending map[K]step[U]
	order   []K
	// committed are the remaining events of the key whose turn it is. They are
	// delivered before anything else, and the key counts as delivered.
	committed      []E
	committedKey   K
	committedSince time.Time
	// origins are those of the events in the channel of a follower, which has not handled them.
	origins []origin[K]
	// pumping is true while there is a pump; holding while it waits for the reader
	// with the first committed event in its hand, which nothing may overtake.
	pumping, holding bool
	over             bool
	// ahead is what a follower has to take before it has caught up.
	ahead mark
}

// mark is a place in what is undelivered: behind the keys that were pending when it was set, and
// behind the events in front of it once no such key is left.
type mark struct {
	set          bool
	keys, events int
}

// origin is the update that an event is of.
type origin[K cmp.Ordered] struct {
	key   K
	since time.Time
}

func newSubscription[K cmp.Ordered, U, E any](rules Rules[K, U, E], o Options[U, E]) *subscription[K, U, E] {
	return &subscription[K, U, E]{
		rules:   rules,
		options: o,
		out:     make(chan E, max(o.Capacity, 0)),
		ended:   make(chan struct{}),
		work:    make(chan struct{}, 1),
		pending: make(map[K]step[U]),
	}
}

// offer takes in an update of a key, delivers what fits, and returns how many
// transitions the subscriber will never see because later ones undid or replaced them.
// before is the state of the key before the update, which is published at the time at.
func (s *subscription[K, U, E]) offer(key K, before state[U], update U, at time.Time) (discarded int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.upToDateLocked() && len(s.out) < cap(s.out) {
		s.commitLocked(key, before, update) // the usual case needs no bookkeeping
		s.committedSince = at
	} else {
		discarded = s.pendLocked(key, before, update, at)
	}
	s.fillLocked()
	if s.followed || !s.upToDateLocked() {
		s.wake()
	}
	return discarded
}

// upToDateLocked reports whether there is nothing to deliver. The pump holds nothing
// then.
func (s *subscription[K, U, E]) upToDateLocked() bool {
	return len(s.pending) == 0 && len(s.committed) == 0
}

// pendLocked makes the update the pending one of its key.
func (s *subscription[K, U, E]) pendLocked(key K, before state[U], update U, at time.Time) (discarded int) {
	p, pends := s.pending[key]
	if pends { // and keeps its place
		p.update, discarded = s.rules.Coalesce(p.delivered.update, p.update, update)
	} else {
		p = step[U]{delivered: before, update: update, since: at}
	}
	if !p.delivered.exists && s.rules.Gone(p.update) {
		s.withdrawLocked(key)
		return discarded
	}
	s.pending[key] = p
	if !pends {
		s.order = append(s.order, key)
	}
	return discarded
}

// withdrawLocked drops the update of a key that came and went before anything of it was
// delivered. When order is compacted each key is left in it
// once, so that about as many have to be withdrawn before it is compacted again.
func (s *subscription[K, U, E]) withdrawLocked(key K) {
	if s.pending[key].marked {
		s.ahead.keys--
	}
	delete(s.pending, key)
	if len(s.order) < 2*len(s.pending)+maxWithdrawn {
		return
	}
	order := make([]K, 0, len(s.pending))
	listed := make(map[K]bool, len(s.pending))
	for _, key := range s.order {
		if _, pends := s.pending[key]; pends && !listed[key] {
			listed[key] = true
			order = append(order, key)
		}
	}
	s.order = order
}

// maxWithdrawn bounds the keys in order that have no update, besides as many as there
// are keys with one.
const maxWithdrawn = 64

func (s *subscription[K, U, E]) fill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fillLocked()
}

// fillLocked delivers what fits into the channel, unless the pump holds an event. Else
// nobody sends who does not hold the lock, so where there is room it stays.
func (s *subscription[K, U, E]) fillLocked() {
	for !s.holding && len(s.out) < cap(s.out) && s.advanceLocked() {
		s.out <- s.committed[0]
		if s.followed {
			s.origins = append(s.origins, origin[K]{s.committedKey, s.committedSince})
		}
		s.deliveredLocked()
	}
}

// advanceLocked commits the events of the next key if there are none left of the last,
// and reports whether there is an event to deliver.
func (s *subscription[K, U, E]) advanceLocked() bool {
	for len(s.committed) == 0 {
		if len(s.order) == 0 {
			s.order = nil // its memory may be that of a long stall
			return false
		}
		key := s.order[0]
		s.order = s.order[1:]
		if p, pends := s.pending[key]; pends {
			delete(s.pending, key)
			s.commitLocked(key, p.delivered, p.update)
			s.committedSince = p.since
			if p.marked {
				s.ahead.keys--
				s.ahead.events = len(s.out) + len(s.committed)
			}
		}
	}
	return true
}

// commitLocked makes the events that lead from delivered to an update the next to be delivered.
// From then on the key counts as delivered: its next update leads on from this one.
func (s *subscription[K, U, E]) commitLocked(key K, delivered state[U], update U) {
	if !delivered.exists && s.rules.Gone(update) {
		return
	}
	s.committedKey = key
	if s.options.Events != nil {
		s.committed = s.options.Events(delivered.update, update)
	} else {
		s.committed = s.rules.Events(delivered.update, update)
	}
}

func (s *subscription[K, U, E]) deliveredLocked() {
	s.committed = s.committed[1:]
	if len(s.committed) == 0 {
		s.committed = nil // else it keeps what was delivered
	}
}

// pump waits for the reader with one event at a time until the subscription ends or
// stop is closed.
func (s *subscription[K, U, E]) pump(stop <-chan struct{}) {
	defer s.pumpEnds()
	for {
		event, ok := s.take()
		if !ok {
			select {
			case <-s.work:
				continue
			case <-s.ended:
				return
			case <-stop:
				return
			}
		}
		select {
		case s.out <- event:
			s.delivered()
		case <-s.ended:
			return
		case <-stop:
			return
		}
	}
}

func (s *subscription[K, U, E]) pumpStarts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pumping = true
}

// take delivers what fits, and gives the pump the event that it is to hold, if there
// is one.
func (s *subscription[K, U, E]) take() (event E, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fillLocked()
	if s.holding = s.advanceLocked(); s.holding {
		event = s.committed[0]
	}
	return event, s.holding
}

// delivered notes that the event that the pump held is in the channel.
func (s *subscription[K, U, E]) delivered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holding = false
	s.deliveredLocked()
}

// mark sets the mark behind all that is undelivered.
func (s *subscription[K, U, E]) mark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead = mark{set: true, keys: len(s.pending), events: len(s.out) + len(s.committed)}
	for key, p := range s.pending {
		p.marked = true
		s.pending[key] = p
	}
}

// next is what comes next for a follower.
type next int

const (
	nothingNext next = iota
	nextEvent
	nextIsBehindMark // once: all that is before the mark was taken
)

// takeNext takes an event out for the follower, if there is one and the subscription has not
// ended.
func (s *subscription[K, U, E]) takeNext() (event E, is next) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
		return event, nothingNext
	case s.passMarkLocked():
		return event, nextIsBehindMark
	}
	select {
	case event = <-s.out:
		s.origins = s.origins[1:]
		s.ahead.events--
		s.fillLocked()
		return event, nextEvent
	default:
	}
	switch {
	case s.advanceLocked():
		event = s.committed[0]
		s.ahead.events--
		s.deliveredLocked()
		return event, nextEvent
	case s.passMarkLocked(): // the keys before it had no event
		return event, nextIsBehindMark
	default:
		return event, nothingNext
	}
}

// passMarkLocked takes the mark away if nothing is left before it, and reports so.
func (s *subscription[K, U, E]) passMarkLocked() bool {
	if !s.ahead.set || s.ahead.keys > 0 || s.ahead.events > 0 {
		return false
	}
	s.ahead = mark{}
	return true
}

// pumpEnds leaves an event that could not be delivered where it was.
func (s *subscription[K, U, E]) pumpEnds() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pumping, s.holding = false, false
	if s.over {
		close(s.out)
	}
}

// end closes the channel, or leaves that to the pump, which may be sending. The
// broadcaster has let go of the subscription before, so nobody else sends.
func (s *subscription[K, U, E]) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	s.over = true
	close(s.ended)
	if !s.pumping {
		close(s.out)
	}
}

func (s *subscription[K, U, E]) wake() {
	select {
	case s.work <- struct{}{}:
	default:
	}
}

// backlog returns what there is still to be delivered, to a follower also what is in the channel.
// The first pending key need not be
// the oldest: one that was withdrawn and came back may stand before it.
func (s *subscription[K, U, E]) backlog() Backlog {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := Backlog{Name: s.options.Name}
	others := make(map[K]struct{}) // than those that are pending
	older := func(at time.Time) {
		if b.Since.IsZero() || at.Before(b.Since) {
			b.Since = at
		}
	}
	for _, p := range s.pending {
		older(p.since)
	}
	waits := func(o origin[K]) {
		older(o.since)
		if _, again := s.pending[o.key]; !again {
			others[o.key] = struct{}{}
		}
	}
	for _, o := range s.origins {
		waits(o)
	}
	if len(s.committed) > 0 {
		waits(origin[K]{s.committedKey, s.committedSince})
	}
	b.Keys = len(s.pending) + len(others)
	return b
}
