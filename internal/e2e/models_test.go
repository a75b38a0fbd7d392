package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// notModelled are the CRI fields that the models leave out, each with the reason. All other fields
// must match. Tests of package criserver cover what the script cannot show: durations, the order of
// events at the same moment, lost events of readers that leave or stall, and addresses of pods.
var notModelled = map[protoreflect.FullName]string{
	"runtime.v1.PodSandboxStatusResponse.info": "containerd sends it though nobody asked",
	"runtime.v1.PodSandboxStatus.linux":        noKernel,
	"runtime.v1.ContainerStatus.resources":     noKernel,
	"runtime.v1.ContainerStatus.user":          noKernel,
	"runtime.v1.ContainerStatus.stop_signal":   noKernel,
	"runtime.v1.ContainerStatus.log_path":      noKernel,
	"runtime.v1.Container.image":               noImages,
	"runtime.v1.Container.image_ref":           noImages,
	"runtime.v1.Container.image_id":            noImages,
	"runtime.v1.ContainerStatus.image":         noImages,
	"runtime.v1.ContainerStatus.image_ref":     noImages,
	"runtime.v1.ContainerStatus.image_id":      noImages,
}

const (
	noKernel = "the model's containers are goroutines"
	noImages = "the model has names of images, and no images"
)

// stage is a runtime on which the script is played.
type stage struct {
	*testnode.Client
	*recorder
	pods map[string]*testnode.Pod
	ids  map[string]string // container IDs, by name in the script

	// killer returns a function that kills a container's process without the runtime.
	killer func(id string) (kill func() error, err error)
	// whileDown calls a function while the runtime does not run.
	whileDown func(func() error) error
	// settled waits until the effects of a call have ended, and returns the state of the runtime.
	// The argument want is the state that the model showed; nil if the stage runs the model.
	settled func(want []string) ([]string, error)
}

// scene is one call of the script.
type scene struct {
	name string
	racy bool     // true if the order of events may differ: see recorder
	not  []string // the runtimes that skip this call
	do   func(ctx context.Context, s *stage) error
}

// polite is a command that exits with 7 on SIGTERM.
var polite = testnode.Script("trap 'exit 7' TERM", "sleep 1000000 & wait")

// absent is a command that does not exist.
var absent = []string{"/absent"}

// eater is a command that uses up the memory of its container. Then the kernel kills it.
var eater = testnode.Script("x=aaaaaaaaaaaaaaaa", "while :; do x=$x$x; done")

// script contains every call that changes something, in every state that can change its result.
var script = []scene{
	runPod("a"),
	create("a/app.0", polite),
	start("a/app.0"),
	start("a/app.0"),
	create("a/short.0", testnode.Exit(3)),
	start("a/short.0").aRace(),
	stop("a/short.0", 0),
	stop("a/short.0", 5),
	create("a/absent.0", absent),
	start("a/absent.0"),
	remove("a/absent.0"),
	create("a/idle.0", polite),
	stop("a/idle.0", 5),
	stop("a/idle.0", 5),
	remove("a/idle.0"),
	create("a/idle.1", polite),
	remove("a/idle.1").aRace(),
	stop("a/app.0", 60),
	stop("a/app.0", 60),
	remove("a/app.0"),
	remove("a/app.0"),
	stop("a/app.0", 60),
	create("a/app.1", testnode.Sleep()), // CRI-O sends SIGTERM first, even with timeout 0
	start("a/app.1"),
	stop("a/app.1", 0),
	create("a/app.2", polite),
	start("a/app.2"),
	remove("a/app.2").aRace(),
	create("a/app.3", polite),
	start("a/app.3"),
	killed("a/app.3"),
	create("a/app.4", polite),
	start("a/app.4"),
	create("a/other.0", polite),
	start("a/other.0"),
	create("a/idle.2", polite),
	stopPod("a").aRace(),
	stopPod("a"),
	// containerd 2.0 to 2.2 create this container. The model follows 2.4, which does not.
	create("a/late.0", polite).notOn("containerd-2.0", "containerd-2.1", "containerd-2.2"),
	remove("a/app.3"),
	removePod("a").aRace(),
	removePod("a"),
	stopPod("a"),

	runPod("b"),
	create("b/app.0", polite),
	start("b/app.0"),
	create("b/short.0", testnode.Exit(0)),
	start("b/short.0").aRace(),
	create("b/idle.0", polite),
	createWith(testnode.Container{Command: polite, Memory: 32 << 20}, "b/eater.0"),
	start("b/eater.0"),
	exec("b/eater.0", eater),
	stop("b/eater.0", 60),
	removePod("b").aRace(),

	runPod("c"),
	create("c/app.0", polite),
	start("c/app.0"),
	create("c/stays.0", polite),
	start("c/stays.0"),
	containerCall("kill while the runtime is down", "c/app.0", func(_ context.Context, s *stage, id string) error {
		kill, err := s.killer(id)
		if err != nil {
			return err
		}
		return s.whileDown(kill)
	}),
	stopPod("c").aRace(),
	runPod("c"),
	create("c/app.1", polite),
	start("c/app.1"),
	stop("c/app.1", 60),
	stopPod("c"),
	removePod("c"),
	{name: "wait for more", do: func(context.Context, *stage) error {
		time.Sleep(time.Second)
		return nil
	}},
}

