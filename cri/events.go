package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// atOnce is how soon after it was accepted the end of a stream without events
// means that the runtime never meant to send any.
const atOnce = time.Second

// errStreamEnded says that the runtime ended a stream that had been going on.
var errStreamEnded = errors.New("the runtime ended the stream")

// WatchContainerEvents reads the runtime's stream of container events until ctx
// ends or the stream breaks, and returns why. It reads on whatever observe makes
// of the events, for containerd holds back its own work while a reader of its
// stream does not read: observe must not block.
//
// A runtime sends nothing when it accepts a stream, not even headers, which come
// with the first event. So the stream counts as accepted when the runtime has
// answered a Version that was sent after it on the same connection: it has then
// read the request for the stream and is alive. An event that comes before that
// answer does as well.
//
// The error wraps pleg.ErrEventsUnsupported if the runtime has no stream
// (Unimplemented: containerd 1.6), if it ends the stream at once, without an error
// and without an event (CRI-O without enable_pod_events; connected may have been
// called by then), and for containerd 1.7, which gives each event to one of its
// readers only, unless WithSharedEventStream allows it.
func (r *Runtime) WatchContainerEvents(ctx context.Context, connected func(), observe func(pleg.ContainerEvent)) error {
	// Asked each time, for the runtime may be another one since the last.
	v, err := r.askVersion(ctx, eventStream)
	if err != nil {
		return err
	}
	if v.sharesEventStream() && !r.opts.sharedEventStream {
		return fmt.Errorf("cri: %s %s gives each event to one of its readers only: %w", v.name, v.version, pleg.ErrEventsUnsupported)
	}

	// Whatever ends the watch ends the stream and the question beside it; a question
	// that fails ends the stream.
	question := r.newCallGroup(ctx, 1)
	defer func() {
		question.cancel(nil)
		_ = question.wait() // w.end has it, as the cause
	}()
	w := &watch{
		runtime:   r,
		connected: connected,
		call:      r.begin(rpcGetContainerEvents, eventStream),
	}
	defer r.calls.remove(w.call) // for a client or an observe that ends the goroutine

	var stream grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse]
	if err := guarded(func() (err error) {
		stream, err = r.client.GetContainerEvents(question.ctx,
			&runtimeapi.GetEventsRequest{}, grpc.MaxCallRecvMsgSize(maxReceivedBytes))
		return err
	}); err != nil {
		return w.end(question.ctx, err)
	}
	question.start(rpcVersion, eventStream, func(ctx context.Context) error {
		if _, err := r.fetchVersion(ctx); err != nil {
			return err
		}
		w.accept()
		return nil
	})
	for {
		var event *runtimeapi.ContainerEventResponse
		if err := guarded(func() (err error) {
			event, err = stream.Recv()
			return err
		}); err != nil {
			return w.end(question.ctx, err)
		}
		w.accept()
		w.events++
		if event != nil {
			observe(containerEvent(event))
		}
	}
}

// eventStream is what the calls are made for that have nothing to do with lists.
var eventStream = target{kind: "the event stream"}

// watch is one stream of events.
type watch struct {
	runtime   *Runtime
	connected func()
	call      *call
	events    int // received; owned by the reader

	mu         sync.Mutex
	settled    bool      // guarded by mu: accepted or ended
	acceptedAt time.Time // guarded by mu; zero before
}

// accept notes that the runtime has accepted the stream, once.
func (w *watch) accept() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.settled {
		return
	}
	w.settled = true
	w.acceptedAt = w.runtime.opts.clock.Now()
	// From here on the stream is no call that anybody waits for.
	w.runtime.metrics.observe(w.call.rpc, w.runtime.calls.remove(w.call), nil)
	// Under the lock, so that no event overtakes it.
	w.connected()
}

// end notes that the stream has ended, and returns why.
func (w *watch) end(ctx context.Context, err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	accepted := w.settled
	w.settled = true

	switch {
	case errors.Is(err, io.EOF) && w.events == 0 && (!accepted || w.runtime.opts.clock.Since(w.acceptedAt) < atOnce):
		err = fmt.Errorf("the runtime ended the stream at once: %w", pleg.ErrEventsUnsupported)
	case errors.Is(err, io.EOF):
		err = errStreamEnded
	case status.Code(err) == codes.Unimplemented:
		err = fmt.Errorf("%w: %w", pleg.ErrEventsUnsupported, err)
	case status.Code(err) == codes.Canceled && context.Cause(ctx) != nil:
		// It ended because of us: why is what ctx knows.
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	// That there is none is an answer, and no error of the runtime's.
	counted := err
	if errors.Is(err, pleg.ErrEventsUnsupported) {
		counted = nil
	}
	if accepted {
		w.runtime.metrics.countError(w.call.rpc, counted)
	} else {
		w.runtime.metrics.observe(w.call.rpc, w.runtime.calls.remove(w.call), counted)
	}
	return w.runtime.wrap(w.call, err)
}

// sharesEventStream tells whether the runtime has one stream of events, from which
// all its readers take.
func (v *runtimeVersion) sharesEventStream() bool {
	return v.name == "containerd" && strings.HasPrefix(strings.TrimPrefix(v.version, "v"), "1.7.")
}

// containerEvent is the hint in an event. The pod's UID is empty if the event has
// no sandbox.
func containerEvent(e *runtimeapi.ContainerEventResponse) pleg.ContainerEvent {
	sandbox := e.GetPodSandboxStatus()
	return pleg.ContainerEvent{
		PodUID:      types.UID(cmp.Or(sandbox.GetLabels()[labelPodUID], sandbox.GetMetadata().GetUid())),
		ContainerID: e.GetContainerId(),
		CreatedAt:   unixNano(e.GetCreatedAt()),
	}
}
