package cri_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// fakeShim is a shim whose answers the test chooses. internal/e2e tests real shims.
type fakeShim struct {
	socket string
	// answer is called with the method and the container of a call, and returns the frames to send.
	answer func(method, id string, call uint32) []byte

	joined sync.WaitGroup
	mu     sync.Mutex
	calls  []string // guarded by mu
}

// startShim starts a shim at a socket.
func startShim(t *testing.T, socket string, answer func(method, id string, call uint32) []byte) *fakeShim {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(socket), 0o700))
	listener, err := net.Listen("unix", socket)
	must(t, err)
	s := &fakeShim{socket: socket, answer: answer}
	s.joined.Go(func() {
		for {
			conn, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // this process has too many files open
				time.Sleep(10 * time.Millisecond)
				continue
			}
			s.joined.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		s.joined.Wait()
	})
	return s
}

func (s *fakeShim) serve(conn net.Conn) {
	defer conn.Close()
	for {
		header := make([]byte, 10)
		if _, err := io.ReadFull(conn, header); err != nil {
			return
		}
		request := make([]byte, binary.BigEndian.Uint32(header))
		if _, err := io.ReadFull(conn, request); err != nil {
			return
		}
		service, method, id := textOf(request, 1), textOf(request, 2), textOf([]byte(textOf(request, 3)), 1)
		s.mu.Lock()
		s.calls = append(s.calls, service+"/"+method)
		s.mu.Unlock()
		frames := s.answer(method, id, binary.BigEndian.Uint32(header[4:]))
		if string(frames) == "close" {
			return
		}
		if _, err := conn.Write(frames); err != nil {
			return
		}
	}
}

func (s *fakeShim) called() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.calls...)
}

// textOf returns a field of a message. All fields must be texts, with tags and lengths of one byte.
func textOf(message []byte, number byte) string {
	for len(message) > 2 {
		tag, length := message[0]>>3, int(message[1])
		if tag == number {
			return string(message[2 : 2+length])
		}
		message = message[2+length:]
	}
	return ""
}

// frame encodes an answer.
func frame(kind byte, call uint32, fields ...[]byte) []byte {
	body := message(fields...)
	header := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	header = binary.BigEndian.AppendUint32(header, call)
	return append(append(header, kind, 0), body...)
}

// waited encodes the answer to Wait.
func waited(call uint32, code int, seconds int) []byte {
	return frame(2, call, field(2, message(field(1, code), field(2, message(field(1, seconds))))))
}

// endedWith returns the answers of a shim whose containers have ended with the given code.
func endedWith(code int) func(method, id string, call uint32) []byte {
	return func(method, _ string, call uint32) []byte {
		if method != "Wait" {
			return frame(2, call)
		}
		return waited(call, code, 1_700_000_000)
	}
}

// refused encodes an answer with an error.
func refused(call uint32, code codes.Code) []byte {
	return frame(2, call, field(1, message(field(1, int(code)), field(2, "no"))))
}

// bundleOf creates the bundle of a container, with a file that names its shim.
func bundleOf(t *testing.T, state, id, file, content string) {
	t.Helper()
	dir := filepath.Join(state, bundlesDir, id)
	must(t, os.MkdirAll(dir, 0o700))
	must(t, os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600))
}

