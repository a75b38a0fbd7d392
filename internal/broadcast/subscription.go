package broadcast

import (
	"cmp"
	"container/list"
	"sync"
)

// subscription delivers to one subscriber. An update is pending until its turn comes; then its
// events are committed, and the key counts as delivered. For a key without a pending update, the
// delivered update is the present one, which the broadcaster has.
//
// Committed events go into the channel as far as they fit. The pump sends the rest. A follower
// has no channel and no pump: committed events wait until it takes them.
type subscription[K cmp.Ordered, U, E any] struct {
	// Set once by Subscribe and Follow.

	rules   Rules[K, U, E]
	options Options[U, E] // with Events
	out     chan E        // nil for a follower
	ended   chan struct{} // closed by end
	work    chan struct{} // wakes the pump or the follower
	forget  func() bool   // releases the context of Subscribe; nil for a follower

	mu sync.Mutex

	// Guarded by mu.

	queue     list.List           // of *step[K, U], in the order of delivery
	pending   map[K]*list.Element // the elements of queue by key
	committed []committed[K, E]   // in front of the queue
	pumping   bool                // the pump runs
	holding   bool                // the pump is sending the first committed event
	over      bool                // end was called
}

// step leads a subscriber from the delivered update of a key to the newest one. The step with the
// zero key delivers Options.Synced.
type step[K cmp.Ordered, U any] struct {
	key               K
	delivered, update U
}

// committed is an event that is delivered whatever else is published.
type committed[K cmp.Ordered, E any] struct {
	key   K
	event E
}

func newSubscription[K cmp.Ordered, U, E any](rules Rules[K, U, E], o Options[U, E]) *subscription[K, U, E] {
	if o.Events == nil {
		o.Events = rules.Events
	}
	return &subscription[K, U, E]{
		rules: rules, options: o, ended: make(chan struct{}), work: make(chan struct{}, 1),
		pending: make(map[K]*list.Element),
	}
}

// offer adds an update to the queue, or coalesces it with the pending one of its key, which keeps
// its place. before is the update of the key before it. offer returns how many transitions the
// subscriber will not get.
func (s *subscription[K, U, E]) offer(key K, before, update U) (discarded int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	place, pends := s.pending[key]
	if !pends {
		place = s.queue.PushBack(&step[K, U]{key: key, delivered: before, update: update})
		s.pending[key] = place
	}
	next := place.Value.(*step[K, U])
	if pends {
		next.update, discarded = s.rules.Coalesce(next.delivered, next.update, update)
	}
	if s.rules.Gone(next.update) && len(s.options.Events(next.delivered, next.update)) == 0 {
		s.queue.Remove(place) // the key came and went; the subscriber never knew it
		delete(s.pending, key)
	}
	s.fillLocked()
	s.wakeLocked()
	return discarded
}

// offerSynced adds the events of Options.Synced to the queue.
func (s *subscription[K, U, E]) offerSynced() {
	if len(s.options.Synced) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.PushBack(&step[K, U]{})
	s.fillLocked()
	s.wakeLocked()
}

func (s *subscription[K, U, E]) fill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fillLocked()
}

// fillLocked commits what fits: into the channel, unless the pump is sending, or up to the
// capacity of a follower. Only holders of the lock and the pump send, so room in the channel
// stays.
func (s *subscription[K, U, E]) fillLocked() {
	if s.out == nil {
		for len(s.committed) < s.options.Capacity && s.queue.Len() > 0 {
			s.commitLocked()
		}
		return
	}
	for !s.holding && len(s.out) < cap(s.out) && s.advanceLocked() {
		s.out <- s.committed[0].event
		s.dropLocked()
	}
}

// advanceLocked commits updates until there is a committed event, and reports whether there is.
func (s *subscription[K, U, E]) advanceLocked() bool {
	for len(s.committed) == 0 && s.queue.Len() > 0 {
		s.commitLocked()
	}
	return len(s.committed) > 0
}

// commitLocked commits the events of the first update in the queue. The next update of its key
// leads on from this one.
func (s *subscription[K, U, E]) commitLocked() {
	next := s.queue.Remove(s.queue.Front()).(*step[K, U])
	events, none := s.options.Synced, *new(K)
	if next.key != none {
		delete(s.pending, next.key)
		events = s.options.Events(next.delivered, next.update)
	}
	for _, event := range events {
		s.committed = append(s.committed, committed[K, E]{next.key, event})
	}
}

// dropLocked drops the first committed event, which was delivered.
func (s *subscription[K, U, E]) dropLocked() {
	s.committed[0] = committed[K, E]{} // the array must not keep it
	s.committed = s.committed[1:]
	if len(s.committed) == 0 {
		s.committed = nil
	}
}

// wakeLocked wakes the pump or the follower if there is something to deliver.
func (s *subscription[K, U, E]) wakeLocked() {
	if len(s.committed) == 0 && s.queue.Len() == 0 {
		return
	}
	select {
	case s.work <- struct{}{}:
	default:
	}
}

func (s *subscription[K, U, E]) pumpStarts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pumping = true
}

// pump sends one event at a time, and waits for the reader, until the subscription ends or stop
// is closed.
func (s *subscription[K, U, E]) pump(stop <-chan struct{}) {
	defer s.pumpEnds()
	for {
		out := s.out
		event, ok := s.hold()
		if !ok {
			out = nil
		}
		select {
		case out <- event:
			s.release()
		case <-s.work:
		case <-s.ended:
			return
		case <-stop:
			return
		}
	}
}

// hold returns the first event to deliver, if there is one and the subscription has not ended.
// Nothing else is sent until release.
func (s *subscription[K, U, E]) hold() (event E, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return event, false
	}
	s.fillLocked()
	if s.holding = s.advanceLocked(); s.holding {
		event = s.committed[0].event
	}
	return event, s.holding
}

// release drops the event of hold, which was delivered.
func (s *subscription[K, U, E]) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holding = false
	s.dropLocked()
	s.fillLocked()
}

// pumpEnds keeps an event that the pump could not send.
func (s *subscription[K, U, E]) pumpEnds() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pumping, s.holding = false, false
	if s.over {
		close(s.out)
	}
}

// end closes the channel, or leaves that to the pump, which may be sending. The broadcaster has
// removed the subscription before, so nobody else sends.
func (s *subscription[K, U, E]) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	s.over = true
	close(s.ended)
	if s.out != nil && !s.pumping {
		close(s.out)
	}
}

// backlog counts the keys with pending updates or committed events.
func (s *subscription[K, U, E]) backlog() Backlog {
	s.mu.Lock()
	defer s.mu.Unlock()
	var none K
	others := make(map[K]struct{}) // without a pending update
	for _, c := range s.committed {
		if _, pends := s.pending[c.key]; !pends && c.key != none {
			others[c.key] = struct{}{}
		}
	}
	return Backlog{Name: s.options.Name, Keys: len(s.pending) + len(others)}
}
