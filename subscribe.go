package pleg

import (
	"cmp"
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/core/broadcast"
)

// SubscribeOption is an option of Subscribe and Handle. A nil SubscribeOption is ignored.
type SubscribeOption func(*subscriptionOptions)

// subscriptionOptions are the options of a subscription to the broadcaster.
type subscriptionOptions = broadcast.Options[*update, *PodLifecycleEvent]

// WithCapacity sets the capacity of the subscriber's channel. Updates that do not fit into it are
// coalesced. Zero selects DefaultChannelCapacity, the default. A negative number selects a channel
// without a buffer or, for Handle, a buffer of one event.
func WithCapacity(events int) SubscribeOption {
	return func(o *subscriptionOptions) { o.Capacity = events }
}

// Subscribe returns a new channel of events. The first events describe the pods that exist, and are Initial. The
// channel is closed when ctx ends, and at the next Stop. While the generator does not run, Subscribe and every
// Relist deliver the events that fit into the channel. Subscribe panics if ctx is nil.
//
// A slow subscriber loses no state. Updates that do not fit into the channel are coalesced until it reads. Then
// its events lead from the state that it has read to the present. A container that came and went meanwhile
// causes no events. To count deaths, use RestartCount of the status, or the metric pleg_container_exits_total.
func (g *GenericPLEG) Subscribe(ctx context.Context, opts ...SubscribeOption) <-chan *PodLifecycleEvent {
	return g.updates.Subscribe(ctx, g.subscription(opts))
}

func (g *GenericPLEG) subscription(opts []SubscribeOption) subscriptionOptions {
	o := subscriptionOptions{Events: inSteps(stepEvents)}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	o.Capacity = max(0, cmp.Or(o.Capacity, DefaultChannelCapacity))
	return o
}

// Handler contains the functions that Handle calls. A nil function is skipped. For each pod, OnPodAdded is called
// first and OnPodRemoved last. The functions for containers are not called for sandboxes.
type Handler struct {
	// Want reports whether the handler wants a pod; nil means all pods. It is called once for each pod, before
	// OnPodAdded and with the same argument. It is called again only if the pod is removed and comes back.
	Want func(*Pod) bool
	// OnSynced is called once, when the generator has synced (see HasSynced), after the functions for
	// all earlier events. If the generator had synced before Handle was called, OnSynced follows the
	// events of the pods that existed at the call. A pod whose first inspection is slow follows later.
	OnSynced func()
	// OnPodAdded is called for each pod that exists when Handle is called, and for each pod that appears later, with
	// or without containers. The cache holds the pod's status, or the error of its inspection. initial is true if
	// the pod existed when Handle was called, or in the first full list.
	OnPodAdded func(pod *Pod, initial bool)
	// OnPodChanged is called when a sandbox of a pod was added, has ended or is gone, or when an
	// inspection shows other addresses of the pod. A change of addresses alone causes no inspection.
	OnPodChanged func(*Pod)
	// OnPodRemoved is called once for each OnPodAdded, with the pod as it was last listed. If a pod is
	// removed and comes back before its removal is handled, perhaps only the functions for its containers
	// are called. The pod may live on: a runtime may lose its pods, and the kubelet makes them again.
	OnPodRemoved func(*Pod)
	// OnContainerCreated is called once for each container, in any state, before its other events; newest first in a list.
	OnContainerCreated func(*PodLifecycleEvent)
	// OnContainerStarted is called for each container that ran, before OnContainerDied, even if it
	// ended before a list showed it running.
	OnContainerStarted func(*PodLifecycleEvent)
	// OnContainerDied is called for each container that exits, even if it never ran. Status may be
	// Unconfirmed, and a PodSync may correct it later.
	OnContainerDied func(*PodLifecycleEvent)
	// OnContainerEnded is called once after OnContainerDied, in the first of these cases:
	//
	//   - the runtime has had time to correct the reason, usually within two seconds;
	//   - the runtime does not know or confirm the end for about ten seconds;
	//   - the container is gone, or has started again.
	//
	// Use it to report or count each end once. If Status is Unconfirmed, its reason is a guess. Later corrections
	// are in the cache, and are sent as a PodSync. OnContainerDied and OnContainerEnded are called again if the
	// state was unknown in between, or if a list without an error omitted the container. Package ends leaves
	// out the second end. If no inspection has shown the end, Status is nil or shows the container running. A
	// container has no event if it came and went during one inspection of its pod.
	OnContainerEnded func(*PodLifecycleEvent)
	// OnContainerRemoved is called for each container that is gone, after OnContainerEnded and before
	// OnPodRemoved.
	OnContainerRemoved func(*PodLifecycleEvent)
	// OnPodSync is called for each PodSync.
	OnPodSync func(*PodLifecycleEvent)
}

