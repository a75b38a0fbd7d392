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

// Fault is a fault of RPCs to the CRI server. Its effects happen in the order of its fields. If
// several faults match a call, they happen in the order in which they were injected. The call returns
// the first error, and the effects after it do not happen. All this is as in plegtest, except that
// Edit, Padding and Raw change the answer: they come after the Delay and Block of all faults.
type Fault struct {
	// Method is the affected RPC, such as "ContainerStatus"; empty means all RPCs.
	Method string
	// Object is the ID of a sandbox or container, or the UID of a pod, that the request must name.
	// Empty means all requests.
	Object string
	// Times is how many calls are affected before the fault ends; 0 means all calls until the fault
	// is healed.
	Times int

	// Delay makes the call take this long, in real time; in a testing/synctest bubble, in the
	// bubble's time. If the context ends first, the call returns the context's error at once.
	Delay time.Duration
	// Block makes the call block until its context ends, the fault is healed or the server stops.
	// When the fault is healed, the call continues as usual.
	Block bool
	// BreakAfter is how many messages of a stream pass before it breaks: with Err, with Cut, or
	// else without an error. If it is 0, Err and Cut apply before the first message.
	BreakAfter int
	// Cut closes every connection of the server instead of answering.
	Cut bool
	// Err fails the call; see package google.golang.org/grpc/status.
	Err error
	// Edit modifies the answer, or each message of a stream, to make it bad data. A streamed list
	// has the messages of a plain list, such as *runtimeapi.ListContainersResponse.
	Edit func(answer any)
	// Padding adds this many bytes to the encoded answer, in an unknown field. With
	// 64 MiB the answer is larger than package cri accepts.
	Padding int
	// Raw is sent in place of the answer. []byte{0xff} is not a protobuf message.
	Raw []byte
}

// injectedFault is a fault in force.
type injectedFault struct {
	Fault
	healed chan struct{} // closed by heal
	hits   int           // guarded by callGuard.mu
}

// Inject starts a fault. The returned function heals it: the fault ends, and calls that it blocks
// continue. Healing twice is harmless.
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

// Heal heals every fault.
func (s *Server) Heal() {
	s.guard.mu.Lock()
	defer s.guard.mu.Unlock()
	for _, f := range s.guard.faults {
		close(f.healed)
	}
	s.guard.faults = nil
}

// Fail makes calls that name an object, or all calls if it is empty, fail with err until healed. See
// Inject for other faults.
func (s *Server) Fail(method, object string, err error) (heal func()) {
	return s.Inject(Fault{Method: method, Object: object, Err: err})
}

// Delay makes calls take d until healed. A call returns when its context ends.
func (s *Server) Delay(method, object string, d time.Duration) (heal func()) {
	return s.Inject(Fault{Method: method, Object: object, Delay: d})
}

// Block makes calls block until healed. A call returns the error of its context when that ends.
func (s *Server) Block(method, object string) (heal func()) {
	return s.Inject(Fault{Method: method, Object: object, Block: true})
}

// hit returns the faults that a request runs into, and counts the request for them.
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

// before applies the effects of a fault that precede the answer, and returns the error of the call.
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

// end ends a call as the fault says.
func (f *injectedFault) end(g *callGuard) error {
	if f.Cut {
		g.cut()
		return status.Error(codes.Unavailable, "the connection was cut")
	}
	return f.Err
}

// spoil returns what the server sends in place of an answer.
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

// namesInWriting reports whether a request that changes something names a sandbox, a
// container or a pod.
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

// paddingField is a field number that no message of the CRI has.
const paddingField = 19999 - 1000

func padded(encoded []byte, n int) rawMessage {
	out := make([]byte, 0, len(encoded)+n+16)
	out = append(out, encoded...)
	out = protowire.AppendTag(out, paddingField, protowire.BytesType)
	return protowire.AppendBytes(out, make([]byte, n))
}
