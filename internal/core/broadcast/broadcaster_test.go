package broadcast_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestSubscribersBeginWithWhatExists(t *testing.T) {
	s := newStation()
	early := s.Subscribe(t.Context(), 20, false)
	s.publish("b2 c1! a1 c0 d1 d2!")
	want(t, "early", buffered(early), "b+ b+ c+ c! a+ c- d+ d+ d!")
	late := s.Subscribe(t.Context(), 20, false)
	want(t, "late", buffered(late), "a+ b+ b+ d+ d+")
	s.publish("a0")
	want(t, "early", buffered(early), "a-")
	want(t, "late", buffered(late), "a-")
	s.wantBacklog(t, 2, 0)
	s.wantDiscarded(t, 0)
	s.Halt()
	s.wantBacklog(t, 0, 0)
}

func TestCapacity(t *testing.T) {
	s := newStation()
	defer s.Halt()
	for capacity, want := range map[int]int{-1: 0, 0: 0, 1: 1, 9: 9} {
		if got := cap(s.Subscribe(t.Context(), capacity, false)); got != want {
			t.Errorf("the capacity is %d, not %d", got, want)
		}
	}
}

// Without Start, Publish and Fill send only the events that fit into the channel.
func TestFill(t *testing.T) {
	s := newStation()
	s.publish("a3")
	out := s.Subscribe(t.Context(), 2, false)
	none := s.Subscribe(t.Context(), 0, false)
	s.publish("b1 c1")
	s.wantBacklog(t, 2, 6)
	want(t, "at once", buffered(out), "a+ a+")
	want(t, "before Fill", buffered(out), "")
	s.Fill()
	want(t, "the first Fill", buffered(out), "a+ b+")
	s.Fill()
	s.wantBacklog(t, 2, 3)
	s.publish("a2")
	want(t, "what is published fills", buffered(out), "c+ a-")
	s.Fill()
	want(t, "in the end", buffered(out), "")
	want(t, "without capacity", buffered(none), "")
	s.wantBacklog(t, 2, 3)
	s.Halt()
	want(t, "after Halt", buffered(out), "closed")
	want(t, "after Halt", buffered(none), "closed")
}

// Backlog allocates no memory, whatever the number of pending keys.
func TestCostOfBacklog(t *testing.T) {
	s := newStation()
	defer s.Halt()
	s.Subscribe(t.Context(), 0, false)
	for i := range 1000 {
		s.Publish(update{key: fmt.Sprint(i), level: 1})
	}
	s.wantBacklog(t, 1, 1000)
	if got := testing.AllocsPerRun(10, func() { s.Backlog() }); got > 0 {
		t.Errorf("%v allocations", got)
	}
}

// Between Start and Halt, a reader is sent every event, however slowly it reads.
func TestSlowReaderGetsEverything(t *testing.T) {
	for _, capacity := range []int{0, 1, 3, 100} {
		t.Run(fmt.Sprint(capacity), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStation()
				s.Start()
				defer s.Halt()
				s.publish("b2")
				out := s.Subscribe(t.Context(), capacity, false)
				synctest.Wait()
				s.publish("a1! c2")
				want(t, "events", all(out), "b+ b+ a+ a! c+ c+")
				s.publish("c0 a2")
				synctest.Wait()
				s.publish("b1")
				want(t, "events", all(out), "c- c- a+ b-")
				s.wantBacklog(t, 1, 0)
				s.wantDiscarded(t, 0)
			})
		})
	}
}

// Halt ends the subscriptions that are not lasting. Lasting subscriptions continue after another
// Start.
func TestHalt(t *testing.T) {
	for _, capacity := range []int{0, 1, 100} {
		t.Run(fmt.Sprint(capacity), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStation()
				lasting := s.Subscribe(t.Context(), capacity, true)
				transient := s.Subscribe(t.Context(), capacity, false)
				s.Start()
				s.publish("a1 b2")
				want(t, "transient", all(transient), "a+ b+ b+")
				s.Halt()
				want(t, "transient", all(transient), "closed")
				s.publish("b1 c1")
				between := s.Subscribe(t.Context(), 100, false)
				s.wantBacklog(t, 2, map[int]int{0: 3, 1: 2, 100: 0}[capacity])
				s.Start()
				// With a capacity of 0, b changed before the reader had read it, so its updates were coalesced.
				want(t, "lasting", all(lasting), map[int]string{
					0: "a+ b+ c+", 1: "a+ b+ b+ b- c+", 100: "a+ b+ b+ b- c+",
				}[capacity])
				want(t, "between", all(between), "a+ b+ c+")
				s.Halt()
				want(t, "between", all(between), "closed")
				want(t, "lasting", all(lasting), "")
				s.wantBacklog(t, 1, 0)
			})
		})
	}
}

