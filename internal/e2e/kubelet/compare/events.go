package main

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// exit is the end of a container as the runtime's exit event has it, and when that came.
type exit struct {
	at, told time.Time
	code     int
}

// watch keeps the runtime's events, over a connection of its own.
func (n *node) watch(ctx context.Context) {
	for ctx.Err() == nil {
		stream, err := n.client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
		for err == nil {
			var e *runtimeapi.ContainerEventResponse
			if e, err = stream.Recv(); err == nil {
				n.mu.Lock()
				n.events = append(n.events, e)
				close(n.more)
				n.more = make(chan struct{})
				n.mu.Unlock()
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond): // the runtime may be restarting
		}
	}
}

// awaitEvent returns when the runtime did something to a container of a pod, after a time.
// The sandbox is a container too, which the event names.
func (n *node) awaitEvent(ctx context.Context, pod string, kind runtimeapi.ContainerEventType, after time.Time,
	limit time.Duration,
) (at time.Time, found bool) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for read := 0; ; {
		n.mu.Lock()
		events, more := n.events, n.more
		n.mu.Unlock()
		for ; read < len(events); read++ {
			e := events[read]
			created := time.Unix(0, e.CreatedAt)
			if e.ContainerEventType == kind && created.After(after) && e.ContainerId != e.GetPodSandboxStatus().GetId() &&
				e.GetPodSandboxStatus().GetMetadata().GetName() == pod+suffix {
				return created, true
			}
		}
		select {
		case <-ctx.Done():
			return time.Time{}, false
		case <-more:
		}
	}
}

// watchExits keeps the runtime's exit events, over a connection of its own.
func (n *node) watchExits(ctx context.Context) {
	for ctx.Err() == nil {
		_ = n.source.WatchContainerExits(ctx, func() {}, func(e pleg.ContainerExit) {
			n.mu.Lock()
			defer n.mu.Unlock()
			if _, known := n.exits[e.ContainerID]; !known {
				n.exits[e.ContainerID] = exit{e.FinishedAt, time.Now(), e.ExitCode}
				close(n.more)
				n.more = make(chan struct{})
			}
		})
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond): // the runtime may be restarting
		}
	}
}

// awaitExit returns the exit that the runtime has told of a container.
func (n *node) awaitExit(ctx context.Context, id string, limit time.Duration) (e exit, found bool) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		n.mu.Lock()
		e, found := n.exits[id]
		more := n.more
		n.mu.Unlock()
		if found {
			return e, true
		}
		select {
		case <-ctx.Done():
			return exit{}, false
		case <-more:
		}
	}
}

// birth is a container that was created.
type birth struct {
	pod, id string
	at      time.Time // when its creation began, as the runtime has it
}

// startedBefore reports whether the runtime has said that a container started, before a time.
func (n *node) startedBefore(id string, at time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.events, func(e *runtimeapi.ContainerEventResponse) bool {
		return e.ContainerId == id && time.Unix(0, e.CreatedAt).Before(at) &&
			e.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT
	})
}

// births returns the containers of pods that were created since the last call, and before.
func (n *node) births() (before, since []birth) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, e := range n.events {
		pod := e.GetPodSandboxStatus()
		if e.ContainerEventType != created || e.ContainerId == pod.GetId() {
			continue
		}
		b := birth{pod.GetMetadata().GetName(), e.ContainerId, time.Unix(0, e.CreatedAt)}
		for _, c := range e.ContainersStatuses {
			if c.Id == b.id {
				b.at = time.Unix(0, c.CreatedAt)
			}
		}
		if i < n.judged {
			before = append(before, b)
		} else {
			since = append(since, b)
		}
	}
	n.judged = len(n.events)
	return before, since
}

// judgeSuccessors counts the containers that were created after the end of the container
// before them in their pod. An end that no exit event has told, as while the runtime did not
// run, is asked of the runtime; where that has forgotten it, nothing is counted. Nor is it of one that
// had not started: where the kubelet or the runtime is killed meanwhile, every kubelet makes another.
func (m *measurement) judgeSuccessors(ctx context.Context, v variant) error {
	n := m.node
	before, since := n.births()
	last := make(map[string]birth)
	for _, b := range before {
		last[b.pod] = b
	}
	for _, b := range since {
		one, is := last[b.pod]
		last[b.pod] = b
		if !is {
			continue
		}
		end, err := n.endOf(ctx, one.id)
		switch {
		case err != nil:
			return err
		case end.IsZero():
			say("  %s: nobody knows when container %.12s of %s ended", v.name, one.id, one.pod)
		case end.Before(b.at):
			m.results.hit(v, alone)
		case !n.startedBefore(one.id, b.at):
			say("  %s: container %.12s of %s had not started when its successor was created", v.name, one.id, one.pod)
		default:
			say("  %s: container %.12s of %s ended %v after the creation of its successor", v.name, one.id, one.pod,
				end.Sub(b.at))
			m.results.miss(v, alone)
		}
	}
	return nil
}

// endOf returns when a container that has a successor ended, zero if the runtime has
// forgotten it. A containerd that was killed as it deleted a task has: its record's end is then when
// it started. One that runs has not ended before now.
func (n *node) endOf(ctx context.Context, id string) (time.Time, error) {
	if e, told := n.awaitExit(ctx, id, settle); told {
		return e.at, nil
	}
	r, err := n.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	switch {
	case status.Code(err) == codes.NotFound:
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, err
	case r.Status.State != runtimeapi.ContainerState_CONTAINER_EXITED:
		return time.Now(), nil
	case r.Status.Reason == "Unknown":
		return time.Time{}, nil
	}
	return time.Unix(0, r.Status.FinishedAt), nil
}
