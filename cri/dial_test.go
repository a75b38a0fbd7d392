package cri_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// missingSocket returns a path that does not exist, so attempts to connect fail at once.
func missingSocket(t *testing.T) string { return filepath.Join(t.TempDir(), "cri.sock") }

// pointTo atomically replaces the file at path by a link to the server's socket.
func pointTo(t *testing.T, path string, s *criserver.Server) {
	t.Helper()
	next := path + ".next"
	must(t, os.Symlink(strings.TrimPrefix(s.Endpoint(), "unix://"), next))
	must(t, os.Rename(next, path))
}

func dialRuntime(t *testing.T, endpoint string, opts ...cri.Option) *cri.Runtime {
	t.Helper()
	r, err := cri.Dial(endpoint, opts...)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

// startServer starts a server with one pod of the given name.
func startServer(t *testing.T, pod string) *criserver.Server {
	t.Helper()
	s, err := criserver.Start()
	must(t, err)
	t.Cleanup(s.Stop)
	s.RunPod(criserver.PodConfig{Name: pod})
	return s
}

// listsPod reports whether a list contains exactly one pod, and that pod has the given name.
func listsPod(t *testing.T, r *cri.Runtime, name string) bool {
	pods, err := r.GetPods(t.Context(), true)
	return err == nil && len(pods) == 1 && pods[0].Name == name
}

// awaited checks the error of a call without a runtime.
func awaited(t *testing.T, err error, path string) {
	t.Helper()
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "at unix://"+path+": ") {
		t.Errorf("want an error with the code Unavailable that names %s, got %v", path, err)
	}
}

// failing is a Runtime that counts the full lists that fail.
type failing struct {
	*cri.Runtime
	lists atomic.Int32
}

func (r *failing) GetPods(ctx context.Context, all bool) ([]*pleg.Pod, error) {
	pods, err := r.Runtime.GetPods(ctx, all)
	if err != nil {
		r.lists.Add(1)
	}
	return pods, err
}

// Without a runtime, a generator is unhealthy and names the missing socket. After the socket's
// appearance, at most two lists fail, even after a long wait. A list begins every second.
func TestDialSocketAppearsLater(t *testing.T) {
	path := missingSocket(t)
	r := &failing{Runtime: dialRuntime(t, path)}
	g := pleg.NewGenericPLEG(r, pleg.DefaultChannelCapacity, pleg.DefaultRelistPeriod, pleg.NewCache(),
		clock.RealClock{})
	g.Start(t.Context())
	defer g.Stop()
	// After this time, the delay between attempts is at its longest.
	time.Sleep(2500 * time.Millisecond)
	waitFor(t, func() bool { return g.HealthReport().RelistError != "" })
	healthy, err := g.Healthy()
	if healthy || err == nil {
		t.Fatal("healthy without a runtime")
	}
	for _, want := range []string{path, "the runtime has not answered yet", "no such file"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the health error lacks %q: %v", want, err)
		}
	}

	s := startServer(t, "web")
	pointTo(t, path, s)
	before := r.lists.Load()
	waitFor(t, func() bool {
		healthy, _ := g.Healthy()
		return healthy
	})
	if failed := r.lists.Load() - before; failed > 2 {
		t.Errorf("%d lists have failed after the socket's appearance", failed)
	}
	if report := g.HealthReport(); report.Pods != 1 || !strings.Contains(report.Runtime, "at unix://"+path) {
		t.Errorf("report %+v", report)
	}
}

func TestDialServerRestarts(t *testing.T) {
	s := startServer(t, "web")
	path := strings.TrimPrefix(s.Endpoint(), "unix://")
	r := dialRuntime(t, s.Endpoint())
	if !listsPod(t, r, "web") { // the list waits for the first attempt
		t.Fatal("no list of a runtime that is there")
	}
	for range 2 {
		s.Down()
		_, err := r.GetPods(t.Context(), true)
		awaited(t, err, path)
		must(t, s.Up())
		waitFor(t, func() bool { return listsPod(t, r, "web") })
	}
}

