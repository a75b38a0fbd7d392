package broadcast_test

import (
	"slices"
	"testing"
	"testing/synctest"
)

// A subscriber may make its own kind of events with Options.Events.
func TestEventsOfASubscriber(t *testing.T) {
	s := newStation()
	defer s.Halt()
	own := s.Broadcaster.Subscribe(t.Context(), everything{
		Capacity: 10,
		Events:   func(delivered, u update) []event { return []event{{u.key, u.level*10 + delivered.level}} },
	})
	out := s.Subscribe(t.Context(), 10, false)
	s.publish("a1 a2")
	if got := []event{<-own, <-own}; !slices.Equal(got, []event{{"a", 10}, {"a", 21}}) {
		t.Errorf("got %v", got)
	}
	want(t, "the others", buffered(out), "a+ a+")
}

// Backlog sums the keys of all subscriptions.
func TestBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation()
		defer s.Halt()
		s.wantBacklog(t, 0, 0)
		s.publish("a2 b1")
		full := s.Subscribe(t.Context(), 10, false)
		one := s.Subscribe(t.Context(), 1, false)
		none := s.Subscribe(t.Context(), 0, false)
		s.wantBacklog(t, 3, 4)
		s.publish("a1 c1")
		want(t, "full", buffered(full), "a+ a+ b+ a- c+")
		s.wantBacklog(t, 3, 6) // a, b and c for each of the subscribers one and none
		for range 3 {
			<-one
			s.Fill()
		}
		want(t, "one", buffered(one), "a-")
		s.wantBacklog(t, 3, 4) // c for the subscriber one; a, b and c for the subscriber none
		s.Start()
		want(t, "one", all(one), "c+")
		want(t, "none", all(none), "a+ a+ a- b+ c+")
		s.wantBacklog(t, 3, 0)
	})
}
