package pleg

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// Handler has a function for each thing that can happen, for Handle. A nil function is
// skipped. Of one pod, OnPodAdded comes first and OnPodRemoved last.
type Handler struct {
	// Want limits the handler to the pods that it reports true for; nil stands for all. It is
	// asked once for a pod, with the pod that OnPodAdded would get, and again only if the pod
	// is removed and comes back.
	Want func(*Pod) bool
	// OnPodAdded is called once for a pod that exists when Handle is called or that
	// appears later, before anything else of the pod, also if it has no containers. The
	// cache holds its status, or the error of its inspection.
	OnPodAdded func(*Pod)
	// OnPodRemoved is called once for a pod that OnPodAdded was called for, after
	// everything else of the pod, with the pod as the handler last knew it. A pod that is
	// removed and comes back with its UID while a function runs is neither removed nor
	// added: only its containers are.
	OnPodRemoved func(*Pod)
	// OnContainerStarted, OnContainerDied and OnContainerRemoved are called for the events
	// of these types, sandboxes included; see IsSandbox.
	OnContainerStarted func(*PodLifecycleEvent)
	OnContainerDied    func(*PodLifecycleEvent)
	OnContainerRemoved func(*PodLifecycleEvent)
	// OnPodSync is called for PodSync.
	OnPodSync func(*PodLifecycleEvent)
}

// Handle calls the functions of h, one at a time in the caller's goroutine: first for the
// pods that exist now, then for what happens to them, with the events that Subscribe would
// deliver. What happens while a function runs is coalesced, as for a subscriber that does
// not read.
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
	options.Events = markedEvents
	refused := make(map[types.UID]struct{})
	return g.updates.Follow(ctx, options, func(e *PodLifecycleEvent) {
		if h.wants(e, refused) {
			h.handle(e)
		}
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
	case ContainerStarted:
		callWith(h.OnContainerStarted, e)
	case ContainerDied:
		callWith(h.OnContainerDied, e)
	case ContainerRemoved:
		callWith(h.OnContainerRemoved, e)
	case PodSync:
		callWith(h.OnPodSync, e)
	case ContainerChanged: // is never delivered
	}
}

func callWith[T any](f func(T), v T) {
	if f != nil {
		f(v)
	}
}

// podAdded and podRemoved mark the first and the last event of a pod for a handler, because
// a pod without containers has no others. Only markedEvents makes them.
const (
	podAdded   PodLifeCycleEventType = "podAdded"
	podRemoved PodLifeCycleEventType = "podRemoved"
)

// markedEvents are the events of an update for a handler.
func markedEvents(delivered, u *update) []*PodLifecycleEvent {
	events := updateRules{}.Events(delivered, u)
	switch {
	case delivered == nil:
		return append([]*PodLifecycleEvent{{ID: u.uid, Type: podAdded, Pod: u.pod}}, events...)
	case u.pod == nil:
		return append(events, &PodLifecycleEvent{ID: u.uid, Type: podRemoved, Pod: delivered.pod})
	default:
		return events
	}
}
