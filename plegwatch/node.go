package main

import (
	"fmt"
	"time"

	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/internal/timetable"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// setUp is how long a sandbox is ready before the first container in it starts.
const setUp = 80 * time.Millisecond

// stuckAfter is when the runtime gets stuck on one container.
const stuckAfter = 4 * time.Second

// startNode starts a runtime in this process, on a socket. Within ten seconds its pods show all
// that happens to pods. After stuckAfter the runtime is stuck on one container.
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
		_ = s.ExitContainer(container, 1, "Error") // an error means that the node has stopped
	})
	return s.Endpoint(), func() { stuck.Stop(); plans.Stop() }, nil
}

// nodePlans are the lives of the node's pods.
func nodePlans() []timetable.PodPlan {
	return []timetable.PodPlan{
		// Only runs.
		pod("shop", "web-0", 0,
			timetable.ContainerPlan{ContainerConfig: named("nginx"), StartAfter: setUp},
		),
		// This pod crashes again and again, and each restart comes later.
		pod("shop", "cart-0", 500*time.Millisecond,
			timetable.ContainerPlan{
				ContainerConfig: named("cart"),
				StartAfter:      setUp, RunFor: 1200 * time.Millisecond, ExitCode: 1,
				Restarts: timetable.Forever, BackOff: 700 * time.Millisecond, MaxBackOff: 5 * time.Second,
			},
		),
		// Two steps of a job that completes, goes away, and comes again under the
		// same name as another pod.
		passing(3*time.Second, 3*time.Second, pod("jobs", "report", time.Second,
			timetable.ContainerPlan{ContainerConfig: named("fetch"), StartAfter: setUp, RunFor: 600 * time.Millisecond},
			timetable.ContainerPlan{
				ContainerConfig: named("print"), StartAfter: 900 * time.Millisecond, RunFor: 1300 * time.Millisecond,
			},
		)),
		// Outgrows its memory once.
		pod("shop", "search-0", 1500*time.Millisecond,
			timetable.ContainerPlan{
				ContainerConfig: named("search"),
				StartAfter:      setUp, RunFor: 3200 * time.Millisecond, ExitCode: 137, Reason: "OOMKilled",
				Restarts: 1, BackOff: time.Second,
			},
		),
		// Is deleted while it runs, so its containers are killed.
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

// passing is a pod that is removed, and returns later.
func passing(liveFor, returnAfter time.Duration, plan timetable.PodPlan) timetable.PodPlan {
	plan.LiveFor, plan.LingerFor, plan.ReturnAfter = liveFor, 800*time.Millisecond, returnAfter
	return plan
}

func named(name string) criserver.ContainerConfig { return criserver.ContainerConfig{Name: name} }
