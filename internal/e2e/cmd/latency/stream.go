package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// stream reads the runtime's own events of deaths, and runs the bare path for the deaths assigned
// to it. containerd first runs runc to clean up after a dead container, and only then shows the
// container as exited. The event's timestamp shows how much of a latency is caused by the runtime.
type stream struct {
	client *testnode.Client
	turns  *turns
	cancel context.CancelFunc
	joined sync.WaitGroup

	mu    sync.Mutex
	stops map[string]stop // by container
}

// stop is a CONTAINER_STOPPED_EVENT. The field stamped is the time when the runtime created it, and
// read is the time when this process read it. The field walked is the time when the bare path
// ended; zero if the death was not assigned to the bare path.
type stop struct {
	stamped, read, walked time.Time
	err                   error // error of the bare path
}

func readStream(ctx context.Context, client *testnode.Client, turns *turns) (*stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	events, err := client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("asking for the runtime's events: %w", err)
	}
	s := &stream{client: client, turns: turns, cancel: cancel, stops: make(map[string]stop)}
	s.joined.Go(func() {
		for {
			e, err := events.Recv()
			if err != nil {
				return // the stream has ended; missing events fail the measurement
			}
			if e.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
				read := time.Now()
				s.joined.Go(func() { s.note(ctx, e, read) })
			}
		}
	})
	return s, nil
}

func (s *stream) note(ctx context.Context, e *runtimeapi.ContainerEventResponse, read time.Time) {
	noted := stop{stamped: time.Unix(0, e.CreatedAt), read: read}
	if s.turns.isBare(e.ContainerId) {
		noted.err = barePath(ctx, s.client, e)
		noted.walked = time.Now()
	}
	s.mu.Lock()
	s.stops[e.ContainerId] = noted
	s.mu.Unlock()
	s.turns.done(e.ContainerId)
}

func (s *stream) close() {
	s.cancel()
	s.joined.Wait()
}

// of returns the runtime's event of a container's death.
func (s *stream) of(id string) (stop, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.stops[id]
	if !ok {
		return stop{}, fmt.Errorf("the runtime sent no event of the death of container %s", id)
	}
	if e.err != nil {
		return stop{}, fmt.Errorf("the bare path of container %s: %w", id, e.err)
	}
	return e, nil
}
