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

// atOnce is a time limit. If a stream ends without an event within this time after its acceptance,
// the stream counts as refused.
const atOnce = time.Second

// errStreamEnded is returned if the runtime ended a stream without an error.
var errStreamEnded = errors.New("the runtime ended the stream")

// WatchContainerEvents reads the runtime's stream of container events until ctx ends or the stream
// breaks, and returns the reason. observe must not block: containerd's own operations wait for the
// readers of its stream.
//
// A runtime sends nothing when it accepts a stream; even headers come with the first event. So the
// package sends the request and then a Version call on the same connection. The stream counts as
// accepted when the runtime answers the Version call, or when the first event comes.
//
// The error wraps pleg.ErrEventsUnsupported
//
//   - if the runtime has no stream (Unimplemented);
//   - if the runtime ends the stream within a second of accepting it, without error or event, and
//     then answers a Version call on the same connection. CRI-O does so without enable_pod_events.
//     In this case, connected may already have been called;
//   - for containerd 1.6 and 1.7, if WithoutExitEvents is set or NewRuntime made the Runtime.
//     containerd 1.6 has no CRI stream, and 1.7 sends each event to only one of its readers: see
//     WithSharedEventStream.
//
// Otherwise, for containerd 1.6 and 1.7, the method reads containerd's own stream: creations,
// starts and removals. An event contains no pod if no list has shown the event's container yet. If
// a container starts while full lists fail, a ContainerStatus call finds the container's pod, and
// observe is called in another goroutine. If connected panics, the stream ends.
func (r *Runtime) WatchContainerEvents(ctx context.Context, connected func(), observe func(pleg.ContainerEvent)) error {
	// Another runtime may have replaced the runtime since the last connection.
	v, err := r.askVersion(ctx, eventStream)
	if err != nil {
		return err
	}
	if v.isContainerd("1.") && !r.opts.sharedEventStream && !r.opts.noExitEvents && r.conn != nil {
		return r.watchTaskHints(ctx, connected, observe)
	}
	if v.sharesEventStream() && !r.opts.sharedEventStream {
		return fmt.Errorf("cri: %s %s delivers each event to only one of its readers: %w",
			v.name, v.version, pleg.ErrEventsUnsupported)
	}

	w := r.newWatch(ctx, rpcGetContainerEvents, eventStream, connected)
	defer w.close()
	dials := r.dialer.dials.Load()
	var codec utf8Codec
	var stream receiver[runtimeapi.ContainerEventResponse]
	if err := guarded(func() (err error) {
		stream, err = r.client.getContainerEvents(w.version.ctx,
			&runtimeapi.GetEventsRequest{}, grpc.ForceCodecV2(&codec), grpc.MaxCallRecvMsgSize(maxReceivedBytes))
		return err
	}); err != nil {
		return w.end(err)
	}
	w.ask()
	for {
		var event *runtimeapi.ContainerEventResponse
		if err := guarded(func() (err error) {
			event, err = stream.receive()
			return err
		}); err != nil {
			early := w.settle()
			if early && errors.Is(err, io.EOF) && r.answersAfter(ctx, dials) {
				err = fmt.Errorf("the runtime ended the stream at once: %w", pleg.ErrEventsUnsupported)
			}
			return w.end(err)
		}
		w.accept()
		w.events++
		if event != nil {
			hint := containerEvent(event)
			r.badObject(ctx, codec.found, object{kind: containers, id: hint.ContainerID, podUID: hint.PodUID})
			observe(hint)
		}
	}
}

// answersAfter reports whether the runtime answers a new Version call on the same connection. dials
// is the number of connections at the start of the stream. If this number has changed, the
// connection is not the same. For a Runtime that NewRuntime made, connections are not counted, and
// any answer counts.
func (r *Runtime) answersAfter(ctx context.Context, dials int64) bool {
	ctx, cancel := context.WithTimeout(ctx, DefaultConnectTimeout)
	defer cancel()
	_, err := r.askVersion(ctx, eventStream)
	return err == nil && r.dialer.dials.Load() == dials
}

// eventStream is what CallsInFlight reports as the object of a call that reads the event stream.
var eventStream = target{kind: "the event stream"}

