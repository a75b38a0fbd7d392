package cri

import (
	"context"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// client makes the calls over a connection. The package does not use cri-api's client, because that
// client's interface changes with every release, and includes streaming lists only since 0.36.
type client struct {
	conn grpc.ClientConnInterface
}

func (c client) version(ctx context.Context, req *runtimeapi.VersionRequest,
	opts ...grpc.CallOption) (*runtimeapi.VersionResponse, error) {
	return invoke[runtimeapi.VersionResponse](ctx, c, rpcVersion, req, opts...)
}

func (c client) listPodSandbox(ctx context.Context, req *runtimeapi.ListPodSandboxRequest,
	opts ...grpc.CallOption) (*runtimeapi.ListPodSandboxResponse, error) {
	return invoke[runtimeapi.ListPodSandboxResponse](ctx, c, rpcListPodSandbox, req, opts...)
}

func (c client) listContainers(ctx context.Context, req *runtimeapi.ListContainersRequest,
	opts ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	return invoke[runtimeapi.ListContainersResponse](ctx, c, rpcListContainers, req, opts...)
}

// streamPodSandboxes streams a list. cri-api has the types of streaming lists only since 0.36. So
// streamPodSandboxes uses the types of plain lists, which have the same encoding.
func (c client) streamPodSandboxes(ctx context.Context, req *runtimeapi.ListPodSandboxRequest,
	opts ...grpc.CallOption) (receiver[runtimeapi.ListPodSandboxResponse], error) {
	return openStream[runtimeapi.ListPodSandboxResponse](ctx, c, rpcStreamPodSandboxes, req, opts...)
}

func (c client) streamContainers(ctx context.Context, req *runtimeapi.ListContainersRequest,
	opts ...grpc.CallOption) (receiver[runtimeapi.ListContainersResponse], error) {
	return openStream[runtimeapi.ListContainersResponse](ctx, c, rpcStreamContainers, req, opts...)
}

func (c client) podSandboxStatus(ctx context.Context, req *runtimeapi.PodSandboxStatusRequest,
	opts ...grpc.CallOption) (*runtimeapi.PodSandboxStatusResponse, error) {
	return invoke[runtimeapi.PodSandboxStatusResponse](ctx, c, rpcPodSandboxStatus, req, opts...)
}

func (c client) containerStatus(ctx context.Context, req *runtimeapi.ContainerStatusRequest,
	opts ...grpc.CallOption) (*runtimeapi.ContainerStatusResponse, error) {
	return invoke[runtimeapi.ContainerStatusResponse](ctx, c, rpcContainerStatus, req, opts...)
}

func (c client) status(ctx context.Context, req *runtimeapi.StatusRequest,
	opts ...grpc.CallOption) (*runtimeapi.StatusResponse, error) {
	return invoke[runtimeapi.StatusResponse](ctx, c, rpcStatus, req, opts...)
}

func (c client) getContainerEvents(ctx context.Context, req *runtimeapi.GetEventsRequest,
	opts ...grpc.CallOption) (receiver[runtimeapi.ContainerEventResponse], error) {
	return openStream[runtimeapi.ContainerEventResponse](ctx, c, rpcGetContainerEvents, req, opts...)
}

// invoke makes a call that returns one answer.
func invoke[R any](ctx context.Context, c client, method rpc, req any, opts ...grpc.CallOption) (*R, error) {
	resp := new(R)
	if err := c.conn.Invoke(ctx, rpcs[method].method, req, resp, append(opts, grpc.StaticMethod())...); err != nil {
		return nil, err
	}
	return resp, nil
}

// receiver receives the answers of a stream.
type receiver[R any] struct {
	stream grpc.ClientStream
}

func (r receiver[R]) receive() (*R, error) {
	resp := new(R)
	if err := r.stream.RecvMsg(resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// openStream makes a call that returns a stream of answers.
func openStream[R any](ctx context.Context, c client, method rpc, req any,
	opts ...grpc.CallOption) (receiver[R], error) {
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, rpcs[method].method,
		append(opts, grpc.StaticMethod())...)
	if err != nil {
		return receiver[R]{}, err
	}
	if err := stream.SendMsg(req); err != nil {
		return receiver[R]{}, err
	}
	return receiver[R]{stream}, stream.CloseSend()
}
