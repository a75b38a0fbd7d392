package pleg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/internal/core/backoff"
	"github.com/kubepleg/pleg/internal/core/calls"
	"github.com/kubepleg/pleg/internal/core/inbox"
	"github.com/kubepleg/pleg/internal/core/schedule"
)

const (
	// acceptTimeout is how long the runtime may take to accept a stream. Without a limit, a lost call
	// would leave the stream connecting for ever. An accepted stream has no deadline.
	acceptTimeout = 10 * time.Second
	// stableStream is how long a stream must last to reset the reconnection back-off.
	stableStream = time.Minute
	// unsupportedWait is the time between tries if the runtime has no such stream. An upgrade may add the stream.
	unsupportedWait = time.Minute
)

// reconnect sets the delays before the next connection.
var reconnect = backoff.Policy{First: time.Second, Longest: 2 * time.Second}

// errStopped is the cause of a call that Stop cancelled.
var errStopped = errors.New("the generator was stopped")

var (
	// errStreamLeftBehind means that the runtime ignored the cancellation of the last stream.
	errStreamLeftBehind = errors.New("the previous stream has not ended yet")
	errNotAccepted      = fmt.Errorf("the stream was not accepted within %v: %w", acceptTimeout, context.DeadlineExceeded)
	// errStreamEnded is used if a stream ends without an error.
	errStreamEnded = errors.New("the runtime ended the stream")
)

// eventClient keeps one of the runtime's streams open: the stream of events or the stream of exits.
type eventClient struct {
	method string
	watch  func(ctx context.Context, s *stream) error
	// hints is true for the stream of events. The kubelet's metrics count only that stream.
	hints   bool
	clock   clock.Clock
	calls   *calls.Group[*schedule.Call]
	inbox   *inbox.Inbox[inputs]
	metrics *metrics
	logger  klog.Logger

	mu     sync.Mutex // guards report, current and connectedAt
	report StreamReport
	// current is the stream whose events are accepted; nil for none. connectedAt is zero until the stream is accepted.
	current     *stream
	connectedAt time.Time

	// left receives the result of a stream that followOnce abandoned. Only follow's goroutine uses it.
	left <-chan error
}

