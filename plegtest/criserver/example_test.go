package criserver_test

import (
	"fmt"

	"github.com/kubepleg/pleg/plegtest/criserver"
)

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
