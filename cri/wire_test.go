package cri_test

import (
	"context"
	"maps"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

// wireServer is a runtime with one pod, on a socket, that records the calls that it receives.
type wireServer struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	stats.Handler

	socket  string
	server  *grpc.Server // the first server
	streams bool         // true if it supports streaming lists
	// ending is closed to end the event streams without an error.
	ending chan struct{}
	events chan string // each message is sent to one subscriber of containerd's events
	// subscribers is the number of open subscriptions to containerd's events.
	subscribers atomic.Int32
	// If answers is set, the server answers one Version call for each token in it. Other Version
	// calls are stuck.
	answers chan struct{}

	mu sync.Mutex

	// Guarded by mu.

	conns    []net.Conn // open or closed
	received []wireCall
}

// wireCall is a call as received by the server.
type wireCall struct {
	connection int
	method     string
	header     metadata.MD
}

func startWireServer(t *testing.T, streams bool) *wireServer {
	t.Helper()
	dir, err := os.MkdirTemp("", "cri") // a socket's path must be short
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	s := &wireServer{socket: filepath.Join(dir, "cri.sock"), streams: streams, ending: make(chan struct{}),
		events: make(chan string)}
	s.server = s.serve(t)
	return s
}

// serve serves on the socket until the test ends, or until the returned server is stopped.
func (s *wireServer) serve(t *testing.T) *grpc.Server {
	t.Helper()
	l, err := net.Listen("unix", s.socket)
	must(t, err)
	server := grpc.NewServer(grpc.StatsHandler(s), grpc.WaitForHandlers(true), grpc.StreamInterceptor(s.streamLists),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return status.Error(codes.Unimplemented, "") }))
	runtimeapi.RegisterRuntimeServiceServer(server, s)
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "containerd.services.events.v1.Events",
		HandlerType: (*any)(nil),
		Streams:     []grpc.StreamDesc{{StreamName: "Subscribe", Handler: s.subscribe, ServerStreams: true}},
	}, s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(wireListener{l, s}) }()
	t.Cleanup(func() {
		server.Stop()
		must(t, <-served)
	})
	return server
}

func (s *wireServer) endpoint() string { return "unix://" + s.socket }

// wireListener also records each connection in the server.
type wireListener struct {
	net.Listener
	s *wireServer
}

func (l wireListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.s.mu.Lock()
		defer l.s.mu.Unlock()
		l.s.conns = append(l.s.conns, conn)
	}
	return conn, err
}

// cut closes every connection. It returns the number of connections so far.
func (s *wireServer) cut() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		_ = conn.Close()
	}
	return len(s.conns)
}

// take returns the calls that were received since the previous call of take.
func (s *wireServer) take() []wireCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.received
	s.received = nil
	return taken
}

type connectionKey struct{}

func (s *wireServer) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return context.WithValue(ctx, connectionKey{}, len(s.conns))
}

func (*wireServer) HandleConn(context.Context, stats.ConnStats) {}

func (*wireServer) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (s *wireServer) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if in, ok := event.(*stats.InHeader); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.received = append(s.received,
			wireCall{ctx.Value(connectionKey{}).(int), path.Base(in.FullMethod), in.Header})
	}
}

func (s *wireServer) Version(ctx context.Context, _ *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	if s.answers != nil {
		select {
		case <-s.answers:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &runtimeapi.VersionResponse{RuntimeName: "wire", RuntimeVersion: "1.0"}, nil
}

var wireSandboxes = []*runtimeapi.PodSandbox{{Id: "s", Metadata: &runtimeapi.PodSandboxMetadata{Uid: "a"},
	Labels: map[string]string{"io.kubernetes.pod.uid": "a"}}}

var wireContainers = []*runtimeapi.Container{{Id: "c", PodSandboxId: "s", Metadata: &runtimeapi.ContainerMetadata{},
	Labels: map[string]string{"io.kubernetes.pod.uid": "a"}}}

func (*wireServer) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (
	*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: wireSandboxes}, nil
}

func (*wireServer) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (
	*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: wireContainers}, nil
}

// streamLists answers the streaming lists in place of the generated code, because not every version
// of cri-api has them.
func (s *wireServer) streamLists(server any, to grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	var list, request any
	switch path.Base(info.FullMethod) {
	case "StreamPodSandboxes":
		list, request = &runtimeapi.ListPodSandboxResponse{Items: wireSandboxes}, &runtimeapi.ListPodSandboxRequest{}
	case "StreamContainers":
		list, request = &runtimeapi.ListContainersResponse{Containers: wireContainers}, &runtimeapi.ListContainersRequest{}
	default:
		return handler(server, to)
	}
	if err := to.RecvMsg(request); err != nil {
		return err
	}
	if !s.streams {
		return status.Error(codes.Unimplemented, "no streams")
	}
	return to.SendMsg(list)
}