func (s scene) aRace() scene {
	s.racy = true
	return s
}

func (s scene) notOn(runtimes ...string) scene {
	s.not = runtimes
	return s
}

func runPod(name string) scene {
	return scene{name: "run pod " + name, do: func(ctx context.Context, s *stage) (err error) {
		if old := s.pods[name]; old != nil {
			s.pods[name], err = s.RunPodAgain(ctx, old)
		} else {
			s.pods[name], err = s.RunPod(ctx, "script", name)
		}
		return err
	}}
}

// podCall is a call for the newest sandbox of a pod.
func podCall(what, name string, call func(ctx context.Context, s *stage, id string) error) scene {
	return scene{name: what + " pod " + name, do: func(ctx context.Context, s *stage) error {
		return call(ctx, s, s.pods[name].SandboxID)
	}}
}

func stopPod(name string) scene {
	return podCall("stop", name, func(ctx context.Context, s *stage, id string) error {
		_, err := s.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
		return err
	})
}

func removePod(name string) scene {
	return podCall("remove", name, func(ctx context.Context, s *stage, id string) error {
		_, err := s.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
}

// create creates a container. Its name is POD/CONTAINER.ATTEMPT.
func create(name string, command []string) scene {
	return createWith(testnode.Container{Command: command}, name)
}

func createWith(c testnode.Container, name string) scene {
	return scene{name: "create " + name, do: func(ctx context.Context, s *stage) (err error) {
		c, pod := c, ""
		if _, err := fmt.Sscanf(strings.NewReplacer("/", " ", ".", " ").Replace(name), "%s %s %d",
			&pod, &c.Name, &c.Restarts); err != nil {
			return err
		}
		s.ids[name], err = s.Create(ctx, s.pods[pod], c)
		return err
	}}
}

// containerCall is a call for a container. It does nothing if the container could not be created.
func containerCall(what, name string, call func(ctx context.Context, s *stage, id string) error) scene {
	return scene{name: what + " " + name, do: func(ctx context.Context, s *stage) error {
		if s.ids[name] == "" {
			return nil
		}
		return call(ctx, s, s.ids[name])
	}}
}

func start(name string) scene {
	return containerCall("start", name, func(ctx context.Context, s *stage, id string) error {
		_, err := s.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
		return err
	})
}

func stop(name string, seconds int64) scene {
	return containerCall("stop", name, func(ctx context.Context, s *stage, id string) error {
		_, err := s.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds})
		return err
	})
}

func exec(name string, command []string) scene {
	return containerCall("exec in", name, func(ctx context.Context, s *stage, id string) error {
		_, err := s.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: 60})
		return err
	})
}

func remove(name string) scene {
	return containerCall("remove", name, func(ctx context.Context, s *stage, id string) error {
		_, err := s.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
		return err
	})
}

func killed(name string) scene {
	return containerCall("kill", name, func(_ context.Context, s *stage, id string) error {
		kill, err := s.killer(id)
		if err != nil {
			return err
		}
		return kill()
	})
}

// TestModelIsTheRuntime plays one script on a real runtime and on criserver's model of the runtime.
// After every call, both must show the same error, events, lists and statuses.
func TestModelIsTheRuntime(t *testing.T) {
	runtime, err := testnode.Chosen()
	if err != nil {
		t.Fatal(err)
	}
	model := modelOf(runtime)
	shuffled := model == criserver.CRIO // see criserver.Server.ShuffleEvents
	script := slices.DeleteFunc(slices.Clone(script), func(s scene) bool { return slices.Contains(s.not, runtime.Name) })
	var want [][]string
	synctest.Test(t, func(t *testing.T) {
		s := modelStage(t, model, shuffled)
		for _, scene := range script {
			want = append(want, s.play(t, scene, nil))
		}
	})
	s := realStage(t, shuffled)
	for i, scene := range script {
		if diff := cmp.Diff(want[i], s.play(t, scene, want[i])); diff != "" {
			t.Errorf("after %q the model (-) is not %s (+):\n%s", scene.name, runtime.Name, diff)
		}
	}
}

func modelOf(r testnode.Runtime) criserver.Model {
	switch {
	case r.Name == "crio":
		return criserver.CRIO
	case r.Name == "crio-no-events":
		return criserver.CRIOWithoutEvents
	case r.Name == "containerd-1.6":
		return criserver.Containerd16
	case r.Name == "containerd-1.7":
		return criserver.Containerd17
	}
	return criserver.Containerd2
}

