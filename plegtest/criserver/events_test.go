package criserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

type eventStream = grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse]

// watchEvents opens an event stream and waits until the server counts the given number of readers.
func watchEvents(t *testing.T, ctx context.Context, s *criserver.Server, c runtimeapi.RuntimeServiceClient,
	readers int) eventStream {
	t.Helper()
	stream, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	waitUntil(t, func() bool { return serverconfig.Of(s).EventStats().Readers == readers })
	return stream
}

// waitUntil yields the processor until a condition is true.
func waitUntil(t *testing.T, done func() bool) {
	t.Helper()
	for !done() {
		if t.Context().Err() != nil {
			t.Fatal("the condition did not become true")
		}
		runtime.Gosched()
	}
}

// short returns an event as "object kind". The object is the container's name, or "pod" for a
// sandbox.
func short(e *runtimeapi.ContainerEventResponse) string {
	name := "pod"
	for _, c := range e.ContainersStatuses {
		if c.Id == e.ContainerId {
			name = c.Metadata.Name
		}
	}
	kind := map[runtimeapi.ContainerEventType]string{0: "created", 1: "started", 2: "stopped", 3: "deleted"}
	return name + " " + kind[e.ContainerEventType]
}

func receive(t *testing.T, stream eventStream, count int) (got []string) {
	t.Helper()
	for range count {
		e, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, short(e))
	}
	return got
}

