package pleg

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubepleg/pleg/internal/broadcast"
	"github.com/kubepleg/pleg/internal/calls"
)

// SubscribeOption is an option of Subscribe and Handle. A nil SubscribeOption is ignored.
type SubscribeOption func(*subscribeOptions)

type subscribeOptions struct {
	name string
	want func(*Pod) bool
}

// WithName names a subscription, in HealthReport and in the label subscriber of
// pleg_named_subscriber_backlog_pods and pleg_named_subscriber_backlog_age_seconds.
// Subscriptions may share a name: they are reported as one. Each name is a series for as
// long as it has a subscription, so it should be one of a few. What is not UTF-8 in it is
// replaced. An empty name, the default, is none.
func WithName(name string) SubscribeOption {
	return func(o *subscribeOptions) { o.name = strings.ToValidUTF8(name, "\uFFFD") }
}

// WithFilter limits a subscription to the pods that want reports true for; of the others
// it gets no event and has no backlog. want is asked once per pod, with the pod as it is
// listed when the subscription first sees it: those that exist when it begins, the others
// when they appear. A pod that is removed and comes back with its UID is asked about again.
// Answers are kept only for pods that exist.
//
// want is called in the goroutines of Subscribe and Handle and in the generator's loop, with
// locks held that they all wait for: it must be quick, depend on the pod only, and use
// neither the generator nor a lock that is held while one of its methods is called. It must
// return: one that ends its goroutine ends the loop. If it panics, the answer is no; that is
// counted in pleg_bad_data_total and logged once. A nil want, the
// default, wants every pod. Of several filters the last counts.
func WithFilter(want func(*Pod) bool) SubscribeOption {
	return func(o *subscribeOptions) { o.want = want }
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
	options := subscriptionOptions{Name: o.name, Begins: g.clock.Now()}
	if o.want != nil {
		options.Want = func(u *update) bool { return g.wants(o, u.pod) }
	}
	return options
}

// wants asks the filter of a subscription about a pod.
func (g *GenericPLEG) wants(o subscribeOptions, pod *Pod) bool {
	defer func() {
		if p := recover(); p != nil {
			g.metrics.badData(badFilterPanic,
				fmt.Sprintf("filter of subscriber %q, %s: %s", o.name, podName(pod), calls.PanicText(p)))
		}
	}()
	return o.want(pod)
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
