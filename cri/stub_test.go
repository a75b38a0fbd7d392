package cri_test

import (
	"cmp"
	"context"
	"io"
	"path"
	"reflect"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/crimessage"
)

// Short names for the types in the signatures of stubs.
type (
	statusRequest         = runtimeapi.ContainerStatusRequest
	statusResponse        = runtimeapi.ContainerStatusResponse
	sandboxStatusRequest  = runtimeapi.PodSandboxStatusRequest
	sandboxStatusResponse = runtimeapi.PodSandboxStatusResponse
)

// stub is a client whose answers the test sets. If a call has no method here, the call panics.
//
// With a chunk size, stub uses the codec of a call as gRPC does. It passes the encoded answer to
// the codec in buffers of that size, and overwrites freed buffers. Without a chunk size, it ignores
// call options, as fakes do.
type stub struct {
	name    string // the name in the answer to Version; empty for "stub"
	version string // the version in the answer to Version; empty for "1.0"

	chunk      int
	batch      int // items per message of a streaming list; 0 if streaming is not supported
	sandboxes  []*runtimeapi.PodSandbox
	containers []*runtimeapi.Container
	raw        []byte // sent instead of the containers, if not nil

	// hook, if set, is called with the name of the method at the start of every call. For each
	// message of a stream, it is called with the name and ".Recv". If it returns an error, the call
	// fails.
	hook func(ctx context.Context, method string) error

	containerStatus func(context.Context, *statusRequest) (*statusResponse, error)
	sandboxStatus   func(context.Context, *sandboxStatusRequest) (*sandboxStatusResponse, error)
}

func (s *stub) call(ctx context.Context, method string) error {
	if s.hook == nil {
		return nil
	}
	return s.hook(ctx, method)
}

func (s *stub) Version(ctx context.Context, _ *runtimeapi.VersionRequest,
	_ ...grpc.CallOption) (*runtimeapi.VersionResponse, error) {
	if err := s.call(ctx, "Version"); err != nil {
		return nil, err
	}
	return &runtimeapi.VersionResponse{RuntimeName: cmp.Or(s.name, "stub"),
		RuntimeVersion: cmp.Or(s.version, "1.0")}, nil
}

func (s *stub) ListPodSandbox(ctx context.Context, _ *runtimeapi.ListPodSandboxRequest,
	opts ...grpc.CallOption) (*runtimeapi.ListPodSandboxResponse, error) {
	if err := s.call(ctx, "ListPodSandbox"); err != nil {
		return nil, err
	}
	return answer(s, &runtimeapi.ListPodSandboxResponse{Items: s.sandboxes}, nil, opts)
}

func (s *stub) ListContainers(ctx context.Context, _ *runtimeapi.ListContainersRequest,
	opts ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	if err := s.call(ctx, "ListContainers"); err != nil {
		return nil, err
	}
	return answer(s, &runtimeapi.ListContainersResponse{Containers: s.containers}, s.raw, opts)
}

func (s *stub) StreamPodSandboxes(ctx context.Context, _ *runtimeapi.ListPodSandboxRequest,
	opts ...grpc.CallOption) (answers[runtimeapi.ListPodSandboxResponse], error) {
	if err := s.call(ctx, "StreamPodSandboxes"); err != nil {
		return nil, err
	}
	return streamOf(ctx, s, "StreamPodSandboxes", s.sandboxes, opts,
		func(items []*runtimeapi.PodSandbox) *runtimeapi.ListPodSandboxResponse {
			return &runtimeapi.ListPodSandboxResponse{Items: items}
		}), nil
}

func (s *stub) StreamContainers(ctx context.Context, _ *runtimeapi.ListContainersRequest,
	opts ...grpc.CallOption) (answers[runtimeapi.ListContainersResponse], error) {
	if err := s.call(ctx, "StreamContainers"); err != nil {
		return nil, err
	}
	return streamOf(ctx, s, "StreamContainers", s.containers, opts,
		func(items []*runtimeapi.Container) *runtimeapi.ListContainersResponse {
			return &runtimeapi.ListContainersResponse{Containers: items}
		}), nil
}

func (s *stub) ContainerStatus(ctx context.Context, req *statusRequest, _ ...grpc.CallOption) (*statusResponse, error) {
	if err := s.call(ctx, "ContainerStatus"); err != nil {
		return nil, err
	}
	return s.containerStatus(ctx, req)
}

func (s *stub) PodSandboxStatus(ctx context.Context, req *sandboxStatusRequest,
	_ ...grpc.CallOption) (*sandboxStatusResponse, error) {
	if err := s.call(ctx, "PodSandboxStatus"); err != nil {
		return nil, err
	}
	return s.sandboxStatus(ctx, req)
}

// GetContainerEvents opens a stream that sends nothing until its context ends.
func (s *stub) GetContainerEvents(ctx context.Context, _ *runtimeapi.GetEventsRequest,
	_ ...grpc.CallOption) (answers[runtimeapi.ContainerEventResponse], error) {
	if err := s.call(ctx, "GetContainerEvents"); err != nil {
		return nil, err
	}
	return stream[runtimeapi.ContainerEventResponse]{recv: func() (*runtimeapi.ContainerEventResponse, error) {
		if err := s.call(ctx, "GetContainerEvents.Recv"); err != nil {
			return nil, err
		}
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}}, nil
}

