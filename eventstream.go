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
)

// The waits between two connections. A runtime without events may be upgraded, or configured.
var (
	reconnect   = backoff.Policy{First: time.Second, Longest: time.Minute, Jitter: true}
	unsupported = backoff.Policy{First: 5 * time.Minute, Jitter: true}
)

// errStopped is the cause with which Stop cancels the calls in flight.
var errStopped = errors.New("the generator was stopped")

var (
	// errStreamLeftBehind says that a stream was cancelled and has still not ended, because the
	// runtime ignores that.
	errStreamLeftBehind = errors.New("the previous stream has not ended yet")
	errNotAccepted      = fmt.Errorf("the stream was not accepted within %v: %w", acceptTimeout, context.DeadlineExceeded)
	// errStreamEnded replaces the reason that a runtime did not give.
	errStreamEnded = errors.New("the runtime ended the stream")
)

// eventClient keeps a stream of the runtime open: of its events, each a hint which pod to list and
// nothing else, or of its exits, each a fact.
type eventClient struct {
	// Set once.

	method string
	watch  func(ctx context.Context, s *stream) error
	// hints is true for the stream of events. The kubelet's metrics are about it.
	hints   bool
	clock   clock.Clock
	calls   *calls.Group[*schedule.Call]
	inbox   *inbox.Inbox[inputs]
	metrics *metrics
	logger  klog.Logger
	// recovered has a token when full lists succeed again, so that the next try is due.
	recovered chan struct{}

	mu sync.Mutex

	// Guarded by mu.

	report StreamReport
	// current is the stream whose events are taken in; nil for none. connectedAt is when the runtime
	// has accepted it; zero before that.
	current     *stream
	connectedAt time.Time

	// left is the end of the last stream if that was not read; owned by the goroutine of follow.
	left <-chan error
}

// status returns the state of the stream. There is none if e is nil.
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

// isAttempt reports whether the stream is to be connected and is not.
func (s StreamState) isAttempt() bool { return s != StreamOff && s != StreamConnected }

// follow follows one stream after another until ctx ends.
func (e *eventClient) follow(ctx context.Context) {
	defer e.setState(StreamOff, nil, time.Time{})
	for failures := 0; ; { // in a row
		e.setState(StreamConnecting, nil, time.Time{})
		lasted, err := e.followOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		hasNone := errors.Is(err, ErrEventsUnsupported)
		if hasNone || lasted >= stableStream {
			failures = 0
		}
		state, wait := StreamUnsupported, unsupported.Wait(1)
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
		case <-e.recovered: // what the stream needs may be back too, or be there now
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// followOnce follows one stream until it ends or ctx does. It returns for how long the stream was
// connected, and why it ended.
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
			e.metrics.badData(e.logger.Info, badRuntimePanic, err.Error())
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

// open has the events of a stream taken in, nil for none, and no longer those of the last one. It
// returns for how long that was connected.
func (e *eventClient) open(s *stream) (lasted time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.connectedAt.IsZero() {
		lasted = e.clock.Since(e.connectedAt)
	}
	e.current, e.connectedAt = s, time.Time{}
	return lasted
}

// stream is one connection to the runtime's events.
type stream struct {
	client   *eventClient
	deadline clock.Timer // stopped when the runtime accepts the stream
}

// connected notes that the runtime has accepted the stream. All pods are listed, because what was
// announced before is not announced again.
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
		e.inbox.Put(func(in *inputs) { in.hintAll = true })
	}
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
	if !connectedAt.IsZero() && !event.CreatedAt.Before(connectedAt) {
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

// noteEvent notes that an event has come, unless the stream has ended, and returns since when it is
// connected.
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