// The function live runs a pod with one container, removes the pod, and returns the expected
// events.
func live(t *testing.T, s *criserver.Server) []string {
	t.Helper()
	pod := s.RunPod(criserver.PodConfig{})
	id := must[string](t)(s.RunContainer(pod, criserver.ContainerConfig{Name: "c"}))
	for _, err := range []error{s.ExitContainer(id, 1, ""), s.RemovePodSandbox(pod)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return []string{"pod created", "pod started", "c created", "c started", "c stopped", "pod stopped",
		"pod deleted", "pod deleted"}
}

func TestEventsContainerd2(t *testing.T) {
	clk := testingclock.NewFakeClock(time.Unix(1000, 0))
	s := startServer(t, serverconfig.With[criserver.Option](serverconfig.Config{Clock: clk}))
	c := dial(t, s)

	// Without a reader, events are held for five minutes.
	live(t, s)
	clk.Step(5 * time.Minute)
	want := live(t, s)
	if stats := serverconfig.Of(s).EventStats(); stats.Held != len(want) || stats.Dropped != len(want) || stats.Sent != 0 {
		t.Errorf("%+v", stats)
	}
	first := watchEvents(t, t.Context(), s, c, 1)
	if diff := cmp.Diff(want, receive(t, first, len(want))); diff != "" {
		t.Error("replayed:", diff)
	}
	// Each reader receives all events.
	second := watchEvents(t, t.Context(), s, c, 2)
	want = live(t, s)
	for _, stream := range []eventStream{first, second} {
		if diff := cmp.Diff(want, receive(t, stream, len(want))); diff != "" {
			t.Error(diff)
		}
	}
	if stats := serverconfig.Of(s).EventStats(); stats.Sent != 3*len(want) || stats.LongestEnqueue != 0 {
		t.Errorf("%+v", stats)
	}

	// RepeatEvents sends the last events again.
	serverconfig.Of(s).RepeatEvents(3)
	if diff := cmp.Diff(want[len(want)-3:], receive(t, first, 3)); diff != "" {
		t.Error(diff)
	}
	serverconfig.Of(s).ShuffleEvents(1 << 10)
	live(t, s)
	serverconfig.Of(s).ShuffleEvents(0)
	got := receive(t, first, len(want))
	if slices.Equal(got, want) {
		t.Error("not shuffled:", got)
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	// Streams can break in three ways.
	s.BreakEventStreams(nil)
	if _, err := first.Recv(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	waitUntil(t, func() bool { return serverconfig.Of(s).EventStats().Readers == 0 })
	third := watchEvents(t, t.Context(), s, c, 1)
	s.BreakEventStreams(status.Error(codes.Aborted, "broken"))
	if _, err := third.Recv(); status.Code(err) != codes.Aborted {
		t.Error(err)
	}
	waitUntil(t, func() bool { return serverconfig.Of(s).EventStats().Readers == 0 })
	fourth := watchEvents(t, t.Context(), s, c, 1)
	s.CutConnections()
	if _, err := fourth.Recv(); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	// The server notices that the reader is gone only at the next event, which is lost.
	sent := 0
	waitUntil(t, func() bool {
		s.RunPod(criserver.PodConfig{})
		sent += 2
		return serverconfig.Of(s).EventStats().Readers == 0
	})
	if held := serverconfig.Of(s).EventStats().Held; held >= sent {
		t.Errorf("all of %d events are left", held)
	}
}

// If the last event of a sandbox triggers a list, the list may still contain the sandbox.
func TestEventsContainerd2DeletedComesFirst(t *testing.T) {
	s := startServer(t, serverconfig.With[criserver.Option](serverconfig.Config{EventBuffer: 1}))
	const tries = 200 // their events fill the buffers, too
	for i := range tries {
		pod := s.RunPod(criserver.PodConfig{UID: types.UID(fmt.Sprint(i))})
		must[string](t)(s.CreateContainer(pod, criserver.ContainerConfig{}))
	}
	watchEvents(t, t.Context(), s, dial(t, s), 1)
	s.Freeze() // from now on, the reader's buffer fills up and stays full
	filling := make(chan struct{})
	go func() {
		defer close(filling)
		for range 5000 {
			s.RunPod(criserver.PodConfig{})
		}
	}()
	waitUntil(t, func() bool { return serverconfig.Of(s).EventStats().LongestEnqueue > 20*time.Millisecond })
	removals := make(chan error, tries)
	seen := false
	for i := 0; i < tries && !seen; i++ { // tries again if the buffer was not full yet
		uid := types.UID(fmt.Sprint(i))
		pod := s.Sandboxes(uid)[0]
		go func() { removals <- s.RemovePodSandbox(pod) }()
		waitUntil(t, func() bool { return len(s.Containers(pod)) == 0 })
		seen = len(s.Sandboxes(uid)) == 1
	}
	if !seen {
		t.Error("the sandbox goes before its event")
	}
	s.Thaw()
	s.BreakEventStreams(nil)
	s.CutConnections() // ends a stream even if the server is sending to it
	if err := <-removals; err != nil {
		t.Error(err)
	}
	<-filling
}

// If a reader no longer reads, only the server's own operations block. Lists do not block. When the
// reader is gone, the operations continue.
func TestEventsContainerd2BlocksItsOperations(t *testing.T) {
	s := startServer(t, serverconfig.With[criserver.Option](serverconfig.Config{EventBuffer: 1}))
	c := dial(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	watchEvents(t, ctx, s, c, 1) // a reader that never reads
	const pods = 5000            // more than fits into gRPC's buffers
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range pods {
			s.RunPod(criserver.PodConfig{})
		}
	}()
	waitUntil(t, func() bool { return serverconfig.Of(s).EventStats().LongestEnqueue > 50*time.Millisecond })
	select {
	case <-done:
		t.Fatal("nothing was held up")
	default:
	}
	if resp, err := c.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{}); err != nil ||
		len(resp.Items) == 0 || len(resp.Items) == pods {
		t.Error("lists are held up:", err)
	}
	cancel()
	<-done
}

func TestEventsContainerd17(t *testing.T) {
	s := startServer(t, criserver.WithModel(criserver.Containerd17))
	c := dial(t, s)
	want := live(t, s) // held without a time limit, up to the size of the buffer
	ctx, cancel := context.WithCancel(t.Context())
	first := watchEvents(t, ctx, s, c, 1)
	if diff := cmp.Diff(want, receive(t, first, len(want))); diff != "" {
		t.Error(diff)
	}

	// A disconnected reader takes at least one more event, because its call lasts until then.
	cancel()
	if _, err := first.Recv(); status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	sent := 0
	waitUntil(t, func() bool {
		s.RunPod(criserver.PodConfig{})
		sent += 2
		return serverconfig.Of(s).EventStats().Readers == 0
	})
	held := serverconfig.Of(s).EventStats().Held
	if held >= sent {
		t.Errorf("all of %d events are left", sent)
	}
	second := watchEvents(t, t.Context(), s, c, 1)
	receive(t, second, held)

	// Each event goes to only one of two readers.
	third := watchEvents(t, t.Context(), s, c, 2)
	const pods = 100
	counts := make(chan int)
	for _, stream := range []eventStream{second, third} {
		go func() {
			n := 0
			for {
				if _, err := stream.Recv(); err != nil {
					counts <- n
					return
				}
				n++
			}
		}()
	}
	for range pods {
		s.RunPod(criserver.PodConfig{})
	}
	waitUntil(t, func() bool { return serverconfig.Of(s).EventStats().Held == 0 })
	s.BreakEventStreams(nil)
	if a, b := <-counts, <-counts; a+b != 2*pods {
		t.Errorf("%d + %d events read of %d", a, b, 2*pods)
	}
}

func TestEventsDroppedWhenFull(t *testing.T) {
	for model, want := range map[criserver.Model][]string{
		criserver.Containerd17: {"pod created", "pod started", "pod created"},
		criserver.CRIO:         {"pod started", "pod started", "pod started"},
	} {
		s := startServer(t, criserver.WithModel(model),
			serverconfig.With[criserver.Option](serverconfig.Config{EventBuffer: 3}))
		for serverconfig.Of(s).EventStats().Dropped < 5 {
			s.RunPod(criserver.PodConfig{})
		}
		if stats := serverconfig.Of(s).EventStats(); stats.Held != 3 || stats.Dropped != 5 {
			t.Errorf("model %d: %+v", model, stats)
		}
		stream := watchEvents(t, t.Context(), s, dial(t, s), 1)
		if diff := cmp.Diff(want, receive(t, stream, 3)); diff != "" {
			t.Errorf("model %d: %s", model, diff)
		}
	}
}

// CRI-O holds events only until its first reader connects.
func TestEventsCRIOHoldsForTheFirst(t *testing.T) {
	s := startServer(t, criserver.WithModel(criserver.CRIO))
	c := dial(t, s)
	s.RunPod(criserver.PodConfig{})
	stream := watchEvents(t, t.Context(), s, c, 1)
	receive(t, stream, 1)
	s.BreakEventStreams(nil)
	waitUntil(t, func() bool { return serverconfig.Of(s).EventStats().Readers == 0 })
	s.RunPod(criserver.PodConfig{})
	waitUntil(t, func() bool { return serverconfig.Of(s).EventStats().Dropped == 1 })
	if stats := serverconfig.Of(s).EventStats(); stats.Held != 0 {
		t.Errorf("%+v", stats)
	}
}

// On CRI-O, if one reader does not read, no reader receives events. Other calls do not block. When
// that reader is gone, the other readers receive the events in the channel.
func TestEventsCRIOStallsForAll(t *testing.T) {
	s := startServer(t, criserver.WithModel(criserver.CRIO),
		serverconfig.With[criserver.Option](serverconfig.Config{EventBuffer: 10}))
	ctx, cancel := context.WithCancel(t.Context())
	watchEvents(t, ctx, s, dial(t, s), 1) // a reader that never reads
	reading := watchEvents(t, t.Context(), s, dial(t, s), 2)
	var read atomic.Int64
	go func() {
		for {
			if _, err := reading.Recv(); err != nil {
				return // the test has ended
			}
			read.Add(1)
		}
	}()
	sent := 0
	waitUntil(t, func() bool {
		s.RunPod(criserver.PodConfig{})
		sent++
		return serverconfig.Of(s).EventStats().Dropped > 1000
	})
	stalled := read.Load()
	cancel()
	arrived := int64(sent - serverconfig.Of(s).EventStats().Dropped)
	waitUntil(t, func() bool { return read.Load() == arrived })
	if stats := serverconfig.Of(s).EventStats(); stalled == arrived || stats.LongestEnqueue != 0 {
		t.Errorf("%d of %d events were read before the other reader was gone; %+v", stalled, arrived, stats)
	}
}

func TestEventsUnsupported(t *testing.T) {
	for model, want := range map[criserver.Model]func(error) bool{
		criserver.Containerd16:      func(err error) bool { return status.Code(err) == codes.Unimplemented },
		criserver.CRIOWithoutEvents: func(err error) bool { return errors.Is(err, io.EOF) },
	} {
		s := startServer(t, criserver.WithModel(model))
		live(t, s)
		stream, err := dial(t, s).GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); !want(err) {
			t.Errorf("model %d: %v", model, err)
		}
	}
}

func TestEventsPayload(t *testing.T) {
	clk := testingclock.NewFakeClock(time.Unix(1000, 0))
	s := startServer(t, serverconfig.With[criserver.Option](serverconfig.Config{Clock: clk}))
	pod := s.RunPod(criserver.PodConfig{UID: "a"})
	id := must[string](t)(s.RunContainer(pod, criserver.ContainerConfig{}))
	stream := watchEvents(t, t.Context(), s, dial(t, s), 1)
	for range 3 {
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	e, err := stream.Recv()
	if err != nil || e.ContainerId != id || e.PodSandboxStatus.Metadata.Uid != "a" ||
		len(e.ContainersStatuses) != 1 || e.CreatedAt != clk.Now().UnixNano() {
		t.Error(e, err)
	}

	bare := startServer(t, serverconfig.With[criserver.Option](serverconfig.Config{BareEvents: true}))
	pod = bare.RunPod(criserver.PodConfig{UID: "a"})
	stream = watchEvents(t, t.Context(), bare, dial(t, bare), 1)
	e, err = stream.Recv()
	if err != nil || e.ContainerId != pod || e.PodSandboxStatus != nil || e.ContainersStatuses != nil {
		t.Error(e, err)
	}
}

// During an outage, all events are lost, including events that were held when the outage began.
func TestEventsAreLostWhileDown(t *testing.T) {
	for _, model := range []criserver.Model{criserver.Containerd2, criserver.Containerd17, criserver.CRIO} {
		s := startServer(t, criserver.WithModel(model))
		stream := watchEvents(t, t.Context(), s, dial(t, s), 1)
		s.Down()
		if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("model %d: %v", model, err)
		}
		pod := s.RunPod(criserver.PodConfig{})
		if err := s.Up(); err != nil {
			t.Fatal(err)
		}
		if stats := serverconfig.Of(s).EventStats(); stats.Held != 0 || stats.Dropped == 0 || stats.Readers != 0 {
			t.Errorf("model %d: %+v", model, stats)
		}
		must[string](t)(s.CreateContainer(pod, criserver.ContainerConfig{Name: "c"}))
		stream = watchEvents(t, t.Context(), s, dial(t, s), 1)
		if diff := cmp.Diff([]string{"c created"}, receive(t, stream, 1)); diff != "" {
			t.Errorf("model %d: %s", model, diff)
		}
		must[string](t)(s.CreateContainer(pod, criserver.ContainerConfig{Name: "d"}))
		s.Down() // works even if the client has not read all events
	}
}

// Stop works while operations wait for a reader, and while readers wait for events.
func TestServerStopsWhileEventsWait(t *testing.T) {
	for _, model := range []criserver.Model{criserver.Containerd2, criserver.Containerd17, criserver.CRIO} {
		s := startServer(t, criserver.WithModel(model),
			serverconfig.With[criserver.Option](serverconfig.Config{EventBuffer: 1}))
		watchEvents(t, t.Context(), s, dial(t, s), 1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 3000 {
				s.RunPod(criserver.PodConfig{})
			}
		}()
		if model == criserver.Containerd2 {
			waitUntil(t, func() bool { return serverconfig.Of(s).EventStats().LongestEnqueue > 5*time.Millisecond })
		}
		s.Stop()
		<-done
	}
}