// WatchContainerExits finds the bundles in each layout, even if the agent starts while containerd
// is away. bootstrap.json takes precedence over address.
func TestLayoutsOfContainerdsState(t *testing.T) {
	for _, test := range []struct {
		name          string
		socket, state string // paths on the node
		link          [2]string
		endpoint      string
		host          string // the mount point of the node's root
		opts          func(root string) []cri.Option
		none          string // why there is no shim
	}{
		{name: "kubeadm", socket: "run/containerd/containerd.sock", state: "run/containerd"},
		{name: "k3s", socket: "run/k3s/containerd/containerd.sock", state: "run/k3s/containerd"},
		{name: "RKE2 with a link to the socket", state: "run/k3s/containerd",
			link:     [2]string{"/run/k3s/containerd/containerd.sock", "run/containerd/containerd.sock"},
			endpoint: "run/containerd/containerd.sock"},
		{name: "Bottlerocket with a relative link", state: "run/containerd",
			link:     [2]string{"../containerd/containerd.sock", "run/dockershim/link.sock"},
			endpoint: "run/dockershim/link.sock"},
		{name: "a link to the directory", state: "run/k3s/containerd",
			link: [2]string{"/run/k3s/containerd", "run/containerd"}, endpoint: "run/containerd/containerd.sock"},
		{name: "k0s", socket: "run/k0s/containerd.sock", state: "run/k0s/containerd"},
		{name: "MicroK8s", socket: "var/snap/microk8s/common/run/containerd.sock",
			state: "var/snap/microk8s/common/run/containerd"},
		{name: "with the option", socket: "run/containerd/containerd.sock", state: "var/elsewhere",
			opts: func(root string) []cri.Option { return []cri.Option{cri.WithStateDir(root + "/var/elsewhere")} }},
		{name: "elsewhere", socket: "run/containerd/containerd.sock", state: "var/elsewhere",
			none: "(no shim: open "},
		{name: "turned off", socket: "run/containerd/containerd.sock", state: "run/containerd",
			opts: func(string) []cri.Option { return []cri.Option{cri.WithStateDir("")} }, none: "sock"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := shortDir(t)
			state := filepath.Join(root, test.state)
			startShim(t, filepath.Join(root, "run/containerd/s/1"), endedWith(7))
			if test.link[0] != "" {
				link := filepath.Join(root, test.link[1])
				must(t, os.MkdirAll(filepath.Dir(link), 0o700))
				if strings.HasSuffix(test.name, "directory") {
					must(t, os.Rename(link, link+"-of-shims")) // the bundles still contain the old path
					must(t, os.MkdirAll(filepath.Join(root, "run/k3s/containerd"), 0o700))
					must(t, os.Rename(link+"-of-shims/s", filepath.Join(root, "run/k3s/containerd/s")))
				}
				must(t, os.Symlink(rooted(root, test.link[0]), link))
			}
			bundleOf(t, state, "c1", "address", "unix:///run/containerd/s/1")
			bundleOf(t, state, "c2", "address", "unix:///nowhere")
			bundleOf(t, state, "c2", "bootstrap.json",
				`{"version":3,"address":"unix:///run/containerd/s/1","protocol":"ttrpc"}`)
			endpoint := test.endpoint
			if endpoint == "" {
				endpoint = test.socket
			}
			opts := []cri.Option{cri.WithHostRoot(root), quiet}
			if test.opts != nil {
				opts = append(opts, test.opts(root)...)
			}
			r := dialRuntime(t, filepath.Join(root, endpoint), opts...)
			w := watchExits(t, r)
			if test.none != "" {
				if err := w.ended(t); err == nil || errors.Is(err, pleg.ErrEventsUnsupported) {
					t.Error(err)
				}
				return
			}
			ended := map[string]bool{}
			for range 2 {
				if got := w.next(t); got.ExitCode != 7 || !got.FinishedAt.Equal(time.Unix(1_700_000_000, 0)) {
					t.Errorf("%+v", got)
				} else {
					ended[got.ContainerID] = true
				}
			}
			if !ended["c1"] || !ended["c2"] {
				t.Errorf("%v", ended)
			}
			if d := r.DescribeRuntime(); !strings.Contains(d, "exits by shim") {
				t.Error(d)
			}
		})
	}
}

// rooted returns the target of a test's link. The kernel follows a link to a directory, so this
// target must be below root. Package cri itself follows other links.
func rooted(root, target string) string {
	if strings.HasSuffix(target, "/containerd") {
		return filepath.Join(root, target) // a link to a directory
	}
	return target
}

// shortDir returns a directory with a short name, because the paths of sockets are limited.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "shim")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

