package nodeagent

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

// proxy is a server in front of a runtime that passes every call on. Inspections of one
// container hang before that.
type proxy struct {
	conn *grpc.ClientConn

	mu     sync.Mutex
	hung   string        // the container's ID, or ""; guarded by mu
	healed chan struct{} // closed when it hangs no more; guarded by mu
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

// Name is empty: gRPC would append it to the content-type, which CRI-O does not accept.
func (frames) Name() string { return "" }

// hang has the inspections of a container hang, until heal is called.
func (p *proxy) hang(id string) (heal func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	healed := make(chan struct{})
	p.hung, p.healed = id, healed
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.hung = ""
		close(healed)
	}
}

// hangs returns what a call waits for, nil if it does not hang.
func (p *proxy) hangs(method string, request frame) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hung == "" || path.Base(method) != "ContainerStatus" || !bytes.Contains(request, []byte(p.hung)) {
		return nil
	}
	return p.healed
}

// serve passes a call on.
func (p *proxy) serve(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	request := frame{}
	if err := in.RecvMsg(&request); err != nil {
		return err
	}
	if healed := p.hangs(method, request); healed != nil {
		select {
		case <-healed:
		case <-in.Context().Done():
			return in.Context().Err()
		}
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

// longestRestart bounds the time from a container's end to its successor's start beside a pod
// that hangs: ten at once on a busy machine, but less than any back-off or timeout of the agent.
const longestRestart = 5 * time.Second

// One pod whose inspection hangs delays no other pod's sync. TestHungInspection is the same on the embedded runtime.
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
	heal := p.hang(hung)
	n.must(n.client.Stop(t.Context(), hung))
	for i := range others {
		n.must(n.client.Stop(t.Context(), container(fmt.Sprint("other-", i))))
	}
	longest := time.Duration(0)
	for i := range others {
		name := fmt.Sprint("other-", i)
		n.eventually("a successor", func() string {
			if pod := a.pods()[name]; pod == nil || !ready(pod) || pod.Status.ContainerStatuses[0].RestartCount != 1 {
				return name + " was not restarted"
			}
			return ""
		})
		runs := n.runs(string(a.pods()[name].UID))
		longest = max(longest, time.Duration(runs[1].StartedAt-runs[0].FinishedAt))
	}
	if longest > longestRestart { // the inspection hangs for two minutes
		t.Errorf("a container was restarted %v after its end", longest)
	}
	if c := a.pods()["hung"].Status.ContainerStatuses[0]; c.RestartCount != 0 {
		t.Errorf("the pod that hangs was restarted: %v", c)
	}
	heal()
	t.Logf("%d pods were restarted within %v beside one whose inspection hung", others, longest.Round(time.Millisecond))
	n.eventually("the pod that hung, now that it does not", func() string {
		if pod := a.pods()["hung"]; pod == nil || !ready(pod) || pod.Status.ContainerStatuses[0].RestartCount != 1 {
			return "it was not restarted"
		}
		return ""
	})
}
