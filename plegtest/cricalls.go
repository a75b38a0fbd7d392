package plegtest

import (
	"context"
	"errors"
	"path"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
)

// readingCalls are the CRI methods that change nothing, whether the server serves them or
// not.
var readingCalls = map[string]bool{
	"Version": true, "Status": true, "RuntimeConfig": true,
	"ListPodSandbox": true, "StreamPodSandboxes": true, "PodSandboxStatus": true,
	"ListContainers": true, "StreamContainers": true, "ContainerStatus": true,
	"GetContainerEvents": true,
	"ContainerStats":     true, "ListContainerStats": true, "StreamContainerStats": true,
	"PodSandboxStats": true, "ListPodSandboxStats": true, "StreamPodSandboxStats": true,
	"ListMetricDescriptors": true, "ListPodSandboxMetrics": true, "StreamPodSandboxMetrics": true,
	"ListImages": true, "StreamImages": true, "ImageStatus": true, "ImageFsInfo": true,
}

// CRIFault is a fault that RPCs to the CRI server run into. Its effects happen in the
// order of its fields. When several faults hit one call, they happen one after another in
// the order in which they were injected.
type CRIFault struct {
	// Method is the RPC that is hit, such as "ContainerStatus"; empty hits all RPCs.
	Method string
	// Object is the ID of a sandbox or container, or the UID of a pod, that the request
	// must name, in its filter or otherwise; empty hits all requests.
	Object string
	// Times is how many calls are hit before the fault is over. 0 hits every call
	// until the fault is healed.
	Times int

	// Delay makes the call take this long, on the server's clock.
	Delay time.Duration
	// Hang makes the call hang until its context ends, the fault is healed or the server
	// stops. When the fault is healed, the call continues as usual.
	Hang bool
	// BreakAfter is how many messages of a stream pass before it breaks: with Err, with
	// Cut, or, if neither is set, by an end without an error. With 0 the stream does not
	// break in the middle: Err and Cut apply before the first message.
	BreakAfter int
	// Cut closes every connection of the server instead of an answer.
	Cut bool
	// Err fails the call; see package google.golang.org/grpc/status.
	Err error
	// Edit modifies the answer, or each message of a stream, to make it bad data.
	// NilMetadata and the functions like it are ready-made edits.
	Edit func(answer proto.Message)
	// Padding adds this many bytes to the encoded answer, in an unknown field. With
	// 16 MiB the answer is larger than clients accept.
	Padding int
	// Raw is sent in place of the answer. []byte{0xff} is not a protobuf message.
	Raw []byte
}

// injectedCRIFault is a fault in force.
type injectedCRIFault struct {
	CRIFault
	healed chan struct{} // closed by heal
	hits   int           // guarded by callGuard.mu
}

// callGuard intercepts every call. It counts calls, refuses those that would change
// something, and applies faults.
type callGuard struct {
	clock    clock.Clock
	cut      func()
	writable bool // set once by StartCRIServer

	mu         sync.Mutex
	faults     []*injectedCRIFault // guarded by mu
	calls      map[string]int      // guarded by mu
	inFlight   map[string]int      // guarded by mu
	violations []string            // guarded by mu
}

func newCallGuard(c clock.Clock, cut func()) *callGuard {
	return &callGuard{clock: c, cut: cut, calls: make(map[string]int), inFlight: make(map[string]int)}
}

// Inject puts a fault in force. The returned function heals it: the fault is over, and the
// calls that hang in it continue. Healing twice is harmless.
func (s *CRIServer) Inject(f CRIFault) (heal func()) {
	g := s.guard
	in := &injectedCRIFault{CRIFault: f, healed: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.faults = append(g.faults, in)
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.faults = slices.DeleteFunc(g.faults, func(f *injectedCRIFault) bool { return f == in })
		close(in.healed)
	})
}

// Calls returns how often an RPC, such as "ListContainers", has been called; the empty
// method counts all RPCs. Calls in flight and refused calls are included.
func (s *CRIServer) Calls(method string) int {
	s.guard.mu.Lock()
	defer s.guard.mu.Unlock()
	return countOf(s.guard.calls, method)
}

// InFlight returns how many calls of an RPC are in flight; the empty method counts all
// RPCs. An open stream is a call in flight.
func (s *CRIServer) InFlight(method string) int {
	s.guard.mu.Lock()
	defer s.guard.mu.Unlock()
	return countOf(s.guard.inFlight, method)
}

