package broadcast_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubepleg/pleg/internal/broadcast"
)

// asked notes what it is asked about, and wants what does not begin with a given level.
type asked struct {
	refuse  int
	updates []string
}

func (a *asked) want(u update) bool {
	a.updates = append(a.updates, fmt.Sprint(u.key, u.level))
	return u.level != a.refuse
}

// A subscriber is asked about a key once, and again when the key comes back.
func TestWantIsAskedOncePerKey(t *testing.T) {
	s := newStation()
	defer s.Halt()
	s.publish("b1 a2")
	a := &asked{refuse: 1}
	out := s.Broadcaster.Subscribe(t.Context(), 100, everything{Want: a.want})
	want(t, "what exists", buffered(out), "a+ a+")
	s.publish("a1 b2 c1 d3 c3 c0 b0 a0 n0")
	want(t, "later", buffered(out), "a- d+ d+ d+ a-")
	s.publish("a1 b3 c1 c2 d0")
	want(t, "those that come back", buffered(out), "b+ b+ b+ d- d- d-")
	want(t, "asked", strings.Join(a.updates, " "), "a2 b1 c1 d3 a1 b3 c1")
	s.wantDiscarded(t, 0)
}

// A key that was delivered, is gone and comes back is gone for the subscriber, whatever
// the answer about the new one is.
func TestKeyThatComesBackIsAskedAbout(t *testing.T) {
	for name, c := range map[string]struct{ back, events string }{
		"wanted":  {"a3", "a+"},
		"refused": {"a1", "a- a-"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStation()
				defer s.Halt()
				s.publish("a2")
				out := s.Broadcaster.Subscribe(t.Context(), 3, everything{Want: (&asked{refuse: 1}).want})
				s.publish("b2 a0") // b fills the channel
				s.publish(c.back)
				want(t, "first", buffered(out), "a+ a+ b+")
				s.Start()
				want(t, "then", all(out), "b+ "+c.events)
				s.wantBacklog(t, 1, 0)
			})
		})
	}
}

// What is kept of the answers is bounded by the keys that exist.
func TestRefusedKeysAreBounded(t *testing.T) {
	s := newStation()
	defer s.Halt()
	s.Broadcaster.Subscribe(t.Context(), 1, everything{Want: func(update) bool { return false }})
	const rounds = 20_000
	grown := growth(func() {
		for i := range rounds {
			key := fmt.Sprintf("passing-%d", i)
			s.Publish(update{key: key, level: 1})
			s.Publish(update{key: key})
		}
	})
	if grown > rounds*8 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	s.wantBacklog(t, 1, 0)
	s.wantDiscarded(t, 0)
}

// A subscriber may have events of its own.
func TestEventsOfASubscriber(t *testing.T) {
	s := newStation()
	defer s.Halt()
	own := s.Broadcaster.Subscribe(t.Context(), 10, everything{
		Events: func(delivered, u update) []event { return []event{{u.key, u.level*10 + delivered.level}} },
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
			return s.Broadcaster.Subscribe(t.Context(), capacity, everything{Name: name, Begins: time.Now()})
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
