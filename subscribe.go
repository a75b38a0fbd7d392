package pleg

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/kubepleg/pleg/internal/broadcast"
)

// SubscribeOption is an option of Subscribe and Handle. A nil SubscribeOption is ignored.
type SubscribeOption func(*subscribeOptions)

type subscribeOptions struct{ name string }

// WithName names a subscription, in HealthReport and in the label subscriber of
// pleg_named_subscriber_backlog_pods and pleg_named_subscriber_backlog_age_seconds.
// Subscriptions may share a name: they are reported as one. Each name is a series for as
// long as it has a subscription, so it should be one of a few. What is not UTF-8 in it is
// replaced. An empty name, the default, is none.
func WithName(name string) SubscribeOption {
	return func(o *subscribeOptions) { o.name = strings.ToValidUTF8(name, "\uFFFD") }
}

// Subscribe returns a new channel of the events. Its first events describe the pods that
// exist now. A zero or negative capacity selects an unbuffered channel. The channel is
// closed when ctx ends or at the next Stop. While the generator does not run, the events
// that fit are delivered at once and by every Relist.
//
// State is never lost, occurrences are merged: what does not fit into the channel is
// coalesced until the subscriber reads, and then it learns what is, how every container
// ended that it knew, and nothing of those that came and went meanwhile. To count deaths,
// use RestartCount of the status, or the metric pleg_container_exits_total.
func (g *GenericPLEG) Subscribe(
	ctx context.Context, capacity int, opts ...SubscribeOption,
) <-chan *PodLifecycleEvent {
	return g.updates.Subscribe(ctx, capacity, g.subscription(opts))
}

// subscriptionOptions are the broadcaster's.
type subscriptionOptions = broadcast.Options[*update, *PodLifecycleEvent]

// subscription returns the broadcaster's options of a subscription that begins now.
func (g *GenericPLEG) subscription(opts []SubscribeOption) subscriptionOptions {
	var o subscribeOptions
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return subscriptionOptions{Name: o.name, Begins: g.clock.Now()}
}

// subscriberReports returns what the backlogs of the subscriptions are together, and by
// name.
func subscriberReports(backlogs []broadcast.Backlog) (total int, named []SubscriberReport) {
	for _, b := range backlogs {
		total += b.Keys
		if b.Name == "" {
			continue
		}
		i, found := slices.BinarySearchFunc(named, b.Name, func(r SubscriberReport, name string) int {
			return cmp.Compare(r.Name, name)
		})
		if !found {
			named = slices.Insert(named, i, SubscriberReport{Name: b.Name})
		}
		named[i].add(b)
	}
	return total, named
}

// add adds a subscription of the same name.
func (r *SubscriberReport) add(b broadcast.Backlog) {
	r.Subscriptions++
	r.Backlog += b.Keys
	if r.BehindSince.IsZero() || !b.Since.IsZero() && b.Since.Before(r.BehindSince) {
		r.BehindSince = b.Since
	}
}

// behind returns the age of the oldest update that is not delivered; 0 if all are.
func (r *SubscriberReport) behind(now time.Time) time.Duration {
	if r.BehindSince.IsZero() {
		return 0
	}
	return max(0, now.Sub(r.BehindSince))
}
