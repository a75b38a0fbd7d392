package scenario

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing/synctest"

	"github.com/kubepleg/pleg"
)

// printEvents prints the events that Watch has delivered; with "cause", also the cause of each.
func printEvents(s *scenario, c command) string { return receive(s.watch, -1, c.has("cause")) }

// receive prints n events of a channel; if n is negative, all available events. It groups the
// events by pod, because events of different pods have no order.
func receive(events <-chan *pleg.PodLifecycleEvent, n int, cause bool) string {
	var received []*pleg.PodLifecycleEvent
	end := ""
receiving:
	for ; n != 0; n-- {
		synctest.Wait()
		select {
		case e, open := <-events:
			if !open {
				end = "closed\n"
				break receiving
			}
			received = append(received, e)
		default:
			if len(received) == 0 {
				return "no events\n"
			}
			break receiving
		}
	}
	slices.SortStableFunc(received, func(a, b *pleg.PodLifecycleEvent) int { return cmp.Compare(a.ID, b.ID) })
	var out strings.Builder
	for _, e := range received {
		out.WriteString(line(e, cause))
	}
	return out.String() + end
}

func line(e *pleg.PodLifecycleEvent, cause bool) string {
	line := fmt.Sprintf("%s %s", e.ID, strings.TrimPrefix(string(e.Type), "Container"))
	if e.Data != nil {
		line += fmt.Sprintf(" %s", e.Data)
	}
	if e.IsSandbox() {
		line += " (sandbox)"
	}
	if cause {
		line += " because of " + string(e.Cause)
	}
	return line + "\n"
}

// subscription is the result of the command "subscribe".
type subscription struct {
	events <-chan *pleg.PodLifecycleEvent
	cancel context.CancelFunc
}

func subscribe(s *scenario, c command) string {
	ctx, cancel := s.context()
	s.subscriptions[c.first()] = &subscription{s.g.Subscribe(ctx, pleg.WithCapacity(c.number("capacity", -1))), cancel}
	return ""
}

func unsubscribe(s *scenario, c command) string {
	s.subscription(c).cancel()
	return ""
}

// read prints n events that a subscription has delivered; without "n", all of them.
func read(s *scenario, c command) string {
	return receive(s.subscription(c).events, c.number("n", -1), c.has("cause"))
}

func (s *scenario) subscription(c command) *subscription {
	sub := s.subscriptions[c.first()]
	if sub == nil {
		c.fatalf("there is no subscription %s", c.first())
	}
	return sub
}
