package broadcast_test

import (
	"testing"

	"pgregory.net/rapid"
)

// audience is one subscriber beside what it must be told in the end.
type audience struct {
	out chan event
	// told is each key's level as the events read say it; seen counts the events
	// but the requested ones.
	told map[string]int
	seen int
	// due counts the transitions published since it subscribed, with those to what
	// existed then.
	due int
}

func (a *audience) read(t *rapid.T, most int) {
	for range most {
		select {
		case e := <-a.out:
			a.told[e.key] += e.by
			if e.by != 0 {
				a.seen++
			}
			if a.told[e.key] < 0 {
				t.Fatalf("%s is below zero", e.key)
			}
		default:
			return
		}
	}
}

// Whatever is published and however it is read, without a pump: no subscriber learns
// what is not so, each learns what is when it has read, what is held for it is bounded,
// and every transition is either delivered or counted as discarded.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newStation()
		defer s.Halt()
		present := make(map[string]int)
		var audiences []*audience
		key := rapid.SampledFrom([]string{"a", "b", "c"})
		t.Repeat(map[string]func(*rapid.T){
			"subscribe": func(t *rapid.T) {
				if len(audiences) == 4 {
					t.Skip("enough")
				}
				a := &audience{told: make(map[string]int)}
				for _, level := range present {
					a.due += level
				}
				capacity := rapid.IntRange(1, 4).Draw(t, "capacity")
				a.out = s.Subscribe(t.Context(), capacity, rapid.Bool().Draw(t, "lasting"))
				audiences = append(audiences, a)
			},
			"publish": func(t *rapid.T) {
				u := update{
					key: key.Draw(t, "key"), level: rapid.IntRange(0, 3).Draw(t, "level"), sync: rapid.Bool().Draw(t, "sync"),
				}
				for _, a := range audiences {
					a.due += distance(update{level: present[u.key]}, update{level: u.level})
				}
				present[u.key] = u.level
				s.Publish(u)
			},
			"read": func(t *rapid.T) {
				if len(audiences) == 0 {
					t.Skip("nobody")
				}
				rapid.SampledFrom(audiences).Draw(t, "audience").read(t, rapid.IntRange(1, 5).Draw(t, "events"))
			},
			"fill": func(*rapid.T) { s.Fill() },
			"": func(t *rapid.T) {
				if _, keys := s.Backlog(); keys > 3*len(audiences) {
					t.Fatalf("a backlog of %d keys for %d subscribers", keys, len(audiences))
				}
			},
		})
		due, seen := 0, 0
		for _, a := range audiences {
			for range 100 {
				a.read(t, 10)
				s.Fill()
			}
			for key, level := range present {
				if a.told[key] != level {
					t.Fatalf("%s is at %d, told %d", key, level, a.told[key])
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