// If the pump holds an event at Halt, that event is sent next.
func TestHaltKeepsWhatThePumpHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation()
		out := s.Subscribe(t.Context(), 1, true)
		for range 3 {
			s.Start()
			s.publish("a3")
			synctest.Wait()
			s.publish("a0 b1")
			synctest.Wait()
			s.wantBacklog(t, 1, 2)
			s.Halt()
			s.wantBacklog(t, 1, 2)
			want(t, "in the channel", buffered(out), "a+")
			s.Fill()
			want(t, "held", buffered(out), "a+")
			s.Start()
			want(t, "the rest", all(out), "a+ a- a- a- b+")
			s.publish("b0")
			want(t, "b", all(out), "b-")
			s.Halt()
		}
		s.wantDiscarded(t, 0)
	})
}

func TestSubscriptionEndsWithItsContext(t *testing.T) {
	for _, started := range []bool{false, true} {
		for _, lasting := range []bool{false, true} {
			for _, capacity := range []int{0, 1, 100} {
				synctest.Test(t, func(t *testing.T) {
					s := newStation()
					if started {
						s.Start()
					}
					s.publish("a3")
					ctx, cancel := context.WithCancel(t.Context())
					out := s.Subscribe(ctx, capacity, lasting)
					other := s.Subscribe(t.Context(), 100, false)
					synctest.Wait()
					cancel()
					synctest.Wait()
					s.wantBacklog(t, 1, 0)
					if got := buffered(out); !strings.HasSuffix(got, "closed") {
						t.Errorf("started %v, lasting %v, capacity %d: got %q", started, lasting, capacity, got)
					}
					s.publish("a4")
					want(t, "other", all(other), "a+ a+ a+ a+")
					s.Halt()
					want(t, "other", all(other), "closed")
				})
			}
		}
	}
}

// With a nil context, Subscribe and Follow panic, and no subscription is left.
func TestNilContext(t *testing.T) {
	s := newStation()
	defer s.Halt()
	s.publish("a1")
	var none context.Context
	for name, subscribe := range map[string]func(context.Context){
		"Subscribe": func(ctx context.Context) { s.Subscribe(ctx, 1, false) },
		"Follow":    func(ctx context.Context) { _ = s.Follow(ctx, everything{Events: levels{}.Events}, func(event) {}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s does not panic", name)
				}
				s.wantBacklog(t, 0, 0)
			}()
			subscribe(none)
		}()
	}
}

func TestSubscribeWithEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation()
		s.publish("a1")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		out := s.Subscribe(ctx, 1, true)
		synctest.Wait()
		want(t, "events", buffered(out), "a+ closed")
		s.wantBacklog(t, 0, 0)
	})
}

// registry is a context that counts the functions that wait for its end.
type registry struct {
	context.Context
	registered int
}

func (r *registry) Value(any) any { return nil } // hides the parent context

func (r *registry) AfterFunc(func()) (stop func() bool) {
	r.registered++
	return func() bool { r.registered--; return true }
}

// Halt unregisters a subscription from its context, even if the context has not ended.
func TestHaltReleasesTheContext(t *testing.T) {
	ctx := &registry{Context: t.Context()}
	s := newStation()
	s.Subscribe(ctx, 1, false)
	if ctx.registered != 1 {
		t.Fatalf("%d functions are registered", ctx.registered)
	}
	s.Halt()
	if ctx.registered != 0 {
		t.Errorf("%d functions are left", ctx.registered)
	}
}

// If a context ends at the same time as Halt, the channel is closed only once.
func TestContextEndsAtHalt(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			s := newStation()
			s.Start()
			ctx, cancel := context.WithCancel(t.Context())
			out := s.Subscribe(ctx, 0, false)
			s.publish("a1")
			go cancel()
			s.Halt()
			synctest.Wait()
			want(t, "after both", buffered(out), "closed")
		})
	}
}