func (*wireServer) PodSandboxStatus(_ context.Context, req *sandboxStatusRequest) (*sandboxStatusResponse, error) {
	return &sandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{Id: req.PodSandboxId}}, nil
}

func (*wireServer) ContainerStatus(_ context.Context, req *statusRequest) (*statusResponse, error) {
	return &statusResponse{Status: &runtimeapi.ContainerStatus{Id: req.ContainerId}}, nil
}

func (s *wireServer) GetContainerEvents(_ *runtimeapi.GetEventsRequest,
	to runtimeapi.RuntimeService_GetContainerEventsServer) error {
	select {
	case <-s.ending:
		return nil
	case <-to.Context().Done():
		return to.Context().Err()
	}
}

// subscribe implements Subscribe of containerd's events.
func (s *wireServer) subscribe(_ any, to grpc.ServerStream) error {
	if err := to.RecvMsg(&emptypb.Empty{}); err != nil {
		return err
	}
	s.subscribers.Add(1)
	defer s.subscribers.Add(-1)
	for {
		select {
		case event := <-s.events:
			message := &emptypb.Empty{}
			message.ProtoReflect().SetUnknown([]byte(event)) // is sent unchanged
			if err := to.SendMsg(message); err != nil {
				return err
			}
		case <-to.Context().Done():
			return to.Context().Err()
		}
	}
}

// The server sees each call as the package documentation describes it under "On the wire",
// whichever call is the first of a connection.
func TestOnTheWire(t *testing.T) {
	pod := &pleg.Pod{ID: "a",
		Sandboxes:  []*pleg.Container{{ID: pleg.ContainerID{ID: "s"}}},
		Containers: []*pleg.Container{{ID: pleg.ContainerID{ID: "c"}}}}
	operations := map[string]func(context.Context, *cri.Runtime) error{
		"list": func(ctx context.Context, r *cri.Runtime) error {
			_, err := r.GetPods(ctx, true)
			return err
		},
		"list of a pod": func(ctx context.Context, r *cri.Runtime) error {
			_, err := r.GetPod(ctx, "a")
			return err
		},
		"inspection": func(ctx context.Context, r *cri.Runtime) error {
			_, err := r.GetPodStatus(ctx, pod)
			return err
		},
		"event stream": func(ctx context.Context, r *cri.Runtime) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if err := r.WatchContainerEvents(ctx, cancel, func(pleg.ContainerEvent) {}); ctx.Err() == nil {
				return err
			}
			return nil
		},
		"exit events": func(ctx context.Context, r *cri.Runtime) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if err := r.WatchContainerExits(ctx, cancel, func(pleg.ContainerExit) {}); ctx.Err() == nil {
				return err
			}
			return nil
		},
	}
	wantFirst := map[string][]string{
		"list":          {"ListPodSandbox", "StreamPodSandboxes"},
		"list of a pod": {"ListContainers", "ListPodSandbox"},
		"inspection":    {"ContainerStatus", "PodSandboxStatus"},
		"event stream":  {"Version"},
		"exit events":   {"Version"},
	}
	methods := map[string]bool{}
	for _, streams := range []bool{false, true} {
		s := startWireServer(t, streams)
		r, err := cri.Connect(t.Context(), s.endpoint())
		must(t, err)
		check := func(received []wireCall) {
			t.Helper()
			for _, c := range received {
				methods[c.method] = true
				// grpc-accept-encoding depends on the compressors that the process has registered.
				delete(c.header, "grpc-accept-encoding")
				if got := slices.Sorted(maps.Keys(c.header)); !slices.Equal(got,
					[]string{":authority", "content-type", "user-agent"}) {
					t.Errorf("%s: metadata %v", c.method, got)
				}
				if got := c.header["content-type"]; !slices.Equal(got, []string{"application/grpc"}) {
					t.Errorf("%s: content-type %q", c.method, got)
				}
			}
		}
		for name, operate := range operations {
			must(t, operate(t.Context(), r)) // on the existing connection
			check(s.take())
			cut := s.cut()
			// A call may still fail on the broken connection.
			waitFor(t, func() bool { return operate(t.Context(), r) == nil })
			received := s.take()
			check(received)
			// The server may record a stream late, even after the client has gone.
			received = slices.DeleteFunc(received, func(c wireCall) bool { return c.connection <= cut })
			if len(received) == 0 || !slices.Contains(wantFirst[name], received[0].method) {
				t.Errorf("%s: the first calls after the cut are %v, expected one of %v", name, received, wantFirst[name])
			}
		}
		must(t, r.Close())
		check(s.take())
	}
	want := slices.Concat(calls, []string{"Subscribe", "Status"})
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(methods)); !slices.Equal(got, want) {
		t.Errorf("calls %v, expected %v", got, want)
	}
}
