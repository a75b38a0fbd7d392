package broadcast_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// followed contains the events that a follower was sent, and the result of Follow.
type followed struct {
	events []string
	err    error
	over   bool
}

// follow calls Follow in a goroutine. Follow returns when ctx or the subscription ends.
func (s *station) follow(ctx context.Context, options everything) *followed {
	f := &followed{}
	go func() {
		f.err = s.Follow(ctx, options, func(e event) { f.events = append(f.events, e.String()) })
		f.over = true
	}()
	synctest.Wait()
	return f
}

func (f *followed) want(t *testing.T, what, events string, over bool) {
	t.Helper()
	synctest.Wait()
	want(t, what, strings.Join(f.events, " "), events)
	if f.over != over {
		t.Errorf("%s: over is %v", what, f.over)
	}
}

// Follow handles the existing state and later changes until its context ends. It does so with and
// without Start.
func TestFollow(t *testing.T) {
	for _, started := range []bool{false, true} {
		t.Run(fmt.Sprint(started), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStation()
				defer s.Halt()
				if started {
					s.Start()
				}
				s.publish("b1 a2")
				ctx, cancel := context.WithCancelCause(t.Context())
				f := s.follow(ctx, everything{Events: levels{}.Events})
				f.want(t, "what exists", "a+ a+ b+", false)
				s.publish("a1! c1")
				s.Fill()
				f.want(t, "later", "a+ a+ b+ a- a! c+", false)
				s.wantBacklog(t, 1, 0)
				enough := errors.New("enough")
				cancel(enough)
				f.want(t, "in the end", "a+ a+ b+ a- a! c+", true)
				if !errors.Is(f.err, enough) {
					t.Errorf("got %v", f.err)
				}
				s.wantBacklog(t, 0, 0)
				s.publish("c0")
				f.want(t, "after it", "a+ a+ b+ a- a! c+", true)
			})
		})
	}
}

// Halt ends Follow. If the context has also ended, Follow returns the cause of the context.
func TestFollowUntilHalt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation()
		s.Start()
		ctx, cancel := context.WithCancel(t.Context())
		f := s.follow(ctx, everything{Events: levels{}.Events})
		s.publish("a1")
		synctest.Wait()
		s.Halt()
		f.want(t, "after Halt", "a+", true)
		if f.err != nil {
			t.Errorf("got %v", f.err)
		}
		cancel()
		err := s.Follow(ctx, everything{Events: levels{}.Events}, func(event) { t.Error("called") })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		s.wantBacklog(t, 0, 0)
	})
}

// After the context or the subscription has ended, Follow handles no further event. This holds even
// if the handler itself has ended the context or the subscription.
func TestFollowEndsAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		end func(s *station, cancel func())
		err error
	}{
		"its context": {func(_ *station, cancel func()) { cancel() }, context.Canceled},
		"Halt":        {func(s *station, _ func()) { s.Halt() }, nil},
		"both":        {func(s *station, cancel func()) { s.Halt(); cancel() }, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStation()
			s.publish("a3")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			calls := 0
			err := s.Follow(ctx, everything{Events: levels{}.Events}, func(event) {
				if calls++; calls == 2 {
					s.publish("b1") // Publish does not deadlock in the handler
					c.end(s, cancel)
				}
			})
			if calls != 2 || !errors.Is(err, c.err) {
				t.Errorf("%d calls, %v", calls, err)
			}
			s.wantBacklog(t, 0, 0)
		})
	}
}

// followSlowly starts a follower that blocks in its handler. The returned function lets the
// follower continue, ends it, and returns all its events.
func (s *station) followSlowly(t *testing.T, options everything) (goOn func() (events string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var got []string
	read := make(chan struct{})
	go func() {
		_ = s.Follow(ctx, options, func(e event) {
			got = append(got, e.String())
			<-read
		})
	}()
	synctest.Wait()
	s.publish("a1")
	synctest.Wait()
	return func() string {
		close(read)
		synctest.Wait()
		cancel()
		synctest.Wait()
		return strings.Join(got, " ")
	}
}

// The updates for a slow follower are coalesced, and Backlog counts them.
func TestSlowFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation()
		follow := s.followSlowly(t, everything{Events: levels{}.Events})
		s.publish("b1 a2 b3 a1 c1 c0")
		s.wantBacklog(t, 1, 1)
		s.wantDiscarded(t, 4) // a went up and down; c came and went
		want(t, "events", follow(), "a+ b+ b+ b+")
	})
}

// A follower that is in its handler when its subscription ends handles no more events.
func TestFollowEndsWhileHandling(t *testing.T) {
	for name, end := range map[string]func(s *station, cancel func()){
		"its context": func(_ *station, cancel func()) { cancel() },
		"Halt":        func(s *station, _ func()) { s.Halt() },
	} {
		for _, started := range []bool{false, true} {
			t.Run(fmt.Sprint(name, started), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStation()
					defer s.Halt()
					if started {
						s.Start()
					}
					s.publish("a3 b3")
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					calls, handling := 0, make(chan struct{})
					go func() {
						_ = s.Follow(ctx, everything{Events: levels{}.Events}, func(event) {
							calls++
							<-handling
						})
					}()
					synctest.Wait()
					s.wantBacklog(t, 1, 2)
					end(s, cancel)
					synctest.Wait()
					s.wantBacklog(t, 0, 0)
					s.publish("c1")
					close(handling)
					synctest.Wait()
					if calls != 1 {
						t.Errorf("%d calls", calls)
					}
				})
			})
		}
	}
}

// If the handler panics, Follow panics and the subscription ends.
func TestFollowerPanics(t *testing.T) {
	for _, started := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newStation()
			if started {
				s.Start()
			}
			s.publish("a3")
			defer func() {
				if p := recover(); p != "oops" {
					t.Errorf("recovered %v", p)
				}
				synctest.Wait()
				s.publish("a2")
				s.wantBacklog(t, 0, 0)
				s.Halt()
			}()
			_ = s.Follow(t.Context(), everything{Events: levels{}.Events}, func(event) { panic("oops") })
			t.Error("it has returned")
		})
	}
}

// For a slow follower, as many events are queued as the capacity allows, before updates are
// coalesced.
func TestFollowWithCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation()
		follow := s.followSlowly(t, everything{Events: levels{}.Events, Capacity: 3})
		s.publish("b1 b0 b1 c1 c0 c1 d1")
		s.wantDiscarded(t, 2)
		want(t, "events", follow(), "a+ b+ b- b+ c+ d+")
	})
}
