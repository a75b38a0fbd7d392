package agent

import (
	"slices"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/test/garbage"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

const always = "  containers: [{name: web, image: sleep, imagePullPolicy: Never}]\n"

// A pod runs when its manifest appears. When the manifest is removed, the agent removes the pod's
// sandbox, containers and status.
func TestPodLives(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.run(time.Second, n.pod("a", always))
		n.want("a", "Running Ready; web 0 running")
		if ip := n.status("a").PodIP; ip != "127.0.0.1" {
			t.Errorf("address %q", ip)
		}
		n.run(5 * time.Second)
		if s, c := n.server.Present(); s+c > 0 || len(n.agent.statusManager.Pods()) > 0 {
			t.Errorf("%d sandboxes and %d containers are left, and %v", s, c, n.agent.statusManager.Pods())
		}
		if want := []string{"web started", "web exits 0"}; !slices.Equal(n.notes(), want) {
			t.Errorf("%q, want %q", n.notes(), want)
		}
	})
}

// Depending on the restart policy and the exit code, an ended container restarts with back-off, or
// its pod succeeds or fails.
func TestRestartPolicies(t *testing.T) {
	for _, c := range []struct{ policy, image, args, want string }{
		{"Always", "exit", `["0"]`, "Running; c 1 CrashLoopBackOff after Completed(0)"},
		{"Always", "exit", `["3"]`, "Running; c 1 CrashLoopBackOff after Error(3)"},
		{"OnFailure", "exit", `["0"]`, "Succeeded; c 0 Completed(0)"},
		{"OnFailure", "exit", `["3"]`, "Running; c 1 CrashLoopBackOff after Error(3)"},
		{"Never", "exit", `["0"]`, "Succeeded; c 0 Completed(0)"},
		{"Never", "exit", `["3"]`, "Failed; c 0 Error(3)"},
	} {
		t.Run(c.policy+c.args, func(t *testing.T) {
			inBubble(t, func(_ *testing.T, n *node) {
				n.run(5*time.Second, n.pod("a", "  restartPolicy: "+c.policy+"\n  containers: [{name: c, image: "+c.image+
					", imagePullPolicy: Never, args: "+c.args+"}]\n"))
				n.want("a", c.want)
			})
		})
	}
}

// After its first crash, a container restarts at once. After the second crash, it waits for 10 s.
// Each further wait is twice as long, up to 5 min. After ten minutes without a crash, the back-off
// begins again.
func TestCrashLoopBackOff(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.run(20*time.Minute, n.pod("a", "  containers: [{name: c, image: exit, imagePullPolicy: Never, args: ['1']}]\n"))
		if got, want := n.times("c started"), []int{0, 10, 20, 40, 80, 160, 300, 300}; !slices.Equal(got[:len(want)], want) {
			t.Errorf("seconds between starts: %v, want %v", got, want)
		}
		n.want("a", "Running; c 8 CrashLoopBackOff after Error(1)")
		n.run(time.Minute)
		n.run(time.Hour, n.pod("b", "  containers: [{name: d, image: exit, imagePullPolicy: Never, args: ['1', '11m']}]\n"))
		if got := n.times("d started"); !slices.Equal(got, []int{660, 660, 660, 660, 660}) {
			t.Errorf("seconds between starts after long lives: %v", got)
		}
		if _, containers := n.server.Present(); containers != 2 {
			t.Errorf("%d containers, want the running one and the newest dead one", containers)
		}
	})
}

// The agent retries a job that fails twice. When the third attempt succeeds, the pod has succeeded.
func TestRetriedJob(t *testing.T) {
	inBubble(t, func(_ *testing.T, n *node) {
		n.run(time.Minute, n.pod("a",
			"  restartPolicy: OnFailure\n  containers: [{name: c, image: twice, imagePullPolicy: Never}]\n"))
		n.want("a", "Succeeded; c 2 Completed(0) after Error(1)")
	})
}

