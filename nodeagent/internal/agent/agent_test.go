package agent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/internal/test/garbage"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// A restarted agent adopts running pods: containers, restart counts, start times and readiness
// do not change.
func TestAdoption(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		pods := []*v1.Pod{n.pod("a", `  containers:
  - {name: web, image: sleep, imagePullPolicy: Never, readinessProbe: {exec: {command: [check]}, periodSeconds: 60}}
`), n.pod("job",
			"  restartPolicy: Never\n  containers: [{name: c, image: exit, imagePullPolicy: Never, args: ['0']}]\n")}
		n.run(time.Minute, pods...)
		n.kill("web")
		n.wait(time.Minute)
		before := n.status("a")
		n.want("a", "Running Ready; web 1 running after Error(137)")
		n.stop()
		calls := n.server.Calls("CreateContainer")

		n.wait(time.Hour)
		n.start()
		n.run(5*time.Second, pods...)
		after := n.status("a")
		n.want("a", "Running Ready; web 1 running after Error(137)")
		n.want("job", "Succeeded; c 0 Completed(0)")
		if before.ContainerStatuses[0].ContainerID != after.ContainerStatuses[0].ContainerID ||
			n.server.Calls("CreateContainer") != calls {
			t.Error("containers were not adopted")
		}
		if !before.StartTime.Equal(after.StartTime) || fmt.Sprint(before.Conditions) != fmt.Sprint(after.Conditions) {
			t.Errorf("times changed:\n%v\n%v", before, after)
		}
	})
}

// If an agent ends during the start of a container, the next agent completes the start. It does not
// create a second container.
func TestAdoptionOfHalfAPod(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		heal := n.server.Block("StartContainer", "")
		pod := n.pod("a", always)
		n.run(time.Second, pod)
		n.stop()
		heal()
		n.start()
		n.run(5*time.Second, pod)
		n.want("a", "Running Ready; web 0 running")
		if _, containers := n.server.Present(); containers != 1 {
			t.Errorf("%d containers", containers)
		}
	})
}

// If the clock is set back, a container's timestamps are earlier than those of its predecessor. The
// agent still restarts the container after each crash, and counts each restart.
func TestClockSetBack(t *testing.T) {
	inBubble(t, func(_ *testing.T, n *node) {
		back := func(attempt uint32, times ...*int64) {
			for _, at := range times {
				if attempt > 0 && *at > 0 {
					*at -= time.Hour.Nanoseconds()
				}
			}
		}
		n.server.Inject(criserver.Fault{Edit: func(answer any) {
			switch a := answer.(type) {
			case *runtimeapi.ListContainersResponse:
				for _, c := range a.Containers {
					back(c.Metadata.Attempt, &c.CreatedAt)
				}
			case *runtimeapi.ContainerStatusResponse:
				back(a.Status.Metadata.Attempt, &a.Status.CreatedAt, &a.Status.StartedAt, &a.Status.FinishedAt)
			}
		}})
		n.run(time.Minute, n.pod("a", always))
		for restarts := 1; restarts <= 3; restarts++ {
			n.kill("web")
			n.wait(10 * time.Minute)
			n.want("a", fmt.Sprintf("Running Ready; web %d running after Error(137)", restarts))
		}
	})
}

// If manifests are removed while no agent runs, the next agent removes their pods. It does not
// touch pods of other programs.
func TestOrphans(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		b := n.pod("b", always)
		n.run(time.Second, n.pod("a", always), b)
		adopted := n.server.Sandboxes(b.UID)
		n.stop()
		foreign := n.server.RunPod(criserver.PodConfig{Name: "foreign"})
		n.start()
		n.wait(5 * time.Second)
		if s, _ := n.server.Present(); s != 3 {
			t.Errorf("%d sandboxes before the manifests were read", s)
		}
		n.run(time.Minute, b)
		n.want("b", "Running Ready; web 0 running")
		if s, _ := n.server.Present(); s != 2 || !slices.Equal(n.server.Sandboxes(b.UID), adopted) {
			t.Errorf("%d sandboxes, %q of b, which had %q", s, n.server.Sandboxes(b.UID), adopted)
		}
		if err := n.server.StopPodSandbox(foreign); err != nil {
			t.Error("another program's pod is gone:", err)
		}
		if len(n.sink.pods) != 1 {
			t.Errorf("statuses of removed pods are left: %v", n.sink.pods)
		}
	})
}

