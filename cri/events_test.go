package cri_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// watcher is a running WatchContainerEvents call.
type watcher struct {
	connected chan struct{}
	events    chan pleg.ContainerEvent
	done      chan error
	cancel    context.CancelFunc
}

func watch(t *testing.T, r *cri.Runtime) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watcher{connected: make(chan struct{}), events: make(chan pleg.ContainerEvent, 10000),
		done: make(chan error, 1), cancel: cancel}
	var joined sync.WaitGroup
	joined.Go(func() {
		w.done <- r.WatchContainerEvents(ctx, func() { close(w.connected) }, func(e pleg.ContainerEvent) {
			select {
			case <-w.connected:
			default:
				t.Error("an event before the connection")
			}
			w.events <- e
		})
	})
	t.Cleanup(func() {
		cancel()
		joined.Wait()
	})
	return w
}

func (w *watcher) ended(t *testing.T) error {
	t.Helper()
	select {
	case err := <-w.done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the watch did not end")
		return nil
	}
}

func TestWatchContainerEvents(t *testing.T) {
	s, r := serverAndRuntime(t)
	sandbox := s.RunPod(criserver.PodConfig{UID: "early"})
	w := watch(t, r)
	<-w.connected
	waitFor(t, func() bool { return serverconfig.Of(s).EventStats().Readers == 1 })
	app := runContainer(t, s, sandbox, "app")
	seen := map[string]bool{}
	for !seen[app] {
		e := <-w.events
		if e.PodUID != "early" || e.CreatedAt.IsZero() {
			t.Errorf("%+v", e)
		}
		seen[e.ContainerID] = true
	}
	// A stream is no longer a call in flight once it was accepted.
	waitFor(t, func() bool { return len(inFlight(r)) == 0 })
	w.cancel()
	if err := w.ended(t); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if got := metric(t, r, "kubelet_runtime_operations_total", "get_container_events"); got != 1 {
		t.Errorf("%v operations", got)
	}
	if got := metric(t, r, "kubelet_runtime_operations_errors_total", "get_container_events"); got != 0 {
		t.Errorf("%v errors", got)
	}
}

func TestEventWithoutSandbox(t *testing.T) {
	s, r := serverAndRuntime(t, serverconfig.With[criserver.Option](serverconfig.Config{BareEvents: true}))
	w := watch(t, r)
	<-w.connected
	id := s.RunPod(criserver.PodConfig{UID: "uid"})
	if e := <-w.events; e.PodUID != "" || e.ContainerID != id {
		t.Errorf("%+v", e)
	}
}

// WatchContainerEvents recognises each way in which a runtime reports that it has no events.
func TestEventsUnsupported(t *testing.T) {
	for _, test := range []struct {
		name string
		opts []criserver.Option
		// opens is how many GetContainerEvents streams are opened until the error is known.
		opens int
	}{
		{"containerd 1.6", []criserver.Option{criserver.WithModel(criserver.Containerd16)}, 1},
		{"containerd 1.7", []criserver.Option{criserver.WithModel(criserver.Containerd17)}, 0},
		{"containerd v1.7", []criserver.Option{criserver.WithVersion("containerd", "v1.7.29")}, 0},
		{"CRI-O", []criserver.Option{criserver.WithModel(criserver.CRIOWithoutEvents)}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, _ := serverAndRuntime(t, test.opts...)
			r := connect(t, s, nil, cri.WithoutExitEvents()) // a nil option is ignored
			w := watch(t, r)
			err := w.ended(t)
			if !errors.Is(err, pleg.ErrEventsUnsupported) || !strings.HasPrefix(err.Error(), "cri: ") {
				t.Error(err)
			}
			if got := s.Calls("GetContainerEvents"); got != test.opens {
				t.Errorf("%d streams were opened", got)
			}
			if got := metric(t, r, "kubelet_runtime_operations_errors_total",
				"get_container_events"); got != 0 {
				t.Errorf("%v errors", got)
			}
			if calls := inFlight(r); len(calls) != 0 {
				t.Errorf("in flight: %+v", calls)
			}
		})
	}
}

// A terminating CRI-O ends every stream without an error, even a stream that it has just accepted.
// The error of the watch does not wrap ErrEventsUnsupported, even if another CRI-O then listens on
// the socket.
func TestStreamOfARuntimeThatTerminates(t *testing.T) {
	for _, successor := range []bool{false, true} {
		s := startWireServer(t, false)
		r := dialRuntime(t, s.endpoint())
		w := watch(t, r)
		<-w.connected
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			s.server.GracefulStop()
		}()
		waitFor(t, func() bool {
			_, err := os.Stat(s.socket)
			return os.IsNotExist(err)
		})
		if successor {
			s.serve(t)
		}
		s.take()
		// The stream ends when the client knows that the connection accepts no more calls.
		waitFor(t, func() bool {
			_, err := r.GetPods(t.Context(), true)
			calls := s.take()
			return (err == nil) == successor && (!successor || calls[0].connection == 2)
		})
		close(s.ending)
		if err := w.ended(t); err == nil || errors.Is(err, pleg.ErrEventsUnsupported) {
			t.Errorf("with a successor %v: %v", successor, err)
		}
		<-stopped
	}
}

