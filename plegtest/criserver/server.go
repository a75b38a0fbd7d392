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

// Server is a CRI v1 runtime on a unix socket of this process. Its pods are simulated:
// the test runs, exits, restarts and removes containers with the server's methods. Clients
// can only read: the server refuses any other call with PermissionDenied, and Violations
// returns it. With WithPrograms they can also run pods whose containers are functions of
// this process.
//
// Lists are in random order, as in containerd. The methods may be called from several goroutines at
// once. Methods that change a container may block on a slow reader of the event stream, as the
// model does.
type Server struct {
	cfg    config // set once by Start
	dir    string // set once by Start
	socket string // set once by Start

	node  *node
	hub   *eventHub
	exits *exitHub
	guard *callGuard

	// upDown is held for the whole of Up and Down. They wait for calls while they hold
	// it, so no call may take it.
	upDown sync.Mutex
	// lifetime ends with Stop, and the containers' programs with it.
	lifetime context.Context
	end      context.CancelFunc
	programs sync.WaitGroup // their goroutines

	mu sync.Mutex
	// up is the gRPC server at present, nil while the server is down. Guarded by mu.
	up *serving
}

// serving is the gRPC server between Up and Down.
type serving struct {
	grpc     *grpc.Server
	listener *gatedListener
	done     chan struct{} // closed when Serve has returned
}

// maxSocketPath is less than the size of sun_path on every operating system.
const maxSocketPath = 100

// Start starts a CRI server without pods, on a socket in its own temporary
// directory. Stop ends the server and removes the directory.
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

// Endpoint returns the address of the socket: "unix:///tmp/…/cri.sock"; empty with
// WithListener.
func (s *Server) Endpoint() string {
	if s.socket == "" {
		return ""
	}
	return "unix://" + s.socket
}

// Stop ends the server: every call, every connection. It returns when every goroutine of the
// server has ended. It may be called twice.
func (s *Server) Stop() {
	s.hub.stop()
	s.end() // before Down, which waits for the calls that wait for programs
	s.Down()
	s.programs.Wait() // after Down, for a call may start one
	s.hub.sender.Wait()
	_ = s.removeDir() // a temporary directory
}

func (s *Server) removeDir() error {
	if s.dir == "" {
		return nil
	}
	return os.RemoveAll(s.dir)
}

// Down stops serving, as if the runtime were killed: calls are cut off, the socket is removed, and
// events are lost. The containers keep running. If a container exits meanwhile, containerd from 1.7
// on shows exit code 255 and the reason "Unknown".
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

// Up serves again after Down, on the same socket. It is harmless if the server
// is up.
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
		_ = up.grpc.Serve(up.listener) // nil after Stop, and nothing else ends it
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

// Freeze stops the server as SIGSTOP does: until Thaw, it accepts connections but answers
// nothing. The containers keep running.
func (s *Server) Freeze() {
	if up := s.serving(); up != nil {
		up.listener.freeze()
	}
}

// Thaw ends Freeze. The server answers the calls that it received in between.
func (s *Server) Thaw() {
	if up := s.serving(); up != nil {
		up.listener.thaw()
	}
}

// CutConnections closes every connection, without notice to the clients. The server
// stays up.
func (s *Server) CutConnections() {
	if up := s.serving(); up != nil {
		up.listener.cut()
	}
}
