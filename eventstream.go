package pleg

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/internal/backoff"
	"github.com/kubepleg/pleg/internal/calls"
	"github.com/kubepleg/pleg/internal/inbox"
	"github.com/kubepleg/pleg/internal/schedule"
)

// The times of the event stream.
const (
	// acceptTimeout is the deadline of all that comes before the acceptance of a stream: one
	// call that is lost there would leave it connecting for ever. A stream that is accepted has
	// none.
	acceptTimeout = 10 * time.Second
	// stableStream is how long a stream must have lasted for the wait before the next
	// connection to begin anew.
	stableStream = time.Minute
	// unsupportedRetry is the wait after which a runtime without events is asked again:
	// it may have been upgraded, or configured.
	unsupportedRetry = 5 * time.Minute
)

// The waits between two connections.
var (
	reconnect   = backoff.Policy{First: time.Second, Longest: time.Minute, Jitter: true}
	unsupported = backoff.Policy{First: unsupportedRetry, Longest: unsupportedRetry, Jitter: true}
)

// errStopped is the cause with which Stop cancels the calls in flight.
var errStopped = errors.New("the generator was stopped")

// eventClient keeps a stream of the runtime open: of its events, each a hint which pod to list and
// nothing else, or of its exits, each a fact.
type eventClient struct {
	// Set once.

	method string
	watch  func(ctx context.Context, s *stream) error
	// hints: of its events. The schedule and the kubelet's metrics are about these.
	hints   bool
	clock   clock.Clock
	calls   *calls.Group[*schedule.Call]
	inbox   *inbox.Inbox[inputs]
	metrics *metrics
	logger  klog.Logger
	// recovered has a token when full lists succeed again: the next try is due.
	recovered chan struct{}

	mu sync.Mutex

	// Guarded by mu.

	report StreamReport
	// open is the stream whose call has not returned, which may outlast Stop.
	open *stream
}

