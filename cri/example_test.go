package cri_test

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// Connect to a socket and list the pods. In this example, a test server replaces containerd.
func ExampleConnect() {
	server, err := criserver.Start(criserver.WithVersion("containerd", "2.4.2"))
	if err != nil {
		panic(err)
	}
	defer server.Stop()
	sandbox := server.RunPod(criserver.PodConfig{Namespace: "prod", Name: "web", IPs: []string{"10.0.0.7"}})
	app, err := server.RunContainer(sandbox, criserver.ContainerConfig{Name: "app"})
	if err != nil {
		panic(err)
	}
	if err := server.ExitContainer(app, 137, "OOMKilled"); err != nil {
		panic(err)
	}

	ctx := context.Background()
	runtime, err := cri.Connect(ctx, server.Endpoint()) // "" tries the default sockets
	if err != nil {
		panic(err)
	}
	defer runtime.Close()

	pods, err := runtime.GetPods(ctx, true)
	if err != nil {
		panic(err)
	}
	for _, pod := range pods {
		status, err := runtime.GetPodStatus(ctx, pod)
		if err != nil {
			panic(err)
		}
		fmt.Println(pod.Namespace+"/"+pod.Name, status.IPs)
		for _, c := range status.ContainerStatuses {
			fmt.Println(c.Name, c.State, c.ExitCode, c.Reason)
		}
	}
	// Output:
	// prod/web [10.0.0.7]
	// app exited 137 OOMKilled
}

// If an agent already has a connection to the runtime, it can use that connection.
func ExampleNewRuntime() {
	server, err := criserver.Start(criserver.WithVersion("cri-o", "1.36.0"))
	if err != nil {
		panic(err)
	}
	defer server.Stop()
	conn, err := grpc.NewClient(server.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	defer conn.Close()

	runtime := cri.NewRuntime(conn, cri.WithPlainLists())
	pods, err := runtime.GetPods(context.Background(), true)
	fmt.Println(len(pods), err)
	fmt.Println(runtime.DescribeRuntime())
	// Output:
	// 0 <nil>
	// cri-o 1.36.0, plain lists
}

// If the socket does not exist, the error names it.
func ExampleConnect_noRuntime() {
	_, err := cri.Connect(context.Background(), "/run/no-such-runtime.sock")
	fmt.Println(err)
	// Output:
	// cri: connect: endpoint /run/no-such-runtime.sock: stat /run/no-such-runtime.sock: no such file or directory
}

// If an agent starts before its runtime, it is unhealthy until the runtime answers. The health
// error names the endpoint.
func ExampleDial() {
	runtime, err := cri.Dial("/run/no-such-runtime.sock")
	if err != nil {
		panic(err) // no runtime can ever be at this endpoint
	}
	defer runtime.Close()
	generator := pleg.New(runtime)

	_ = generator.Relist(context.Background())
	healthy, err := generator.Healthy()
	fmt.Println(healthy, strings.Contains(err.Error(), "/run/no-such-runtime.sock: the runtime has not answered yet"))
	fmt.Println(runtime.DescribeRuntime())
	// Output:
	// false true
	// a CRI runtime that has not answered yet at unix:///run/no-such-runtime.sock
}
