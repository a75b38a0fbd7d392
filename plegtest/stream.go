package plegtest

import (
	"context"
	"slices"

	"github.com/kubepleg/pleg"
)

// EventMode selects how the fake runtime serves event streams.
type EventMode int

const (
	// EventsServed accepts streams and keeps them open. It is the default.
	EventsServed EventMode = iota
	// EventsUnsupported refuses streams with [pleg.ErrEventsUnsupported].
	EventsUnsupported
	// EventsEndAtOnce accepts a stream, and then ends it at once without an error.
	EventsEndAtOnce
)

// stream is one accepted call of WatchContainerEvents or WatchContainerExits. The runtime's lock
// guards its queue.
type stream[E any] struct {
	queue []E
	wake  chan struct{} // has room for one signal
	// broken is closed when the stream breaks. The field err is set before that.
	broken chan struct{}
	err    error
}

// streams contains all streams of events, or all streams of exits. The runtime's lock guards it.
type streams[E any] struct {
	open []*stream[E]
	mode EventMode
}

// WatchContainerEvents calls observe for each event that is emitted from now on, in order and in
// the caller's goroutine. Events that are emitted while observe runs are queued. The method returns
// when ctx ends or the stream breaks.
func (r *Runtime) WatchContainerEvents(ctx context.Context, connected func(), observe func(pleg.ContainerEvent)) error {
	return watchStream(ctx, r, WatchContainerEvents, &r.events, connected, observe)
}

// WatchContainerExits works like WatchContainerEvents, for exits. To simulate a runtime without
// exit events, call Fail for this method with [pleg.ErrEventsUnsupported].
func (r *Runtime) WatchContainerExits(ctx context.Context, connected func(), observe func(pleg.ContainerExit)) error {
	return watchStream(ctx, r, WatchContainerExits, &r.exits, connected, observe)
}

func watchStream[E any](
	ctx context.Context, r *Runtime, m Method, all *streams[E], connected func(), observe func(E),
) error {
	_, faults := r.begin(m, "")
	defer r.end(m, "")
	for _, f := range faults {
		if err := f.apply(ctx, r.clock); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s, mode := all.connect(r)
	switch mode {
	case EventsUnsupported:
		return pleg.ErrEventsUnsupported
	case EventsEndAtOnce:
		connected()
		return nil
	case EventsServed:
	}
	defer all.disconnect(r, s)
	connected()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.wake:
		case <-s.broken:
		}
		// Deliver the events from before the break first.
		for {
			event, ok := s.next(r)
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

// Emit sends an event to each open event stream, and returns the number of these streams. If no
// stream is open, the event is lost. Emit never blocks.
func (r *Runtime) Emit(event pleg.ContainerEvent) (streams int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events.emitLocked(event)
}

// EmitOnChange sets whether each change of a container or sandbox emits an event. The default is
// false.
func (r *Runtime) EmitOnChange(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.emit = on
}

// EmitExit sends an exit to each open stream of exits, and returns the number of these streams. If
// no stream is open, the exit is lost. A test may send an exit before the container exits, long
// after, twice, or for a container that does not exist. EmitExit never blocks.
func (r *Runtime) EmitExit(exit pleg.ContainerExit) (streams int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.exits.emitLocked(exit)
}

// EmitOnExit sets whether each exit of a container or sandbox is sent to the streams of exits at
// once. The default is false.
func (r *Runtime) EmitOnExit(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.emitExits = on
}

// SetEventMode sets the behaviour of future event streams. Open streams stay open;
// BreakEventStreams ends them.
func (r *Runtime) SetEventMode(mode EventMode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events.mode = mode
}

// BreakEventStreams ends each event stream with err, which may be nil. The stream first delivers
// the events that were emitted before. BreakEventStreams returns the number of streams that it
// ended.
func (r *Runtime) BreakEventStreams(err error) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events.breakLocked(err)
}

// BreakExitStreams ends each stream of exits with err. See BreakEventStreams.
func (r *Runtime) BreakExitStreams(err error) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.exits.breakLocked(err)
}

// Streams returns the number of open event streams. Streams of exits do not count.
func (r *Runtime) Streams() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.events.open)
}

func (all *streams[E]) connect(r *Runtime) (*stream[E], EventMode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if all.mode != EventsServed {
		return nil, all.mode
	}
	s := &stream[E]{wake: make(chan struct{}, 1), broken: make(chan struct{})}
	all.open = append(all.open, s)
	return s, all.mode
}

func (all *streams[E]) disconnect(r *Runtime, s *stream[E]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all.open = slices.DeleteFunc(all.open, func(o *stream[E]) bool { return o == s })
}

func (s *stream[E]) next(r *Runtime) (event E, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(s.queue) == 0 {
		return event, false
	}
	event = s.queue[0]
	s.queue = s.queue[1:]
	return event, true
}

func (all *streams[E]) emitLocked(event E) int {
	for _, s := range all.open {
		s.queue = append(s.queue, event)
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return len(all.open)
}

func (all *streams[E]) breakLocked(err error) int {
	n := len(all.open)
	for _, s := range all.open {
		s.err = err
		close(s.broken)
	}
	all.open = nil
	return n
}

// emitChangesLocked emits an event for each container and sandbox that differs between two versions
// of a pod. One version may be nil.
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
			r.events.emitLocked(pleg.ContainerEvent{PodUID: pod.ID, ContainerID: c.ID.ID, CreatedAt: now})
		}
	}
	for _, c := range is {
		if c == nil {
			continue
		}
		if i := indexOf(was, c.ID.ID); i < 0 || was[i].State != c.State {
			r.events.emitLocked(pleg.ContainerEvent{PodUID: pod.ID, ContainerID: c.ID.ID, CreatedAt: now})
		}
	}
}

// emitExitsLocked emits an exit for each container and sandbox that has exited in the new version
// of a pod but not in the old version.
func (r *Runtime) emitExitsLocked(old, pod *pleg.Pod) {
	var was []*pleg.Container
	if old != nil {
		was = slices.Concat(old.Containers, old.Sandboxes)
	}
	for _, c := range slices.Concat(pod.Containers, pod.Sandboxes) {
		if c == nil || c.State != pleg.ContainerStateExited {
			continue
		}
		if i := indexOf(was, c.ID.ID); i >= 0 && was[i].State == c.State {
			continue
		}
		l := r.lives[lifeKey{pod.ID, c.ID.ID}]
		r.exits.emitLocked(pleg.ContainerExit{
			PodUID: pod.ID, ContainerID: c.ID.ID, ExitCode: l.exitCode, FinishedAt: l.finishedAt,
		})
	}
}
