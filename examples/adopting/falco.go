package adopting

import (
	"context"
	"sync"

	"github.com/kubepleg/pleg"
)

// Engine is the interface of a container engine in Falco's container plugin.
type Engine interface {
	// List returns the running containers.
	List(ctx context.Context) ([]Event, error)
	// Listen sends created and removed containers until ctx ends. Then it closes the channel and
	// calls wg.Done.
	Listen(ctx context.Context, wg *sync.WaitGroup) (<-chan Event, error)
	// Get returns the container with an ID, or nil. containerID may be the first 12 or more
	// characters of the ID. Falco calls Get when it first sees a container in the kernel.
	Get(ctx context.Context, containerID string) (*Event, error)
}

// Event describes a container that runs, was created or was removed.
type Event struct {
	ContainerID, Name, Image string
	PodUID, Pod, Namespace   string
	Labels                   map[string]string // labels of the pod
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

// Listen first sends the existing containers, so that no container is lost between List and Listen.
// Only the addresses come from the container's status; a list contains all other fields. Therefore,
// if the runtime never returns the status, Listen still reports the container after the generator's
// request timeout.
func (f falcoEngine) Listen(ctx context.Context, wg *sync.WaitGroup) (<-chan Event, error) {
	events := make(chan Event)
	send := func(e *pleg.PodLifecycleEvent) {
		c, removed := e.Container, e.Type == pleg.ContainerRemoved
		pod, _ := f.cache.ByContainerID(c.ID.ID) // finds the pod for one minute after its end
		select {
		case events <- Event{ContainerID: c.ID.ID, Name: c.Name, Image: c.Image, PodUID: string(e.ID), Pod: e.Pod.Name,
			Namespace: e.Pod.Namespace, Labels: e.Pod.Labels, IPs: pod.IPs, Removed: removed}:
		case <-ctx.Done():
		}
	}
	wg.Go(func() {
		defer close(events)
		// Handle's error is only the cause of ctx's end.
		_ = f.generator.Handle(ctx, pleg.Handler{OnContainerCreated: send, OnContainerRemoved: send})
	})
	return events, nil
}

// Get makes one full list if the container is not known yet. ctx should have a deadline. If the
// runtime has not returned the container's status by then, Get returns the fields from the list.
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
		return nil // the ID belongs to a sandbox
	}
	event := eventOf(pod, c)
	return &event
}

func eventOf(pod *pleg.PodStatus, c *pleg.Status) Event {
	return Event{ContainerID: c.ID.ID, Name: c.Name, Image: c.Image, PodUID: string(pod.ID), Pod: pod.Name,
		Namespace: pod.Namespace, Labels: pod.Labels, IPs: pod.IPs}
}