// Handle subscribes and calls the functions of h with the events that Subscribe would deliver. It calls them one
// at a time in the caller's goroutine: first for the pods that exist, then for their changes. While a function
// runs, as many events wait as WithCapacity allows; further updates are coalesced, as for a slow subscriber.
//
// Handle returns the cause of ctx when ctx ends, and nil at the next Stop. It then calls no more
// functions, and drops the remaining events. It may be called before Start and after Stop, and
// several times at once: each call is a subscription of its own. While the generator does not run,
// Handle handles the events of Relist. Relist does not wait for it.
//
// The functions may call the generator's methods, including Stop. If a function panics, Handle ends
// its subscription and panics; other subscriptions continue. Handle panics if ctx is nil.
func (g *GenericPLEG) Handle(ctx context.Context, h Handler, opts ...SubscribeOption) error {
	options := g.subscription(opts)
	options.Events = inSteps(h.events)
	functions := map[PodLifeCycleEventType]func(*PodLifecycleEvent){
		ContainerCreated: h.OnContainerCreated, ContainerStarted: h.OnContainerStarted, ContainerDied: h.OnContainerDied,
		ContainerEnded: h.OnContainerEnded, ContainerRemoved: h.OnContainerRemoved, PodSync: h.OnPodSync}
	refused := make(map[types.UID]bool) // the pods that h does not want
	return g.updates.Follow(ctx, options, func(e *PodLifecycleEvent) {
		if e.Type == podAdded && h.Want != nil && !h.Want(e.Pod) {
			refused[e.ID] = true
		}
		switch f := functions[e.Type]; {
		case refused[e.ID]:
		case e.Type == synced:
			h.OnSynced()
		case e.Type == podAdded && h.OnPodAdded != nil:
			h.OnPodAdded(e.Pod, e.Initial)
		case e.Type == podChanged && h.OnPodChanged != nil:
			h.OnPodChanged(e.Pod)
		case e.Type == podRemoved && h.OnPodRemoved != nil:
			h.OnPodRemoved(e.Pod)
		case f != nil:
			f(e)
		}
		if e.Type == podRemoved {
			delete(refused, e.ID)
		}
	})
}

// These are the types of the events that only Handle receives.
const (
	podAdded   PodLifeCycleEventType = "podAdded"
	podChanged PodLifeCycleEventType = "podChanged"
	podRemoved PodLifeCycleEventType = "podRemoved"
	synced     PodLifeCycleEventType = "synced"
)

// events returns the handler's events that lead from the delivered update to u; see inSteps.
func (h *Handler) events(delivered, u *update) (events []*PodLifecycleEvent) {
	if u.uid == syncedUID && h.OnSynced != nil {
		return []*PodLifecycleEvent{{Type: synced}}
	}
	known := delivered.listed()
	initial := delivered == nil && u.initial != nil
	add := func(kind PodLifeCycleEventType, pod *Pod, c *Container, s *Status) {
		e := u.event(kind, pod, c)
		e.Status, e.Initial = s, initial
		if c != nil {
			e.Data, e.Initial = c.ID.ID, initial || kind == ContainerEnded && u.initialEnds[c.ID.ID]
		}
		events = append(events, e)
	}
	if delivered == nil && u.pod != nil {
		add(podAdded, u.pod, nil, nil)
	}
	if known != nil && u.pod != nil && (!slices.EqualFunc(known.Sandboxes, u.pod.Sandboxes, looksSame) ||
		!slices.Equal(delivered.ips, u.ips)) {
		add(podChanged, u.pod, nil, nil)
	}
	was, statuses := finder(known.containers()), finder(u.statuses)
	for _, c := range u.pod.containers() {
		if was(c.ID.ID) == nil {
			add(ContainerCreated, u.pod, c, statuses(c.ID.ID))
		}
	}
	for _, e := range stepEvents(delivered, u) {
		switch c := e.Container; {
		case e.sandbox:
			continue
		case c == nil: // a PodSync
		case e.Type == ContainerDied && hasRun(c, e.Status) && !wasRunning(was(c.ID.ID)):
			add(ContainerStarted, e.Pod, c, e.Status)
		case e.Type == ContainerStarted && isExited(was(c.ID.ID)) && !delivered.hasSettled(c.ID.ID):
			add(ContainerEnded, e.Pod, c, find(delivered.statuses, c.ID.ID))
		case e.Type == ContainerRemoved && !delivered.hasSettled(c.ID.ID):
			add(ContainerEnded, e.Pod, c, e.Status)
		}
		events = append(events, e)
	}
	for _, c := range u.pod.containers() {
		if u.hasSettled(c.ID.ID) && !delivered.hasSettled(c.ID.ID) {
			add(ContainerEnded, u.pod, c, statuses(c.ID.ID))
		}
	}
	if u.pod == nil && delivered != nil {
		add(podRemoved, known, nil, nil)
	}
	return events
}

// hasRun reports whether a dead container is known to have run: by its status or, if the status is
// nil, by the list.
func hasRun(c *Container, s *Status) bool {
	return s == nil && isExited(c) || s != nil && (!s.StartedAt.IsZero() || s.Unconfirmed)
}

// wasRunning reports whether a container may have been running. A nil container was absent.
func wasRunning(c *Container) bool { return c != nil && c.State != ContainerStateCreated }