// Init containers run in order, each to its end. A sidecar starts in the same order but runs on,
// and ends last.
func TestInitContainersAndSidecar(t *testing.T) {
	inBubble(t, func(_ *testing.T, n *node) {
		pod := n.pod("a", `  restartPolicy: Never
  initContainers:
  - {name: first, image: exit, imagePullPolicy: Never, args: ["0", "2s"]}
  - name: side
    image: sleep
    imagePullPolicy: Never
    restartPolicy: Always
    startupProbe: {exec: {command: [check]}, periodSeconds: 1, failureThreshold: 30}
  - {name: second, image: exit, imagePullPolicy: Never, args: ["0", "2s"]}
  containers:
  - {name: job, image: exit, imagePullPolicy: Never, args: ["0", "5s"]}
`)
		n.setExec("side", 1)
		n.run(time.Second, pod)
		n.want("a",
			"Pending NotInitialized; first 0 running; side 0 PodInitializing; second 0 PodInitializing; job 0 PodInitializing")
		n.wait(5 * time.Second)
		n.want("a",
			"Pending NotInitialized; first 0 Completed(0); side 0 running; second 0 PodInitializing; job 0 PodInitializing")
		n.setExec("side", 0)
		n.wait(2 * time.Second)
		n.want("a", "Pending NotInitialized; first 0 Completed(0); side 0 running; second 0 running; job 0 PodInitializing")
		n.wait(3 * time.Second)
		n.want("a", "Running Ready; first 0 Completed(0); side 0 running; second 0 Completed(0); job 0 running")
		n.wait(6 * time.Second)
		n.want("a", "Succeeded; first 0 Completed(0); side 0 Completed(0); second 0 Completed(0); job 0 Completed(0)")
	})
}

// If an init container fails, it runs again with the restart policy Always. With Never, its pod
// fails.
func TestInitContainerFails(t *testing.T) {
	const spec = `
  initContainers: [{name: first, image: exit, imagePullPolicy: Never, args: ["1"]}]
  containers: [{name: web, image: sleep, imagePullPolicy: Never}]
`
	inBubble(t, func(_ *testing.T, n *node) {
		n.run(5*time.Second, n.pod("a", "  restartPolicy: Always"+spec), n.pod("b", "  restartPolicy: Never"+spec))
		n.want("a", "Pending NotInitialized; first 1 CrashLoopBackOff after Error(1); web 0 PodInitializing")
		n.want("b", "Failed NotInitialized; first 0 Error(1); web 0 PodInitializing")
	})
}

// Sidecars end after the containers, in reverse order of their starts.
func TestSidecarsEndInReverse(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.run(5*time.Second, n.pod("a", `  initContainers:
  - {name: one, image: sleep, imagePullPolicy: Never, restartPolicy: Always}
  - {name: two, image: sleep, imagePullPolicy: Never, restartPolicy: Always}
`+always))
		n.run(5 * time.Second)
		want := []string{"one started", "two started", "web started", "web exits 0", "two exits 0", "one exits 0"}
		if !slices.Equal(n.notes(), want) {
			t.Errorf("%q, want %q", n.notes(), want)
		}
	})
}

// A crashed sidecar restarts while the other containers run on.
func TestSidecarCrashes(t *testing.T) {
	inBubble(t, func(_ *testing.T, n *node) {
		n.run(5*time.Second, n.pod("a", `  initContainers: [{name: side, image: sleep, imagePullPolicy: Never,
		    restartPolicy: Always}]
  containers: [{name: web, image: sleep, imagePullPolicy: Never}]
`))
		n.want("a", "Running Ready; side 0 running; web 0 running")
		n.kill("side")
		n.wait(time.Second)
		n.want("a", "Running Ready; side 1 running after Error(137); web 0 running")
	})
}

// kill kills the newest instance of a container.
func (n *node) kill(container string) {
	n.t.Helper()
	for _, pod := range n.agent.generator.Pods() {
		if i := slices.IndexFunc(pod.Containers, func(c *pleg.Container) bool { return c.Name == container }); i >= 0 {
			if err := n.server.KillContainer(pod.Containers[i].ID.ID); err != nil {
				n.t.Fatal(err)
			}
			return
		}
	}
	n.t.Fatalf("there is no container %s", container)
}

