package scenario

import (
	"context"
	"fmt"
	"strings"
	"testing/synctest"

	"github.com/kubepleg/pleg"
)

// printEvents prints what Watch has delivered; with "cause", why it was found.
func printEvents(s *scenario, c command) string { return receive(s.watch, -1, c.has("cause")) }

// receive prints n events of a channel, or all that it has if n is negative.
func receive(events <-chan *pleg.PodLifecycleEvent, n int, cause bool) string {
	var out strings.Builder
	for ; n != 0; n-- {
		synctest.Wait()
		select {
		case e, open := <-events:
			if !open {
				return out.String() + "closed\n"
			}
			out.WriteString(line(e, cause))
		default:
			if out.Len() == 0 {
				return "no events\n"
			}
			return out.String()
		}
	}
	return out.String()
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

// subscription is what "subscribe" made.
type subscription struct {
	events <-chan *pleg.PodLifecycleEvent
	cancel context.CancelFunc
}

func subscribe(s *scenario, c command) string {
	ctx, cancel := s.context()
	s.subscriptions[c.first()] = &subscription{s.g.Subscribe(ctx, c.number("capacity", 0)), cancel}
	return ""
}

func unsubscribe(s *scenario, c command) string {
	s.subscription(c).cancel()
	return ""
}

// read prints what a subscription has delivered, or n events of it.
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