// status returns the state of the stream. The state of a nil client is StreamOff.
func (e *eventClient) status() StreamReport {
	if e == nil {
		return StreamReport{State: StreamOff}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.report
}

// setState sets the state of the stream. A nil err keeps the last error.
func (e *eventClient) setState(state StreamState, err error, nextTry time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.setStateLocked(state, err, nextTry)
}

func (e *eventClient) setStateLocked(state StreamState, err error, nextTry time.Time) {
	if last := e.report.State; !state.isAttempt() || !last.isAttempt() {
		e.report.Since = e.clock.Now()
	}
	e.report.State, e.report.NextTry = state, nextTry
	if err != nil {
		e.report.Error = err.Error()
	}
}

// isAttempt reports whether the client is trying to connect.
func (s StreamState) isAttempt() bool { return s != StreamOff && s != StreamConnected }

// follow opens the stream again whenever it ends, until ctx ends.
func (e *eventClient) follow(ctx context.Context) {
	defer e.setState(StreamOff, nil, time.Time{})
	for failures := 0; ; { // counts failures in a row
		e.setState(StreamConnecting, nil, time.Time{})
		lasted, err := e.followOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		hasNone := errors.Is(err, ErrEventsUnsupported)
		if hasNone || lasted >= stableStream {
			failures = 0
		}
		state, wait := StreamUnsupported, unsupportedWait
		if !hasNone {
			failures++
			state, wait = StreamBroken, reconnect.Wait(failures)
			if e.hints {
				e.metrics.streamErrors.Inc()
			}
		}
		e.logger.V(2).Info("The runtime's stream ended",
			"stream", e.method, "state", state, "err", err, "lasted", lasted, "nextTry", wait)
		timer := e.clock.NewTimer(wait)
		e.setState(state, err, e.clock.Now().Add(wait))
		select {
		case <-timer.C():
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// followOnce opens one stream and follows it until the stream or ctx ends. It returns how long the
// stream was connected, and why it ended.
func (e *eventClient) followOnce(ctx context.Context) (lasted time.Duration, err error) {
	if e.left != nil {
		select {
		case <-e.left: //nolint:errcheck // why it ended says nothing now
		default:
			return 0, errStreamLeftBehind
		}
	}
	s := &stream{client: e, deadline: e.clock.NewTimer(acceptTimeout)}
	defer s.deadline.Stop()
	e.open(s)
	ended := make(chan error, 1)
	e.left = ended
	key := &schedule.Call{}
	e.calls.Go(key, calls.Info{Method: e.method, Since: e.clock.Now()}, func(ctx context.Context) error {
		return e.watch(ctx, s)
	}, func(err error, _ bool) {
		if calls.Panicked(err) {
			e.metrics.badData(e.logger.Info, badPanic, err.Error())
		}
		ended <- err
	})
	select {
	case err = <-ended:
		e.left = nil
	case <-s.deadline.C():
		err = errNotAccepted
	case <-ctx.Done():
		err = errStopped
	}
	e.calls.Cancel(key, err)
	return e.open(nil), cmp.Or(err, errStreamEnded)
}

// open makes s the current stream. If s is nil, there is no current stream. Events of the previous
// stream are ignored from now on. open returns how long the previous stream was connected.
func (e *eventClient) open(s *stream) (lasted time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.connectedAt.IsZero() {
		lasted = e.clock.Since(e.connectedAt)
	}
	e.current, e.connectedAt = s, time.Time{}
	return lasted
}

// stream is one connection to one of the runtime's streams.
type stream struct {
	client   *eventClient
	deadline clock.Timer // fires if the runtime has not accepted the stream in time
}

// connected is called when the runtime has accepted the stream. It requests a full list, because
// the runtime does not repeat earlier events.
func (s *stream) connected() {
	e := s.client
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.current != s || !e.connectedAt.IsZero() {
		return
	}
	s.deadline.Stop()
	e.connectedAt = e.clock.Now()
	e.setStateLocked(StreamConnected, nil, time.Time{})
	if e.hints {
		e.metrics.streamConnections.Inc()
		e.inbox.Put(func(in *inputs) { in.addHint("") })
	}
}

// observe adds an event to the hints. It never blocks, because some runtimes wait for the readers of their streams.
func (s *stream) observe(event ContainerEvent) {
	connectedAt, open := s.noteEvent()
	if !open {
		return
	}
	e := s.client
	// containerd replays events of the last five minutes. The age of a replayed event is not its latency.
	if !connectedAt.IsZero() && !event.CreatedAt.Before(connectedAt) {
		e.metrics.streamLatency.Observe(max(0, e.clock.Since(event.CreatedAt)).Seconds())
	}
	e.inbox.Put(func(in *inputs) { in.addHint(event.PodUID) })
}

// observeExit adds an exit to the inputs. Like observe, it never blocks.
func (s *stream) observeExit(exit ContainerExit) {
	if _, open := s.noteEvent(); open {
		s.client.inbox.Put(func(in *inputs) { in.addExit(exit) })
	}
}

// noteEvent records the time of an event. open is false if the stream is no longer the current stream.
func (s *stream) noteEvent() (connectedAt time.Time, open bool) {
	e := s.client
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.current != s {
		return time.Time{}, false
	}
	e.report.LastEvent = e.clock.Now()
	return e.connectedAt, true
}

// StreamState is the state of one of the runtime's streams.
type StreamState string

const (
	// StreamOff means that the generator is stopped or polling only, or that the runtime does not
	// implement EventSource or ExitSource.
	StreamOff StreamState = "off"
	// StreamConnecting means that the stream is requested but not yet accepted.
	StreamConnecting StreamState = "connecting"
	// StreamConnected means that the runtime has accepted the stream.
	StreamConnected StreamState = "connected"
	// StreamBroken means that the stream has ended. It is opened again at NextTry.
	StreamBroken StreamState = "broken"
	// StreamUnsupported means that the runtime has no such stream. It is tried again at NextTry.
	StreamUnsupported StreamState = "unsupported"
)

// StreamReport is the state of the stream of events or of exits.
type StreamReport struct {
	State StreamState `json:"state"`
	// Since is when this state began or, during attempts to connect, when the first attempt began.
	Since time.Time `json:"since,omitzero"`
	// LastEvent is when the last event or exit arrived.
	LastEvent time.Time `json:"lastEvent,omitzero"`
	// Error is why the last stream or attempt ended. A new connection or Stop does not clear Error.
	Error string `json:"error,omitempty"`
	// NextTry is when the stream is opened again.
	NextTry time.Time `json:"nextTry,omitzero"`
}
