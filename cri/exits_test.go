package cri_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// exitWatcher is a running WatchContainerExits call.
type exitWatcher struct {
	connected chan struct{}
	exits     chan pleg.ContainerExit
	done      chan error
	cancel    context.CancelFunc
}

func watchExits(t *testing.T, r *cri.Runtime) *exitWatcher {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &exitWatcher{connected: make(chan struct{}), exits: make(chan pleg.ContainerExit, 10000),
		done: make(chan error, 1), cancel: cancel}
	var joined sync.WaitGroup
	joined.Go(func() {
		w.done <- r.WatchContainerExits(ctx, func() { close(w.connected) }, func(e pleg.ContainerExit) {
			select {
			case <-w.connected:
			default:
				t.Error("an exit before the connection")
			}
			w.exits <- e
		})
	})
	t.Cleanup(func() {
		cancel()
		joined.Wait()
	})
	return w
}

func (w *exitWatcher) ended(t *testing.T) error {
	t.Helper()
	select {
	case err := <-w.done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the watch did not end")
		return nil
	}
}

// next returns the next exit.
func (w *exitWatcher) next(t *testing.T) pleg.ContainerExit {
	t.Helper()
	select {
	case e := <-w.exits:
		return e
	case err := <-w.done:
		t.Fatal("the watch has ended:", err)
	case <-time.After(20 * time.Second):
		t.Fatal("no exit is reported")
	}
	return pleg.ContainerExit{}
}

// subscribed waits until the server has a subscriber for its exits.
func subscribed(t *testing.T, s *criserver.Server, w *exitWatcher) {
	t.Helper()
	<-w.connected
	waitFor(t, func() bool { return serverconfig.Of(s).TaskExitReaders() == 1 })
}

func TestWatchContainerExits(t *testing.T) {
	s, err := criserver.Start()
	must(t, err)
	t.Cleanup(s.Stop)
	r := connect(t, s)
	sandbox := s.RunPod(criserver.PodConfig{UID: "uid"})
	app, proxy := runContainer(t, s, sandbox, "app"), runContainer(t, s, sandbox, "proxy")
	w := watchExits(t, r)
	subscribed(t, s, w)
	// Once a stream is accepted, it no longer counts as a call in flight.
	waitFor(t, func() bool { return len(inFlight(r)) == 0 })

	must(t, s.ExitContainer(app, 3, ""))
	got := w.next(t)
	pod := getPods(t, r)[0]
	shown := getPodStatus(t, r, pod).FindContainerStatusByName("app")
	if want := (pleg.ContainerExit{ContainerID: app, ExitCode: 3, FinishedAt: shown.FinishedAt}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	// A command in a running container ends. Its exit is not reported.
	serverconfig.Of(s).SendTaskExit(serverconfig.TaskExit{ContainerID: proxy, ID: "probe", ExitCode: 1})
	serverconfig.Of(s).SendTaskExit(serverconfig.TaskExit{ContainerID: "not a pod's", ExitCode: 9})
	if got := w.next(t); got.ContainerID != "not a pod's" || got.ExitCode != 9 {
		t.Errorf("%+v", got)
	}
	must(t, s.StopPodSandbox(sandbox))
	for _, id := range []string{proxy, sandbox} {
		if got := w.next(t); got.ContainerID != id || got.ExitCode != 137 || got.FinishedAt.IsZero() {
			t.Errorf("%+v, want the exit of %s", got, id)
		}
	}

	w.cancel()
	if err := w.ended(t); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if got := metric(t, r, "kubelet_runtime_operations_total", "subscribe_events"); got != 1 {
		t.Errorf("%v operations", got)
	}
	if got := metric(t, r, "kubelet_runtime_operations_errors_total", "subscribe_events"); got != 0 {
		t.Errorf("%v errors", got)
	}
}

// If exit events are off or not supported, WatchContainerExits makes few calls, and its error wraps
// ErrEventsUnsupported.
func TestExitEventsUnsupported(t *testing.T) {
	for _, test := range []struct {
		name  string
		model []criserver.Option
		opts  []cri.Option
		// versions and streams are the numbers of Version and Subscribe calls.
		versions, streams int
	}{
		{"with the option", nil, []cri.Option{cri.WithoutExitEvents()}, 0, 0},
		{"a runtime without", []criserver.Option{
			serverconfig.With[criserver.Option](serverconfig.Config{NoTaskExits: true}), criserver.WithVersion("docker", "29"),
		}, []cri.Option{cri.WithExitsDir("/nowhere")}, 2, 1},
		{"CRI-O without a folder", []criserver.Option{criserver.WithModel(criserver.CRIO)},
			[]cri.Option{cri.WithExitsDir("")}, 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := criserver.Start(test.model...)
			must(t, err)
			t.Cleanup(s.Stop)
			r := connect(t, s, test.opts...)
			serverconfig.Of(s).ResetCalls()
			err = watchExits(t, r).ended(t)
			if !errors.Is(err, pleg.ErrEventsUnsupported) || !strings.HasPrefix(err.Error(), "cri: ") {
				t.Error(err)
			}
			if got := s.Calls("Subscribe"); got != test.streams {
				t.Errorf("%d streams were opened", got)
			}
			// If the runtime refuses the stream early, the Version call may not be made.
			if got := s.Calls("Version"); got > test.versions || test.versions == 0 && s.Calls("") != 0 {
				t.Errorf("%d Version calls, %d in all", got, s.Calls(""))
			}
			if test.streams > 0 && metric(t, r, "kubelet_runtime_operations_errors_total", "subscribe_events") > 0 {
				t.Error("it counts as an error")
			}
			if calls := inFlight(r); len(calls) != 0 {
				t.Errorf("in flight: %+v", calls)
			}
		})
	}
	// A Runtime that NewRuntime made reports no exits without WithExitsDir.
	err := watchExits(t, newRuntime(&stub{})).ended(t)
	if !errors.Is(err, pleg.ErrEventsUnsupported) {
		t.Error(err)
	}
}

