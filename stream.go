package pleg

import (
	"sync"
	"time"
)

// stream is one connection to the runtime's events.
type stream struct {
	g    *GenericPLEG
	call *call
	// ended gets the reason when the runtime comes back.
	ended chan error

	mu sync.Mutex

	// Guarded by mu.

	connectedAt time.Time // zero until the runtime has accepted the stream
	heard       bool      // there was an event
	closed      bool      // nobody listens any more
}

// streamNews says that a stream was connected, or that it ended.
type streamNews struct{ connected bool }

// watch runs the runtime's method and brings its answer back. What the runtime
// says after the stream was closed is not heard.
func (s *stream) watch() {
	landed := landing{call: s.call}
	defer func() {
		s.g.countPanic(landed.err)
		s.g.streaming.Store(false)
		s.g.calls.remove(s.call)
		s.ended <- landed.err
	}()
	landed.make(func() {
		landed.err = s.g.source.WatchContainerEvents(s.call.ctx, s.connected, s.observe)
	})
}

// connected notes that the runtime has accepted the stream.
func (s *stream) connected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.connectedAt.IsZero() {
		return
	}
	s.connectedAt = s.g.clock.Now()
	s.g.metrics.streamConnections.Inc()
	s.g.vitals.streamConnected(s.connectedAt)
	s.g.box.put(func(m *mail) { m.stream = append(m.stream, streamNews{connected: true}) })
}

// observe takes in an event: it is added to a set, so that a runtime which waits
// for its readers never waits for this one.
func (s *stream) observe(e ContainerEvent) {
	s.mu.Lock()
	closed := s.closed
	s.heard = true
	s.mu.Unlock()
	if closed {
		return
	}
	if !e.CreatedAt.IsZero() {
		s.g.metrics.streamLatency.Observe(max(0, s.g.clock.Since(e.CreatedAt)).Seconds())
	}
	s.g.vitals.streamHeard(s.g.clock.Now())
	s.g.box.put(func(m *mail) { m.addHint(hint{e.PodUID, e.ContainerID}) })
}

// close ends the listening, and returns when the stream was connected, and
// whether there was an event.
func (s *stream) close() (connectedAt time.Time, heard bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.connectedAt, s.heard
}
