package main

import (
	"fmt"
	"time"

	"github.com/kubepleg/pleg/plegtest/criserver"
)

// setUp is how long a sandbox is ready before the first container in it starts.
const setUp = 80 * time.Millisecond

// startNode starts a runtime in this process, on a socket, whose pods show within
// ten seconds all that happens to pods.
func startNode() (*criserver.Server, error) {
	s, err := criserver.Start(criserver.WithVersion("simulated-containerd", "v2.4.2"))
	if err != nil {
		return nil, fmt.Errorf("starting a node of our own: %w", err)
	}
	s.Play(nodePlans()...)
	return s, nil
}

// nodePlans are the lives of the node's pods.
func nodePlans() []criserver.PodPlan {
	return []criserver.PodPlan{
		// Runs, and that is all.
		pod("shop", "web-0", 0,
			criserver.ContainerPlan{ContainerConfig: named("nginx"), StartAfter: setUp},
		),
		// Crashes again and again, and is restarted ever later.
		pod("shop", "cart-0", 500*time.Millisecond,
			criserver.ContainerPlan{
				ContainerConfig: named("cart"),
				StartAfter:      setUp, RunFor: 1200 * time.Millisecond, ExitCode: 1,
				Restart: criserver.RestartAlways, BackOff: 700 * time.Millisecond, MaxBackOff: 5 * time.Second,
			},
		),
		// Two steps of a job that completes, goes away, and comes again under the
		// same name as another pod.
		passing(3*time.Second, 3*time.Second, pod("jobs", "report", time.Second,
			criserver.ContainerPlan{ContainerConfig: named("fetch"), StartAfter: setUp, RunFor: 600 * time.Millisecond},
			criserver.ContainerPlan{
				ContainerConfig: named("print"), StartAfter: 900 * time.Millisecond, RunFor: 1300 * time.Millisecond,
			},
		)),
		// Outgrows its memory once.
		pod("shop", "search-0", 1500*time.Millisecond,
			criserver.ContainerPlan{
				ContainerConfig: named("search"),
				StartAfter:      setUp, RunFor: 3200 * time.Millisecond, ExitCode: 137, Reason: "OOMKilled",
				Restart: criserver.RestartOnFailure, Restarts: 1, BackOff: time.Second,
			},
		),
		// Is deleted while it runs: what runs in it is killed.
		passing(3500*time.Millisecond, 6*time.Second, pod("shop", "canary", 2500*time.Millisecond,
			criserver.ContainerPlan{ContainerConfig: named("nginx"), StartAfter: setUp},
			criserver.ContainerPlan{ContainerConfig: named("proxy"), StartAfter: 2 * setUp},
		)),
	}
}

func pod(namespace, name string, startAfter time.Duration, containers ...criserver.ContainerPlan) criserver.PodPlan {
	return criserver.PodPlan{
		PodConfig:  criserver.PodConfig{Namespace: namespace, Name: name},
		StartAfter: startAfter,
		Containers: containers,
	}
}

// passing is a pod that goes and comes again.
func passing(liveFor, returnAfter time.Duration, plan criserver.PodPlan) criserver.PodPlan {
	plan.LiveFor, plan.LingerFor, plan.ReturnAfter = liveFor, 800*time.Millisecond, returnAfter
	return plan
}

func named(name string) criserver.ContainerConfig { return criserver.ContainerConfig{Name: name} }