// Dial finds a runtime that replaces whatever is at the path, and then that runtime's successor.
func TestDialSocketReplaced(t *testing.T) {
	for name, occupy := range map[string]func(path string) error{
		"a file":      func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"a loop":      func(path string) error { return os.Symlink(path, path) },
		"the socket of a dead runtime": func(path string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err == nil {
				l.SetUnlinkOnClose(false)
				err = l.Close()
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := missingSocket(t)
			must(t, occupy(path))
			r := dialRuntime(t, path)
			_, err := r.GetPods(t.Context(), true)
			awaited(t, err, path)

			must(t, os.Remove(path))
			first := startServer(t, "first")
			pointTo(t, path, first)
			waitFor(t, func() bool { return listsPod(t, r, "first") })

			pointTo(t, path, startServer(t, "second"))
			if !listsPod(t, r, "first") {
				t.Error("a connection does not outlive its path")
			}
			first.Stop()
			waitFor(t, func() bool { return listsPod(t, r, "second") })
		})
	}
}

// Without a runtime, each of many calls fails at once, and none stays in flight.
func TestDialNeverAppears(t *testing.T) {
	path := missingSocket(t)
	r := dialRuntime(t, "unix:"+path)
	if got, want := r.DescribeRuntime(), "a CRI runtime that has not answered yet at unix://"+path; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 200 {
		_, err := r.GetPods(ctx, true)
		awaited(t, err, path)
		_, err = r.GetPod(ctx, "uid")
		awaited(t, err, path)
		_, err = r.GetPodStatus(ctx, &pleg.Pod{ID: "uid"})
		awaited(t, err, path)
		err = r.WatchContainerEvents(ctx, func() { t.Error("connected") }, func(pleg.ContainerEvent) {})
		awaited(t, err, path)
		if errors.Is(err, pleg.ErrEventsUnsupported) {
			t.Fatalf("a runtime that is not there has no events: %v", err)
		}
	}
	if n := len(inFlight(r)); n != 0 {
		t.Errorf("%d calls in flight", n)
	}
}

// If a socket accepts connections and does not answer, a call waits until its context ends.
// Meanwhile, CallsInFlight returns the call.
func TestDialSilentSocket(t *testing.T) {
	endpoint := silentSocket(t, missingSocket(t))
	r := dialRuntime(t, endpoint)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := r.GetPods(ctx, true); status.Code(err) != codes.DeadlineExceeded ||
		!strings.Contains(err.Error(), endpoint) {
		t.Errorf("want a missed deadline at %s, got %v", endpoint, err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := r.GetPods(ctx, true)
		done <- err
	}()
	waitFor(t, func() bool { return len(inFlight(r)) == 1 })
	cancel()
	if err := <-done; status.Code(err) != codes.Canceled {
		t.Error(err)
	}
}

// Close ends the attempts to connect, and the calls that wait for an attempt. TestMain checks that
// no goroutine is left behind.
func TestDialClose(t *testing.T) {
	s := startServer(t, "web")
	for name, endpoint := range map[string]string{
		"a missing socket": missingSocket(t),
		"a silent socket":  silentSocket(t, missingSocket(t)),
		"a runtime":        s.Endpoint(),
	} {
		t.Run(name, func(t *testing.T) {
			r, err := cri.Dial(endpoint)
			must(t, err)
			must(t, r.Close()) // during the first attempt
			must(t, r.Close())
			if _, err := r.GetPods(t.Context(), true); status.Code(err) != codes.Canceled {
				t.Errorf("a list after Close: %v", err)
			}
		})
	}

	r := dialRuntime(t, silentSocket(t, missingSocket(t)))
	done := make(chan error)
	go func() {
		_, err := r.GetPods(t.Context(), true)
		done <- err
	}()
	waitFor(t, func() bool { return len(inFlight(r)) == 1 })
	must(t, r.Close())
	if err := <-done; status.Code(err) != codes.Canceled {
		t.Errorf("a list during Close: %v", err)
	}
}

// Dial fails only for an endpoint at which no runtime can ever be.
func TestDialRefuses(t *testing.T) {
	longest := "/" + strings.Repeat("a", 106)
	for _, test := range []struct{ endpoint, want string }{
		{"tcp://127.0.0.1:1", "only unix sockets"},
		{"http://run/containerd.sock", "only unix sockets"},
		{"run/containerd.sock", "not absolute"},
		{"unix://containerd.sock", "not absolute"},
		{"unix:", "not absolute"},
		{"unix:///run/containerd/", "ends in a slash"},
		{"/", "ends in a slash"},
		{"/run/a\x00b.sock", "zero byte"},
		{longest + "a", "108 bytes"},
	} {
		r, err := cri.Dial(test.endpoint)
		if err == nil {
			_ = r.Close()
			t.Errorf("%q is accepted", test.endpoint)
			continue
		}
		if !strings.HasPrefix(err.Error(), "cri: dial: ") || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %q lacks %q", test.endpoint, err, test.want)
		}
	}
	for _, endpoint := range []string{longest, "/dev/null", "unix:///proc/1/no.sock", "/%zz", "/a b?c#d"} {
		r, err := cri.Dial(endpoint)
		if err != nil {
			t.Errorf("%q: %v", endpoint, err)
			continue
		}
		must(t, r.Close())
	}
}