// status returns the state of the stream, which may be nil for none.
func (e *eventClient) status() StreamReport {
	if e == nil {
		return StreamReport{State: StreamOff}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.report
}

// setState notes a new state, and why the last stream ended if it did.
func (e *eventClient) setState(state StreamState, err error, nextTry time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.report.State, e.report.Since, e.report.NextTry = state, e.clock.Now(), nextTry
	if err != nil {
		e.report.Error = err.Error()
	}
}

// follow follows one stream after another until ctx ends.
func (e *eventClient) follow(ctx context.Context) {
	defer e.setState(StreamOff, nil, time.Time{})
	for failures := 0; ; { // in a row
		e.setState(StreamConnecting, nil, time.Time{})
		end := e.followOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		var state StreamState
		var wait time.Duration
		if end.unsupported {
			state, wait = StreamUnsupported, unsupported.Wait(1)
			failures = 0
			e.logger.V(2).Info("The runtime has no such stream", "stream", e.method, "err", end.err, "nextTry", wait)
		} else {
			if end.lasted >= stableStream {
				failures = 0
			}
			failures++
			state, wait = StreamBroken, reconnect.Wait(failures)
			if e.hints {
				e.metrics.streamErrors.Inc()
			}
			e.logger.V(2).Info("The runtime's stream broke",
				"stream", e.method, "err", end.err, "lasted", end.lasted, "nextTry", wait)
		}
		timer := e.clock.NewTimer(wait)
		e.setState(state, end.err, e.clock.Now().Add(wait))
		select {
		case <-timer.C():
		case <-e.recovered: // what the stream needs may be back too, or be there now
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

var (
	// errStreamLeftBehind says that a stream that was cancelled has still not ended, because
	// the runtime ignores that.
	errStreamLeftBehind = errors.New("the stream from before has not ended yet")
	errNotAccepted      = fmt.Errorf("the stream was not accepted within %v: %w", acceptTimeout, context.DeadlineExceeded)
	// errStreamEnded replaces the reason that a runtime did not give.
	errStreamEnded = errors.New("the runtime ended the stream")
)

// streamEnd is how a stream, or the attempt at one, ended.
type streamEnd struct {
	lasted      time.Duration // connected; 0 if it never was
	unsupported bool          // the runtime has no events: it alone says so, with ErrEventsUnsupported
	err         error         // never nil
}

// followOnce follows one stream until it ends or ctx does.
func (e *eventClient) followOnce(ctx context.Context) (end streamEnd) {
	s := &stream{client: e, ended: make(chan error, 1)}
	key := &schedule.Call{}
	if !e.begin(s) {
		return streamEnd{err: errStreamLeftBehind}
	}
	e.calls.Go(key, calls.Info{Method: e.method, Since: e.clock.Now()}, func(ctx context.Context) error {
		return e.watch(ctx, s)
	}, func(err error, _ bool) { s.end(err) })
	end.err = e.await(ctx, s, key)
	if connectedAt := s.close(); !connectedAt.IsZero() {
		end.lasted = e.clock.Since(connectedAt)
		select {
		case <-e.recovered: // while it was connected
		default:
		}
		e.setConnected(false)
	}
	end.unsupported = errors.Is(end.err, ErrEventsUnsupported)
	if end.err == nil {
		end.err = errStreamEnded
	}
	return end
}

// await returns why a stream has ended, nil if the runtime gave no reason. It ends one that is
// not accepted in time, and every one when ctx ends.
func (e *eventClient) await(ctx context.Context, s *stream, key *schedule.Call) error {
	deadline := e.clock.NewTimer(acceptTimeout)
	defer deadline.Stop()
	for {
		select {
		case err := <-s.ended:
			return err
		case <-ctx.Done():
			e.calls.Cancel(key, errStopped)
			return context.Cause(ctx)
		case <-deadline.C():
			if s.closeUnlessConnected() {
				e.calls.Cancel(key, errNotAccepted)
				return errNotAccepted
			}
		}
	}
}

// begin opens a stream, and reports whether no other is.
func (e *eventClient) begin(s *stream) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.open != nil {
		return false
	}
	e.open = s
	return true
}

// stream is one connection to the runtime's events.
type stream struct {
	client *eventClient
	// ended gets the reason when the runtime's method returns.
	ended chan error

	mu sync.Mutex

	// Guarded by mu.

	connectedAt time.Time // zero until the runtime has accepted the stream
	closed      bool      // later events are ignored
}

// end notes that the runtime's method has returned.
func (s *stream) end(err error) {
	e := s.client
	if calls.Panicked(err) {
		e.metrics.badData(e.logger.Info, badRuntimePanic, err.Error())
	}
	e.mu.Lock()
	e.open = nil
	e.mu.Unlock()
	s.ended <- err
}

// connected notes that the runtime has accepted the stream.
func (s *stream) connected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.connectedAt.IsZero() {
		return
	}
	e := s.client
	s.connectedAt = e.clock.Now()
	e.setState(StreamConnected, nil, time.Time{})
	e.setConnected(true)
}

// setConnected tells the loop that the stream of events is connected, or has ended.
func (e *eventClient) setConnected(connected bool) {
	if !e.hints {
		return
	}
	if connected {
		e.metrics.streamConnections.Inc()
	}
	e.inbox.Put(func(in *inputs) { in.connected = append(in.connected, connected) })
}

// observe adds an event to the set of hints. It never blocks, so that a runtime which waits
// for the readers of its stream never waits for this one.
func (s *stream) observe(event ContainerEvent) {
	connectedAt, open := s.noteEvent()
	if !open {
		return
	}
	e := s.client
	// containerd replays the last five minutes: how old those are says nothing of the stream.
	replayed := connectedAt.IsZero() || event.CreatedAt.Before(connectedAt)
	if !event.CreatedAt.IsZero() && !replayed {
		e.metrics.streamLatency.Observe(max(0, e.clock.Since(event.CreatedAt)).Seconds())
	}
	e.inbox.Put(func(in *inputs) { in.addHint(event) })
}

// observeExit has an exit taken in. It never blocks, as observe.
func (s *stream) observeExit(exit ContainerExit) {
	if _, open := s.noteEvent(); open {
		s.client.inbox.Put(func(in *inputs) { in.addExit(exit) })
	}
}

// noteEvent notes that an event has come, and reports whether the stream is open, and since when
// it is connected.
func (s *stream) noteEvent() (connectedAt time.Time, open bool) {
	s.mu.Lock()
	connectedAt, open = s.connectedAt, !s.closed
	s.mu.Unlock()
	if open {
		s.client.noteEvent()
	}
	return connectedAt, open
}

func (e *eventClient) noteEvent() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.report.LastEvent = e.clock.Now()
}

// close has later events ignored, and returns when the stream was connected.
func (s *stream) close() (connectedAt time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.connectedAt
}

// closeUnlessConnected is close for a stream that was not connected in time, and reports
// whether it is one.
func (s *stream) closeUnlessConnected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = s.connectedAt.IsZero()
	return s.closed
}
