package main

import (
	"fmt"
	"time"

	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/internal/timetable"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// setUp is the time between a sandbox becoming ready and the start of its first container.
const setUp = 80 * time.Millisecond

// stuckAfter is the time after which the simulated runtime gets stuck on one container.
const stuckAfter = 4 * time.Second

// startNode starts a simulated runtime in this process and returns its socket. Within ten seconds,
// its pods start, crash, restart, complete and are removed. After stuckAfter, the runtime gets
// stuck on one container.
func startNode() (endpoint string, stop func(), err error) {
	s, err := criserver.Start(criserver.WithVersion("simulated-containerd", "v2.4.2"))
	if err != nil {
		return "", nil, fmt.Errorf("starting a node of our own: %w", err)
	}
	plans := timetable.New(s, clock.RealClock{})
	plans.Play(nodePlans()...)
	container, err := s.RunContainer(s.RunPod(pod("shop", "payment-0", 0).PodConfig), named("payment"))
	if err != nil {
		return "", nil, fmt.Errorf("starting a container of our own node: %w", err)
	}
	stuck := time.AfterFunc(stuckAfter, func() {
		s.Block("ContainerStatus", container)
		_ = s.ExitContainer(container, 1, "Error") // an error means that the node has already stopped
	})
	return s.Endpoint(), func() { stuck.Stop(); plans.Stop() }, nil
}

// nodePlans returns what happens to each pod of the simulated node.
func nodePlans() []timetable.PodPlan {
	return []timetable.PodPlan{
		// This pod runs and never ends.
		pod("shop", "web-0", 0,
			timetable.ContainerPlan{ContainerConfig: named("nginx"), StartAfter: setUp},
		),
		// This pod crashes repeatedly. The delay before each restart grows.
		pod("shop", "cart-0", 500*time.Millisecond,
			timetable.ContainerPlan{
				ContainerConfig: named("cart"),
				StartAfter:      setUp, RunFor: 1200 * time.Millisecond, ExitCode: 1,
				Restarts: timetable.Forever, BackOff: 700 * time.Millisecond, MaxBackOff: 5 * time.Second,
			},
		),
		// This pod is a job with two containers. It completes, is removed, and returns as a new pod
		// with the same name.
		passing(3*time.Second, 3*time.Second, pod("jobs", "report", time.Second,
			timetable.ContainerPlan{ContainerConfig: named("fetch"), StartAfter: setUp, RunFor: 600 * time.Millisecond},
			timetable.ContainerPlan{
				ContainerConfig: named("print"), StartAfter: 900 * time.Millisecond, RunFor: 1300 * time.Millisecond,
			},
		)),
		// The container of this pod is killed once for using too much memory.
		pod("shop", "search-0", 1500*time.Millisecond,
			timetable.ContainerPlan{
				ContainerConfig: named("search"),
				StartAfter:      setUp, RunFor: 3200 * time.Millisecond, ExitCode: 137, Reason: "OOMKilled",
				Restarts: 1, BackOff: time.Second,
			},
		),
		// This pod is deleted while it runs, so its containers are killed.
		passing(3500*time.Millisecond, 6*time.Second, pod("shop", "canary", 2500*time.Millisecond,
			timetable.ContainerPlan{ContainerConfig: named("nginx"), StartAfter: setUp},
			timetable.ContainerPlan{ContainerConfig: named("proxy"), StartAfter: 2 * setUp},
		)),
	}
}

func pod(namespace, name string, startAfter time.Duration, containers ...timetable.ContainerPlan) timetable.PodPlan {
	return timetable.PodPlan{
		PodConfig:  criserver.PodConfig{Namespace: namespace, Name: name},
		StartAfter: startAfter,
		Containers: containers,
	}
}

// passing returns the plan of a pod that is removed after liveFor and returns after returnAfter.
func passing(liveFor, returnAfter time.Duration, plan timetable.PodPlan) timetable.PodPlan {
	plan.LiveFor, plan.LingerFor, plan.ReturnAfter = liveFor, 800*time.Millisecond, returnAfter
	return plan
}

func named(name string) criserver.ContainerConfig { return criserver.ContainerConfig{Name: name} }