// If a stream of exits breaks, the error does not wrap ErrEventsUnsupported.
func TestExitStreamBreaks(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault criserver.Fault
		sever func(*criserver.Server)
		code  codes.Code
	}{
		{"error", criserver.Fault{BreakAfter: 1, Err: status.Error(codes.Internal, "slow")}, nil, codes.Internal},
		{"end", criserver.Fault{BreakAfter: 1}, nil, codes.Unknown},
		{"too large", criserver.Fault{Padding: 64 << 10}, nil, codes.ResourceExhausted},
		{"no message", criserver.Fault{Raw: []byte{0xff}}, nil, codes.Internal},
		{"connection", criserver.Fault{}, (*criserver.Server).CutConnections, codes.Unavailable},
		{"runtime", criserver.Fault{}, (*criserver.Server).Down, codes.Unavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := criserver.Start()
			must(t, err)
			t.Cleanup(s.Stop)
			r := connect(t, s)
			if test.sever == nil {
				test.fault.Method = "Subscribe"
				t.Cleanup(s.Inject(test.fault))
			}
			w := watchExits(t, r)
			subscribed(t, s, w)
			if test.sever != nil {
				test.sever(s)
			} else {
				serverconfig.Of(s).SendTaskExit(serverconfig.TaskExit{ContainerID: "a"})
				serverconfig.Of(s).SendTaskExit(serverconfig.TaskExit{ContainerID: "b"})
			}
			err = w.ended(t)
			if err == nil || errors.Is(err, pleg.ErrEventsUnsupported) || status.Code(err) != test.code {
				t.Errorf("code %v of %v", status.Code(err), err)
			}
			if !strings.Contains(err.Error(), "Events/Subscribe at "+s.Endpoint()) || len(err.Error()) > 5000 {
				t.Errorf("%v does not name the call", err)
			}
			if got := metric(t, r, "kubelet_runtime_operations_errors_total", "subscribe_events"); got != 1 {
				t.Errorf("%v errors", got)
			}
		})
	}
}

