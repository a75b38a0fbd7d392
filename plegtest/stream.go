package plegtest

import (
	"context"
	"slices"

	"github.com/kubepleg/pleg"
)

// EventMode is the behaviour of the fake runtime's event stream.
type EventMode int

const (
	// EventsServed accepts streams, and keeps them open. It is the default.
	EventsServed EventMode = iota
	// EventsUnsupported refuses streams with [pleg.ErrEventsUnsupported].
	EventsUnsupported
	// EventsEndAtOnce accepts a stream, and ends it at once without an error.
	EventsEndAtOnce
)

// stream is one call of WatchContainerEvents that has been accepted. Its queue is
// guarded by the runtime's lock.
type stream struct {
	queue []pleg.ContainerEvent
	wake  chan struct{} // holds one
	// broken is closed when the stream ends by itself, with err set before.
	broken chan struct{}
	err    error
}

// WatchContainerEvents calls observe for every event that is emitted from now on, in
// order, in the goroutine of the call. It returns when ctx ends or the stream is broken.
// Events that are emitted while observe runs are queued.
func (r *Runtime) WatchContainerEvents(ctx context.Context, connected func(), observe func(pleg.ContainerEvent)) error {
	_, faults := r.begin(WatchContainerEvents, "")
	defer r.end(WatchContainerEvents, "")
	for _, f := range faults {
		if err := f.apply(ctx, r.clock); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s, mode := r.connect()
	switch mode {
	case EventsUnsupported:
		return pleg.ErrEventsUnsupported
	case EventsEndAtOnce:
		connected()
		return nil
	case EventsServed:
	}
	defer r.disconnect(s)
	connected()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.wake:
		case <-s.broken:
		}
		// Events from before the break are delivered first.
		for {
			event, ok := r.next(s)
			if !ok {
				break
			}
			observe(event)
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		select {
		case <-s.broken:
			return s.err
		default:
		}
	}
}

// Emit sends an event to every stream, and returns the number of streams. The event is
// lost if there is none. Emit never blocks.
func (r *Runtime) Emit(event pleg.ContainerEvent) (streams int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.emitLocked(event)
}

// EmitOnChange sets whether every change of a container or sandbox emits an event. The
// default is off.
func (r *Runtime) EmitOnChange(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.emit = on
}

// SetEventMode sets the behaviour of new event streams. Connected streams stay connected;
// BreakStreams ends them.
func (r *Runtime) SetEventMode(mode EventMode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mode = mode
}

// BreakStreams ends every stream with err, or without an error if err is nil, after the
// events that were emitted before. It returns the number of streams.
func (r *Runtime) BreakStreams(err error) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.streams)
	for _, s := range r.streams {
		s.err = err
		close(s.broken)
	}
	r.streams = nil
	return n
}

// Streams returns how many streams are connected.
func (r *Runtime) Streams() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.streams)
}

func (r *Runtime) connect() (*stream, EventMode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mode != EventsServed {
		return nil, r.mode
	}
	s := &stream{wake: make(chan struct{}, 1), broken: make(chan struct{})}
	r.streams = append(r.streams, s)
	return s, r.mode
}

func (r *Runtime) disconnect(s *stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams = slices.DeleteFunc(r.streams, func(o *stream) bool { return o == s })
}

func (r *Runtime) next(s *stream) (pleg.ContainerEvent, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(s.queue) == 0 {
		return pleg.ContainerEvent{}, false
	}
	event := s.queue[0]
	s.queue = s.queue[1:]
	return event, true
}

func (r *Runtime) emitLocked(event pleg.ContainerEvent) int {
	for _, s := range r.streams {
		s.queue = append(s.queue, event)
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return len(r.streams)
}

// emitChangesLocked emits an event for each container and sandbox that differs
// between two versions of a pod, either of which may be nil.
func (r *Runtime) emitChangesLocked(old, pod *pleg.Pod) {
	if old == nil {
		old = &pleg.Pod{ID: pod.ID}
	}
	if pod == nil {
		pod = &pleg.Pod{ID: old.ID}
	}
	was := slices.Concat(old.Containers, old.Sandboxes)
	is := slices.Concat(pod.Containers, pod.Sandboxes)
	now := r.clock.Now()
	for _, c := range was {
		if c != nil && indexOf(is, c.ID.ID) < 0 {
			r.emitLocked(pleg.ContainerEvent{PodUID: pod.ID, ContainerID: c.ID.ID, CreatedAt: now})
		}
	}
	for _, c := range is {
		if c == nil {
			continue
		}
		if i := indexOf(was, c.ID.ID); i < 0 || was[i].State != c.State {
			r.emitLocked(pleg.ContainerEvent{PodUID: pod.ID, ContainerID: c.ID.ID, CreatedAt: now})
		}
	}
}
