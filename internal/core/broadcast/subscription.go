package broadcast

import (
	"cmp"
	"container/list"
	"context"
	"slices"
)

// subscription delivers to one subscriber. An update is pending until its events are committed; it then counts as
// delivered. For a key without a pending update, the delivered update is the update in Broadcaster.present.
//
// As many committed events as fit go into the channel, and a pump sends the rest.
type subscription[K cmp.Ordered, U, E any] struct {
	b       *Broadcaster[K, U, E]
	options Options[U, E]
	ctx     context.Context // ends when the subscription ends
	end     func()          // ends ctx
	out     chan E

	// The fields below are guarded by b.mu.

	queue     list.List           // of *step[K, U], in the order of delivery
	pending   map[K]*list.Element // elements of queue, by key
	committed []E                 // events of one key, sent before the queue; later updates do not change them
	sending   K                   // the key of the committed events
	pumping   bool                // true while the pump runs; only the pump then sends
}

// step leads from the last delivered update of a key to the newest update.
type step[K cmp.Ordered, U any] struct {
	key               K
	delivered, update U
}

// offerLocked adds an update to the queue. before is the previous update of the key. If an update
// of the key is pending, the new update is merged into it, at the same place in the queue.
func (s *subscription[K, U, E]) offerLocked(key K, before, update U) {
	place, pends := s.pending[key]
	if !pends {
		place = s.queue.PushBack(&step[K, U]{key: key, delivered: before, update: update})
		s.pending[key] = place
	}
	next := place.Value.(*step[K, U])
	if pends {
		var discarded int
		next.update, discarded = s.b.rules.Coalesce(next.delivered, next.update, update)
		s.b.discarded(discarded)
	}
	if len(s.options.Events(next.delivered, next.update)) == 0 { // for example, the key came and went
		s.queue.Remove(place)
		delete(s.pending, key)
	}
	s.deliverLocked()
}

// deliverLocked fills the channel, and starts the pump for the remaining events.
func (s *subscription[K, U, E]) deliverLocked() {
	for !s.pumping && len(s.out) < cap(s.out) && s.advanceLocked() {
		s.out <- s.popLocked()
	}
	if stop := s.b.stop; stop != nil && !s.pumping && len(s.committed)+s.queue.Len() > 0 {
		s.pumping = true
		s.b.pumps.Go(func() { s.pump(stop) })
	}
}

// pump sends events until no event is left, the subscription ends, or stop is closed.
func (s *subscription[K, U, E]) pump(stop <-chan struct{}) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	for s.advanceLocked() {
		event := s.committed[0]
		s.b.mu.Unlock()
		sent := s.send(event, stop)
		s.b.mu.Lock()
		if !sent {
			break // the event stays committed
		}
		s.popLocked()
	}
	s.pumping = false
	if s.ctx.Err() != nil {
		s.removeLocked()
	}
}

// send waits until the reader takes the event. It returns false if the event was not sent.
func (s *subscription[K, U, E]) send(event E, stop <-chan struct{}) bool {
	select {
	case s.out <- event:
		return true
	case <-s.ctx.Done():
	case <-stop:
	}
	return false
}

// advanceLocked commits queued updates until there is a committed event. It returns false if no
// event is left. The next step of the key begins at the committed update.
func (s *subscription[K, U, E]) advanceLocked() bool {
	for len(s.committed) == 0 && s.queue.Len() > 0 {
		next := s.queue.Remove(s.queue.Front()).(*step[K, U])
		delete(s.pending, next.key)
		s.committed, s.sending = s.options.Events(next.delivered, next.update), next.key
	}
	return len(s.committed) > 0
}

// popLocked removes and returns the first committed event.
func (s *subscription[K, U, E]) popLocked() E {
	first := s.committed[0]
	s.committed = s.committed[1:]
	return first
}

func (s *subscription[K, U, E]) unsubscribe() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.removeLocked()
}

// removeLocked ends the subscription. If the pump is running, the pump later calls it again.
func (s *subscription[K, U, E]) removeLocked() {
	s.end()
	i := slices.Index(s.b.subs, s)
	if i < 0 || s.pumping {
		return
	}
	s.b.subs = slices.Delete(s.b.subs, i, i+1)
	close(s.out)
}

// undeliveredLocked counts the keys with pending updates or committed events.
func (s *subscription[K, U, E]) undeliveredLocked() int {
	_, pends := s.pending[s.sending]
	if len(s.committed) == 0 || pends {
		return len(s.pending)
	}
	return len(s.pending) + 1
}
