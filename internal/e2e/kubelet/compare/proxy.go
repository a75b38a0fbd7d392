package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// proxy may stand between a kubelet and the runtime. It passes every call on as it is, and can
// have the inspections of single objects hang or fail, and the event stream refused.
type proxy struct {
	server  *grpc.Server
	runtime *grpc.ClientConn
	path    string

	mu       sync.Mutex
	hanging  []string      // IDs of containers and sandboxes; guarded by mu
	failing  []string      // the same; guarded by mu
	released chan struct{} // closed when nothing is to hang any more; guarded by mu
	noEvents bool          // guarded by mu
}

// startProxy serves at a socket what the runtime at another serves.
func startProxy(socket, runtime string) (*proxy, error) {
	conn, err := grpc.NewClient("unix://"+runtime, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{}), grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return nil, fmt.Errorf("connecting to the runtime: %w", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listening for the kubelet: %w", err), conn.Close())
	}
	p := &proxy{runtime: conn, path: socket, released: make(chan struct{})}
	p.server = grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.MaxRecvMsgSize(16<<20),
		grpc.UnknownServiceHandler(func(_ any, in grpc.ServerStream) error { return p.pass(in) }))
	go func() { _ = p.server.Serve(l) }() // it ends with Stop
	return p, nil
}

func (p *proxy) close() error {
	p.server.Stop()
	return p.runtime.Close()
}

// reconnect connects to a runtime that was restarted, without waiting for the end of a back-off.
func (p *proxy) reconnect() { p.runtime.ResetConnectBackoff() }

// hang has the inspections of these containers and sandboxes hang until release.
func (p *proxy) hang(ids ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hanging = ids
}

// fail has the inspections of these containers and sandboxes fail until release.
func (p *proxy) fail(ids ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing = ids
}

func (p *proxy) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.released)
	p.released, p.hanging, p.failing = make(chan struct{}), nil, nil
}

func (p *proxy) refuseEvents(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noEvents = refuse
}

// fault waits as long as a call is to hang, and returns the error that it is to have.
func (p *proxy) fault(ctx context.Context, method string, message *frame) error {
	var id string
	switch method {
	case "ContainerStatus":
		id = read(message, &runtimeapi.ContainerStatusRequest{}).GetContainerId()
	case "PodSandboxStatus":
		id = read(message, &runtimeapi.PodSandboxStatusRequest{}).GetPodSandboxId()
	case "GetContainerEvents", "Subscribe": // the second is containerd's own
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.noEvents {
			return status.Error(codes.Unimplemented, "the runtime has no event stream")
		}
		return nil
	}
	p.mu.Lock()
	fails, hangs, released := slices.Contains(p.failing, id), slices.Contains(p.hanging, id), p.released
	p.mu.Unlock()
	switch {
	case fails:
		return status.Errorf(codes.Internal, "the inspection of %s fails on purpose", id)
	case !hangs:
		return nil
	}
	select {
	case <-released:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pass passes one call on. The kubelet's calls have one request.
func (p *proxy) pass(in grpc.ServerStream) error {
	ctx := in.Context()
	method, _ := grpc.MethodFromServerStream(in)
	request := new(frame)
	if err := in.RecvMsg(request); err != nil {
		return err
	}
	if err := p.fault(ctx, path.Base(method), request); err != nil {
		return err
	}
	out, err := p.runtime.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := out.SendMsg(request); err != nil {
		return err
	}
	if err := out.CloseSend(); err != nil {
		return err
	}
	for {
		answer := new(frame)
		err := out.RecvMsg(answer)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := in.SendMsg(answer); err != nil {
			return err
		}
	}
}

// frame is a message as it is on the wire.
type frame struct{ bytes []byte }

// raw is a codec that leaves messages as they are.
type raw struct{}

// Name is empty: gRPC would append it to the content-type, which CRI-O does not accept.
func (raw) Name() string { return "" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(*frame).bytes)}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	v.(*frame).bytes = data.Materialize()
	return nil
}

// read decodes a message; what does not decode is left empty.
func read[M any](f *frame, message M) M {
	_ = encoding.GetCodecV2("proto").Unmarshal(mem.BufferSlice{mem.SliceBuffer(f.bytes)}, message)
	return message
}
