package criserver

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/internal/serverconfig"
)

// eventHub delivers events to the readers in the way of the imitated runtime.
type eventHub struct {
	habits  habits        // set once by newEventHub
	clock   clock.Clock   // set once by newEventHub
	stopped chan struct{} // closed by stop
	// sending is a lock. It is held while an event is sent or a reader joins, so that all readers
	// receive the events in the same order. It is a channel with one slot, so that stop can
	// interrupt goroutines that wait for the lock.
	sending chan struct{}
	// shared is the only buffer if the model's habit is eventsShared or eventsInTurn.
	shared chan *runtimeapi.ContainerEventResponse
	sender sync.WaitGroup // the goroutine that runs sendInTurn

	mu sync.Mutex
	// The fields below are guarded by mu.

	isDown  bool          // true after a call of down, until a call of up
	life    chan struct{} // each call of down closes this channel and makes a new one
	streams *breakage     // ends the open streams; each call of breakLocked makes a new one
	readers []*eventReader
	joined  bool // true if a reader has joined since the last call of down
	held    []heldEvent
	history []*runtimeapi.ContainerEventResponse // the last maxHistory events, oldest first
	rand    *rand.Rand
	window  int
	waiting []*runtimeapi.ContainerEventResponse // collected by ShuffleEvents and not sent yet
	stats   serverconfig.EventStats
	since   time.Time // when the event that is being broadcast arrived; zero if there is none
}

// breakage ends all streams that are open when its channel is closed.
type breakage struct {
	broken chan struct{} // closed to end the streams
	err    error         // the error with which the streams end; set before broken is closed
}

type heldEvent struct {
	event *runtimeapi.ContainerEventResponse
	since time.Time
}

// eventReader is one open event stream.
type eventReader struct {
	// events is the reader's buffer. With eventsInTurn it is unbuffered.
	events chan *runtimeapi.ContainerEventResponse
	gone   chan struct{} // closed when the stream has ended
}

// maxHistory is the maximum number of events that RepeatEvents can repeat.
const maxHistory = 1000

func newEventHub(h habits, c clock.Clock, r *rand.Rand) *eventHub {
	return &eventHub{
		habits:  h,
		clock:   c,
		rand:    r,
		stopped: make(chan struct{}),
		life:    make(chan struct{}),
		streams: &breakage{broken: make(chan struct{})},
		sending: make(chan struct{}, 1),
		shared:  make(chan *runtimeapi.ContainerEventResponse, max(1, h.eventBuffer)),
	}
}

func (c controls) EventStats() serverconfig.EventStats {
	h := c.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	stats := h.stats
	stats.Held = len(h.held)
	if h.habits.events == eventsShared || h.habits.events == eventsInTurn && !h.joined {
		stats.Held = len(h.shared)
	}
	if !h.since.IsZero() {
		stats.LongestEnqueue = max(stats.LongestEnqueue, h.clock.Since(h.since))
	}
	return stats
}

// BreakEventStreams ends each event stream with err, an error of package
// google.golang.org/grpc/status. If err is nil, the streams end without an error. Events in the
// readers' buffers are lost. To break connections, use CutConnections.
func (s *Server) BreakEventStreams(err error) {
	s.hub.breakAll(err)
}

func (c controls) RepeatEvents(count int) {
	h := c.hub
	h.mu.Lock()
	again := slices.Clone(h.history[max(0, len(h.history)-count):])
	h.mu.Unlock()
	for _, event := range again {
		h.dispatch(event)
	}
}

func (c controls) ShuffleEvents(window int) {
	c.hub.mu.Lock()
	c.hub.window = window
	c.hub.mu.Unlock()
	c.hub.send()
}

// send sends the events of an operation. After ShuffleEvents it sends them in random order.
func (h *eventHub) send(events ...*runtimeapi.ContainerEventResponse) {
	h.mu.Lock()
	for _, e := range events {
		e.CreatedAt = max(1, h.clock.Now().UnixNano())
	}
	h.history = append(h.history, events...)
	if over := len(h.history) - maxHistory; over > 0 {
		h.history = append(h.history[:0], h.history[over:]...)
	}
	if h.window > 1 || len(h.waiting) > 0 {
		h.waiting = append(h.waiting, events...)
		events = nil
		if len(h.waiting) >= h.window {
			events, h.waiting = h.waiting, nil
			h.rand.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		}
	}
	h.mu.Unlock()
	for _, e := range events {
		h.dispatch(e)
	}
}

