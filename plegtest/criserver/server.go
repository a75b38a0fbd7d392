package criserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Server is a CRI v1 runtime on a unix socket in this process. Its pods are simulated: the test
// uses the server's methods to run, exit, restart and remove containers. Clients can only read. The
// server refuses other calls with PermissionDenied, and Violations returns them. With WithPrograms,
// clients can also run pods, whose containers are functions in this process.
//
// Lists are in random order, as in containerd. The methods are safe for concurrent use. With some
// models, methods that change a container may block while a reader of the event stream is slow.
type Server struct {
	cfg    config // set once by Start
	dir    string // set once by Start
	socket string // set once by Start

	node  *node
	hub   *eventHub
	exits *exitHub
	guard *callGuard

	// upDown is a lock for Up and Down. The handler of a call must not acquire upDown, because Down
	// waits for calls in flight while it holds upDown.
	upDown sync.Mutex
	// lifetime is the parent context of the containers' programs. Stop ends it.
	lifetime context.Context
	end      context.CancelFunc
	programs sync.WaitGroup // the goroutines of programs

	mu sync.Mutex
	// up is the running gRPC server; nil while the server is down. It is guarded by mu.
	up *serving
}

// serving is the gRPC server that a call of Up starts. The next call of Down stops it.
type serving struct {
	grpc     *grpc.Server
	listener *gatedListener
	done     chan struct{} // closed when Serve has returned
}

// maxSocketPath is a safe length for a socket's path: the limit of every operating system is
// larger.
const maxSocketPath = 100

// Start starts a CRI server without pods, on a socket in a new temporary directory. Stop ends the
// server and removes the directory.
func Start(opts ...Option) (*Server, error) {
	cfg := newConfig(opts)
	s := &Server{cfg: cfg}
	if cfg.listen == nil {
		dir, err := socketDir()
		if err != nil {
			return nil, err
		}
		s.dir, s.socket = dir, filepath.Join(dir, "cri.sock")
		s.cfg.listen = func() (net.Listener, error) { return net.Listen("unix", s.socket) }
	}
	s.lifetime, s.end = context.WithCancel(context.Background()) //nolint:forbidigo // Stop ends it
	random := func(stream uint64) *rand.Rand {
		return rand.New(rand.NewPCG(1, stream)) //nolint:gosec // not for secrets
	}
	s.node = newNode(cfg.own.Clock, cfg.crio, random(0), random(1))
	s.hub = newEventHub(cfg.habits, cfg.own.Clock, random(2))
	s.exits = newExitHub()
	s.guard = newCallGuard(cfg.own.Clock, s.CutConnections)
	s.guard.writable = cfg.programs != nil
	if err := s.Up(); err != nil {
		return nil, errors.Join(err, s.removeDir())
	}
	return s, nil
}

func socketDir() (string, error) {
	dir, err := os.MkdirTemp("", "cri")
	if err == nil && len(dir) > maxSocketPath-len("/cri.sock") {
		if err = os.Remove(dir); err == nil {
			dir, err = os.MkdirTemp("/tmp", "cri")
		}
	}
	if err != nil {
		return "", fmt.Errorf("making a directory for the CRI socket: %w", err)
	}
	return dir, nil
}

// Endpoint returns the socket's address, such as "unix:///tmp/…/cri.sock". With WithListener it
// returns "".
func (s *Server) Endpoint() string {
	if s.socket == "" {
		return ""
	}
	return "unix://" + s.socket
}

// Stop ends the server with all calls and connections, and waits until the server's goroutines have
// ended. It may be called twice.
func (s *Server) Stop() {
	s.hub.stop()
	s.end() // before Down, because Down waits for calls, and a call may wait for a program
	s.Down()
	s.programs.Wait() // after Down, because a call may start a program
	s.hub.sender.Wait()
	_ = s.removeDir() // an error leaves only a temporary directory behind
}

func (s *Server) removeDir() error {
	if s.dir == "" {
		return nil
	}
	return os.RemoveAll(s.dir)
}

// Down simulates a runtime that is killed: calls are cut off, the socket is removed, and events are
// lost. Containers keep running. If a container exits while the server is down, containerd 1.7 and
// later report exit code 255 and the reason "Unknown".
func (s *Server) Down() {
	s.upDown.Lock()
	defer s.upDown.Unlock()
	up := s.serving()
	if up == nil {
		return
	}
	s.setServing(nil)
	s.node.goDown()
	s.hub.down()
	up.listener.thaw()
	up.grpc.Stop()
	<-up.done
}

// Up serves again after Down, on the same socket. If the server is up, nothing happens.
func (s *Server) Up() error {
	s.upDown.Lock()
	defer s.upDown.Unlock()
	if s.serving() != nil {
		return nil
	}
	l, err := s.cfg.listen()
	if err != nil {
		return fmt.Errorf("listening for CRI clients: %w", err)
	}
	up := &serving{listener: newGatedListener(l), done: make(chan struct{})}
	up.grpc = grpc.NewServer(
		grpc.ForceServerCodecV2(newRawCodec()),
		grpc.UnaryInterceptor(s.interceptUnary),
		grpc.StreamInterceptor(s.interceptStream),
		grpc.UnknownServiceHandler(unknownService),
		grpc.WaitForHandlers(true),
		grpc.MaxSendMsgSize(cmp.Or(s.cfg.own.MaxSend, math.MaxInt32)),
	)
	runtimeapi.RegisterRuntimeServiceServer(up.grpc, &service{s: s})
	if !s.cfg.crio && !s.cfg.own.NoTaskExits {
		up.grpc.RegisterService(&eventsService, s)
	}
	if s.cfg.programs != nil {
		runtimeapi.RegisterImageServiceServer(up.grpc, &images{s: s})
	}
	s.node.restarted()
	s.hub.up()
	go func() {
		defer close(up.done)
		_ = up.grpc.Serve(up.listener) // only Stop ends Serve, and then the error is nil
	}()
	s.setServing(up)
	return nil
}

func (s *Server) serving() *serving {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up
}

func (s *Server) setServing(up *serving) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up = up
}

// Freeze simulates a runtime that is stopped by SIGSTOP. Until Thaw, the server accepts connections
// but does not answer. Containers keep running.
func (s *Server) Freeze() {
	if up := s.serving(); up != nil {
		up.listener.freeze()
	}
}

// Thaw ends the effect of Freeze. The server then answers the calls that it received while frozen.
func (s *Server) Thaw() {
	if up := s.serving(); up != nil {
		up.listener.thaw()
	}
}

// CutConnections closes all connections abruptly. The server stays up.
func (s *Server) CutConnections() {
	if up := s.serving(); up != nil {
		up.listener.cut()
	}
}
