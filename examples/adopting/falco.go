package adopting

import (
	"context"
	"sync"

	"github.com/kubepleg/pleg"
)

// Engine is what Falco's container plugin asks of a container engine.
type Engine interface {
	// List returns the running containers.
	List(ctx context.Context) ([]Event, error)
	// Listen sends the containers that are created and removed, until ctx ends. Then it closes
	// the channel, and is done with wg.
	Listen(ctx context.Context, wg *sync.WaitGroup) (<-chan Event, error)
	// Get returns a container that the kernel has shown first, by the first 12 characters of its ID or
	// more; nil if there is none.
	Get(ctx context.Context, containerID string) (*Event, error)
}

// Event is a container, as it is created or removed.
type Event struct {
	ContainerID, Name, Image string
	PodUID, Pod, Namespace   string
	Labels                   map[string]string // the pod's
	IPs                      []string
	Removed                  bool
}

type falcoEngine struct {
	generator *pleg.GenericPLEG
	cache     *pleg.PodCache
}

// NewEngine returns an Engine.
func NewEngine(generator *pleg.GenericPLEG, cache *pleg.PodCache) Engine {
	return falcoEngine{generator, cache}
}

func (f falcoEngine) List(ctx context.Context) (events []Event, err error) {
	if err := f.generator.WaitForSync(ctx); err != nil {
		return nil, err
	}
	for _, pod := range f.cache.GetAll() {
		for _, c := range pod.ContainerStatuses {
			if c.State == pleg.ContainerStateRunning {
				events = append(events, eventOf(pod, c))
			}
		}
	}
	return events, nil
}

// Listen begins with what exists, so that nothing is lost between List and Listen. All but the
// addresses comes from the list that showed the container: if the runtime never answers for its
// status, it is reported nevertheless, when the generator's request timeout has expired.
func (f falcoEngine) Listen(ctx context.Context, wg *sync.WaitGroup) (<-chan Event, error) {
	events := make(chan Event)
	send := func(e *pleg.PodLifecycleEvent) {
		c, removed := e.Container, e.Type == pleg.ContainerRemoved
		pod, _ := f.cache.ByContainerID(c.ID.ID) // also for a minute after its end
		select {
		case events <- Event{ContainerID: c.ID.ID, Name: c.Name, Image: c.Image, PodUID: string(e.ID), Pod: e.Pod.Name,
			Namespace: e.Pod.Namespace, Labels: e.Pod.Labels, IPs: pod.IPs, Removed: removed}:
		case <-ctx.Done():
		}
	}
	wg.Go(func() {
		defer close(events)
		// The error is why ctx has ended.
		_ = f.generator.Handle(ctx, pleg.Handler{OnContainerCreated: send, OnContainerRemoved: send})
	})
	return events, nil
}

// Get makes one list of the node if the container is not known yet. ctx should have a deadline: if
// the runtime does not answer for the container's status, Get returns what the list shows then.
func (f falcoEngine) Get(ctx context.Context, containerID string) (*Event, error) {
	if event := f.find(containerID); event != nil {
		return event, nil
	}
	err := f.generator.Relist(ctx)
	if event := f.find(containerID); event != nil {
		return event, nil
	}
	return nil, err
}

func (f falcoEngine) find(containerID string) *Event {
	pod, found := f.cache.ByContainerID(containerID)
	if !found {
		return nil
	}
	c := pod.FindContainerStatusByID(containerID)
	if c == nil {
		return nil // a sandbox
	}
	event := eventOf(pod, c)
	return &event
}

func eventOf(pod *pleg.PodStatus, c *pleg.Status) Event {
	return Event{ContainerID: c.ID.ID, Name: c.Name, Image: c.Image, PodUID: string(pod.ID), Pod: pod.Name,
		Namespace: pod.Namespace, Labels: pod.Labels, IPs: pod.IPs}
}
