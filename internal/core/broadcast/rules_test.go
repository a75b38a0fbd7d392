package broadcast_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/kubepleg/pleg/internal/core/broadcast"
)

// update says that a key has a level. At level zero, the key no longer exists.
type update struct {
	key   string
	level int
	sync  bool // requests an event, whatever the previous level was
	first int  // the level when the subscription began, if no event of the key was delivered
}

// event says that a key went up or down by one level, or that an event was requested.
type event struct {
	key string
	by  int // 1 or -1; 0 for a requested event
}

func (e event) String() string { return e.key + map[int]string{1: "+", -1: "-", 0: "!"}[e.by] }

// levels implements rules in which the events of a key add up to its level. One update may cause
// any number of events.
type levels struct{}

func (levels) Key(u update) string     { return u.key }
func (levels) Gone(u update) bool      { return u.level == 0 }
func (levels) Initial(u update) update { u.sync, u.first = false, u.level; return u }

// If no event of the key was delivered, Events leads from zero to u.first, and from there to
// u.level.
func (levels) Events(delivered, u update) []event {
	var events []event
	from := delivered.level
	if from == 0 {
		from = u.first
		events = slices.Repeat([]event{{u.key, 1}}, from)
	}
	for range u.level - from {
		events = append(events, event{u.key, 1})
	}
	for range from - u.level {
		events = append(events, event{u.key, -1})
	}
	if u.sync && u.level > 0 {
		events = append(events, event{u.key, 0})
	}
	return events
}

func (levels) Coalesce(delivered, earlier, later update) (coalesced update, discarded int) {
	coalesced = later
	coalesced.sync = earlier.sync || later.sync
	if delivered.level == 0 {
		coalesced.first = earlier.first
		delivered.level = earlier.first
	}
	return coalesced, distance(delivered, earlier) + distance(earlier, later) - distance(delivered, later)
}

func distance(a, b update) int { return max(a.level-b.level, b.level-a.level) }

// everything is a short name for the options of a subscription.
type everything = broadcast.Options[update, event]

// station is a broadcaster with the rules of the type levels. It counts the discarded transitions.
type station struct {
	*broadcast.Broadcaster[string, update, event]
	discarded int // guarded by the broadcaster's lock
}

func (s *station) Subscribe(ctx context.Context, capacity int, lasting bool) chan event {
	return s.Broadcaster.Subscribe(ctx, everything{Events: levels{}.Events, Capacity: capacity, Lasting: lasting})
}

func newStation() *station {
	s := &station{}
	s.Broadcaster = broadcast.New[string, update, event](levels{}, func(n int) { s.discarded += n })
	return s
}

// publish publishes updates such as "a3". "b1!" also requests an event.
func (s *station) publish(updates string) {
	for text := range strings.FieldsSeq(updates) {
		u := update{key: text[:1]}
		level, sync := strings.CutSuffix(text[1:], "!")
		u.sync = sync
		if _, err := fmt.Sscan(level, &u.level); err != nil {
			panic(err)
		}
		s.Publish(u)
	}
}

// buffered reads the events in a channel without waiting, and notes if the channel is closed.
func buffered(out <-chan event) string {
	var got []string
	for {
		select {
		case e, ok := <-out:
			if !ok {
				return strings.Join(append(got, "closed"), " ")
			}
			got = append(got, e.String())
		default:
			return strings.Join(got, " ")
		}
	}
}

// The function all reads and returns events until no event is left.
func all(out <-chan event) string {
	var got []string
	for {
		synctest.Wait()
		read := buffered(out)
		if read == "" {
			return strings.Join(got, " ")
		}
		got = append(got, read)
		if strings.HasSuffix(read, "closed") {
			return strings.Join(got, " ")
		}
	}
}

func (s *station) wantBacklog(t *testing.T, subscribers, keys int) {
	t.Helper()
	if n, k := s.Backlog(); n != subscribers || k != keys {
		t.Errorf("%d subscribers with a backlog of %d keys, not %d with %d", n, k, subscribers, keys)
	}
}

func (s *station) wantDiscarded(t *testing.T, want int) {
	t.Helper()
	if s.discarded != want {
		t.Errorf("%d transitions discarded, not %d", s.discarded, want)
	}
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}