// dispatch delivers, holds or drops an event, in the way of the imitated runtime.
func (h *eventHub) dispatch(event *runtimeapi.ContainerEventResponse) {
	start := h.clock.Now()
	if h.lostForGood() {
		return
	}
	switch h.habits.events {
	case eventsUnimplemented, eventsEndAtOnce:
	case eventsShared, eventsInTurn:
		select {
		case h.shared <- event:
			if h.habits.events == eventsShared {
				h.count(1, 0)
			}
		default:
			h.count(0, 1)
		}
	case eventsBroadcast:
		if !h.lockSending() {
			return
		}
		defer h.unlockSending()
		h.broadcast(event, start)
		h.enqueued(start)
	}
}

// lostForGood reports whether an event is lost because the runtime is down. It counts such an event
// as dropped.
func (h *eventHub) lostForGood() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isDown {
		h.stats.Dropped++
	}
	return h.isDown
}

// lockSending acquires the lock in the field sending. It returns false if the server stops.
func (h *eventHub) lockSending() bool {
	select {
	case h.sending <- struct{}{}:
		return true
	case <-h.stopped:
		return false
	}
}

func (h *eventHub) unlockSending() { <-h.sending }

// broadcast puts an event into each reader's buffer. If no buffer took the event, broadcast holds
// it.
func (h *eventHub) broadcast(event *runtimeapi.ContainerEventResponse, now time.Time) {
	taken := false
	for _, r := range h.readersAt(now) {
		// As in containerd's queue, a reader may be gone while its buffer has room. The select then
		// decides at random whether the event is lost in that buffer.
		select {
		case r.events <- event:
			h.count(1, 0)
			taken = true
		case <-r.gone:
			h.forget(r)
		case <-h.stopped:
			return
		}
	}
	if !taken {
		h.hold(event, now)
	}
}

// readersAt returns the readers, and sets the field since to now.
func (h *eventHub) readersAt(now time.Time) []*eventReader {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.since = now
	return h.readers
}

func (h *eventHub) hold(event *runtimeapi.ContainerEventResponse, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held = append(h.held, heldEvent{event, now})
	h.discardLocked(now)
}

// sendInTurn is the only sender of eventsInTurn. It sends each event to all readers, one after the
// other, and waits for each reader.
func (h *eventHub) sendInTurn(life <-chan struct{}) {
	for {
		select {
		case event := <-h.shared:
			readers := h.present()
			if len(readers) == 0 {
				h.count(0, 1)
			}
			for _, r := range readers {
				select {
				case r.events <- event:
					h.count(1, 0)
				case <-r.gone:
				case <-life:
					return
				case <-h.stopped:
					return
				}
			}
		case <-life:
			return
		case <-h.stopped:
			return
		}
	}
}

func (h *eventHub) present() []*eventReader {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.readers
}

// discardLocked drops events that have been held for holdEventsFor or longer.
func (h *eventHub) discardLocked(now time.Time) {
	keep := 0
	for keep < len(h.held) && now.Sub(h.held[keep].since) >= h.habits.holdEventsFor {
		keep++
	}
	h.held = h.held[keep:]
	h.stats.Dropped += keep
}

func (h *eventHub) enqueued(start time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.since = time.Time{}
	h.stats.LongestEnqueue = max(h.stats.LongestEnqueue, h.clock.Since(start))
}

func (h *eventHub) count(sent, dropped int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Sent += sent
	h.stats.Dropped += dropped
}

func (h *eventHub) breakAll(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.breakLocked(err)
}

func (h *eventHub) breakLocked(err error) {
	h.streams.err = err
	close(h.streams.broken)
	h.streams = &breakage{broken: make(chan struct{})}
}