// If a container's specification changes, the agent replaces only this container. If the sandbox's
// specification changes, the agent replaces the sandbox and all containers. If labels change, the
// agent replaces nothing.
func TestChangedSpec(t *testing.T) {
	inBubble(t, func(_ *testing.T, n *node) {
		spec := func(image, hostname string) string {
			return "  terminationGracePeriodSeconds: 40\n  hostname: " + hostname +
				"\n  containers: [{name: a, image: sleep, imagePullPolicy: Never}, " +
				"{name: b, image: " + image + ", imagePullPolicy: Never}]\n"
		}
		n.run(time.Second, n.pod("a", spec("sleep", "x")))
		// The agent needs a status that is newer than its last action. In a bubble, such a status
		// comes only with the next full list.
		n.run(2*time.Second, n.pod("a", spec("sleep2", "x")))
		n.want("a", "Running Ready; a 0 running; b 1 running after Completed(0)")
		n.run(2*time.Second, n.pod("a", spec("sleep2", "z")))
		n.want("a", "Running Ready; a 1 running after Completed(0); b 2 running after Completed(0)")
		pod := n.pod("a", spec("sleep2", "z"))
		pod.Labels = map[string]string{"new": "label"}
		n.run(time.Second, pod)
		n.want("a", "Running Ready; a 1 running after Completed(0); b 2 running after Completed(0)")
	})
}

// If a sandbox is stopped or removed, the agent replaces it and its containers. Restart counts
// continue.
func TestSandboxDies(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		pod := n.pod("a", always)
		n.run(time.Second, pod)
		if err := n.server.StopPodSandbox(n.server.Sandboxes(pod.UID)[0]); err != nil {
			t.Fatal(err)
		}
		n.wait(2 * time.Second)
		n.want("a", "Running Ready; web 1 running after Error(137)")
		n.kill("web")
		n.wait(15 * time.Second)
		if sandboxes, containers := n.server.Present(); sandboxes != 1 || containers != 2 {
			t.Errorf("%d sandboxes and %d containers, want the present ones and one dead container", sandboxes, containers)
		}
		for _, id := range n.server.Sandboxes(pod.UID) {
			if err := n.server.RemovePodSandbox(id); err != nil {
				t.Fatal(err)
			}
		}
		n.wait(2 * time.Second)
		n.want("a", "Running Ready; web 3 running after ContainerStatusUnknown(137)")
	})
}

// If a sandbox never gets an address, the agent replaces the sandbox with back-off.
func TestSandboxWithoutAddress(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.server.Inject(criserver.Fault{Method: "PodSandboxStatus", Times: 300, Edit: func(answer any) {
			answer.(*runtimeapi.PodSandboxStatusResponse).Status.Network = nil
		}})
		n.run(time.Minute, n.pod("a", always))
		if calls := n.server.Calls("RunPodSandbox"); calls < 4 || calls > 12 {
			t.Errorf("%d sandboxes in a minute", calls)
		}
	})
}

// The agent stops a container in an unknown state. It starts a successor only after the runtime has
// reported the container's end.
func TestContainerOfUnknownState(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		heal := n.server.Inject(criserver.Fault{Method: "ContainerStatus", Edit: garbage.UnknownStates})
		n.run(time.Minute, n.pod("a", always))
		n.want("a", "Pending; web 0 ")
		if created, ended := n.server.Calls("CreateContainer"), n.server.Calls("StopContainer"); created != 1 || ended < 2 ||
			ended > 20 {
			t.Errorf("%d containers, ended %d times in a minute", created, ended)
		}
		heal()
		n.wait(15 * time.Second)
		n.want("a", "Running Ready; web 1 running after Completed(0)")
	})
}

// When a pod ends, the preStop hooks run. Containers that run longer than the grace period are
// killed.
func TestTermination(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.run(time.Second, n.pod("a", `  terminationGracePeriodSeconds: 20
  containers:
  - {name: polite, image: sleep, imagePullPolicy: Never, lifecycle: {preStop: {exec: {command: [stop]}}}}
  - {name: deaf, image: deaf, imagePullPolicy: Never}
  - {name: sleepy, image: sleep, imagePullPolicy: Never, lifecycle: {preStop: {sleep: {seconds: 5}}}}
`))
		n.run(time.Minute)
		took := map[string]time.Duration{}
		began := n.at[slices.Index(n.notes(), "polite is asked to stop")]
		for i, note := range n.notes() {
			took[note] = n.at[i].Sub(began).Round(time.Second)
		}
		for note, want := range map[string]time.Duration{"polite is asked to stop": 0, "polite exits 0": 0,
			"sleepy exits 0": 5 * time.Second, "deaf exits 137": 20 * time.Second} {
			if got, ok := took[note]; !ok || got != want {
				t.Errorf("%s after %v (%v), want %v", note, got, ok, want)
			}
		}
		if s, c := n.server.Present(); s+c > 0 {
			t.Errorf("%d sandboxes and %d containers are left", s, c)
		}
	})
}

