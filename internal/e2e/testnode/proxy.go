package testnode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// Proxy passes calls from a client to a runtime without changing them. It can block or fail the
// inspections of single containers and sandboxes, and refuse event streams.
type Proxy struct {
	// Endpoint is where the proxy serves. It is set once by StartProxy.
	Endpoint string

	runtime *grpc.ClientConn
	server  *grpc.Server
	served  chan error // the result of Serve

	mu             sync.Mutex
	stuck, failing []string      // IDs; guarded by mu
	released       chan struct{} // closed when Release is called; guarded by mu
	noEvents       bool          // true if event streams are refused; guarded by mu
}

// StartProxy starts a proxy in front of the daemon.
func (d *Daemon) StartProxy() (*Proxy, error) {
	conn, err := grpc.NewClient(d.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(frames{}), grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return nil, fmt.Errorf("connecting to the runtime: %w", err)
	}
	socket := filepath.Join(d.dir, "p.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listening for clients: %w", err), conn.Close())
	}
	p := &Proxy{
		Endpoint: "unix://" + socket, runtime: conn, served: make(chan error, 1), released: make(chan struct{}),
	}
	p.server = grpc.NewServer(grpc.ForceServerCodec(frames{}), grpc.MaxRecvMsgSize(16<<20),
		grpc.UnknownServiceHandler(p.pass))
	go func() { p.served <- p.server.Serve(l) }()
	return p, nil
}

// Close ends the proxy and its calls.
func (p *Proxy) Close() error {
	p.server.Stop()
	return errors.Join(<-p.served, p.runtime.Close())
}

// Reconnect connects to a restarted runtime at once, without waiting for the back-off.
func (p *Proxy) Reconnect() { p.runtime.ResetConnectBackoff() }

// Block makes the inspections of these containers and sandboxes block until Release is called.
func (p *Proxy) Block(ids ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stuck = ids
}

// Fail makes the inspections of these containers and sandboxes fail until Release is called.
func (p *Proxy) Fail(ids ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing = ids
}

// Release lets blocked calls continue, and ends the effects of Block and Fail.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.released)
	p.released, p.stuck, p.failing = make(chan struct{}), nil, nil
}

// RefuseEvents refuses new event streams, as a runtime without events does.
func (p *Proxy) RefuseEvents() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noEvents = true
}

// fault blocks a call or returns an error for it, as Block, Fail and RefuseEvents have requested.
func (p *Proxy) fault(ctx context.Context, method string, request []byte) error {
	named := func(id string) bool { return bytes.Contains(request, []byte(id)) }
	p.mu.Lock()
	noEvents, released := p.noEvents, p.released
	fails, hangs := slices.ContainsFunc(p.failing, named), slices.ContainsFunc(p.stuck, named)
	p.mu.Unlock()
	switch method {
	case "ContainerStatus", "PodSandboxStatus":
		if fails {
			return status.Error(codes.Internal, "the inspection fails on purpose")
		}
		if hangs {
			select {
			case <-released:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	case "GetContainerEvents", "Subscribe": // Subscribe is the call of containerd's own API
		if noEvents {
			return status.Error(codes.Unimplemented, "the runtime has no event stream")
		}
	}
	return nil
}

// pass forwards one call with a single request, and all its answers.
func (p *Proxy) pass(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	var message []byte
	if err := in.RecvMsg(&message); err != nil {
		return err
	}
	if err := p.fault(in.Context(), path.Base(method), message); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	out, err := p.runtime.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := errors.Join(out.SendMsg(&message), out.CloseSend()); err != nil {
		return err
	}
	for {
		switch err := out.RecvMsg(&message); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := in.SendMsg(&message); err != nil {
			return err
		}
	}
}

// frames is a codec that passes messages through without decoding.
type frames struct{}

func (frames) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (frames) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}

// Name returns "". gRPC would append another name to the content-type, and CRI-O would refuse it.
func (frames) Name() string { return "" }
