package pleg

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/broadcast"
)

// SubscribeOption is an option of Subscribe and Handle. A nil SubscribeOption is ignored.
type SubscribeOption func(*subscribeOptions)

type subscribeOptions struct {
	name     string
	capacity int
}

// WithCapacity sets how many events wait for a subscriber before any are merged, for Subscribe
// the capacity of its channel. Zero selects DefaultChannelCapacity, the default; with a negative
// one no event waits.
func WithCapacity(events int) SubscribeOption {
	return func(o *subscribeOptions) { o.capacity = events }
}

// WithName names a subscription, in HealthReport and in the label subscriber of
// pleg_named_subscriber_backlog_pods and pleg_named_subscriber_backlog_age_seconds.
// Subscriptions of one name are reported as one. Each name makes a series of each metric for
// as long as it has a subscription, so use few names. What is not UTF-8 in a name is
// replaced. An empty name, the default, is none.
func WithName(name string) SubscribeOption {
	return func(o *subscribeOptions) { o.name = strings.ToValidUTF8(name, "\uFFFD") }
}

// Subscribe returns a new channel of the events. Its first events describe the pods that
// exist now. The channel is closed when ctx ends or at the next Stop. While the generator does
// not run, the events that fit are delivered at once and by every Relist.
//
// A slow subscriber loses no state, but occurrences are merged. What does not fit into the
// channel is coalesced until the subscriber reads. Then it learns what is, and how every
// container ended that it knew of, but nothing of containers that came and went meanwhile; the
// pod's next event is Merged. To count deaths, use RestartCount of the status, or the metric
// pleg_container_exits_total.
func (g *GenericPLEG) Subscribe(ctx context.Context, opts ...SubscribeOption) <-chan *PodLifecycleEvent {
	return g.updates.Subscribe(ctx, g.subscription(opts))
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
	return subscriptionOptions{
		Name: o.name, Capacity: max(0, cmp.Or(o.capacity, DefaultChannelCapacity)), Begins: g.clock.Now(),
		Events: untold{}.events(updateRules{}.Events),
	}
}

// untold are the pods of which transitions were merged away for one subscriber without an event to
// say so. Their next one does.
type untold map[types.UID]struct{}

