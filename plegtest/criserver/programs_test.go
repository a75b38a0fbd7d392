package criserver_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/plegtest/criserver"
)

// writer is a client of a server with programs, in a synctest bubble.
type writer struct {
	t *testing.T
	runtimeapi.RuntimeServiceClient
	images runtimeapi.ImageServiceClient
	conn   *grpc.ClientConn
	server *criserver.Server
}

// inBubble runs a test with a server in a synctest bubble. The server uses in-memory connections,
// so all times are fake.
func inBubble(t *testing.T, programs map[string]criserver.Program, test func(t *testing.T, w *writer),
	opts ...criserver.Option) {
	synctest.Test(t, func(t *testing.T) {
		var l *bufconn.Listener
		s, err := criserver.Start(append(opts, criserver.WithPrograms(programs),
			criserver.WithListener(func() (net.Listener, error) {
				l = bufconn.Listen(1 << 16)
				return l, nil
			}))...)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Stop()
		conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		test(t, &writer{t, runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn), conn, s})
	})
}

// run creates and starts a container of an image in a new pod.
func (w *writer) run(image string, args ...string) (id string) {
	w.t.Helper()
	sandbox := w.sandbox("pod-" + image)
	r, err := w.CreateContainer(w.t.Context(), createRequest(sandbox, image, args...))
	if err == nil {
		_, err = w.StartContainer(w.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: r.ContainerId})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return r.ContainerId
}

func (w *writer) sandbox(uid string) string {
	w.t.Helper()
	r, err := w.RunPodSandbox(w.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: uid, Namespace: "default", Uid: uid},
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	return r.PodSandboxId
}

// setBytes sets a field that is a string before cri-api 0.34, and bytes since then.
func setBytes[T string | []byte](value *T, to string) { *value = T(to) }

func createRequest(sandbox, image string, args ...string) *runtimeapi.CreateContainerRequest {
	mode := &runtimeapi.KeyValue{Key: "MODE"}
	setBytes(&mode.Value, "test")
	return &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "app", Attempt: 3},
		Image:    &runtimeapi.ImageSpec{Image: image}, Args: args,
		Envs: []*runtimeapi.KeyValue{mode},
	}}
}

func (w *writer) status(id string) *runtimeapi.ContainerStatus {
	w.t.Helper()
	r, err := w.ContainerStatus(w.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		w.t.Fatal(err)
	}
	return r.Status
}

func programs() map[string]criserver.Program {
	polite := func(ctx context.Context, p *criserver.Process) int {
		select {
		case <-p.Terminate:
			return 0
		case <-ctx.Done():
			return 1
		}
	}
	exec := func(ctx context.Context, p *criserver.Process) int {
		if slices.Equal(p.Args, []string{"hang"}) {
			<-ctx.Done()
		}
		_, _ = p.Stdout.Write([]byte(p.Env["MODE"] + " " + strings.Join(p.Args, " ")))
		return 4
	}
	return map[string]criserver.Program{
		"exits":    {Main: func(_ context.Context, p *criserver.Process) int { return len(p.Args) + int(p.Attempt) }},
		"panics":   {Main: func(context.Context, *criserver.Process) int { panic("on purpose") }},
		"polite":   {Main: polite, Exec: exec},
		"stubborn": {Main: func(ctx context.Context, _ *criserver.Process) int { <-ctx.Done(); return 0 }},
		"tag:latest": {Main: func(context.Context, *criserver.Process) int {
			time.Sleep(time.Hour)
			return 7
		}},
	}
}

// The result of Main is the container's exit code. A panic gives exit code 2.
func TestProgramsExit(t *testing.T) {
	inBubble(t, programs(), func(t *testing.T, w *writer) {
		for image, want := range map[string]int32{"exits": 5, "panics": 2, "tag": 7} {
			id := w.run(image, "a", "b")
			synctest.Wait()
			if image == "tag" {
				if s := w.status(id).State; s != runtimeapi.ContainerState_CONTAINER_RUNNING {
					t.Errorf("%s: %v", image, s)
				}
				time.Sleep(time.Hour)
				synctest.Wait()
			}
			s := w.status(id)
			if s.State != runtimeapi.ContainerState_CONTAINER_EXITED || s.ExitCode != want || s.Metadata.Attempt != 3 {
				t.Errorf("%s: %v", image, s)
			}
		}
	})
}

// If a program ends when it is asked to, its own exit code is kept. If it does not end, it is
// killed after the timeout.
func TestProgramsStop(t *testing.T) {
	inBubble(t, programs(), func(t *testing.T, w *writer) {
		for _, c := range []struct {
			image string
			took  time.Duration
			code  int32
		}{{"polite", 0, 0}, {"stubborn", 20 * time.Second, 137}} {
			id := w.run(c.image)
			began := time.Now()
			for range 2 { // the second call finds a stopped container
				if _, err := w.StopContainer(t.Context(),
					&runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 20}); err != nil {
					t.Fatal(err)
				}
			}
			if s := w.status(id); s.ExitCode != c.code || time.Since(began) != c.took {
				t.Errorf("%s: exit code %d after %v", c.image, s.ExitCode, time.Since(began))
			}
		}
		if _, err := w.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: "none"}); err != nil {
			t.Errorf("stopping what is not there: %v", err)
		}
	})
}

