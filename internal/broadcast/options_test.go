package broadcast_test

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/kubepleg/pleg/internal/broadcast"
)

// A subscriber may have events of its own.
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

// Each subscription has a backlog of its own.
func TestBacklogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation()
		defer s.Halt()
		var names []string
		check := func(what string, keys ...int) {
			t.Helper()
			var want []broadcast.Backlog
			for i, n := range keys {
				want = append(want, broadcast.Backlog{Name: names[i], Keys: n})
			}
			if got := s.Backlogs(); !slices.Equal(got, want) {
				t.Errorf("%s: got %v, want %v", what, got, want)
			}
		}
		subscribe := func(name string, capacity int) chan event {
			names = append(names, name)
			return s.Broadcaster.Subscribe(t.Context(), everything{Capacity: capacity, Name: name})
		}
		check("nobody")
		s.publish("a2 b1")
		full := subscribe("full", 10)
		one := subscribe("one", 1)
		none := subscribe("none", 0)
		check("what existed", 0, 2, 2)
		s.publish("a1 c1")
		want(t, "full", buffered(full), "a+ a+ b+ a- c+")
		check("a has changed again", 0, 3, 3)
		for range 3 {
			<-one
			s.Fill()
		}
		want(t, "one", buffered(one), "a-")
		check("a and b are delivered", 0, 1, 3)
		s.Start()
		want(t, "one", all(one), "c+")
		want(t, "none", all(none), "a+ a+ a- b+ c+")
		check("all is delivered", 0, 0, 0)
	})
}
