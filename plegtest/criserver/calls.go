package criserver

import (
	"context"
	"errors"
	"path"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"
)

// readingCalls contains the methods that change nothing: those of CRI, and Subscribe of containerd.
// The server does not implement all of them.
var readingCalls = map[string]bool{
	"Version": true, "Status": true, "RuntimeConfig": true,
	"ListPodSandbox": true, "StreamPodSandboxes": true, "PodSandboxStatus": true,
	"ListContainers": true, "StreamContainers": true, "ContainerStatus": true,
	"GetContainerEvents": true,
	"ContainerStats":     true, "ListContainerStats": true, "StreamContainerStats": true,
	"PodSandboxStats": true, "ListPodSandboxStats": true, "StreamPodSandboxStats": true,
	"ListMetricDescriptors": true, "ListPodSandboxMetrics": true, "StreamPodSandboxMetrics": true,
	"ListImages": true, "StreamImages": true, "ImageStatus": true, "ImageFsInfo": true,
	"Subscribe": true,
}

// callGuard intercepts each call: it counts the call, refuses it if it would change something, and
// applies faults.
type callGuard struct {
	clock    clock.Clock
	cut      func()
	writable bool // set once by Start

	mu         sync.Mutex
	faults     []*injectedFault // guarded by mu
	calls      map[string]int   // guarded by mu
	inFlight   map[string]int   // guarded by mu
	violations []string         // guarded by mu
}

func newCallGuard(c clock.Clock, cut func()) *callGuard {
	return &callGuard{clock: c, cut: cut, calls: make(map[string]int), inFlight: make(map[string]int)}
}

// Calls returns how often an RPC, such as "ListContainers", has been called. The empty method means
// all RPCs. Calls in flight and refused calls count too.
func (s *Server) Calls(method string) int {
	s.guard.mu.Lock()
	defer s.guard.mu.Unlock()
	return countOf(s.guard.calls, method)
}

func (c controls) InFlight(method string) int {
	c.guard.mu.Lock()
	defer c.guard.mu.Unlock()
	return countOf(c.guard.inFlight, method)
}

func (c controls) ResetCalls() {
	c.guard.mu.Lock()
	defer c.guard.mu.Unlock()
	clear(c.guard.calls)
}

// Violations returns the methods of calls that would have changed something, in the order of
// arrival. The server refused these calls.
func (s *Server) Violations() []string {
	s.guard.mu.Lock()
	defer s.guard.mu.Unlock()
	return slices.Clone(s.guard.violations)
}

func countOf(counts map[string]int, method string) int {
	if method != "" {
		return counts[method]
	}
	all := 0
	for _, n := range counts {
		all += n
	}
	return all
}

// enter counts a call. It returns an error if the call would change something and the server is
// read-only.
func (g *callGuard) enter(method string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls[method]++
	g.inFlight[method]++
	if readingCalls[method] || g.writable && writingCalls[method] {
		return nil
	}
	g.violations = append(g.violations, method)
	return status.Errorf(codes.PermissionDenied, "%s would change something, and this runtime is read-only", method)
}

func (g *callGuard) leave(method string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight[method]--
}

// admit closes a connection if the content-type of its first call is not exactly application/grpc,
// because CRI-O does not recognize such a connection as gRPC. Other models permit every connection.
func (s *Server) admit(ctx context.Context) error {
	client, _ := peer.FromContext(ctx)
	addr, ok := client.Addr.(connAddr)
	if !s.cfg.crio || !ok || !addr.conn.isFirst() {
		return nil
	}
	if slices.Equal(metadata.ValueFromIncomingContext(ctx, "content-type"), []string{"application/grpc"}) {
		return nil
	}
	return errors.Join(status.Error(codes.Unavailable, "not gRPC"), addr.conn.Close())
}

func (s *Server) interceptUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	if err := s.admit(ctx); err != nil {
		return nil, err
	}
	err := s.guard.enter(method)
	defer s.guard.leave(method)
	if err != nil {
		return nil, err
	}
	faults := s.guard.hit(method, req)
	for _, f := range faults {
		if err := f.before(ctx, s.guard); err != nil {
			return nil, err
		}
	}
	answer, err := s.answer(ctx, req, handler)
	for _, f := range faults {
		if err != nil {
			break
		}
		answer, err = f.spoil(answer)
	}
	return answer, err
}

func (s *Server) answer(ctx context.Context, req any, handler grpc.UnaryHandler) (any, error) {
	if s.cfg.own.EncodedLists {
		if encoded, err := s.node.encodedList(req); encoded != nil || err != nil {
			return rawMessage(encoded), err
		}
	}
	return handler(ctx, req)
}

func (s *Server) interceptStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	method := path.Base(info.FullMethod)
	if err := s.admit(stream.Context()); err != nil {
		return err
	}
	err := s.guard.enter(method)
	defer s.guard.leave(method)
	if err != nil {
		return err
	}
	guarded := &guardedStream{ServerStream: stream, guard: s.guard, method: method}
	if list := streams[method]; list != nil {
		err = list(s, guarded)
	} else {
		err = handler(srv, guarded)
	}
	if errors.Is(err, errStreamEnds) {
		return nil
	}
	return err
}

// errStreamEnds makes a stream end without an error.
var errStreamEnds = errors.New("end of stream")

// guardedStream applies faults to a stream.
type guardedStream struct {
	grpc.ServerStream
	guard  *callGuard
	method string
	faults []*injectedFault
	sent   int
}

// RecvMsg receives the request. Then it applies the first effects of each fault: see before.
func (g *guardedStream) RecvMsg(m any) error {
	if err := g.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	g.faults = g.guard.hit(g.method, m)
	for _, f := range g.faults {
		if err := f.before(g.Context(), g.guard); err != nil {
			return err
		}
	}
	return nil
}

func (g *guardedStream) SendMsg(m any) error {
	for _, f := range g.faults {
		if f.BreakAfter > 0 && g.sent >= f.BreakAfter {
			if err := f.end(g.guard); err != nil {
				return err
			}
			return errStreamEnds
		}
		var err error
		if m, err = f.spoil(m); err != nil {
			return err
		}
	}
	g.sent++
	return g.ServerStream.SendMsg(m)
}

// unknownService answers permitted calls that the server does not implement.
func unknownService(any, grpc.ServerStream) error {
	return status.Error(codes.Unimplemented, "unknown service")
}