// answer returns resp, or passes the encoded answer to the codec of the call.
func answer[R crimessage.Message](s *stub, resp R, raw []byte, opts []grpc.CallOption) (R, error) {
	codec := codecOf(opts)
	if s.chunk == 0 || codec == nil {
		return resp, nil
	}
	if raw == nil {
		var err error
		if raw, err = crimessage.Marshal(resp); err != nil {
			return resp, err
		}
	}
	empty := reflect.New(reflect.TypeOf(resp).Elem()).Interface().(R)
	data := s.chunks(raw)
	defer data.Free()
	return empty, codec.Unmarshal(data, empty)
}

// newRuntime returns a Runtime that calls the methods of client.
func newRuntime(client any, opts ...cri.Option) *cri.Runtime {
	return cri.NewRuntime(clientConn{reflect.ValueOf(client)}, opts...)
}

// clientConn is a connection. Each call over clientConn calls the method of client with the same
// name.
type clientConn struct {
	client reflect.Value
}

// call returns the results of the method: an answer, or a stream of answers.
func (c clientConn) call(
	ctx context.Context, method string, request any, opts []grpc.CallOption,
) (reflect.Value, error) {
	args := []reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(request)}
	for _, o := range opts {
		args = append(args, reflect.ValueOf(o))
	}
	results := c.client.MethodByName(path.Base(method)).Call(args)
	err, _ := results[1].Interface().(error)
	return results[0], err
}

func (c clientConn) Invoke(ctx context.Context, method string, request, reply any, opts ...grpc.CallOption) error {
	answer, err := c.call(ctx, method, request, opts)
	return copyAnswer(reply, answer, err)
}

func (c clientConn) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string,
	opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return &clientStream{call: func(request any) (reflect.Value, error) {
		return c.call(ctx, method, request, opts)
	}}, nil
}

// clientStream is a stream of a clientConn.
type clientStream struct {
	grpc.ClientStream
	call    func(request any) (reflect.Value, error)
	answers reflect.Value
}

func (s *clientStream) SendMsg(request any) (err error) {
	s.answers, err = s.call(request)
	return err
}

func (s *clientStream) CloseSend() error { return nil }

func (s *clientStream) RecvMsg(reply any) error {
	results := s.answers.MethodByName("Recv").Call(nil)
	err, _ := results[1].Interface().(error)
	return copyAnswer(reply, results[0], err)
}

// copyAnswer copies an answer to reply, unless the answer is nil.
func copyAnswer(reply any, answer reflect.Value, err error) error {
	if err == nil && !answer.IsNil() {
		reflect.ValueOf(reply).Elem().Set(answer.Elem())
	}
	return err
}

func codecOf(opts []grpc.CallOption) encoding.CodecV2 {
	for _, o := range opts {
		if forced, ok := o.(grpc.ForceCodecV2CallOption); ok {
			return forced.CodecV2
		}
	}
	return nil
}

// chunks splits raw into buffers of the chunk size.
func (s *stub) chunks(raw []byte) mem.BufferSlice {
	var data mem.BufferSlice
	for len(raw) > 0 {
		n := min(s.chunk, len(raw))
		data = append(data, spoiledBuffer(raw[:n]))
		raw = raw[n:]
	}
	return data
}

// spoiledBuffer is a buffer with a copy of the bytes. When it is freed, the copy is overwritten.
func spoiledBuffer(b []byte) mem.Buffer {
	return &buffer{bytes: append([]byte(nil), b...), refs: 1}
}

type buffer struct {
	mem.Buffer

	mu    sync.Mutex
	bytes []byte
	refs  int
}

func (b *buffer) ReadOnlyData() []byte { return b.bytes }
func (b *buffer) Len() int             { return len(b.bytes) }

func (b *buffer) Ref() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refs++
}

func (b *buffer) Free() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refs--; b.refs == 0 {
		for i := range b.bytes {
			b.bytes[i] = 0xff
		}
	}
}

// answers is the client's side of a stream.
type answers[R any] interface{ Recv() (*R, error) }

// stream is the client's side of a stream. recv returns its messages.
type stream[R any] struct {
	recv func() (*R, error)
}

func (s stream[R]) Recv() (*R, error) { return s.recv() }

func streamOf[T any, R any, P interface {
	*R
	crimessage.Message
}](ctx context.Context, s *stub, method string, items []*T, opts []grpc.CallOption,
	wrap func([]*T) P) answers[R] {
	return stream[R]{recv: func() (*R, error) {
		if err := s.call(ctx, method+".Recv"); err != nil {
			return nil, err
		}
		if s.batch == 0 {
			return nil, status.Error(codes.Unimplemented, "unknown method")
		}
		if len(items) == 0 {
			return nil, io.EOF
		}
		n := min(s.batch, len(items))
		resp, err := answer(s, wrap(items[:n]), nil, opts)
		items = items[n:]
		return resp, err
	}}
}