// A stalled subscriber that reads again is sent the coalesced events that lead to the present
// state.
func TestUpdatesAreCoalesced(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile string
		events    string
		discarded int
		backlog   int
	}{
		"further":                     {"a3 a4", "a+ a+", 0, 1},
		"back":                        {"a3 a2", "", 2, 0},
		"gone":                        {"a3 a0", "a- a-", 2, 1},
		"gone and back":               {"a0 a1", "a-", 2, 1},
		"comes":                       {"b1 b2", "b+ b+", 0, 1},
		"comes and goes":              {"b1 b0", "", 2, 0},
		"comes, goes and comes":       {"b2 b0 b1", "b+", 4, 1},
		"goes without having been":    {"b0", "", 0, 0},
		"goes twice":                  {"a0 a0", "a- a-", 0, 1},
		"a request":                   {"a2! a2", "a!", 0, 1},
		"requests":                    {"a2! a2!", "a!", 0, 1},
		"a request and a change":      {"a2! a1", "a- a!", 0, 1},
		"a request of what goes":      {"a2! a0", "a- a-", 0, 1},
		"a request of what was not":   {"b1! b0", "", 2, 0},
		"the first comes first":       {"c1 b1 a1 c2", "c+ c+ b+ a-", 0, 3},
		"what was withdrawn is new":   {"c1 b1 c0 c1", "b+ c+", 2, 2},
		"what was sent keeps a place": {"a1 b1 a0 a3", "a+ b+", 4, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStation()
			defer s.Halt()
			out := s.Subscribe(t.Context(), 2, false)
			s.publish("a2") // fills the channel
			s.publish(c.meanwhile)
			s.wantBacklog(t, 1, c.backlog)
			want(t, "before", buffered(out), "a+ a+")
			got := ""
			for range 10 {
				s.Fill()
				got = strings.TrimSpace(got + " " + buffered(out))
			}
			want(t, "then", got, c.events)
			s.wantDiscarded(t, c.discarded)
			s.wantBacklog(t, 1, 0)
		})
	}
}

// If a subscriber was sent no event of a key, its first events lead to the key's state at the
// beginning of the subscription. The next events lead to the present state.
func TestWhatExistedIsDelivered(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile, events string
		discarded         int
	}{
		"nothing":           {"", "b+ b+", 0},
		"further":           {"b4", "b+ b+ b+ b+", 0},
		"back":              {"b1", "b+ b+ b-", 0},
		"there and back":    {"b3 b2", "b+ b+", 2},
		"gone":              {"b0", "b+ b+ b- b-", 0},
		"gone and back":     {"b0 b1", "b+ b+ b-", 2},
		"gone and more":     {"b0 b3", "b+ b+ b+", 4},
		"a request":         {"b2!", "b+ b+ b!", 0},
		"a request, gone":   {"b2! b0", "b+ b+ b- b-", 0},
		"more, and another": {"b3 c1 b4", "b+ b+ b+ b+ c+", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStation()
			defer s.Halt()
			s.publish("a1 b2!")
			out := s.Subscribe(t.Context(), 1, false) // a fills the channel
			s.publish(c.meanwhile)
			got := ""
			for range 10 {
				got = strings.TrimSpace(got + " " + buffered(out))
				s.Fill()
			}
			want(t, "events", got, "a+ "+c.events)
			s.wantDiscarded(t, c.discarded)
			s.wantBacklog(t, 1, 0)
		})
	}
}

// Committed events of a key are delivered. Later updates of the key are coalesced behind them, and
// no event of another key comes between the committed events.
func TestCommittedEventsAreDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation()
		out := s.Subscribe(t.Context(), 1, false)
		s.Start()
		defer s.Halt()
		s.publish("a3 b1")
		synctest.Wait()
		s.publish("a1 a0")
		s.wantBacklog(t, 1, 2)
		want(t, "events", all(out), "a+ a+ a+ b+ a- a- a-")
		s.wantDiscarded(t, 0)
	})
}

// growth returns the number of bytes by which the heap grows while the function do runs.
func growth(do func()) int {
	heap := func() int {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int(stats.HeapAlloc)
	}
	before := heap()
	do()
	return heap() - before
}