// The path is used as given, even if it looks like an escaped path.
func TestDialPathIsNotUnescaped(t *testing.T) {
	s := startServer(t, "web")
	path := filepath.Join(t.TempDir(), "a %41?#.sock")
	pointTo(t, path, s)
	if r := dialRuntime(t, path); !listsPod(t, r, "web") {
		t.Errorf("no list at %s", path)
	}
}

// callCounter is a stats handler, like OpenTelemetry's.
type callCounter struct {
	mu      sync.Mutex
	methods []string // guarded by mu
}

func (c *callCounter) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.methods = append(c.methods, info.FullMethodName[strings.LastIndex(info.FullMethodName, "/")+1:])
	return ctx
}
func (*callCounter) HandleRPC(context.Context, stats.RPCStats)                         {}
func (*callCounter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*callCounter) HandleConn(context.Context, stats.ConnStats)                       {}

func (c *callCounter) counted() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.methods)
}

// The dial options reach the connections of Connect and Dial. Several WithDialOptions add up, and
// do not remove the package's own options.
func TestDialOptions(t *testing.T) {
	s := startServer(t, "web")
	want := []string{"Version", "StreamPodSandboxes", "StreamContainers"}
	for name, open := range map[string]func(...cri.Option) (*cri.Runtime, error){
		"Connect": func(opts ...cri.Option) (*cri.Runtime, error) {
			return cri.Connect(t.Context(), s.Endpoint(), opts...)
		},
		"Dial": func(opts ...cri.Option) (*cri.Runtime, error) { return cri.Dial(s.Endpoint(), opts...) },
	} {
		t.Run(name, func(t *testing.T) {
			var first, second callCounter
			r, err := open(
				cri.WithDialOptions(nil, grpc.WithStatsHandler(&first)),
				cri.WithDialOptions(),
				cri.WithDialOptions(grpc.WithStatsHandler(&second)),
			)
			must(t, err)
			defer r.Close()
			if !listsPod(t, r, "web") {
				t.Fatal("no list")
			}
			if _, err := open(cri.WithDialOptions(grpc.WithTransportCredentials(nil))); err == nil ||
				!strings.Contains(err.Error(), s.Endpoint()) {
				t.Errorf("options that do not fit: %v", err)
			}
			for i, counter := range []*callCounter{&first, &second} {
				if got := counter.counted(); !slices.Equal(got, want) {
					t.Errorf("handler %d counted %v, want %v", i, got, want)
				}
			}
		})
	}
}

// With grpc.WaitForReady, a call waits until the runtime is there.
func TestDialOptionWaitForReady(t *testing.T) {
	path := missingSocket(t)
	r := dialRuntime(t, path, cri.WithDialOptions(grpc.WithDefaultCallOptions(grpc.WaitForReady(true))))
	done := make(chan bool)
	go func() { done <- listsPod(t, r, "web") }()
	waitFor(t, func() bool { return len(inFlight(r)) == 1 })
	pointTo(t, path, startServer(t, "web"))
	if !<-done {
		t.Error("the list did not wait for the runtime")
	}
}

// Without an endpoint, Dial tries the default sockets until a runtime answers. A socket without
// CRI, such as that of Docker's containerd, is skipped. The runtime's socket then stays the
// endpoint.
func TestDialSearches(t *testing.T) {
	first, second := missingSocket(t), missingSocket(t)
	defer cri.SetUsualEndpoints("unix://"+first, "unix://"+second)()
	r := dialRuntime(t, "")
	_, err := r.GetPods(t.Context(), true)
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), first) ||
		!strings.Contains(err.Error(), second) {
		t.Errorf("no runtime: %v", err)
	}
	if got, want := r.DescribeRuntime(), "a CRI runtime that has not answered yet"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	other := startServer(t, "other")
	heal := other.Fail("Version", "", status.Error(codes.Unimplemented, "unknown service"))
	pointTo(t, first, other)
	server := startServer(t, "web")
	pointTo(t, second, server)
	waitFor(t, func() bool { return listsPod(t, r, "web") })
	if d := r.DescribeRuntime(); !strings.Contains(d, " at unix://"+second) {
		t.Error(d)
	}
	heal()
	server.Down()
	_, err = r.GetPods(t.Context(), true)
	awaited(t, err, second)
	must(t, server.Up())
	waitFor(t, func() bool { return listsPod(t, r, "web") })
}