// If the runtime reports a pod with the UID "..", the agent removes no files outside its own
// directories.
func TestOrphanWithBadName(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		precious := filepath.Join(n.dir, "precious")
		if err := os.WriteFile(precious, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		n.server.RunPod(criserver.PodConfig{Name: "a", UID: "..",
			Annotations: map[string]string{"kubernetes.io/config.source": "nodeagent " + n.dir}})
		n.run(time.Minute, n.pod("a", always))
		n.want("a", "Running Ready; web 0 running")
		if _, err := os.Stat(precious); err != nil {
			t.Error(err)
		}
	})
}

// The agent survives bad answers of a runtime, and runs the pod once the answers are good again.
func TestRuntimeAnswersGarbage(t *testing.T) {
	negativeRestarts := func(answer any) {
		if r, ok := answer.(*runtimeapi.ContainerStatusResponse); ok && r.Status != nil {
			r.Status.Annotations["io.kubernetes.container.restartCount"] = "-7"
		}
	}
	faults := map[string]criserver.Fault{
		"no metadata": {Edit: garbage.NilMetadata}, "no IDs": {Edit: garbage.EmptyIDs},
		"one ID": {Edit: garbage.DuplicateIDs}, "unknown states": {Edit: garbage.UnknownStates},
		"no labels": {Edit: garbage.MissingLabels}, "no status": {Edit: garbage.NilStatus},
		"no protobuf": {Raw: []byte{0xff}}, "nothing": {Raw: []byte{}},
		"negative restarts": {Edit: negativeRestarts}, "too large": {Padding: 17 << 20}, "cut off": {Cut: true},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *node) {
				pod := n.pod("a", always)
				n.run(time.Second, pod)
				for _, method := range []string{"", "StreamContainers", "ContainerStatus"} {
					fault.Method = method
					heal := n.server.Inject(fault)
					n.wait(2 * time.Second)
					for _, sandbox := range n.server.Sandboxes(pod.UID) {
						_ = n.server.StopPodSandbox(sandbox) // forces the agent to act
					}
					n.wait(10 * time.Second)
					heal()
					n.wait(6 * time.Minute)
					if s := n.brief("a"); !strings.HasPrefix(s, "Running Ready; web ") || !strings.Contains(s, " running") ||
						strings.Contains(s, "web -") {
						t.Errorf("after %q: %s", method, s)
					}
				}
				n.run(time.Minute)
				if s, c := n.server.Present(); s+c > 0 {
					t.Errorf("%d sandboxes and %d containers are left", s, c)
				}
			})
		})
	}
}

// While the runtime is down, the agent does nothing, and /healthz gives the reason. Once the
// runtime is up, the agent restarts a container that has died, and runs a new pod.
func TestSickRuntime(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.run(time.Second, n.pod("a", always))
		health := func() (int, string) {
			w := httptest.NewRecorder()
			n.agent.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
			return w.Code, w.Body.String()
		}
		if code, _ := health(); code != http.StatusOK {
			t.Errorf("status %d of a healthy agent", code)
		}
		n.kill("web")
		synctest.Wait()
		n.server.Down()
		n.agent.SetPods([]*v1.Pod{n.pod("a", always), n.pod("b", always)})
		n.wait(5 * time.Minute)
		if code, body := health(); code != http.StatusInternalServerError || !strings.Contains(body,
			"pleg was last seen active") {
			t.Errorf("%d: %s", code, body)
		}
		if err := n.server.Up(); err != nil {
			t.Fatal(err)
		}
		n.wait(30 * time.Second)
		if code, body := health(); code != http.StatusOK {
			t.Errorf("%d: %s", code, body)
		}
		if s := n.brief("a"); !strings.HasPrefix(s, "Running Ready; web 1 running") {
			t.Error(s)
		}
		n.want("b", "Running Ready; web 0 running")
	})
}

// While the inspection of one pod is stuck, the agent syncs other pods without delay. Within half a
// second of the bubble's time, 20 dead containers of other pods restart, and a new pod runs.
// nodeagent/e2e tests the same on containerd.
func TestStuckInspection(t *testing.T) {
	inBubble(t, func(_ *testing.T, n *node) {
		pods := []*v1.Pod{n.pod("a", always)}
		for i := range 20 {
			pods = append(pods, n.pod(fmt.Sprint("b", i),
				"  containers: [{name: c"+fmt.Sprint(i)+", image: sleep, imagePullPolicy: Never}]\n"))
		}
		n.run(time.Second, pods...)
		stuck := n.agent.generator.Pod(pods[0].UID).Containers[0].ID.ID
		heal := n.server.Block("ContainerStatus", stuck)
		n.kill("web")
		n.wait(time.Second)
		for i := range 20 {
			n.kill(fmt.Sprint("c", i))
		}
		n.wait(500 * time.Millisecond)
		for i := range 20 {
			n.want(fmt.Sprint("b", i), fmt.Sprintf("Running Ready; c%d 1 running after Error(137)", i))
		}
		n.want("a", "Running Ready; web 0 running") // the agent does not know that web has ended
		n.agent.SetPods(append(pods, n.pod("new", always)))
		n.wait(500 * time.Millisecond)
		n.want("new", "Running Ready; web 0 running")
		heal()
		n.wait(time.Minute)
		n.want("a", "Running Ready; web 1 running after Error(137)")
	})
}

