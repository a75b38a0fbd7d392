package criserver

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/crimessage"
)

// Fault describes a fault in RPCs to the CRI server. Its effects happen in the order of the fields.
// If several faults match a call, they take effect in the order in which they were injected. The
// call returns the first error, and no later effect happens. Edit, Padding and Raw change the
// answer, so they come after the Delay and Block of all faults.
type Fault struct {
	// Method is the affected RPC, such as "ContainerStatus". If it is empty, all RPCs are affected.
	Method string
	// Object is the ID of a sandbox or container, or the UID of a pod. Only requests that name it
	// are affected. If it is empty, all requests are affected.
	Object string
	// Times is the number of calls that are affected. 0 means all calls until the fault is healed.
	Times int

	// Delay makes the call take this long, in real time, or in fake time in a testing/synctest
	// bubble. If the context ends first, the call returns the context's error at once.
	Delay time.Duration
	// Block makes the call block until the fault is healed. If the context ends or the server stops
	// first, the call returns an error.
	Block bool
	// BreakAfter is the number of messages of a stream that are sent before the stream breaks. The
	// stream breaks with Err or Cut. If neither is set, it ends without an error. If BreakAfter is
	// 0, Err and Cut apply before the first message.
	BreakAfter int
	// Cut makes the server close all its connections instead of answering.
	Cut bool
	// Err is the error that the call returns; see package google.golang.org/grpc/status.
	Err error
	// Edit modifies the answer, or each message of a stream, for tests of bad data. Messages of a
	// streamed list have the type of a plain list's answer, such as
	// *runtimeapi.ListContainersResponse.
	Edit func(answer any)
	// Padding is the number of bytes to add to the encoded answer, in an unknown field. With 64
	// MiB, the answer is larger than package cri accepts.
	Padding int
	// Raw is sent instead of the answer. For example, []byte{0xff} is not a protobuf message.
	Raw []byte
}

// injectedFault is a fault that is not healed yet. hits is the number of affected calls so far.
type injectedFault struct {
	Fault
	healed chan struct{} // closed by heal
	hits   int           // guarded by callGuard.mu
}

// Inject starts a fault. The returned function heal ends the fault and releases the calls that the
// fault blocks. A second call of heal does nothing.
func (s *Server) Inject(f Fault) (heal func()) {
	g := s.guard
	in := &injectedFault{Fault: f, healed: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.faults = append(g.faults, in)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if i := slices.Index(g.faults, in); i >= 0 {
			g.faults = slices.Delete(g.faults, i, i+1)
			close(in.healed)
		}
	}
}

// Heal heals all faults.
func (s *Server) Heal() {
	s.guard.mu.Lock()
	defer s.guard.mu.Unlock()
	for _, f := range s.guard.faults {
		close(f.healed)
	}
	s.guard.faults = nil
}

// Fail makes calls of the given method fail with err until heal is called. Only calls that name the
// object fail, or all calls if object is empty. For other faults see Inject.
func (s *Server) Fail(method, object string, err error) (heal func()) {
	return s.Inject(Fault{Method: method, Object: object, Err: err})
}

// Delay makes calls of the given method take the time d until heal is called. Only calls that name
// the object are affected, or all calls if object is empty. If a call's context ends first, the
// call returns the context's error.
func (s *Server) Delay(method, object string, d time.Duration) (heal func()) {
	return s.Inject(Fault{Method: method, Object: object, Delay: d})
}

// Block makes calls of the given method block until heal is called. Only calls that name the object
// are affected, or all calls if object is empty. If a call's context ends first, the call returns
// the context's error.
func (s *Server) Block(method, object string) (heal func()) {
	return s.Inject(Fault{Method: method, Object: object, Block: true})
}

// hit returns the faults that affect a request, and counts the request for each of them.
func (g *callGuard) hit(method string, req any) []*injectedFault {
	g.mu.Lock()
	defer g.mu.Unlock()
	var hit []*injectedFault
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

// names returns true if the request refers to the given sandbox, container or pod.
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

// before applies Delay and Block, and also Cut and Err unless BreakAfter is set. It returns the
// call's error, if any.
func (f *injectedFault) before(ctx context.Context, g *callGuard) error {
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
	if f.Block {
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

// end applies Cut and Err, and returns the call's error, if any.
func (f *injectedFault) end(g *callGuard) error {
	if f.Cut {
		g.cut()
		return status.Error(codes.Unavailable, "the connection was cut")
	}
	return f.Err
}

// spoil applies Edit, Padding and Raw, and returns the answer to send.
func (f *injectedFault) spoil(answer any) (any, error) {
	if f.Edit != nil {
		if m, ok := answer.(crimessage.Message); ok {
			m = crimessage.Clone(m)
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

// namesInWriting is like the function names, but for the requests of writingCalls.
func namesInWriting(req any, object string) bool {
	if r, ok := req.(interface{ GetContainerId() string }); ok && r.GetContainerId() == object {
		return true
	}
	if r, ok := req.(interface{ GetPodSandboxId() string }); ok && r.GetPodSandboxId() == object {
		return true
	}
	switch r := req.(type) {
	case *runtimeapi.RunPodSandboxRequest:
		return r.GetConfig().GetMetadata().GetUid() == object
	case *runtimeapi.CreateContainerRequest:
		return r.GetSandboxConfig().GetMetadata().GetUid() == object
	}
	return false
}

func encode(answer any) ([]byte, error) {
	if raw, ok := answer.(rawMessage); ok {
		return raw, nil
	}
	return crimessage.Marshal(answer)
}

// paddingField is a field number that CRI messages do not use.
const paddingField = 19999 - 1000

func padded(encoded []byte, n int) rawMessage {
	out := make([]byte, 0, len(encoded)+n+16)
	out = append(out, encoded...)
	out = protowire.AppendTag(out, paddingField, protowire.BytesType)
	return protowire.AppendBytes(out, make([]byte, n))
}
