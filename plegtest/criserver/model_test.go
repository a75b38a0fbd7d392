package criserver_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
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

// The models differ in more than states and names. If a model changes, this test fails first;
// TestModelIsTheRuntime of internal/e2e compares the models with the real runtimes.
func TestModelsDiffer(t *testing.T) {
	zero := time.Time{}.UnixNano()
	for _, tc := range []struct {
		model  criserver.Model
		events []string

		killedUnstarted, finishesAnew, listedEarlier, keepsAddress, statusHasContainers bool
		exitWhileDown                                                                   int32
		listedMoves                                                                     bool
	}{
		{
			model: criserver.Containerd2,
			events: []string{"pod created", "pod started", "idle created", "app created", "app started", "app stopped",
				"pod stopped", "pod deleted", "pod deleted", "pod deleted"},
			exitWhileDown: 255,
		},
		{
			model: criserver.CRIO,
			events: []string{"pod started", "idle created", "idle stopped", "app created", "app started",
				"app stopped"},
			killedUnstarted: true, finishesAnew: true, listedEarlier: true, keepsAddress: true, statusHasContainers: true,
			exitWhileDown: 3, listedMoves: true,
		},
	} {
		clk := testingclock.NewFakeClock(time.Unix(1000, 0))
		s := startServer(t, criserver.WithModel(tc.model),
			serverconfig.With[criserver.Option](serverconfig.Config{Clock: clk}))
		c := dial(t, s)
		stream := watchEvents(t, t.Context(), s, c, 1)
		check := func(what string, got, want bool) {
			if got != want {
				t.Errorf("model %d: %s: %t", tc.model, what, got)
			}
		}
		do := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}

		pod := s.RunPod(criserver.PodConfig{})
		idle := must[string](t)(s.CreateContainer(pod, criserver.ContainerConfig{Name: "idle"}))
		do(s.KillContainer(idle))
		st := containerStatus(t, c, idle)
		check("a container that is killed before it was started has exited", st.ExitCode == 2 && st.StartedAt == zero &&
			st.State == runtimeapi.ContainerState_CONTAINER_EXITED, tc.killedUnstarted)
		app := must[string](t)(s.RunContainer(pod, criserver.ContainerConfig{Name: "app"}))
		check("listed as created earlier", listContainers(t, c, nil)[app].CreatedAt < containerStatus(t, c, app).CreatedAt,
			tc.listedEarlier)
		do(s.RemovePodSandbox(pod))
		if diff := cmp.Diff(tc.events, receive(t, stream, len(tc.events))); diff != "" {
			t.Errorf("model %d: %s", tc.model, diff)
		}

		pod = s.RunPod(criserver.PodConfig{})
		app = must[string](t)(s.RunContainer(pod, criserver.ContainerConfig{}))
		do(s.KillContainer(app))
		finished := containerStatus(t, c, app).FinishedAt
		clk.Step(time.Second)
		do(s.KillContainer(app))
		check("finishes anew", containerStatus(t, c, app).FinishedAt > finished, tc.finishesAnew)
		do(s.StopPodSandbox(pod))
		answer := must[*runtimeapi.PodSandboxStatusResponse](t)(c.PodSandboxStatus(t.Context(),
			&runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod}))
		check("keeps its address", answer.Status.Network.GetIp() != "", tc.keepsAddress)
		check("has containers in the sandbox's status", len(answer.ContainersStatuses) == 1 && answer.Timestamp > 0,
			tc.statusHasContainers)

		pod = s.RunPod(criserver.PodConfig{})
		app = must[string](t)(s.RunContainer(pod, criserver.ContainerConfig{}))
		listed := listContainers(t, c, nil)[app].CreatedAt
		s.Down()
		do(s.ExitContainer(app, 3, ""))
		clk.Step(time.Second)
		do(s.Up())
		c = dial(t, s)
		st = containerStatus(t, c, app)
		if st.ExitCode != tc.exitWhileDown || (st.FinishedAt == clk.Now().UnixNano()) != (tc.exitWhileDown == 255) {
			t.Errorf("model %d: after an exit while it was down: %v", tc.model, st)
		}
		check("the listed time moves", listContainers(t, c, nil)[app].CreatedAt > listed, tc.listedMoves)
	}
}

// CRI-O closes a connection if the content-type of its first call is not exactly application/grpc.
// Later calls may use any content-type.
func TestCRIOClosesWhatIsNotGRPC(t *testing.T) {
	s := startServer(t, criserver.WithModel(criserver.CRIO))
	list := func(c runtimeapi.RuntimeServiceClient) error {
		_, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}, grpc.CallContentSubtype("proto"))
		return err
	}
	if err := list(dial(t, s)); status.Code(err) != codes.Unavailable {
		t.Error("the first call:", err)
	}
	c := dial(t, s)
	_, err := c.Version(t.Context(), &runtimeapi.VersionRequest{})
	if err := errors.Join(err, list(c)); err != nil {
		t.Error("the second call:", err)
	}
	if err := list(dial(t, startServer(t))); err != nil {
		t.Error("containerd:", err)
	}
}

