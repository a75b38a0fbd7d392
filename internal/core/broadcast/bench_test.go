package broadcast_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/kubepleg/pleg/internal/core/broadcast"
)

// BenchmarkPublish measures one update of one of a thousand keys. It runs
// without subscribers, with one or three subscribers that read every event, and with a subscriber
// that never reads.
func BenchmarkPublish(b *testing.B) {
	updates := make([]update, 2000)
	for i := range updates {
		updates[i] = update{key: fmt.Sprintf("%08d-pod-%05d", i%1000, i%1000), level: 1 + i/1000}
	}
	rules := constant{events: []event{{"a", 1}}}
	for _, c := range []struct {
		name        string
		subscribers int
		capacity    int
		reads       bool
	}{
		{"nobody", 0, 0, false},
		{"up to date", 1, 1000, true},
		{"up to date, three", 3, 1000, true},
		{"stalled", 1, 1, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := broadcast.New[string, update, event](rules, func(int) {})
			defer s.Halt()
			var outs []chan event
			for range c.subscribers {
				outs = append(outs, s.Subscribe(context.Background(), everything{Events: rules.Events, Capacity: c.capacity}))
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				s.Publish(updates[i])
				if i++; i == len(updates) {
					i = 0
				}
				if c.reads {
					for _, out := range outs {
						<-out
					}
				}
			}
		})
	}
}

// constant implements rules with events that cost no time.
type constant struct {
	levels
	events []event
}

func (c constant) Events(_, _ update) []event { return c.events }
