package plegtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kubepleg/pleg"
)

// watch is one open stream of events or exits of the runtime under test.
type watch struct {
	call string
	open func(ctx context.Context, connected, observe func()) error

	connected chan struct{} // closed by the first call of connected
	done      chan struct{} // closed when the stream has ended

	mu       sync.Mutex
	connects int  // number of calls of connected; guarded by mu
	early    bool // true if observe was called before connected; guarded by mu

	// refused is true if the stream ended with ErrEventsUnsupported, with an error before it was
	// connected, or with a panic. It is set before done is closed.
	refused bool
}

// testStreams tests the streams that the runtime implements.
func (t *conformance) testStreams() {
	if source, ok := t.rt.(pleg.EventSource); ok {
		t.testStream("WatchContainerEvents", func(ctx context.Context, connected, observe func()) error {
			return source.WatchContainerEvents(ctx, connected, func(pleg.ContainerEvent) { observe() })
		})
	}
	if source, ok := t.rt.(pleg.ExitSource); ok {
		t.testStream("WatchContainerExits", func(ctx context.Context, connected, observe func()) error {
			return source.WatchContainerExits(ctx, connected, func(pleg.ContainerExit) { observe() })
		})
	}
}

// testStream opens a stream, checks that it stays open, and ends it.
func (t *conformance) testStream(call string, open func(ctx context.Context, connected, observe func()) error) {
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // TestRuntime takes no context
	defer cancel()
	w := &watch{call: call, open: open, connected: make(chan struct{}), done: make(chan struct{})}
	go t.watch(ctx, w)

	if !t.closedWithin(cancelTimeout, w.connected, w.done) {
		t.problem(call, fmt.Sprintf("a call of connected within %v, or an error", cancelTimeout),
			"neither", "the generator does not rely on a stream before that")
	}
	if t.closedWithin(streamLasts, w.done, nil) && !w.refused {
		t.problem(call, "a stream that stays open, or ErrEventsUnsupported, or an error before connected",
			"that it ended at once", "the generator would connect again and again;"+
				" a runtime whose stream is switched off returns ErrEventsUnsupported")
	}
	cancel()
	if !t.closedWithin(cancelTimeout, w.done, nil) {
		t.leave()
		t.problem(call, fmt.Sprintf("a return within %v after the context has ended", cancelTimeout),
			"none", "the generator's Stop waits for the return")
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	if w.connects > 1 {
		t.problem(call, "one call of connected", fmt.Sprint(w.connects), "a stream is connected once, and then ends")
	}
	if w.early {
		t.problem(call, "connected before the first observe", "observe first",
			"the generator cannot use what comes before")
	}
}

// watch calls open, and records how the stream connects and ends.
func (t *conformance) watch(ctx context.Context, w *watch) {
	defer close(w.done)
	defer func() {
		if p := recover(); p != nil {
			w.refused = true // only the panic is reported
			t.problem(w.call, "no panic", fmt.Sprintf("panic: %v", p),
				"a broken stream would crash the agent")
		}
	}()
	err := w.open(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.connects++; w.connects == 1 {
			close(w.connected)
		}
	}, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.early = w.early || w.connects == 0
	})
	w.mu.Lock()
	w.refused = errors.Is(err, pleg.ErrEventsUnsupported) || err != nil && w.connects == 0
	w.mu.Unlock()
	if err == nil && ctx.Err() != nil {
		t.problem(w.call, "an error that says why the stream ended", "nil",
			"the generator logs the reason, and decides by it when to reconnect")
	}
}

// closedWithin reports whether one of two channels is closed within the limit.
func (t *conformance) closedWithin(limit time.Duration, a, b <-chan struct{}) bool {
	timer := t.clock.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-a:
	case <-b:
	case <-timer.C():
		return false
	}
	return true
}

// testReports checks the methods that the generator calls for its health report.
func (t *conformance) testReports() {
	const why = "it is part of the health report, which is needed most when the runtime does not answer"
	ctx := context.Background() //nolint:forbidigo // neither method takes a context
	if d, ok := t.rt.(pleg.Describer); ok {
		const call = "DescribeRuntime"
		a := askWithin(ctx, t, call, cancelTimeout, func(context.Context) (string, error) {
			return d.DescribeRuntime(), nil
		})
		if a.ok && a.value == "" {
			t.problem(call, "a few words", "none", why)
		}
	}
	if r, ok := t.rt.(pleg.CallReporter); ok {
		const call = "CallsInFlight"
		a := askWithin(ctx, t, call, cancelTimeout, func(context.Context) ([]pleg.RuntimeCall, error) {
			calls, _ := r.CallsInFlight()
			return calls, nil
		})
		for _, c := range a.value {
			if c.Method == "" || c.Since.IsZero() {
				t.problem(call, "a method and a time for every call", fmt.Sprintf("%+v", c), why)
			}
		}
		t.mu.Lock()
		idle := !t.leftBehind
		t.mu.Unlock()
		if len(a.value) > 0 && idle {
			t.problem(call, "no call, since all have returned", fmt.Sprintf("%+v", a.value),
				"the health report would name calls that have returned")
		}
	}
}
