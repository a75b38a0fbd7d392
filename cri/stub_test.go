package cri_test

import (
	"cmp"
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Short names for the types in the signatures of stubs.
type (
	statusRequest         = runtimeapi.ContainerStatusRequest
	statusResponse        = runtimeapi.ContainerStatusResponse
	sandboxStatusRequest  = runtimeapi.PodSandboxStatusRequest
	sandboxStatusResponse = runtimeapi.PodSandboxStatusResponse
)

// stub is a client whose answers the test sets. Calls that it does not implement panic.
//
// With a chunk size it uses the codec of a call as gRPC does: it passes the encoded answer
// to the codec in buffers of that size, and overwrites the buffers when they are freed.
// Without a chunk size it ignores call options, as fakes do.
type stub struct {
	runtimeapi.RuntimeServiceClient

	name    string // what Version answers; empty for "stub"
	version string // empty for "1.0"

	chunk      int
	batch      int // of streaming lists; 0 is a runtime that has none
	sandboxes  []*runtimeapi.PodSandbox
	containers []*runtimeapi.Container
	raw        []byte // answered instead of the containers, if not nil

	// hook, if set, is called at the start of every call with the name of the method, and
	// for each message of a stream with the name and ".Recv". Its error fails the call.
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

func (s *stub) StreamPodSandboxes(ctx context.Context, _ *runtimeapi.StreamPodSandboxesRequest,
	opts ...grpc.CallOption) (grpc.ServerStreamingClient[runtimeapi.StreamPodSandboxesResponse], error) {
	if err := s.call(ctx, "StreamPodSandboxes"); err != nil {
		return nil, err
	}
	return streamOf(ctx, s, "StreamPodSandboxes", s.sandboxes, opts,
		func(items []*runtimeapi.PodSandbox) *runtimeapi.StreamPodSandboxesResponse {
			return &runtimeapi.StreamPodSandboxesResponse{PodSandboxes: items}
		}), nil
}

func (s *stub) StreamContainers(ctx context.Context, _ *runtimeapi.StreamContainersRequest,
	opts ...grpc.CallOption) (grpc.ServerStreamingClient[runtimeapi.StreamContainersResponse], error) {
	if err := s.call(ctx, "StreamContainers"); err != nil {
		return nil, err
	}
	return streamOf(ctx, s, "StreamContainers", s.containers, opts,
		func(items []*runtimeapi.Container) *runtimeapi.StreamContainersResponse {
			return &runtimeapi.StreamContainersResponse{Containers: items}
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

// GetContainerEvents opens a stream that is silent until its context ends.
func (s *stub) GetContainerEvents(ctx context.Context, _ *runtimeapi.GetEventsRequest,
	_ ...grpc.CallOption) (grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse], error) {
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

// answer returns an answer as the client would, or passes it to the codec.
func answer[R proto.Message](s *stub, resp R, raw []byte, opts []grpc.CallOption) (R, error) {
	codec := codecOf(opts)
	if s.chunk == 0 || codec == nil {
		return resp, nil
	}
	if raw == nil {
		var err error
		if raw, err = proto.Marshal(resp); err != nil {
			return resp, err
		}
	}
	empty := resp.ProtoReflect().New().Interface().(R)
	data := s.chunks(raw)
	defer data.Free()
	return empty, codec.Unmarshal(data, empty)
}

func codecOf(opts []grpc.CallOption) encoding.CodecV2 {
	for _, o := range opts {
		if forced, ok := o.(grpc.ForceCodecV2CallOption); ok {
			return forced.CodecV2
		}
	}
	return nil
}

// chunks splits bytes into buffers.
func (s *stub) chunks(raw []byte) mem.BufferSlice {
	var data mem.BufferSlice
	for len(raw) > 0 {
		n := min(s.chunk, len(raw))
		data = append(data, spoiledBuffer(raw[:n]))
		raw = raw[n:]
	}
	return data
}

// spoiledBuffer is a buffer with a copy of the bytes, which are overwritten when it
// is freed.
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

// stream is a streaming list.
type stream[R any] struct {
	grpc.ServerStreamingClient[R]
	recv func() (*R, error)
}

func (s stream[R]) Recv() (*R, error) { return s.recv() }

func streamOf[T any, R any, P interface {
	*R
	proto.Message
}](ctx context.Context, s *stub, method string, items []*T, opts []grpc.CallOption,
	wrap func([]*T) P) grpc.ServerStreamingClient[R] {
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
