package broadcast_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

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

// The backlog is that of each subscription, with the time of the oldest update of which
// something is to be delivered.
func TestBacklogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation()
		defer s.Halt()
		began := time.Now()
		at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
		check := func(what string, want ...broadcast.Backlog) {
			t.Helper()
			if diff := cmp.Diff(want, s.Backlogs()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		subscribe := func(name string, capacity int) chan event {
			return s.Broadcaster.Subscribe(t.Context(), everything{Capacity: capacity, Name: name, Begins: time.Now()})
		}
		check("nobody", []broadcast.Backlog{}...)
		s.publish("a2 b1")
		time.Sleep(time.Second)
		full := subscribe("full", 10)
		one := subscribe("one", 1)
		none := subscribe("none", 0)
		check("what existed is due since they began", broadcast.Backlog{Name: "full"},
			broadcast.Backlog{Name: "one", Keys: 2, Since: at(1)}, broadcast.Backlog{Name: "none", Keys: 2, Since: at(1)})
		time.Sleep(time.Second)
		s.publish("a1 c1")
		want(t, "full", buffered(full), "a+ a+ b+ a- c+")
		check("a has changed again", broadcast.Backlog{Name: "full"},
			broadcast.Backlog{Name: "one", Keys: 3, Since: at(1)}, broadcast.Backlog{Name: "none", Keys: 3, Since: at(1)})
		for range 3 {
			<-one
			s.Fill()
		}
		want(t, "one", buffered(one), "a-")
		check("a and b are delivered", broadcast.Backlog{Name: "full"},
			broadcast.Backlog{Name: "one", Keys: 1, Since: at(2)}, broadcast.Backlog{Name: "none", Keys: 3, Since: at(1)})
		s.Start()
		want(t, "one", all(one), "c+")
		want(t, "none", all(none), "a+ b+ c+")
		check("all is delivered",
			broadcast.Backlog{Name: "full"}, broadcast.Backlog{Name: "one"}, broadcast.Backlog{Name: "none"})
		time.Sleep(time.Second)
		s.publish("a3")
		synctest.Wait()
		time.Sleep(time.Second)
		s.publish("d1 d0 b0 d1")
		synctest.Wait()
		want(t, "full", buffered(full), "a+ a+ d+ d- b- d+")
		check("the newest of a coalesced key does not count", broadcast.Backlog{Name: "full"},
			broadcast.Backlog{Name: "one", Keys: 3, Since: at(3)}, broadcast.Backlog{Name: "none", Keys: 3, Since: at(3)})
		want(t, "none", all(none), "a+ a+ d+ b-")
	})
}