// A shim is asked only while containerd is down, even if Relist was called before Start. Later,
// containerd's own status does not replace the exit that the shim reported.
func TestShimsOverAnOutage(t *testing.T) {
	s, r := serverAndRuntime(t)
	app := runContainer(t, s, s.RunPod(criserver.PodConfig{UID: "uid"}), "app")
	state := filepath.Dir(strings.TrimPrefix(s.Endpoint(), "unix://"))
	shim := startShim(t, filepath.Join(state, "s"), endedWith(7))
	bundleOf(t, state, app, "address", "unix://"+shim.socket)
	cache := pleg.NewCache()
	g := pleg.NewGenericPLEG(r, 0, 50*time.Millisecond, cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
	must(t, g.Relist(t.Context()))
	events := g.Subscribe(t.Context())
	g.Start(t.Context())
	t.Cleanup(g.Stop)
	waitFor(t, func() bool { return g.HealthReport().ExitStream.State == pleg.StreamConnected })
	waitFor(t, func() bool { return serverconfig.Of(s).TaskExitReaders() == 1 })
	must(t, g.Relist(t.Context()))
	if got := shim.called(); len(got) > 0 {
		t.Fatalf("%v while containerd is up", got)
	}
	s.Down()
	for e := range events {
		if e.Type == pleg.ContainerDied {
			if e.Status == nil || e.Status.ExitCode != 7 || !e.Status.Unconfirmed {
				t.Errorf("%+v", e.Status)
			}
			break
		}
	}
	must(t, s.ExitContainer(app, 9, ""))
	must(t, s.Up())
	waitFor(t, func() bool {
		status, err := cache.Get("uid")
		must(t, err)
		of := status.FindContainerStatusByName("app")
		if of.ExitCode != 7 || of.Reason == "Unknown" {
			t.Fatalf("%+v", of)
		}
		return !of.Unconfirmed
	})
	if got := metric(t, r, "pleg_cri_exits_total", "shim"); got != 1 {
		t.Errorf("%v exits are counted", got)
	}
}

// A shim that is as slow as containerd allows still reports an exit: containerd is back, and has
// already said that the exit is unknown.
func TestSlowShim(t *testing.T) {
	s, r := serverAndRuntime(t)
	app := runContainer(t, s, s.RunPod(criserver.PodConfig{UID: "uid"}), "app")
	state := filepath.Dir(strings.TrimPrefix(s.Endpoint(), "unix://"))
	asked, handled := make(chan struct{}, 10), make(chan struct{})
	shim := startShim(t, filepath.Join(state, "s"), func(method, _ string, call uint32) []byte {
		if method != "Wait" {
			return frame(2, call)
		}
		asked <- struct{}{}
		<-handled
		return waited(call, 7, int(time.Now().Unix()))
	})
	bundleOf(t, state, app, "address", "unix://"+shim.socket)
	cache := pleg.NewCache()
	g := pleg.NewGenericPLEG(r, 0, 50*time.Millisecond, cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
	g.Start(t.Context())
	t.Cleanup(g.Stop)
	exitCode := func() int {
		status, _ := cache.Get("uid") // while containerd is down, there may be an error
		if of := status.FindContainerStatusByName("app"); of != nil && of.State == pleg.ContainerStateExited {
			return of.ExitCode
		}
		return -1
	}
	waitFor(t, func() bool { return g.HealthReport().ExitStream.State == pleg.StreamConnected })
	s.Down()
	<-asked
	must(t, s.ExitContainer(app, 255, "Unknown"))
	must(t, s.Up())
	waitFor(t, func() bool { return exitCode() == 255 })
	time.Sleep(3 * time.Second) // the shim is slower than several lists
	close(handled)
	waitFor(t, func() bool { return exitCode() == 7 })
}

// A failure of one shim affects only the pod of that shim. A metric counts the failure, and
// DescribeRuntime reports it.
func TestBadShims(t *testing.T) {
	once := func(first func(uint32) []byte) func(string, string, uint32) []byte {
		return func(method, _ string, call uint32) []byte {
			if method == "Wait" {
				return first(call)
			}
			return frame(2, call)
		}
	}
	for _, test := range []struct {
		name   string
		answer func(method, id string, call uint32) []byte
		file   string
		text   string
		says   string
	}{
		{name: "an oversized frame", says: "an answer of 65537 bytes",
			answer: once(func(call uint32) []byte {
				return frame(2, call, field(2, strings.Repeat("x", 64<<10+1-4)))
			})},
		{name: "4 GiB", says: "an answer of 4294967295 bytes",
			answer: once(func(uint32) []byte { return []byte("\xff\xff\xff\xff\x00\x00\x00\x01\x02\x00") })},
		{name: "a frame of data", says: "a frame of type 3",
			answer: once(func(call uint32) []byte { return frame(3, call) })},
		{name: "no message", says: "an answer that is no message",
			answer: once(func(call uint32) []byte { return frame(2, call, []byte("\xff")) })},
		{name: "no status", says: "an answer that is no message",
			answer: once(func(call uint32) []byte { return frame(2, call, field(1, "\xff")) })},
		{name: "an answer to another call", says: "a call that was not made",
			answer: once(func(call uint32) []byte { return frame(2, call+100) })},
		{name: "two answers", says: "code = Unknown",
			answer: once(func(call uint32) []byte { return append(refused(call, codes.Unknown), waited(call, 1, 1)...) })},
		{name: "a code out of range", says: "has ended with 256",
			answer: once(func(call uint32) []byte { return waited(call, 256, 1_700_000_000) })},
		{name: "a negative code", says: "has ended with 18446744073709551615",
			answer: once(func(call uint32) []byte { return waited(call, -1, 1_700_000_000) })},
		{name: "the year 1", says: "has ended with 0",
			answer: once(func(call uint32) []byte { return waited(call, 0, -62135596800) })},
		{name: "no time", says: "has ended with 3",
			answer: once(func(call uint32) []byte {
				return frame(2, call, field(2, message(field(1, 3))))
			})},
		{name: "nothing", says: "has ended with 0", answer: once(func(call uint32) []byte { return frame(2, call) })},
		{name: "another service", says: "Unimplemented",
			answer: once(func(call uint32) []byte { return refused(call, codes.Unimplemented) })},
		{name: "the end of the connection", says: "has ended the connection",
			answer: once(func(uint32) []byte { return []byte("close") })},
		{name: "silence", says: "the shim does not answer", answer: func(string, string, uint32) []byte { return nil }},
		{name: "no socket", says: "connect: no such file", file: "address", text: "unix:///run/nowhere"},
		{name: "another address", says: "is \"vsock://3:4\"", file: "address", text: "vsock://3:4"},
		{name: "another protocol", says: "speaks \"grpc\"", file: "bootstrap.json",
			text: `{"version":3,"address":"unix:///run/s/bad","protocol":"grpc"}`},
		{name: "no JSON", says: "reading bootstrap.json of bad", file: "bootstrap.json", text: "{"},
		{name: "a large file", says: "invalid argument", file: "bootstrap.json", text: strings.Repeat(" ", 5000)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			state := shortDir(t)
			good, bad := filepath.Join(state, "good"), filepath.Join(state, "bad")
			startShim(t, good, endedWith(7))
			if test.file == "" {
				startShim(t, bad, test.answer)
				test.file, test.text = "address", "unix://"+bad
			}
			bundleOf(t, state, "bad", test.file, test.text)
			r := dialRuntime(t, filepath.Join(state, "c.sock"), quiet)
			began := time.Now()
			w := watchExits(t, r)
			waitFor(t, func() bool {
				_, of, found := strings.Cut(r.DescribeRuntime(), "no shim: 1 of 1 containers: ")
				return found && strings.Contains(of, test.says)
			})
			bundleOf(t, state, "good", "address", "unix://"+good)
			if got := w.next(t); got.ContainerID != "good" || got.ExitCode != 7 {
				t.Errorf("%+v", got)
			}
			// The shim is asked once a second at most.
			got, took := metric(t, r, "pleg_cri_exit_refusals_total", "shim"), time.Since(began)
			if got < 1 || got > 1+took.Seconds() {
				t.Errorf("%v refusals in %v", got, took)
			}
			w.cancel()
			_ = w.ended(t)
			if len(w.exits) > 0 {
				t.Errorf("%+v", <-w.exits)
			}
		})
	}
}

// If a shim does not know a container, the shim is asked again, because containerd may be creating
// the container. After the shim has reported the exit, it is not asked again.
func TestShimIsAskedUntilItAnswers(t *testing.T) {
	state := shortDir(t)
	asked := 0
	s := startShim(t, filepath.Join(state, "s"), func(method, _ string, call uint32) []byte {
		if method != "Wait" {
			return frame(2, call)
		}
		if asked++; asked < 3 {
			return refused(call, codes.NotFound)
		}
		return waited(call, 0, 1_700_000_000)
	})
	bundleOf(t, state, "c", "bootstrap.json", `{"version":2,"address":"unix://`+s.socket+`","protocol":"ttrpc"}`)
	r := dialRuntime(t, filepath.Join(state, "c.sock"), quiet)
	w := watchExits(t, r)
	if got := w.next(t); got.ContainerID != "c" || got.ExitCode != 0 {
		t.Errorf("%+v", got)
	}
	time.Sleep(2 * time.Second) // time for further scans
	const waitCall, stateCall = "containerd.task.v2.Task/Wait", "containerd.task.v2.Task/State"
	if got, want := s.called(), []string{waitCall, stateCall, waitCall, waitCall}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := metric(t, r, "pleg_cri_exit_refusals_total", "shim"); got != 0 {
		t.Errorf("%v refusals", got)
	}
}

// If a shim's backlog is full, or few file descriptors are free, the exits of other pods are still
// reported.
func TestScarceShims(t *testing.T) {
	state := shortDir(t)
	full := filepath.Join(state, "full")
	listener, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(listener) })
	must(t, unix.Bind(listener, &unix.SockaddrUnix{Name: full}))
	must(t, unix.Listen(listener, 0))
	conn, err := net.Dial("unix", full)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	bundleOf(t, state, "full", "address", "unix://"+full)
	for i := range 100 {
		socket := filepath.Join(state, fmt.Sprint("s", i))
		startShim(t, socket, endedWith(i))
		bundleOf(t, state, fmt.Sprint("c", i), "address", "unix://"+socket)
	}
	r := dialRuntime(t, filepath.Join(state, "c.sock"), quiet)

	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	few := limit
	few.Cur = 250 // the fake shims use more than half of these descriptors
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	w := watchExits(t, r)
	waitFor(t, func() bool { return len(w.exits) >= 20 })
	text := r.DescribeRuntime()
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if !strings.Contains(text, "open files") && !strings.Contains(text, "temporarily unavailable") {
		t.Error(text)
	}
	for range 100 {
		w.next(t)
	}
	waitFor(t, func() bool {
		return strings.Contains(r.DescribeRuntime(), "no shim: 1 of 101 containers: dial unix "+full+
			": connect: resource temporarily unavailable")
	})
}
