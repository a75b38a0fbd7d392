package broadcast_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kubepleg/pleg/internal/test/randtest"
)

// audience is a subscriber with the numbers that its events must match in the end.
type audience struct {
	out chan event
	// known is the level of each key according to the events read. seen counts the events read,
	// without requested events.
	known map[string]int
	seen  int
	// due counts the transitions since the subscription began. The transitions from zero to the levels
	// at that time count too.
	due int
}

func (a *audience) read(t *testing.T, most int) {
	for range most {
		select {
		case e := <-a.out:
			a.known[e.key] += e.by
			if e.by != 0 {
				a.seen++
			}
			if a.known[e.key] < 0 {
				t.Fatalf("%s is below zero", e.key)
			}
		default:
			return
		}
	}
}

// This test does not call Start. For random updates and reads, each subscriber's events lead to the
// present levels, and its backlog is bounded. Every transition is either delivered or counted as
// discarded.
func TestModel(t *testing.T) {
	randtest.Check(t, 200, func(t *testing.T, r *rand.Rand) {
		s := newStation()
		defer s.Halt()
		present := make(map[string]int)
		var audiences []*audience
		for range 30 {
			what := randtest.Pick(r, "subscribe", "publish", "read", "fill")
			switch {
			case what == "subscribe" && len(audiences) < 4:
				a := &audience{known: make(map[string]int)}
				for _, level := range present {
					a.due += level
				}
				capacity, lasting := 1+r.IntN(4), randtest.Bool(r)
				t.Log(what, capacity, lasting)
				a.out = s.Subscribe(t.Context(), capacity, lasting)
				audiences = append(audiences, a)
			case what == "publish":
				u := update{key: randtest.Pick(r, "a", "b", "c"), level: r.IntN(4), sync: randtest.Bool(r)}
				t.Logf("%s %+v", what, u)
				for _, a := range audiences {
					a.due += distance(update{level: present[u.key]}, update{level: u.level})
				}
				present[u.key] = u.level
				s.Publish(u)
			case what == "read" && len(audiences) > 0:
				i, n := r.IntN(len(audiences)), 1+r.IntN(5)
				t.Log(what, i, n)
				audiences[i].read(t, n)
			case what == "fill":
				t.Log(what)
				s.Fill()
			}
			if _, keys := s.Backlog(); keys > 3*len(audiences) {
				t.Fatalf("a backlog of %d keys for %d subscribers", keys, len(audiences))
			}
		}
		due, seen := 0, 0
		for _, a := range audiences {
			for range 100 {
				a.read(t, 10)
				s.Fill()
			}
			for key, level := range present {
				if a.known[key] != level {
					t.Fatalf("%s is at %d, but at %d according to the events", key, level, a.known[key])
				}
			}
			due, seen = due+a.due, seen+a.seen
		}
		if due != seen+s.discarded {
			t.Fatalf("%d transitions, of which %d were delivered and %d discarded", due, seen, s.discarded)
		}
		if _, keys := s.Backlog(); keys != 0 {
			t.Fatalf("a backlog of %d keys is left", keys)
		}
	})
}
