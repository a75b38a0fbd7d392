package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/e2e/containerd"
)

// stream reads the runtime's own events of deaths. containerd first takes a dead
// container's remains away, by running runc, and shows it as exited only then:
// its event's stamp tells how much of a latency is the runtime's own.
type stream struct {
	stop   context.CancelFunc
	joined sync.WaitGroup

	mu    sync.Mutex
	stops map[string]time.Time // the stamp of each container's CONTAINER_STOPPED_EVENT
}

func readStream(ctx context.Context, client *containerd.Client) (*stream, error) {
	ctx, stop := context.WithCancel(ctx)
	events, err := client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		stop()
		return nil, fmt.Errorf("asking for the runtime's events: %w", err)
	}
	s := &stream{stop: stop, stops: make(map[string]time.Time)}
	s.joined.Go(func() {
		for {
			e, err := events.Recv()
			if err != nil {
				return // stopped; a stream that broke shows as stamps that are missing
			}
			if e.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
				s.mu.Lock()
				s.stops[e.ContainerId] = time.Unix(0, e.CreatedAt)
				s.mu.Unlock()
			}
		}
	})
	return s, nil
}

func (s *stream) close() {
	s.stop()
	s.joined.Wait()
}

// stamp is when the runtime stamped its event of a container's death.
func (s *stream) stamp(id string) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.stops[id]
	if !ok {
		return time.Time{}, fmt.Errorf("the runtime sent no event of the death of container %s", id)
	}
	return at, nil
}
