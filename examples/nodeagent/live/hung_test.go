package live

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
)

// proxy is a server in front of a runtime that passes every call on, but for those whose
// request names an object: these hang.
type proxy struct {
	conn *grpc.ClientConn

	mu   sync.Mutex
	hung string // guarded by mu
}

// frame is a message as it is on the wire.
type frame []byte

// frames is a codec that does not look into messages.
type frames struct{}

func (frames) Marshal(v any) ([]byte, error) { return *v.(*frame), nil }
func (frames) Unmarshal(data []byte, v any) error {
	*v.(*frame) = bytes.Clone(data)
	return nil
}
func (frames) Name() string { return "proto" }

func (p *proxy) hang(object string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hung = object
}

func (p *proxy) hangs(method string, request frame) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hung != "" && path.Base(method) == "ContainerStatus" && bytes.Contains(request, []byte(p.hung))
}

// serve passes a call on.
func (p *proxy) serve(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	request := frame{}
	if err := in.RecvMsg(&request); err != nil {
		return err
	}
	if p.hangs(method, request) {
		<-in.Context().Done()
		return in.Context().Err()
	}
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	out, err := p.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	if err := errors.Join(out.SendMsg(&request), out.CloseSend()); err != nil {
		return err
	}
	for {
		answer := frame{}
		switch err := out.RecvMsg(&answer); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := in.SendMsg(&answer); err != nil {
			return err
		}
	}
}

// startProxy starts a proxy in front of the node's runtime, and returns its endpoint.
func (n *node) startProxy() (p *proxy, endpoint string) {
	n.t.Helper()
	conn, err := grpc.NewClient(n.daemon.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(frames{}), grpc.MaxCallRecvMsgSize(16<<20)))
	n.must(err)
	p = &proxy{conn: conn}
	socket := filepath.Join(n.dir, "proxy.sock")
	l, err := net.Listen("unix", socket)
	n.must(err)
	server := grpc.NewServer(grpc.ForceServerCodec(frames{}), grpc.UnknownServiceHandler(p.serve))
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	n.t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
		conn.Close()
	})
	return p, "unix://" + socket
}

// One pod whose inspection hangs delays no other pod's sync.
func TestHungPod(t *testing.T) {
	const others = 10
	n := newNode(t)
	p, endpoint := n.startProxy()
	n.write("hung", manifest("hung", "  terminationGracePeriodSeconds: 1\n"+shell("sleep 100000", "")))
	for i := range others {
		name := fmt.Sprint("other-", i)
		n.write(name, manifest(name, "  terminationGracePeriodSeconds: 1\n"+shell("sleep 100000", "")))
	}
	a := n.startAgent("--runtime-endpoint", endpoint)
	for i := range others {
		n.eventually("running", a.is(fmt.Sprint("other-", i), v1.PodRunning))
	}
	n.eventually("running", a.is("hung", v1.PodRunning))
	container := func(name string) string {
		_, id, _ := strings.Cut(a.pods()[name].Status.ContainerStatuses[0].ContainerID, "://")
		return id
	}
	hung := container("hung")
	p.hang(hung)
	n.must(n.client.Stop(t.Context(), hung))
	killed := time.Now()
	for i := range others {
		n.must(n.client.Stop(t.Context(), container(fmt.Sprint("other-", i))))
	}
	for i := range others {
		name := fmt.Sprint("other-", i)
		n.eventually("a successor", func() string {
			if pod := a.pods()[name]; pod == nil || !ready(pod) || pod.Status.ContainerStatuses[0].RestartCount != 1 {
				return name + " was not restarted"
			}
			return ""
		})
	}
	took := time.Since(killed)
	if took > 20*time.Second { // the inspection hangs for two minutes
		t.Errorf("the others were restarted after %v", took)
	}
	if c := a.pods()["hung"].Status.ContainerStatuses[0]; c.RestartCount != 0 {
		t.Errorf("the pod that hangs was restarted: %v", c)
	}
	p.hang("")
	t.Logf("%d pods were restarted within %v beside one whose inspection hung", others, took.Round(time.Millisecond))
}