// If a runtime is frozen, the subscription does not count as accepted.
func TestExitStreamOfFrozenRuntime(t *testing.T) {
	s, err := criserver.Start()
	must(t, err)
	t.Cleanup(s.Stop)
	r := connect(t, s)
	s.Freeze()
	defer s.Thaw()
	w := watchExits(t, r)
	waitFor(t, func() bool { return len(inFlight(r)) == 1 })
	w.cancel()
	if err := w.ended(t); status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	select {
	case <-w.connected:
		t.Error("connected to a frozen runtime")
	default:
	}
}

// A stream of exits counts as accepted when an exit comes, even if the stream's Version call has
// not been answered yet.
func TestExitBeforeTheAnswer(t *testing.T) {
	s := startWireServer(t, false)
	s.answers = make(chan struct{}, 1)
	s.answers <- struct{}{}
	r := dialRuntime(t, s.endpoint())
	w := watchExits(t, r)
	s.events <- taskExit(field(1, "c"), field(2, "c"))
	if got := w.next(t); got.ContainerID != "c" {
		t.Errorf("%+v", got)
	}
	w.cancel()
	_ = w.ended(t)
	if got := metric(t, r, "kubelet_runtime_operations_total", "subscribe_events"); got != 1 {
		t.Errorf("%v operations", got)
	}
}

// field encodes a field of a message.
func field(number protowire.Number, value any) []byte {
	switch v := value.(type) {
	case int:
		return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), uint64(v))
	case string:
		return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), v)
	}
	panic(value)
}

// message encodes a message that consists of the given fields.
func message(fields ...[]byte) string {
	var m []byte
	for _, f := range fields {
		m = append(m, f...)
	}
	return string(m)
}

func envelope(topic, event string) string {
	return message(field(1, message(field(1, 1000))), field(2, "k8s.io"), field(3, topic), field(4, event))
}

func taskExit(fields ...[]byte) string {
	return envelope("/tasks/exit", message(field(1, "containerd.events.TaskExit"), field(2, message(fields...))))
}