func TestSharedEventStream(t *testing.T) {
	s, _ := serverAndRuntime(t, criserver.WithModel(criserver.Containerd17))
	w := watch(t, connect(t, s, cri.WithSharedEventStream()))
	<-w.connected
	s.RunPod(criserver.PodConfig{UID: "uid"})
	if e := <-w.events; e.PodUID != "uid" {
		t.Errorf("%+v", e)
	}
}

// If a stream breaks, the error does not wrap ErrEventsUnsupported.
func TestEventStreamBreaks(t *testing.T) {
	for _, test := range []struct {
		name  string
		sever func(*criserver.Server)
		code  codes.Code
	}{
		{"error", func(s *criserver.Server) {
			s.BreakEventStreams(status.Error(codes.ResourceExhausted, "too slow"))
		}, codes.ResourceExhausted},
		{"end", func(s *criserver.Server) { s.BreakEventStreams(nil) }, codes.Unknown},
		{"connection", func(s *criserver.Server) { s.CutConnections() }, codes.Unavailable},
		{"runtime", func(s *criserver.Server) { s.Down() }, codes.Unavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, r := serverAndRuntime(t)
			w := watch(t, r)
			<-w.connected
			s.RunPod(criserver.PodConfig{})
			<-w.events
			test.sever(s)
			err := w.ended(t)
			if err == nil || errors.Is(err, pleg.ErrEventsUnsupported) || status.Code(err) != test.code {
				t.Errorf("code %v of %v", status.Code(err), err)
			}
			if !strings.Contains(err.Error(), "GetContainerEvents at "+s.Endpoint()) {
				t.Errorf("%v does not name the call", err)
			}
			if got := metric(t, r, "kubelet_runtime_operations_errors_total",
				"get_container_events"); got != 1 {
				t.Errorf("%v errors", got)
			}
		})
	}
}

// If a runtime is frozen, its stream does not count as accepted.
func TestEventStreamOfFrozenRuntime(t *testing.T) {
	s, r := serverAndRuntime(t)
	heal := s.Block("Version", "")
	w := watch(t, r)
	waitFor(t, func() bool { return serverconfig.Of(s).InFlight("Version") == 1 })
	heal()
	<-w.connected
	w.cancel()
	_ = w.ended(t)

	s.Freeze()
	defer s.Thaw()
	w = watch(t, r)
	waitFor(t, func() bool { return len(inFlight(r)) == 1 })
	if got := inFlight(r)[0]; got.Object != "the event stream" {
		t.Errorf("in flight: %+v", got)
	}
	select {
	case <-w.connected:
		t.Error("connected to a frozen runtime")
	default:
	}
	w.cancel()
	if err := w.ended(t); !errors.Is(err, context.Canceled) && status.Code(err) != codes.Canceled {
		t.Error(err)
	}
}

// eventClient is a client whose event stream and Version call are implemented by the test.
type eventClient struct {
	stub
	version func(context.Context) error
	recv    func(context.Context) (*runtimeapi.ContainerEventResponse, error)
}

func (c *eventClient) Version(ctx context.Context, req *runtimeapi.VersionRequest,
	opts ...grpc.CallOption) (*runtimeapi.VersionResponse, error) {
	if err := c.version(ctx); err != nil {
		return nil, err
	}
	return c.stub.Version(ctx, req, opts...)
}

func (c *eventClient) GetContainerEvents(ctx context.Context, _ *runtimeapi.GetEventsRequest,
	_ ...grpc.CallOption) (answers[runtimeapi.ContainerEventResponse], error) {
	return stream[runtimeapi.ContainerEventResponse]{
		recv: func() (*runtimeapi.ContainerEventResponse, error) { return c.recv(ctx) },
	}, nil
}