// The memory for a subscriber that never reads does not grow with the number of keys that come and
// go.
func TestStalledSubscriberIsBounded(t *testing.T) {
	s := newStation()
	defer s.Halt()
	s.publish("a1 b1")
	s.Subscribe(t.Context(), 1, false)
	const rounds = 20_000
	grown := growth(func() {
		for i := range rounds {
			passing := fmt.Sprintf("passing-%d", i)
			s.Publish(update{key: passing, level: 1})
			if _, keys := s.Backlog(); keys > 2 {
				t.Fatalf("a backlog of %d keys", keys)
			}
			s.Publish(update{key: passing})
		}
	})
	s.wantDiscarded(t, 2*rounds)
	grown = max(grown, growth(func() {
		for i := range rounds {
			s.Publish(update{key: "b", level: 1 + i%2})
		}
	}))
	if grown > rounds*8 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	runtime.KeepAlive(s)
}

// The memory for a slow subscriber depends on the number of keys, and not on how often each key
// came and went.
func TestKeysThatComeBackAreBounded(t *testing.T) {
	// stalled publishes many keys for a subscriber that never reads. Each key comes and goes the given
	// number of times before it stays.
	const keys = 500
	stalled := func(times int) int {
		s := newStation()
		defer s.Halt()
		s.Subscribe(t.Context(), 0, false)
		return growth(func() {
			for i := range keys {
				key := fmt.Sprintf("key-%d", i)
				for range times {
					s.Publish(update{key: key, level: 1})
					s.Publish(update{key: key})
				}
				s.Publish(update{key: key, level: 1})
			}
		})
	}
	atOnce := stalled(0)
	if grown := stalled(30) - atOnce; grown > keys*100 {
		t.Errorf("the heap has grown by %d bytes more", grown)
	}
}

// Pending keys are not lost and keep their order, although other keys come and go between them.
func TestWithdrawnKeysLeaveTheOthersInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation()
		defer s.Halt()
		out := s.Subscribe(t.Context(), 0, true)
		var kept []string
		for _, i := range rand.Perm(200) {
			key := fmt.Sprintf("kept-%d", i)
			kept = append(kept, key+"+")
			s.Publish(update{key: key, level: 1})
			for range 10 {
				s.publish("x1 y1 x0 y0 x1 y1 x0 y0")
			}
		}
		s.wantBacklog(t, 1, len(kept))
		s.Start()
		var got []string
		for range kept {
			got = append(got, (<-out).String())
		}
		want(t, "events", strings.Join(got, " "), strings.Join(kept, " "))
	})
}

// With concurrent publishers, readers, and subscriptions that begin and end, every reader learns
// the final state.
func TestConcurrentUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation()
		s.Start()
		levelAfter := func(key string, i int) int { return (i*7 + len(key)) % 4 }
		const publishers, each = 3, 300
		var readers, busy sync.WaitGroup
		known := make([]map[string]int, 8)
		ctx, cancel := context.WithCancel(t.Context())
		for r := range known {
			known[r] = make(map[string]int)
			out := s.Subscribe(ctx, r%3, r%2 == 0)
			readers.Go(func() {
				for e := range out {
					known[r][e.key] += e.by
					if known[r][e.key] < 0 {
						t.Errorf("%s is below zero", e.key)
					}
					if rand.N(20) == 0 {
						time.Sleep(time.Second)
					}
				}
			})
		}
		for p := range publishers {
			busy.Go(func() {
				for i := range each {
					key := fmt.Sprintf("%d-%d", p, i%5)
					s.Publish(update{key: key, level: levelAfter(key, i), sync: i%3 == 0})
					if i%50 == 0 {
						time.Sleep(time.Second)
					}
				}
			})
		}
		busy.Go(func() {
			for range each {
				ctx, cancel := context.WithCancel(t.Context())
				out := s.Subscribe(ctx, 1, false)
				s.Fill()
				<-out
				cancel()
			}
		})
		busy.Wait()
		for {
			time.Sleep(time.Minute)
			if _, keys := s.Backlog(); keys == 0 {
				break
			}
		}
		cancel()
		readers.Wait()
		s.Halt()
		for r, known := range known {
			for p := range publishers {
				for i := each - 5; i < each; i++ {
					key := fmt.Sprintf("%d-%d", p, i%5)
					if got, want := known[key], levelAfter(key, i); got != want {
						t.Errorf("reader %d has %s at %d, not %d", r, key, got, want)
					}
				}
			}
		}
	})
}