// events returns a function that makes the events of the subscriber.
func (pods untold) events(of func(delivered, u *update) []*PodLifecycleEvent,
) func(delivered, u *update) []*PodLifecycleEvent {
	return func(delivered, u *update) []*PodLifecycleEvent {
		if _, is := pods[u.uid]; is && !u.merged {
			merged := *u
			merged.merged = true
			u = &merged
		}
		events := of(delivered, u)
		switch {
		case !u.merged:
		case u.pod == nil || slices.ContainsFunc(events, func(e *PodLifecycleEvent) bool { return e.Merged }):
			delete(pods, u.uid)
		default:
			pods[u.uid] = struct{}{}
		}
		return events
	}
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

// Handler has the functions that Handle calls, one for each thing that can happen. A nil
// function is skipped. Of one pod, OnPodAdded comes first and OnPodRemoved last. The functions of
// containers are called for containers alone: what happens to its sandboxes is the pod's affair.
type Handler struct {
	// Want reports whether the handler wants a pod; nil wants all. It is called once for each
	// pod, before OnPodAdded and with the same argument, and again only if the pod is removed
	// and comes back.
	Want func(*Pod) bool
	// OnSynced is called once, when the generator has synced (see HasSynced), and what existed
	// then, or when Handle was called, has been handled.
	OnSynced func()
	// OnPodAdded is called once for each pod that exists when Handle is called or that appears
	// later, with or without containers. It comes before everything else of the pod. The
	// cache holds the pod's status, or the error of its inspection.
	OnPodAdded func(*Pod)
	// OnPodRemoved is called once for each pod that OnPodAdded was called for, after
	// everything else of the pod, with the pod as the handler last knew it. If a pod is
	// removed and comes back with its UID before that is handled, neither OnPodRemoved nor
	// OnPodAdded may be called: only its containers change.
	OnPodRemoved func(*Pod)
	// OnContainerCreated is called once for each container, before all else of it, in whatever
	// state a list shows it first. The kubelet has no event for that: Type is empty.
	OnContainerCreated func(*PodLifecycleEvent)
	// OnContainerStarted, OnContainerDied and OnContainerRemoved are called for the events
	// of these types.
	OnContainerStarted func(*PodLifecycleEvent)
	OnContainerDied    func(*PodLifecycleEvent)
	OnContainerRemoved func(*PodLifecycleEvent)
	// OnPodSync is called for PodSync.
	OnPodSync func(*PodLifecycleEvent)
}

// Handle calls the functions of h, one at a time in the caller's goroutine: first for the
// pods that exist now, then for what happens to them, with the events that Subscribe would
// deliver. As many events as WithCapacity says wait while a function runs; what happens beyond
// that is merged, as for a subscriber that does not read.
//
// It returns the cause of ctx when ctx ends, and nil at the next Stop. No function is called
// after that, and what was not handled yet is dropped. It may be called before Start and
// after Stop, and several times at once: each call is a subscription of its own. While the
// generator does not run, it handles what Relist finds; Relist does not wait for it.
//
// The functions may use the generator, also to stop it. If one panics, Handle panics: the
// subscription ends, and nobody else notices.
func (g *GenericPLEG) Handle(ctx context.Context, h Handler, opts ...SubscribeOption) error {
	options := g.subscription(opts)
	options.Events = untold{}.events(markedEvents)
	refused := make(map[types.UID]struct{})
	return g.updates.Follow(ctx, options, broadcast.Follower[*PodLifecycleEvent]{
		Handle: func(e *PodLifecycleEvent) {
			if h.wants(e, refused) {
				h.handle(e)
			}
		},
		Synced: g.loop.synced,
		CaughtUp: func() {
			if h.OnSynced != nil {
				h.OnSynced()
			}
		},
	})
}

// wants reports whether an event is of a pod that is wanted; refused has those that are not.
func (h *Handler) wants(e *PodLifecycleEvent, refused map[types.UID]struct{}) bool {
	if e.Type == podAdded && h.Want != nil && !h.Want(e.Pod) {
		refused[e.ID] = struct{}{}
	}
	_, is := refused[e.ID]
	if e.Type == podRemoved {
		delete(refused, e.ID)
	}
	return !is
}

// handle calls the function for an event.
func (h *Handler) handle(e *PodLifecycleEvent) {
	switch e.Type {
	case podAdded:
		callWith(h.OnPodAdded, e.Pod)
	case podRemoved:
		callWith(h.OnPodRemoved, e.Pod)
	case containerCreated:
		callWith(h.OnContainerCreated, e)
	case ContainerStarted:
		callWith(h.OnContainerStarted, e)
	case ContainerDied:
		callWith(h.OnContainerDied, e)
	case ContainerRemoved:
		callWith(h.OnContainerRemoved, e)
	case PodSync:
		callWith(h.OnPodSync, e)
	case containerChanged: // is never delivered
	}
}

func callWith[T any](f func(T), v T) {
	if f != nil {
		f(v)
	}
}

// podAdded and podRemoved mark the first and the last event of a pod for a handler, because
// a pod without containers has no others, containerCreated the first of a container. Only
// markedEvents makes them.
const (
	podAdded         PodLifeCycleEventType = "podAdded"
	podRemoved       PodLifeCycleEventType = "podRemoved"
	containerCreated PodLifeCycleEventType = ""
)

// markedEvents are the events of an update for a handler.
func markedEvents(delivered, u *update) (events []*PodLifecycleEvent) {
	if delivered == nil {
		events = append(events, &PodLifecycleEvent{ID: u.uid, Type: podAdded, Pod: u.pod})
	}
	for _, e := range slices.Concat(createdEvents(delivered, u), updateRules{}.Events(delivered, u)) {
		if !e.sandbox {
			events = append(events, e)
		}
	}
	if u.pod == nil {
		events = append(events, &PodLifecycleEvent{ID: u.uid, Type: podRemoved, Pod: delivered.pod})
	}
	return events
}

// createdEvents are the events of the containers that are new in an update.
func createdEvents(delivered, u *update) (events []*PodLifecycleEvent) {
	if u.pod == nil || delivered != nil && delivered.pod == u.pod {
		return nil
	}
	var known finder[*Container]
	var existed initialState
	if delivered != nil {
		known = containersOf(delivered.pod)
	} else {
		existed = initially(u.initial, u.pod)
	}
	statuses := statusesIn(u.statuses)
	for i, c := range u.pod.Containers {
		if known.at(i, c.ID.ID) != nil {
			continue
		}
		events = append(events, &PodLifecycleEvent{
			ID: u.uid, Type: containerCreated, Data: c.ID.ID, Pod: u.pod, Container: c, Status: statuses.at(i, c.ID.ID),
			Initial: existed.all || existed.containers.at(i, c.ID.ID) != nil, Merged: u.merged,
			ListedAt: u.listedAt, Cause: u.cause,
		})
	}
	return events
}