// Checks when a stream counts as accepted, and when its end means that the runtime has no stream.
func TestAcceptance(t *testing.T) {
	answered := func(context.Context) error { return nil }
	// answers returns a Version method that answers only the calls with the given numbers. Call 1
	// comes before the stream, call 2 while the stream is open, and call 3 after its end.
	answers := func(which ...int32) func(context.Context) error {
		var calls atomic.Int32
		return func(ctx context.Context) error {
			if slices.Contains(which, calls.Add(1)) {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
	}
	for _, test := range []struct {
		name        string
		version     func(context.Context) error
		script      string // e: an event, n: a nil event, w: two seconds pass, s: half a second passes, .: io.EOF
		connected   bool
		unsupported bool
	}{
		{"answered", answered, "w", true, false},
		{"event before the answer", answers(1), "e", true, false},
		{"neither", answers(1), "w", false, false},
		{"end before the answer", answers(1, 3), ".", false, true},
		{"end and no answer", answers(1), ".", false, false},
		{"end long after the answer", answered, "w.", true, false},
		{"end soon after the answer, and no other", answers(1, 2), "s.", true, false},
		{"end soon after the answer", answers(1, 2, 3), "s.", true, true},
		{"end long before the answer", answers(1, 3), "w.", false, true},
		{"end after an event", answered, "e.", true, false},
		{"nil event", answered, "n", true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				script := test.script
				client := &eventClient{version: test.version}
				client.recv = func(ctx context.Context) (*runtimeapi.ContainerEventResponse, error) {
					for script != "" {
						step := script[0]
						script = script[1:]
						switch step {
						case 'e':
							return &runtimeapi.ContainerEventResponse{ContainerId: "c"}, nil
						case 'n':
							return nil, nil
						case '.':
							synctest.Wait() // until the second Version call is answered or stuck
							return nil, io.EOF
						case 'w', 's':
							select {
							case <-time.After(map[byte]time.Duration{'w': 2 * time.Second, 's': time.Second / 2}[step]):
							case <-ctx.Done():
							}
						}
					}
					<-ctx.Done()
					return nil, status.FromContextError(ctx.Err()).Err()
				}
				r := newRuntime(client, quiet)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				connected := 0
				err := r.WatchContainerEvents(ctx, func() { connected++ }, func(pleg.ContainerEvent) {})
				if want := map[bool]int{true: 1}[test.connected]; connected != want {
					t.Errorf("connected %d times", connected)
				}
				if errors.Is(err, pleg.ErrEventsUnsupported) != test.unsupported || err == nil {
					t.Error(err)
				}
			})
		})
	}
}

// If a Version call is lost, before the stream or while it is open, a generator's stream still
// connects within 15 s.
func TestLostVersionCall(t *testing.T) {
	for lost := int32(2); lost <= 3; lost++ { // call 1 belongs to the list
		synctest.Test(t, func(t *testing.T) {
			var versions atomic.Int32
			client := &eventClient{version: func(ctx context.Context) error {
				if versions.Add(1) == lost {
					<-ctx.Done()
				}
				return ctx.Err()
			}}
			client.recv = func(ctx context.Context) (*runtimeapi.ContainerEventResponse, error) {
				<-ctx.Done()
				return nil, status.FromContextError(ctx.Err()).Err()
			}
			r := newRuntime(client)
			getPods(t, r)
			generator := pleg.NewGenericPLEG(r, pleg.DefaultChannelCapacity, pleg.DefaultRelistPeriod, pleg.NewCache(),
				clock.RealClock{}, pleg.WithLogger(logr.Discard()))
			generator.Start(t.Context())
			defer generator.Stop()
			time.Sleep(15 * time.Second)
			if got := generator.HealthReport().Stream; got.State != pleg.StreamConnected {
				t.Errorf("with Version call %d lost, the stream is %+v", lost, got)
			}
			if got := versions.Load(); got != lost+2 {
				t.Errorf("%d Version calls", got)
			}
		})
	}
}

// When a stream ends, its Version call ends too, even if that call is stuck.
func TestEndOfStreamEndsTheVersionCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var versions atomic.Int32
		client := &eventClient{version: func(ctx context.Context) error {
			if versions.Add(1) == 1 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		client.recv = func(context.Context) (*runtimeapi.ContainerEventResponse, error) {
			synctest.Wait() // until the Version call is stuck
			return nil, status.Error(codes.Unavailable, "reset")
		}
		r := newRuntime(client)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		err := r.WatchContainerEvents(ctx, func() { t.Error("connected") }, func(pleg.ContainerEvent) {})
		if status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it returned after %v", took)
		}
		if left := inFlight(r); len(left) != 0 || versions.Load() != 2 {
			t.Errorf("in flight: %+v, after %d Version calls", left, versions.Load())
		}
	})
}

// Rule 16: the events of a storm are read at once, so the runtime drops none of them.
func TestEventStormIsReadAtOnce(t *testing.T) {
	s, r := serverAndRuntime(t)
	w := watch(t, r)
	<-w.connected
	waitFor(t, func() bool { return serverconfig.Of(s).EventStats().Readers == 1 })
	const pods = 500
	for i := range pods {
		s.RunPod(criserver.PodConfig{Name: fmt.Sprint(i)})
	}
	seen := map[string]bool{}
	for len(seen) < pods {
		seen[(<-w.events).ContainerID] = true
	}
	if got := serverconfig.Of(s).EventStats(); got.Dropped != 0 {
		t.Errorf("%+v", got)
	}
}