// ResetCalls makes Calls start from zero.
func (s *CRIServer) ResetCalls() {
	s.guard.mu.Lock()
	defer s.guard.mu.Unlock()
	clear(s.guard.calls)
}

// Violations returns the calls of clients that would have changed something, in the order
// of their arrival. The server refused them all.
func (s *CRIServer) Violations() []string {
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

// enter counts a call, and refuses it if it would change something.
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

// hit returns the faults that a request runs into, and counts the request for them.
func (g *callGuard) hit(method string, req any) []*injectedCRIFault {
	g.mu.Lock()
	defer g.mu.Unlock()
	var hit []*injectedCRIFault
	for _, f := range g.faults {
		if f.Method != "" && f.Method != method || f.Object != "" && !names(req, f.Object) || f.Times > 0 &&
			f.hits >= f.Times {
			continue
		}
		f.hits++
		hit = append(hit, f)
	}
	return hit
}

// names reports whether a request names a sandbox, a container or a pod.
func names(req any, object string) bool {
	switch r := req.(type) {
	case *runtimeapi.PodSandboxStatusRequest:
		return r.PodSandboxId == object
	case *runtimeapi.ContainerStatusRequest:
		return r.ContainerId == object
	case interface {
		GetFilter() *runtimeapi.PodSandboxFilter
	}:
		f := r.GetFilter()
		return f.GetId() == object || f.GetLabelSelector()[labelPodUID] == object
	case interface {
		GetFilter() *runtimeapi.ContainerFilter
	}:
		f := r.GetFilter()
		return f.GetId() == object || f.GetPodSandboxId() == object ||
			f.GetLabelSelector()[labelPodUID] == object
	}
	return namesInWriting(req, object)
}

// before applies what a fault does before the answer, and returns the error with which
// the call fails.
func (f *injectedCRIFault) before(ctx context.Context, g *callGuard) error {
	if f.Delay > 0 {
		timer := g.clock.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-timer.C():
		case <-f.healed:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	if f.Hang {
		select {
		case <-f.healed:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	if f.BreakAfter > 0 {
		return nil
	}
	return f.end(g)
}

// end ends a call as the fault says.
func (f *injectedCRIFault) end(g *callGuard) error {
	if f.Cut {
		g.cut()
		return status.Error(codes.Unavailable, "the connection was cut")
	}
	return f.Err
}

// spoil returns what the server sends in place of an answer.
func (f *injectedCRIFault) spoil(answer any) (any, error) {
	if f.Edit != nil {
		if m, ok := answer.(proto.Message); ok {
			m = proto.Clone(m)
			f.Edit(m)
			answer = m
		}
	}
	if f.Padding > 0 {
		encoded, err := encode(answer)
		if err != nil {
			return nil, err
		}
		answer = padded(encoded, f.Padding)
	}
	if f.Raw != nil {
		answer = rawMessage(f.Raw)
	}
	return answer, nil
}

func (s *CRIServer) interceptUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
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

func (s *CRIServer) answer(ctx context.Context, req any, handler grpc.UnaryHandler) (any, error) {
	if s.cfg.encodedLists {
		if encoded, err := s.node.encodedList(req); encoded != nil || err != nil {
			return rawMessage(encoded), err
		}
	}
	return handler(ctx, req)
}

func (s *CRIServer) interceptStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	method := path.Base(info.FullMethod)
	err := s.guard.enter(method)
	defer s.guard.leave(method)
	if err != nil {
		return err
	}
	err = handler(srv, &guardedStream{ServerStream: stream, guard: s.guard, method: method})
	if errors.Is(err, errStreamEnds) {
		return nil
	}
	return err
}

// errStreamEnds ends a stream without an error.
var errStreamEnds = errors.New("end of stream")

// guardedStream is a stream to which faults apply.
type guardedStream struct {
	grpc.ServerStream
	guard  *callGuard
	method string
	faults []*injectedCRIFault
	sent   int
}

// RecvMsg receives the request, and applies what faults do before the answer.
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

// unknownService answers calls that are permitted but not served.
func unknownService(any, grpc.ServerStream) error {
	return status.Error(codes.Unimplemented, "unknown service")
}