// If the runtime reports the reason of an exit late, the pod's status still shows the reason. The
// library inspects each dead container once more, even a container that died before the agent
// started.
func TestLateReason(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		pod := n.pod("a", "  restartPolicy: Never\n  containers: [{name: c, image: sleep, imagePullPolicy: Never}]\n")
		n.run(time.Second, pod)
		n.kill("c")
		n.wait(time.Second)
		n.want("a", "Failed; c 0 Error(137)")
		heal := n.server.Inject(criserver.Fault{Method: "ContainerStatus", Edit: func(answer any) {
			answer.(*runtimeapi.ContainerStatusResponse).Status.Reason = "OOMKilled"
		}})
		n.wait(2 * time.Second)
		n.want("a", "Failed; c 0 OOMKilled(137)")
		heal()
		n.stop()
		serverconfig.Of(n.server).ResetCalls()
		n.start()
		n.run(time.Minute, pod)
		if calls := n.server.Calls("ContainerStatus"); calls != 2 {
			t.Errorf("%d inspections of a container that was dead before", calls)
		}
	})
}

// While the runtime is not ready, the agent does nothing, and /healthz reports the runtime's
// message.
func TestRuntimeNotReady(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.run(time.Second, n.pod("a", always))
		heal := n.server.Inject(criserver.Fault{Method: "Status", Edit: func(answer any) {
			for _, c := range answer.(*runtimeapi.StatusResponse).Status.Conditions {
				c.Status, c.Reason, c.Message = false, "Broken", "the shim is gone"
			}
		}})
		n.wait(6 * time.Second)
		n.run(time.Minute, n.pod("a", always), n.pod("b", always))
		n.want("b", "")
		w := httptest.NewRecorder()
		n.agent.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "Broken: the shim is gone") {
			t.Errorf("%d: %s", w.Code, w.Body)
		}
		heal()
		n.wait(11 * time.Second)
		n.want("b", "Running Ready; web 0 running")
	})
}

// A new pod waits until an old pod with the same name is gone. If a pod is wanted again during its
// removal, it starts again after the removal.
func TestReplacedPod(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		const slow = "  terminationGracePeriodSeconds: 10\n  containers: [{name: web, image: deaf, imagePullPolicy: Never}]\n"
		first := n.pod("a", slow)
		second := n.pod("a", slow)
		second.UID = "22222222-0000-4000-8000-000000000000"
		n.run(time.Second, first)
		n.run(5*time.Second, second)
		if starts := len(n.notes()); starts != 1 {
			t.Errorf("%q", n.notes())
		}
		n.wait(10 * time.Second)
		if want := []string{"web started", "web exits 137", "web started"}; !slices.Equal(n.notes(), want) {
			t.Errorf("%q", n.notes())
		}
		n.run(time.Second)
		n.run(20*time.Second, second)
		n.want("a", "Running Ready; web 0 running")
		if want := []string{"web started", "web exits 137", "web started", "web exits 137",
			"web started"}; !slices.Equal(n.notes(), want) {
			t.Errorf("%q", n.notes())
		}
	})
}

// The agent writes statuses only when they change. If a write fails, the next sync repeats the
// write.
func TestStatusesAreWritten(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.sink.err = errOnPurpose
		n.run(time.Second, n.pod("a", always))
		n.want("a", "Running Ready; web 0 running")
		if len(n.sink.pods) != 0 || n.sink.writes == 0 {
			t.Errorf("%d writes", n.sink.writes)
		}
		n.sink.mu.Lock()
		n.sink.err = nil
		n.sink.mu.Unlock()
		n.wait(2 * time.Minute)
		if n.sink.pods["a"] == nil || n.sink.pods["a"].Status.Phase != v1.PodRunning {
			t.Errorf("%d writes of %v", n.sink.writes, n.sink.pods)
		}
		before := n.sink.writes
		n.wait(time.Hour)
		if n.sink.writes != before {
			t.Errorf("%d writes of a pod that does not change", n.sink.writes-before)
		}
		n.run(11 * time.Second)
		if len(n.sink.pods) != 0 {
			t.Errorf("left: %v", n.sink.pods)
		}
	})
}