// With containerd 2, an event for a disconnected reader is lost or kept at random, until the queue
// notices that the reader is gone.
func TestEventsContainerd2LosesByATossUp(t *testing.T) {
	lost := make(map[int]bool)
	for range 200 {
		s := startServer(t)
		stream := watchEvents(t, t.Context(), s, dial(t, s), 1)
		s.BreakEventStreams(nil)
		_, _ = stream.Recv() // reads the end of the stream
		waitUntil(t, func() bool { return serverconfig.Of(s).EventStats().Readers == 0 })
		const pods = 20
		for range pods {
			s.RunPod(criserver.PodConfig{})
		}
		lost[2*pods-serverconfig.Of(s).EventStats().Held] = true
		if lost[0] && lost[1] && lost[2] {
			return
		}
	}
	t.Errorf("the numbers of lost events were %v", lost)
}

// If a program cannot start, containerd shows its container as exited, without an event. CRI-O does
// not even create the container.
func TestProgramsFailToStart(t *testing.T) {
	missing := map[string]criserver.Program{"image": {
		Start: func(p *criserver.Process) error { return errors.New("no " + p.Args[0]) },
	}}
	for model, want := range map[criserver.Model]codes.Code{
		criserver.Containerd2: codes.OK, criserver.CRIO: codes.Unknown,
	} {
		inBubble(t, missing, func(t *testing.T, w *writer) {
			r, err := w.CreateContainer(t.Context(), createRequest(w.sandbox("a"), "image", "such"))
			if status.Code(err) != want {
				t.Fatalf("model %d: creating: %v", model, err)
			}
			if _, containers := w.server.Present(); (containers == 0) != (want != codes.OK) {
				t.Errorf("model %d: %d containers", model, containers)
			}
			if want != codes.OK {
				return
			}
			sent := serverconfig.Of(w.server).EventStats().Held
			_, err = w.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: r.ContainerId})
			if s := w.status(r.ContainerId); status.Code(err) != codes.Unknown || s.ExitCode != 128 ||
				s.Reason != "StartError" || s.StartedAt != 0 || s.FinishedAt == 0 ||
				s.Message != "failed to create containerd task: no such" {
				t.Errorf("starting: %v, %v", err, s)
			}
			if n := serverconfig.Of(w.server).EventStats().Held; n != sent {
				t.Errorf("%d events", n-sent)
			}
		}, criserver.WithModel(model))
	}
}

// CRI-O asks containers to end and waits for up to 10 s. containerd kills them at once.
func TestProgramsAreAskedToEnd(t *testing.T) {
	for _, tc := range []struct {
		model criserver.Model
		code  int32
		grace time.Duration
	}{{criserver.Containerd2, 137, 0}, {criserver.CRIO, 0, 10 * time.Second}} {
		inBubble(t, programs(), func(t *testing.T, w *writer) {
			id := w.run("polite")
			w.run("stubborn")
			began := time.Now()
			for _, uid := range []types.UID{"pod-polite", "pod-stubborn"} {
				sandbox := w.server.Sandboxes(uid)[0]
				if _, err := w.StopPodSandbox(t.Context(),
					&runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox}); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			if s := w.status(id); s.ExitCode != tc.code || time.Since(began) != tc.grace {
				t.Errorf("model %d: exit code %d, after %v", tc.model, s.ExitCode, time.Since(began))
			}
		}, criserver.WithModel(tc.model))
	}
}

// containerd 1.6 returns an error for a stop of a missing object. containerd shows an out-of-memory
// kill before the container exits; CRI-O does not.
func TestContainerdsHabits(t *testing.T) {
	inBubble(t, programs(), func(t *testing.T, w *writer) {
		_, err := w.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: "none"})
		_, pod := w.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: "none"})
		if status.Code(err) != codes.NotFound || status.Code(pod) != codes.NotFound {
			t.Errorf("%v, %v", err, pod)
		}
	}, criserver.WithModel(criserver.Containerd16))
	for model, want := range map[criserver.Model][]string{
		criserver.Containerd2: {"OOMKilled", "OOMKilled"}, criserver.CRIO: {"", "OOMKilled"},
	} {
		s := startServer(t, criserver.WithModel(model))
		c := dial(t, s)
		id := must[string](t)(s.RunContainer(s.RunPod(criserver.PodConfig{}), criserver.ContainerConfig{}))
		var got []string
		for _, do := range []func() error{
			func() error { return serverconfig.Of(s).OOMKill(id) },
			func() error { return s.ExitContainer(id, 0, "") },
		} {
			if err := do(); err != nil {
				t.Fatal(err)
			}
			got = append(got, containerStatus(t, c, id).Reason)
		}
		if !slices.Equal(got, want) {
			t.Errorf("model %d: reasons %q", model, got)
		}
	}
}