// If a sandbox is stopped, its programs are killed. After the sandbox is removed, no sandbox or
// container is left.
func TestProgramsEndWithTheirSandbox(t *testing.T) {
	inBubble(t, programs(), func(t *testing.T, w *writer) {
		id := w.run("stubborn")
		sandbox := w.server.Sandboxes("pod-stubborn")[0]
		if _, err := w.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox}); err != nil {
			t.Fatal(err)
		}
		if s := w.status(id); s.ExitCode != 137 {
			t.Errorf("exit code %d", s.ExitCode)
		}
		if _, err := w.RemovePodSandbox(t.Context(),
			&runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox}); err != nil {
			t.Fatal(err)
		}
		if s, c := w.server.Present(); s+c != 0 {
			t.Errorf("%d sandboxes and %d containers are left", s, c)
		}
	})
}

// ExecSync runs a command in a running container, and enforces the timeout.
func TestProgramsExec(t *testing.T) {
	inBubble(t, programs(), func(t *testing.T, w *writer) {
		id := w.run("polite")
		exec := func(id string, timeout int64, cmd ...string) (*runtimeapi.ExecSyncResponse, error) {
			return w.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: timeout})
		}
		if r, err := exec(id, 1, "say", "it"); err != nil || string(r.Stdout) != "test say it" || r.ExitCode != 4 {
			t.Errorf("%v, %v", r, err)
		}
		began := time.Now()
		_, err := exec(id, 3, "hang")
		if status.Code(err) != codes.DeadlineExceeded || time.Since(began) != 3*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if _, err := exec(w.run("stubborn"), 0, "x"); status.Code(err) != codes.Unknown {
			t.Errorf("a program without commands: %v", err)
		}
		if _, err := exec(w.run("exits"), 0, "x"); err == nil {
			t.Error("a container that has exited ran a command")
		}
		if _, err := exec("none", 0, "x"); status.Code(err) != codes.NotFound {
			t.Errorf("no container: %v", err)
		}
	})
}

// The server refuses bad requests, and calls that it does not serve even with programs.
func TestProgramsRefuse(t *testing.T) {
	inBubble(t, programs(), func(t *testing.T, w *writer) {
		sandbox := w.sandbox("a")
		_, noImage := w.CreateContainer(t.Context(), createRequest(sandbox, "missing"))
		_, noSandbox := w.CreateContainer(t.Context(), createRequest("none", "exits"))
		_, err := w.CreateContainer(t.Context(), createRequest(sandbox, "exits"))
		_, twice := w.CreateContainer(t.Context(), createRequest(sandbox, "exits"))
		_, noName := w.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{})
		_, noPod := w.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{})
		_, samePod := w.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "a", Namespace: "default", Uid: "a"}}})
		_, pull := w.images.PullImage(t.Context(), &runtimeapi.PullImageRequest{
			Image: &runtimeapi.ImageSpec{Image: "missing"}})
		_, other := w.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{})
		got := map[string]codes.Code{}
		for name, err := range map[string]error{"image": noImage, "sandbox": noSandbox, "create": err, "twice": twice,
			"container name": noName, "pod": noPod, "same pod": samePod, "pull": pull, "other": other} {
			got[name] = status.Code(err)
		}
		for name, want := range map[string]codes.Code{"image": codes.NotFound, "sandbox": codes.NotFound,
			"create": codes.OK, "twice": codes.Unknown, "container name": codes.InvalidArgument,
			"pod": codes.InvalidArgument, "same pod": codes.Unknown, "pull": codes.NotFound,
			"other": codes.PermissionDenied} {
			if got[name] != want {
				t.Errorf("%s: %v, want %v", name, got[name], want)
			}
		}
		image, err := w.images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{
			Image: &runtimeapi.ImageSpec{Image: "tag"}})
		if err != nil || image.Image == nil {
			t.Errorf("an image without its tag: %v, %v", image, err)
		}
		if v := w.server.Violations(); !slices.Equal(v, []string{"UpdateContainerResources"}) {
			t.Errorf("violations: %v", v)
		}
	})
}

// A fault that names a pod or a container affects the calls that change that object.
func TestProgramsFaults(t *testing.T) {
	inBubble(t, programs(), func(t *testing.T, w *writer) {
		id := w.run("polite")
		failure := errors.New("no")
		for method, object := range map[string]string{"RunPodSandbox": "b", "StopContainer": id} {
			w.server.Fail(method, object, failure)
		}
		if _, err := w.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err == nil {
			t.Error("StopContainer succeeded")
		}
		if _, err := w.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "b", Namespace: "default", Uid: "b"}}}); err == nil {
			t.Error("RunPodSandbox succeeded")
		}
		w.sandbox("c")
	})
}