// watch is one open stream, of events or of exits.
type watch struct {
	runtime   *Runtime
	connected func()
	call      *call
	// version runs a Version call while the stream is open. If the Version call fails, the stream's
	// context is cancelled, which ends the stream.
	version *callGroup
	events  int // number of received events; owned by the reader

	mu         sync.Mutex
	settled    bool      // true once the stream was accepted or has ended; guarded by mu
	accepted   bool      // true once the stream was accepted; guarded by mu
	acceptedAt time.Time // guarded by mu
}

// newWatch records that a stream begins. The caller must call close.
func (r *Runtime) newWatch(ctx context.Context, made rpc, of target, connected func()) *watch {
	return &watch{runtime: r, connected: connected, call: r.begin(made, of), version: r.newCallGroup(ctx, 1)}
}

// ask makes the Version call. When the runtime answers it, the stream counts as accepted.
func (w *watch) ask() {
	w.version.start(rpcVersion, w.call.target, func(ctx context.Context) error {
		if _, err := w.runtime.fetchVersion(ctx); err != nil {
			return err
		}
		w.accept()
		return nil
	})
}

// close ends the calls of a stream, even if the client or observe panics or ends the goroutine.
func (w *watch) close() {
	w.runtime.calls.remove(w.call)
	w.version.cancel(nil)
	_ = w.version.wait() // the method end reports this error as the cause of the context
}

// accept records that the runtime has accepted the stream. Later calls of accept do nothing.
func (w *watch) accept() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.settled {
		return
	}
	w.settled, w.accepted = true, true
	w.acceptedAt = w.runtime.opts.clock.Now()
	w.runtime.calls.answered(nil)
	// An accepted stream is no longer a call in flight.
	w.runtime.metrics.observe(w.call.rpc, w.runtime.calls.remove(w.call), nil)
	// connected is called under the lock, so that no event is delivered earlier.
	w.connected()
}

// settle records that the stream has ended. After that, accept does nothing. early is true if the
// stream ended without an event, before or shortly after its acceptance.
func (w *watch) settle() (early bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settled = true
	return w.events == 0 && (!w.accepted || w.runtime.opts.clock.Since(w.acceptedAt) < atOnce)
}

// end counts the end of a stream in the metrics, and returns the error of the stream.
func (w *watch) end(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settled = true
	ended := context.Cause(w.version.ctx)

	switch {
	case errors.Is(err, io.EOF):
		err = errStreamEnded
	case status.Code(err) == codes.Unimplemented:
		err = fmt.Errorf("%w: %w", pleg.ErrEventsUnsupported, err)
	case status.Code(err) == codes.Canceled && ended != nil:
		// The context ended the stream, so the error includes the context's cause.
		err = fmt.Errorf("%w: %w", ended, err)
	}
	// If the runtime answers that it has no stream, the call is not counted as an error.
	counted := err
	if errors.Is(err, pleg.ErrEventsUnsupported) {
		counted = nil
	}
	if w.accepted {
		w.runtime.metrics.countError(w.call.rpc, counted)
	} else {
		w.runtime.metrics.observe(w.call.rpc, w.runtime.calls.remove(w.call), counted)
	}
	return w.runtime.wrap(w.call, err)
}

// sharesEventStream reports whether the runtime sends each event to only one reader.
func (v *runtimeVersion) sharesEventStream() bool { return v.isContainerd("1.7.") }

// isContainerd reports whether the runtime is containerd, and its version begins with prefix.
func (v *runtimeVersion) isContainerd(prefix string) bool {
	return v.name == "containerd" && strings.HasPrefix(strings.TrimPrefix(v.version, "v"), prefix)
}

// containerEvent converts CRI's event to a pleg.ContainerEvent. The pod's UID is empty if the event
// contains no sandbox.
func containerEvent(e *runtimeapi.ContainerEventResponse) pleg.ContainerEvent {
	sandbox := e.GetPodSandboxStatus()
	return pleg.ContainerEvent{
		PodUID:      types.UID(cmp.Or(sandbox.GetLabels()[labelPodUID], sandbox.GetMetadata().GetUid())),
		ContainerID: e.GetContainerId(),
		CreatedAt:   unixNano(e.GetCreatedAt()),
	}
}