// An idle agent makes no calls that change or inspect pods.
func TestIdle(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.run(time.Minute, n.pod("a", always), n.pod("job",
			"  restartPolicy: Never\n  containers: [{name: c, image: exit, imagePullPolicy: Never, args: ['0']}]\n"))
		serverconfig.Of(n.server).ResetCalls()
		n.wait(time.Hour)
		for _, method := range []string{"RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "CreateContainer",
			"StartContainer", "StopContainer", "RemoveContainer", "ContainerStatus", "PodSandboxStatus", "ImageStatus"} {
			if calls := n.server.Calls(method); calls > 0 {
				t.Errorf("%d calls of %s", calls, method)
			}
		}
	})
}

// If no pod is wanted, each pod ends within its own grace period. /pods serves a pod until the pod
// is gone.
func TestNoneWanted(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.run(time.Second, n.pod("a", always), n.pod("b",
			"  terminationGracePeriodSeconds: 15\n  containers: [{name: c, image: deaf, imagePullPolicy: Never}]\n"))
		n.run(5 * time.Second)
		if pods := n.agent.Pods(); pods.Kind != "PodList" || len(pods.Items) != 1 || pods.Items[0].Name != "b" {
			t.Errorf("%v", pods)
		}
		n.wait(9900 * time.Millisecond)
		if _, c := n.server.Present(); c != 1 {
			t.Errorf("before the grace period was over there are %d containers", c)
		}
		n.wait(3100 * time.Millisecond)
		if s, c := n.server.Present(); s+c > 0 {
			t.Errorf("%d sandboxes and %d containers are left", s, c)
		}
	})
}

// A killed agent may leave files of pods that no longer exist. The next agent removes these files
// once it has read the manifests, and again later. It keeps the files of existing pods. With a dead
// container, it also removes the container's log.
func TestCollect(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		pod := n.pod("a", "  volumes: [{name: v, emptyDir: {}}]\n  containers: [{name: web, image: exit, "+
			"imagePullPolicy: Never, args: ['1'], volumeMounts: [{name: v, mountPath: /v}]}]\n")
		log := func(restarts int) string {
			return filepath.Join(n.dir, "logs", "default_a_"+string(pod.UID), "web", fmt.Sprint(restarts, ".log"))
		}
		left := []string{filepath.Join(n.dir, "pods", "1-2", "volumes"), filepath.Join(n.dir, "logs", "n_a_1-2", "c")}
		makeAll := func() {
			for _, path := range left {
				if err := os.MkdirAll(path, 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
		there := func() (paths []string) {
			for _, pattern := range []string{"pods/*", "logs/*", "logs/*/*/*"} {
				found, _ := filepath.Glob(filepath.Join(n.dir, pattern))
				paths = append(paths, found...)
			}
			return paths
		}
		makeAll()
		n.wait(5 * time.Second)
		if len(there()) != 2 {
			t.Errorf("before the manifests were read, there are %q", there())
		}
		n.run(time.Second, pod)
		for _, i := range []int{1, 2} {
			if err := os.WriteFile(log(i), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		n.wait(time.Minute) // the fourth instance has crashed
		if want := []string{filepath.Join(n.dir, "pods", string(pod.UID)), filepath.Dir(filepath.Dir(log(0)))}; !slices.Equal(
			there(), want) {
			t.Errorf("there is %q, want %q", there(), want)
		}
		makeAll()
		n.wait(5 * time.Second)
		if len(there()) != 2 {
			t.Errorf("after housekeeping there is %q", there())
		}
		n.run(5 * time.Second)
		if len(there()) != 0 {
			t.Errorf("left: %q", there())
		}
	})
}

// If the agent is killed during a container's start, the container may have begun its work. The
// next agent counts the interrupted start as a failed run. It does the same for a start that the
// runtime refused. With the restart policy Never, it does not start the container again.
func TestStartCutShort(t *testing.T) {
	const again = "Running Ready; web 1 running after StartError(128)"
	wants := map[string]string{"Never": "Failed; web 0 StartError(128)", "OnFailure": again, "Always": again}
	for policy, want := range wants {
		t.Run(policy, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *node) {
				pod := n.pod("a", "  restartPolicy: "+policy+
					"\n  containers: [{name: web, image: slow, imagePullPolicy: Never}]\n")
				bad := n.pod("b", "  restartPolicy: Never\n  containers: [{name: c, image: bad, imagePullPolicy: Never}]\n")
				n.cut = make(chan struct{})
				n.run(time.Second, pod)
				if n.server.Calls("StartContainer") != 1 {
					t.Fatal("it does not start")
				}
				n.stop()
				close(n.cut)
				n.wait(time.Second)
				for range 3 {
					n.start()
					n.run(5*time.Second, pod, bad)
					n.want("a", want)
					n.want("b", "Failed; c 0 StartError(128)")
					n.stop()
				}
				n.start()
			})
		})
	}
}