// down simulates a runtime that goes down: all streams end, and all events in the hub are lost.
func (h *eventHub) down() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.isDown = true
	h.joined = false
	close(h.life)
	h.life = make(chan struct{})
	h.breakLocked(errGoingDown)
	h.readers, h.held = nil, nil
	for len(h.shared) > 0 {
		select {
		case <-h.shared:
		default:
		}
	}
}

// up makes the hub accept events and readers again, after a call of down.
func (h *eventHub) up() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.isDown = false
}

var errGoingDown = status.Error(codes.Unavailable, "the runtime is shutting down")

// stop releases all waiting goroutines for good.
func (h *eventHub) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.stopped:
	default:
		close(h.stopped)
	}
}

type eventStream = runtimeapi.RuntimeService_GetContainerEventsServer

// serve handles one call of GetContainerEvents.
func (h *eventHub) serve(stream eventStream) error {
	switch h.habits.events {
	case eventsUnimplemented:
		return status.Error(codes.Unimplemented, "method GetContainerEvents not implemented")
	case eventsEndAtOnce:
		return nil
	case eventsShared:
		return h.serveShared(stream)
	case eventsBroadcast, eventsInTurn:
	}
	return h.serveOwn(stream)
}

// serveShared sends the events of the shared buffer to one client. As in containerd 1.7, it notices
// a disconnected client only when it sends the next event.
func (h *eventHub) serveShared(stream eventStream) error {
	end := h.join(nil)
	defer h.leave(nil)
	for {
		select {
		case event := <-h.shared:
			if err := stream.Send(event); err != nil {
				return err
			}
		case <-end.broken:
			return end.err
		case <-h.stopped:
			return errGoingDown
		}
	}
}

// serveOwn sends the held events, and then the events of the reader's own buffer. As in the real
// runtimes, it notices a disconnected client only when it sends the next event.
func (h *eventHub) serveOwn(stream eventStream) error {
	r := &eventReader{gone: make(chan struct{})}
	buffer := h.habits.eventBuffer
	if h.habits.events == eventsInTurn {
		buffer = 0
	}
	r.events = make(chan *runtimeapi.ContainerEventResponse, buffer)
	defer close(r.gone)
	select {
	case h.sending <- struct{}{}:
	case <-stream.Context().Done():
		return status.FromContextError(stream.Context().Err()).Err()
	case <-h.stopped:
		return errGoingDown
	}
	end := h.join(r)
	held := h.takeHeld()
	h.unlockSending()
	defer h.leave(r)
	for _, event := range held {
		if err := stream.Send(event); err != nil {
			return err
		}
	}
	for {
		select {
		case event := <-r.events:
			if err := stream.Send(event); err != nil {
				return err
			}
		case <-end.broken:
			return end.err
		case <-h.stopped:
			return errGoingDown
		}
	}
}

// join adds a reader and returns the breakage that will end its stream. r is nil for a reader of
// the shared buffer.
func (h *eventHub) join(r *eventReader) *breakage {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Readers++
	if h.isDown {
		over := &breakage{broken: make(chan struct{}), err: errGoingDown}
		close(over.broken)
		return over
	}
	if h.habits.events == eventsInTurn && !h.joined {
		life := h.life
		h.sender.Go(func() { h.sendInTurn(life) })
	}
	h.joined = true
	if r != nil {
		// Make a new slice, because a sender may be iterating over the old one.
		h.readers = append(slices.Clone(h.readers), r)
	}
	return h.streams
}

// leave handles the end of a stream. With eventsBroadcast, a later call of broadcast removes the
// reader.
func (h *eventHub) leave(r *eventReader) {
	h.mu.Lock()
	h.stats.Readers--
	h.mu.Unlock()
	if h.habits.events != eventsBroadcast {
		h.forget(r)
	}
}

func (h *eventHub) forget(r *eventReader) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readers = slices.DeleteFunc(slices.Clone(h.readers), func(o *eventReader) bool { return o == r })
}

func (h *eventHub) takeHeld() []*runtimeapi.ContainerEventResponse {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.discardLocked(h.clock.Now())
	events := make([]*runtimeapi.ContainerEventResponse, len(h.held))
	for i, e := range h.held {
		events[i] = e.event
	}
	h.held = nil
	h.stats.Sent += len(events)
	return events
}
