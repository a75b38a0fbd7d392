package criserver_test

import (
	"fmt"
	"time"

	"github.com/kubepleg/pleg/plegtest/criserver"
)

// A node with a crashing container on a socket, for a program that speaks CRI.
func ExampleServer_Play() {
	s, err := criserver.Start(criserver.WithModel(criserver.Containerd2))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Stop()
	s.Play(criserver.PodPlan{
		PodConfig: criserver.PodConfig{Name: "web"},
		Containers: []criserver.ContainerPlan{{
			ContainerConfig: criserver.ContainerConfig{Name: "nginx"},
			RunFor:          2 * time.Second, ExitCode: 1,
			Restart: criserver.RestartAlways, BackOff: time.Second,
		}},
	})
	s.Settle() // waits for the first steps: the pod has started, its container runs
	fmt.Println(s.Present())
	// Output: 1 1
}