// A preStop hook may take as long as the grace period.
func TestLongPreStop(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.run(2*time.Second, n.pod("a", `  terminationGracePeriodSeconds: 600
  containers: [{name: web, image: sleep, imagePullPolicy: Never, lifecycle: {preStop: {exec: {command: [wait, 5m]}}}}]
`))
		began := time.Now()
		n.run(20 * time.Minute)
		i := slices.Index(n.notes(), "web exits 0")
		if i < 0 || n.at[i].Sub(began).Round(time.Second) != 5*time.Minute {
			t.Errorf("%q, %v", n.notes(), n.at)
		}
	})
}

// The agent pulls a missing image repeatedly with back-off. With the pull policy Never, it does not
// pull the image.
func TestMissingImage(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.run(5*time.Second, n.pod("a", "  containers: [{name: c, image: missing}]\n"),
			n.pod("b", "  containers: [{name: c, image: missing, imagePullPolicy: Never}]\n"))
		n.want("b", "Pending; c 0 ErrImageNeverPull")
		n.want("a", "Pending; c 0 ImagePullBackOff")
		n.wait(10 * time.Minute)
		if pulls := n.server.Calls("PullImage"); pulls > 8 {
			t.Errorf("%d pulls in ten minutes", pulls)
		}
	})
}

// If a call that starts a pod fails, the agent repeats the call. Until the call succeeds, the
// status reports a reason.
func TestStartFails(t *testing.T) {
	for method, want := range map[string]string{
		"RunPodSandbox":   "Pending; web 0 ContainerCreating",
		"CreateContainer": "Pending; web 0 CreateContainerError",
		"StartContainer":  "Pending; web 0 CrashLoopBackOff",
	} {
		t.Run(method, func(t *testing.T) {
			inBubble(t, func(_ *testing.T, n *node) {
				heal := n.server.Fail(method, "", errOnPurpose)
				n.run(5*time.Second, n.pod("a", always))
				n.want("a", want)
				heal()
				n.wait(15 * time.Second)
				n.want("a", "Running Ready; web 0 running")
			})
		})
	}
}

// A container with a successful postStart hook starts only once, with every restart policy. After
// the hook, the agent neither publishes nor uses a status that is older than the start.
func TestPostStart(t *testing.T) {
	for _, policy := range []string{"Always", "OnFailure", "Never"} {
		for _, hook := range []string{"{exec: {command: [check]}}", "{exec: {command: [wait, 30s]}}",
			"{sleep: {seconds: 3}}"} {
			t.Run(policy+" "+hook, func(t *testing.T) {
				inBubble(t, func(t *testing.T, n *node) {
					n.run(time.Minute, n.pod("a", "  restartPolicy: "+policy+`
  containers:
  - {name: web, image: sleep, imagePullPolicy: Never, lifecycle: {postStart: `+hook+`}}
  - {name: next, image: sleep, imagePullPolicy: Never, lifecycle: {postStart: `+hook+`}}
`))
					n.want("a", "Running Ready; web 0 running; next 0 running")
					if want := []string{"web started", "next started"}; !slices.Equal(n.notes(), want) {
						t.Errorf("%q, want %q", n.notes(), want)
					}
				})
			})
		}
	}
}

// If a postStart hook fails, the agent stops the container and starts it again.
func TestPostStartFails(t *testing.T) {
	inBubble(t, func(_ *testing.T, n *node) {
		n.setExec("web", 1)
		n.run(5*time.Second, n.pod("a", `  containers:
  - {name: web, image: sleep, imagePullPolicy: Never, lifecycle: {postStart: {exec: {command: [check]}}}}
`))
		n.want("a", "Running; web 1 CrashLoopBackOff after Completed(0)")
		n.setExec("web", 0)
		n.wait(10 * time.Second)
		n.want("a", "Running Ready; web 2 running after Completed(0)")
	})
}