// With WithHostRoot, package cri looks for sockets and exit files below the directory where the
// host's root is mounted.
func TestWithHostRoot(t *testing.T) {
	for _, socket := range []string{"run/crio/crio.sock", "run/cri-dockerd.sock", "run/k3s/containerd/containerd.sock"} {
		root := t.TempDir()
		exits := filepath.Join(root, "run/crio/exits")
		must(t, os.MkdirAll(exits, 0o700))
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, socket)), 0o700))
		s, err := criserver.Start(criserver.WithModel(criserver.CRIO),
			serverconfig.With[criserver.Option](serverconfig.Config{ExitFiles: exits}))
		must(t, err)
		t.Cleanup(s.Stop)
		pointTo(t, filepath.Join(root, socket), s)
		r, err := cri.Connect(t.Context(), "", cri.WithHostRoot(root), quiet)
		must(t, err)
		must(t, r.Close())
		r = dialRuntime(t, "", cri.WithHostRoot(root), quiet)
		waitFor(t, func() bool { _, err := r.GetPods(t.Context(), true); return err == nil })
		if d := r.DescribeRuntime(); !strings.Contains(d, " at unix://"+filepath.Join(root, socket)+",") {
			t.Error(d)
		}
		if runtime.GOOS != "linux" {
			continue // exit files are read with inotify
		}
		w := watchExits(t, r)
		<-w.connected
		id := runContainer(t, s, s.RunPod(criserver.PodConfig{}), "app")
		must(t, s.ExitContainer(id, 3, ""))
		if e := w.next(t); e.ContainerID != id || e.ExitCode != 3 {
			t.Errorf("%+v", e)
		}
		w.cancel()
		_ = w.ended(t)
	}
}

// A runtime that ends each connection at once is not dialled hundreds of times a second.
func TestDialBacksOff(t *testing.T) {
	const settings, goAway = "\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00"
	path := missingSocket(t)
	l, err := net.Listen("unix", path)
	must(t, err)
	var accepted atomic.Int32
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			_, _ = io.WriteString(conn, settings+goAway)
			served.Go(func() {
				_, _ = io.Copy(io.Discard, conn) // until the client closes the connection
				_ = conn.Close()
			})
		}
	})
	began := time.Now()
	r := dialRuntime(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	for ctx.Err() == nil {
		if _, err := r.GetPods(ctx, true); err == nil {
			t.Fatal("no error")
		}
	}
	must(t, r.Close())
	must(t, l.Close())
	served.Wait()
	// The client dials after 0, 100, 300 and 700 ms, and then every 500 ms.
	took := time.Since(began)
	if n, most := accepted.Load(), int32(5+(took-time.Second)/(500*time.Millisecond)); n > most {
		t.Errorf("dialled %d times in %v", n, took)
	}
}

// Calls that the caller makes over Conn use the same connection. Version returns the runtime's name
// and version once the runtime has answered.
func TestConnAndVersion(t *testing.T) {
	s := startServer(t, "web")
	r := dialRuntime(t, s.Endpoint())
	if name, version := r.Version(); name+version != "" {
		t.Errorf("before an answer: %q, %q", name, version)
	}
	resp, err := runtimeapi.NewRuntimeServiceClient(r.Conn()).Status(t.Context(), &runtimeapi.StatusRequest{})
	if err != nil || len(resp.GetStatus().GetConditions()) == 0 {
		t.Errorf("%v, %v", resp, err)
	}
	getPods(t, r)
	if name, version := r.Version(); name != "containerd" || version != "v2.4.2" {
		t.Errorf("%q, %q", name, version)
	}
	if given := cri.NewRuntime(r.Conn()).Conn(); given != r.Conn() {
		t.Errorf("%v", given)
	}
}

func TestUsualEndpointsIncludeK3s(t *testing.T) {
	if !slices.Contains(cri.UsualEndpoints(), "unix:///run/k3s/containerd/containerd.sock") {
		t.Errorf("not among %v", cri.UsualEndpoints())
	}
}