// Of containerd's events, only exits of containers are reported, and only if the code is known.
func TestTaskExits(t *testing.T) {
	at := field(5, message(field(1, 1_700_000_000), field(2, 123_456_789)))
	valid := taskExit(field(1, "c"), field(2, "c"), field(3, 4711), field(4, 137), at)
	exited := pleg.ContainerExit{ContainerID: "c", ExitCode: 137, FinishedAt: time.Unix(1_700_000_000, 123_456_789)}
	never := pleg.ContainerExit{ContainerID: "c", ExitCode: 0}
	none := pleg.ContainerExit{}
	for _, test := range []struct {
		name  string
		event string
		want  pleg.ContainerExit // zero if not reported
		bad   string
	}{
		{"exit", valid, exited, ""},
		{"exit with 0, as protobuf leaves it out", taskExit(field(1, "c"), field(2, "c"), at),
			pleg.ContainerExit{ContainerID: "c", FinishedAt: exited.FinishedAt}, ""},
		{"fields of a later version", message(field(9, "?"), []byte(valid), field(10, 7)), exited, ""},
		{"the guess of a containerd that lost the shim", taskExit(field(1, "c"), field(2, "c"), field(4, 255), at), none, ""},
		{"a start", envelope("/tasks/start", message(field(1, "containerd.events.TaskStart"),
			field(2, message(field(1, "c"), field(2, 4711))))), none, ""},
		{"a process without memory", envelope("/tasks/oom", message(field(1, "containerd.events.TaskOOM"),
			field(2, message(field(1, "c"))))), none, ""},
		{"a command", taskExit(field(1, "c"), field(2, "probe"), at), none, ""},
		{"another namespace", strings.Replace(valid, "k8s.io", "docker", 1), none, ""},
		{"another topic", strings.Replace(valid, "/tasks/exit", "/tasks/exec", 1), none, ""},
		{"nothing", "", none, ""},
		{"no time", taskExit(field(1, "c"), field(2, "c")), never, ""},
		{"Go's zero time", taskExit(field(1, "c"), field(2, "c"), field(5, message(field(1, -62135596800)))), never, ""},
		{"a year that is none", taskExit(field(1, "c"), field(2, "c"), field(5, message(field(1, 1<<62)))), never, ""},
		{"a malformed time", taskExit(field(1, "c"), field(2, "c"), field(5, "\xff")), never, ""},
		{"no ID", taskExit(field(2, "c"), at), none, "item_without_id"},
		{"an ID that is a number", taskExit(field(1, 7), field(2, "c"), at), none, "item_without_id"},
		{"no event", message(field(2, "k8s.io"), field(3, "/tasks/exit")), none, "item_without_id"},
		{"a malformed event", envelope("/tasks/exit", "\xff"), none, "unreadable_exit"},
		{"a malformed exit", taskExit([]byte("\xff")), none, "unreadable_exit"},
		{"not UTF-8", taskExit(field(1, "c\xff"), field(2, "c\xff")), pleg.ContainerExit{ContainerID: "c\uFFFD"},
			"invalid_utf8"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := startWireServer(t, false)
			r := dialRuntime(t, s.endpoint(), quiet)
			w := watchExits(t, r)
			<-w.connected
			s.events <- test.event
			last := strings.Replace(valid, "\x01c", "\x01z", 2)
			s.events <- last
			if test.want != none {
				if got := w.next(t); got != test.want {
					t.Errorf("%+v, want %+v", got, test.want)
				}
			}
			if got := w.next(t); got.ContainerID != "z" {
				t.Errorf("%+v", got)
			}
			ooms := 0.0
			if strings.Contains(test.event, "/tasks/oom") {
				ooms = 1
			}
			if got := metric(t, r, "pleg_cri_oom_events_total", ""); got != ooms {
				t.Errorf("%v OOM events, want %v", got, ooms)
			}
			if test.bad != "" && metric(t, r, "pleg_cri_bad_items_total", test.bad) != 1 {
				t.Errorf("it is not counted as %s", test.bad)
			}
		})
	}
	// A truncated event is never reported as an exit.
	t.Run("cut off", func(t *testing.T) {
		s := startWireServer(t, false)
		r := dialRuntime(t, s.endpoint(), quiet)
		for i := range len(valid) {
			w := watchExits(t, r)
			waitFor(t, func() bool { return s.subscribers.Load() == 1 })
			s.events <- valid[:i]
			select {
			case s.events <- "\xff":
			case err := <-w.done: // the event was malformed
				w.done <- err
			}
			if err := w.ended(t); status.Code(err) != codes.Internal {
				t.Errorf("%d bytes: %v", i, err)
			}
			if len(w.exits) > 0 {
				t.Errorf("%d bytes: %+v", i, <-w.exits)
			}
			// Otherwise the old subscriber would take the next event.
			waitFor(t, func() bool { return s.subscribers.Load() == 0 })
		}
	})
}

// A command in a container may have the container's ID, as with ctr task exec --exec-id ID ID. The
// command's exit is not reported, because the command's PID is not the PID in the bundle.
func TestExitOfACommandWithTheContainersID(t *testing.T) {
	s, err := criserver.Start()
	must(t, err)
	t.Cleanup(s.Stop)
	r := connect(t, s)
	sandbox := s.RunPod(criserver.PodConfig{UID: "uid"})
	app, bare := runProcess(t, s, sandbox, "app", 4711), runProcess(t, s, sandbox, "bare", 4712)
	w := watchExits(t, r)
	subscribed(t, s, w)
	bundle := filepath.Join(filepath.Dir(strings.TrimPrefix(s.Endpoint(), "unix://")), bundlesDir, app)
	must(t, os.MkdirAll(bundle, 0o700))
	must(t, os.WriteFile(filepath.Join(bundle, "init.pid"), []byte("4711"), 0o600))
	serverconfig.Of(s).SendTaskExit(serverconfig.TaskExit{ContainerID: app, PID: 4713, ExitCode: 1})
	for code, id := range []string{app, bare} { // the second container has no bundle
		must(t, s.ExitContainer(id, code+2, ""))
		if got := w.next(t); got.ContainerID != id || got.ExitCode != code+2 {
			t.Errorf("%+v, want the exit of %s", got, id)
		}
	}
}

// bundlesDir contains the bundles of CRI's containers, below containerd's state directory.
const bundlesDir = "io.containerd.runtime.v2.task/k8s.io"
