package plegtest

import (
	"context"
	"slices"

	"github.com/kubepleg/pleg"
)

// EventMode is what the fake runtime's event stream does.
type EventMode int

const (
	// EventsServed accepts streams and keeps them. It is the default.
	EventsServed EventMode = iota
	// EventsUnsupported answers that there is no stream, with
	// [pleg.ErrEventsUnsupported].
	EventsUnsupported
	// EventsEndAtOnce accepts a stream and ends it at once without an error, as
	// CRI-O does when its events are switched off.
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

// WatchContainerEvents hands every event that is emitted from now on to observe,
// in order, in the goroutine of the call. It returns when ctx ends or the stream
// is broken. What is emitted while observe runs waits in memory.
func (r *Runtime) WatchContainerEvents(ctx context.Context, connected func(), observe func(pleg.ContainerEvent)) error {
	_, faults := r.begin(WatchContainerEvents, "")
	defer r.end(WatchContainerEvents, "")
	for _, f := range faults {
		if err := f.suffer(ctx, r.clock); err != nil {
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
		// What was emitted before the break is delivered before it shows.
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

// Emit sends an event to every stream, and returns how many there are. Without
// one the event is lost. It never blocks.
func (r *Runtime) Emit(event pleg.ContainerEvent) (streams int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.emitLocked(event)
}

// EmitOnChange makes every change of a container or sandbox emit an event, or
// stops that. It is off at first.
func (r *Runtime) EmitOnChange(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.emit = on
}

// SetEventMode sets what the event stream does from now on. Streams that are
// connected stay so: break them with BreakStreams.
func (r *Runtime) SetEventMode(mode EventMode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mode = mode
}

// BreakStreams ends every stream with err, nil for an end without an error, after
// what was emitted before. It returns how many streams there were.
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