// An earlier agent's start of a container may be in progress when the next agent starts the same
// container. If the next agent's start fails, the result of the earlier start decides the
// container's status.
func TestStartBesideOneCutShort(t *testing.T) {
	inBubble(t, func(_ *testing.T, n *node) {
		pod := n.pod("a", "  restartPolicy: Never\n  containers: [{name: web, image: slow, imagePullPolicy: Never}]\n")
		n.cut = make(chan struct{})
		n.run(time.Second, pod)
		n.stop()
		n.start()
		heal := n.server.Inject(criserver.Fault{Method: "StartContainer", Delay: time.Second, Err: errOnPurpose, Times: 1})
		defer heal()
		go func() {
			time.Sleep(500 * time.Millisecond)
			close(n.cut)
		}()
		n.run(20*time.Second, pod) // longer than the back-off
		n.want("a", "Failed; web 0 StartError(128)")
	})
}

// If a container's start is in progress when the agent ends, the agent waits a limited time for the
// start.
func TestStopDuringStart(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		pod := n.pod("a", always)
		n.server.Delay("StartContainer", "", 5*time.Second)
		n.run(time.Second, pod)
		n.stop()
		if notes := n.notes(); !slices.Equal(notes, []string{"web started"}) {
			t.Errorf("%q", notes)
		}
		n.start()
		n.run(5*time.Second, pod)
		n.want("a", "Running Ready; web 0 running")
	})
}

// If a container's specification changes during its start, the container never runs at the same
// time as its successor.
func TestStartOfTheOldSpecification(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		pod := func(args string) *v1.Pod {
			return n.pod("a", "  containers: [{name: web, image: late, imagePullPolicy: Never, args: ["+args+"]}]\n")
		}
		n.cut = make(chan struct{})
		n.run(time.Second, pod("x"))
		n.stop()
		n.start()
		n.run(5*time.Second, pod("x, z"))
		close(n.cut)
		n.wait(time.Second)
		n.want("a", "Running Ready; web 0 running")
		if got := n.server.Containers(n.server.Sandboxes(pod("x").UID)[0]); len(got) != 1 {
			t.Errorf("there are %q", got)
		}
	})
}

// If a pod's inspections fail or are stuck after a restart of the agent, the agent publishes no new
// status of the pod.
func TestAdoptionBesideStuckInspection(t *testing.T) {
	for name, fault := range map[string]criserver.Fault{"hangs": {Block: true}, "fails": {Err: errOnPurpose}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(_ *testing.T, n *node) {
				pod := n.pod("a", "  restartPolicy: Never\n"+always)
				n.run(time.Second, pod)
				n.stop()
				fault.Method = "ContainerStatus"
				heal := n.server.Inject(fault)
				n.start()
				n.run(5*time.Minute, pod)
				if s := n.brief("a"); s != "" && s != "Running Ready; web 0 running" {
					t.Errorf("meanwhile %s", s)
				}
				heal()
				n.wait(time.Minute)
				n.want("a", "Running Ready; web 0 running")
			})
		})
	}
}

// When the agent ends, it keeps the stored statuses of all pods, even of pods that have ended.
func TestStop(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		var pods []*v1.Pod
		for i := range 30 {
			pods = append(pods, n.pod(fmt.Sprint("a", i),
				"  restartPolicy: Never\n  containers: [{name: c, image: exit, imagePullPolicy: Never, args: ['0']}]\n"))
		}
		n.run(5*time.Second, pods...)
		for range 20 {
			for i := range pods {
				pods[i] = pods[i].DeepCopy() // a new pointer wakes the worker
			}
			n.agent.SetPods(pods)
			n.stop()
			if len(n.sink.pods) != len(pods) {
				t.Errorf("%d statuses of %d pods are left", len(n.sink.pods), len(pods))
			}
			n.start()
			n.run(time.Second, pods...)
		}
	})
}
