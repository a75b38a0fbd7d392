package criserver_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// subscribe opens containerd's event stream. It sends the filter in an Any instead of a
// SubscribeRequest. Both have the same encoding, because their first fields are strings.
func subscribe(t *testing.T, ctx context.Context, conn grpc.ClientConnInterface, filter string) grpc.ClientStream {
	t.Helper()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true},
		"/containerd.services.events.v1.Events/Subscribe")
	if err == nil {
		err = stream.SendMsg(&anypb.Any{TypeUrl: filter})
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

const tasksExit = `topic=="/tasks/exit",namespace=="k8s.io"`

// The server reports the exit of each process: of a program that ends or is killed, and of a
// command in a container.
func TestTaskExits(t *testing.T) {
	end := make(chan struct{})
	program := criserver.Program{
		Main: func(ctx context.Context, _ *criserver.Process) int {
			select {
			case <-end:
				return 3
			case <-ctx.Done():
				return 0
			}
		},
		Exec: func(context.Context, *criserver.Process) int { return 7 },
	}
	programs := map[string]criserver.Program{"app": program, "other": program}
	inBubble(t, programs, func(t *testing.T, w *writer) {
		end = make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		events := make(chan string, 10)
		stream := subscribe(t, ctx, w.conn, tasksExit)
		go func() {
			defer close(events)
			for {
				event := &emptypb.Empty{}
				if stream.RecvMsg(event) != nil {
					return
				}
				events <- string(event.ProtoReflect().GetUnknown()) // the raw bytes of the event
			}
		}()
		synctest.Wait()
		app, other := w.run("app"), w.run("other")
		_, err := w.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: app, Cmd: []string{"probe"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.server.KillContainer(other); err != nil {
			t.Fatal(err)
		}
		close(end)
		synctest.Wait()
		const status = "\x20" // tag of the exit code's field
		for _, want := range [][]string{
			{app, "exec", status + "\x07"}, {other, status + "\x89\x01"}, {app, status + "\x03"},
		} {
			got := <-events
			for _, part := range want {
				if !strings.Contains(got, part) {
					t.Errorf("%q lacks %q", got, part)
				}
			}
		}
		if len(events) > 0 {
			t.Errorf("one more: %q", <-events)
		}
		// A call of Down ends the stream.
		w.server.Down()
		synctest.Wait()
		if _, ok := <-events; ok {
			t.Error("the stream did not end")
		}
	})
}

func TestSubscribeRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		opt    criserver.Option
		filter string
		want   codes.Code
	}{
		"another filter": {criserver.WithModel(criserver.Containerd2), `topic~="/tasks/"`, codes.InvalidArgument},
		"without exit events": {
			serverconfig.With[criserver.Option](serverconfig.Config{NoTaskExits: true}), tasksExit, codes.Unimplemented},
		"CRI-O": {criserver.WithModel(criserver.CRIO), tasksExit, codes.Unimplemented},
	} {
		s, err := criserver.Start(test.opt)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := grpc.NewClient(s.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		err = subscribe(t, t.Context(), conn, test.filter).RecvMsg(&anypb.Any{})
		if status.Code(err) != test.want {
			t.Errorf("%s: %v", name, err)
		}
		if v := s.Violations(); len(v) > 0 {
			t.Errorf("%s: it is taken for a change: %v", name, v)
		}
		conn.Close()
		s.Stop()
	}
}

// For each running container that ends, the server writes an exit file. It writes none for a
// sandbox.
func TestExitFiles(t *testing.T) {
	dir := t.TempDir()
	s, err := criserver.Start(criserver.WithModel(criserver.CRIO),
		serverconfig.With[criserver.Option](serverconfig.Config{ExitFiles: dir}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	sandbox := s.RunPod(criserver.PodConfig{})
	var ids [3]string
	for i := range ids {
		if ids[i], err = s.CreateContainer(sandbox, criserver.ContainerConfig{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{s.StartContainer(ids[0]), s.StartContainer(ids[1]), s.ExitContainer(ids[0], 3, ""),
		s.StopPodSandbox(sandbox)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []string{"3", "137", ""} {
		content, _ := os.ReadFile(filepath.Join(dir, ids[i]))
		if string(content) != want {
			t.Errorf("container %d: %q, want %q", i, content, want)
		}
	}
	if files, err := os.ReadDir(dir); len(files) != 2 || err != nil {
		t.Errorf("%v, %v", files, err)
	}
}
