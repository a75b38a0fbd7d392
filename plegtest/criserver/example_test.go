package criserver_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// A server and its client share connections in memory, as they must in a testing/synctest bubble.
func ExampleWithListener() {
	var listener atomic.Pointer[bufconn.Listener]
	server, err := criserver.Start(criserver.WithListener(func() (net.Listener, error) {
		listener.Store(bufconn.Listen(1 << 16))
		return listener.Load(), nil
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Stop()
	server.RunPod(criserver.PodConfig{Namespace: "shop", Name: "cart-0"})

	runtime, err := cri.Dial("unix:///memory", cri.WithDialOptions(
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return listener.Load().DialContext(ctx)
		})))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer runtime.Close()
	pods, err := runtime.GetPods(context.Background(), true)
	fmt.Println(len(pods), err)
	// Output: 1 <nil>
}

// The server simulates a node with a crashing container, for a program that uses CRI.
func ExampleServer() {
	s, err := criserver.Start(criserver.WithModel(criserver.Containerd2))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Stop()
	sandbox := s.RunPod(criserver.PodConfig{Name: "web"})
	container, err := s.RunContainer(sandbox, criserver.ContainerConfig{Name: "nginx"})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A program that uses s.Endpoint() first sees the container running, and then its exit.
	if err := s.ExitContainer(container, 1, "Error"); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := s.RestartContainer(container); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Present())
	// Output: 1 2
}