// play plays a scene. It returns the answer of the call, and then the state of the runtime.
func (s *stage) play(t *testing.T, scene scene, want []string) []string {
	t.Helper()
	s.racy = scene.racy
	answer := "answer: " + status.Code(scene.do(t.Context(), s)).String()
	if want != nil {
		want = want[1:]
	}
	look, err := s.settled(want)
	if err != nil {
		t.Fatalf("looking after %q: %v", scene.name, err)
	}
	s.endStep()
	return append([]string{answer}, look...)
}

func newStage(client *testnode.Client, shuffled bool) *stage {
	return &stage{Client: client, recorder: newRecorder(client, notModelled, shuffled),
		pods: make(map[string]*testnode.Pod), ids: make(map[string]string)}
}

func (s *stage) listen(ctx context.Context) error {
	stream, err := s.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{}, grpc.WaitForReady(true))
	if err == nil {
		go s.follow(stream)
	}
	return err
}

// modelStage returns a stage with a model of the runtime. It runs in a synctest bubble.
func modelStage(t *testing.T, model criserver.Model, shuffled bool) *stage {
	var server *criserver.Server
	var listener *bufconn.Listener
	server, err := criserver.Start(criserver.WithModel(model), criserver.WithListener(func() (net.Listener, error) {
		listener = bufconn.Listen(1 << 16)
		return listener, nil
	}), criserver.WithPrograms(map[string]criserver.Program{
		testnode.BusyboxImage: {Start: findCommand(model), Main: runCommand,
			Exec: func(_ context.Context, p *criserver.Process) int {
				if err := serverconfig.Of(server).OOMKill(p.ContainerID); err != nil || !slices.Equal(p.Args, eater) {
					return 1
				}
				return 137
			}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///model", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	s := newStage(&testnode.Client{RuntimeServiceClient: runtimeapi.NewRuntimeServiceClient(conn)}, shuffled)
	s.killer = func(id string) (func() error, error) {
		return func() error { return server.KillContainer(id) }, nil
	}
	s.whileDown = func(do func() error) error {
		server.Down()
		synctest.Wait() // otherwise the stream could open on the old connection, which is ending
		if err := do(); err != nil {
			return err
		}
		if err := server.Up(); err != nil {
			return err
		}
		return s.listen(t.Context())
	}
	s.settled = func([]string) ([]string, error) {
		time.Sleep(time.Second) // so that times differ from call to call
		synctest.Wait()
		return s.look(t.Context())
	}
	if err := s.listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// findCommand and runCommand imitate the shell in the model's containers.
func findCommand(model criserver.Model) func(p *criserver.Process) error {
	text := fmt.Sprintf("failed to create shim task: OCI runtime create failed: runc create failed: "+
		"unable to start container process: exec: %q: stat %s: no such file or directory", absent[0], absent[0])
	if model == criserver.Containerd16 || model == criserver.Containerd17 {
		text += ": unknown"
	}
	return func(p *criserver.Process) error {
		if slices.Equal(p.Args, absent) {
			return errors.New(text)
		}
		return nil
	}
}

func runCommand(ctx context.Context, p *criserver.Process) int {
	for _, code := range []int{0, 3} {
		if slices.Equal(p.Args, testnode.Exit(code)) {
			return code
		}
	}
	select {
	case <-p.Terminate:
		return 7
	case <-ctx.Done():
		return 0
	}
}

// realStage returns a stage with the chosen runtime.
func realStage(t *testing.T, shuffled bool) *stage {
	n := newBareNode(t)
	s := newStage(n.client, shuffled)
	s.killer = func(id string) (func() error, error) {
		pid, err := n.client.Pid(n.ctx, id)
		return (&mortal{pid: pid, signal: unix.SIGKILL}).end, err // it also waits until the shim has seen the end
	}
	s.whileDown = func(do func() error) error {
		if err := errors.Join(n.daemon.Kill(), do(), n.daemon.Restart(n.ctx)); err != nil {
			return err
		}
		return s.listen(n.ctx)
	}
	s.settled = s.patiently(t.Context())
	if err := s.listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// quiet is how long the runtime must show the expected state before the next call.
const quiet = 100 * time.Millisecond

// patiently returns a function that waits until the runtime shows the expected state, for the
// duration named quiet. If this takes more than 30 seconds, the function returns the last state.
// Later calls of the function then wait for at most one second.
func (s *stage) patiently(ctx context.Context) func(want []string) ([]string, error) {
	patience := 30 * time.Second
	return func(want []string) ([]string, error) {
		var seen []string
		since := time.Now()
		for end := since.Add(patience); ; time.Sleep(20 * time.Millisecond) {
			lines, err := s.look(ctx)
			if err != nil {
				return nil, err
			}
			if !slices.Equal(lines, seen) {
				seen, since = lines, time.Now()
			}
			if slices.Equal(seen, want) && time.Since(since) > quiet {
				return seen, nil
			}
			if time.Now().After(end) {
				patience = time.Second
				return seen, nil
			}
		}
	}
}
