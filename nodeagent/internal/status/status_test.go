package status

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/nodeagent/internal/podtest"
)

// seen returns the status of a pod with these containers, newest first. podtest.Status describes
// the texts.
func seen(containers ...string) *pleg.PodStatus {
	s := &pleg.PodStatus{IPs: []string{"10.0.0.1"}, SandboxStatuses: []*runtimeapi.PodSandboxStatus{{
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"},
	}}}
	for i, text := range containers {
		c := podtest.Status(text)
		c.ID.ID += fmt.Sprint(len(containers) - i)
		c.RestartCount, c.Reason, c.StartedAt = 2, "Error", time.Unix(1, 0)
		s.ContainerStatuses = append(s.ContainerStatuses, c)
	}
	s.ActiveContainerStatuses = s.ContainerStatuses
	return s
}

// view returns the view of a pod with unchanged containers.
func view(pod *v1.Pod, seen *pleg.PodStatus, before v1.PodStatus) plan.View {
	return plan.View{Pod: pod, Seen: seen, Before: before, Hash: func(*v1.Container) uint64 { return 0 }}
}

func TestPhaseAndConditions(t *testing.T) {
	const (
		always    = v1.RestartPolicyAlways
		onFailure = v1.RestartPolicyOnFailure
		never     = v1.RestartPolicyNever
	)
	for _, c := range []struct {
		name string
		pod  *v1.Pod
		seen *pleg.PodStatus
		want string
	}{
		{"new", podtest.Pod(always, "a"), seen(), "Pending Initialized"},
		{"created", podtest.Pod(always, "a"), seen("a created"), "Pending Initialized"},
		{"runs", podtest.Pod(always, "a", "b"), seen("a running", "b running"), "Running Initialized Ready ContainersReady"},
		{"half of it", podtest.Pod(always, "a", "b"), seen("a running"), "Pending Initialized"},
		{"one crashed", podtest.Pod(always, "a", "b"), seen("a running", "b 1"), "Running Initialized"},
		{"all exited, always", podtest.Pod(always, "a"), seen("a 0"), "Running Initialized"},
		{"all exited, on failure", podtest.Pod(onFailure, "a"), seen("a 0"), "Succeeded Initialized:PodCompleted"},
		{"one failed, on failure", podtest.Pod(onFailure, "a", "b"), seen("a 0", "b 1"), "Running Initialized"},
		{"all succeeded, never", podtest.Pod(never, "a", "b"), seen("a 0", "b 0"), "Succeeded Initialized:PodCompleted"},
		{"one failed, never", podtest.Pod(never, "a", "b"), seen("a 0", "b 1"), "Failed Initialized"},
		{"one failed and one runs, never", podtest.Pod(never, "a", "b"), seen("a running", "b 1"), "Running Initialized"},
		{"initializes", podtest.Pod(always, "init:i", "a"), seen("i running"), "Pending"},
		{"initialized", podtest.Pod(always, "init:i", "a"), seen("i 0", "a running"),
			"Running Initialized Ready ContainersReady"},
		{"init failed", podtest.Pod(always, "init:i", "a"), seen("i 1"), "Pending"},
		{"init failed, never", podtest.Pod(never, "init:i", "a"), seen("i 1"), "Failed"},
		{"init is lost", podtest.Pod(always, "init:i", "a"), seen("a running"), "Running Initialized Ready ContainersReady"},
		{"init's end was forgotten", podtest.Pod(onFailure, "init:i", "a"), seen("i 255", "a 0"),
			"Succeeded Initialized:PodCompleted"},
		{"init's end was forgotten, never", podtest.Pod(never, "init:i", "a"), seen("i 255", "a running"),
			"Running Initialized Ready ContainersReady"},
		{"a sidecar first", podtest.Pod(always, "side:s", "a"), seen("s running"), "Pending Initialized"},
		{"a sidecar beside", podtest.Pod(always, "side:s", "a"), seen("s running", "a running"),
			"Running Initialized Ready ContainersReady"},
		{"a sidecar crashed", podtest.Pod(always, "side:s", "a"), seen("s 1", "a running"), "Running Initialized"},
		{"a sidecar that was lost", podtest.Pod(always, "side:s", "a"), seen("s created", "a running"),
			"Running Initialized"},
		{"a sidecar outlives", podtest.Pod(never, "side:s", "a"), seen("s running", "a 0"), "Running Initialized"},
		{"a sidecar ended", podtest.Pod(never, "side:s", "a"), seen("s 137", "a 0"), "Succeeded Initialized:PodCompleted"},
	} {
		s := Generate(view(c.pod, c.seen, v1.PodStatus{}), nil, "")
		got := string(s.Phase)
		for _, cond := range s.Conditions {
			if cond.Status == v1.ConditionTrue && cond.Type != v1.PodScheduled &&
				cond.Type != v1.PodReadyToStartContainers {
				got += " " + string(cond.Type)
				if cond.Reason != "" {
					got += ":" + cond.Reason
				}
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Generate keeps the times, the last termination and a final phase from the earlier status. If the
// runtime has lost a container, the new status reports the loss.
func TestGenerateAfterBefore(t *testing.T) {
	p := podtest.Pod(v1.RestartPolicyAlways, "a")
	first := Generate(view(p, seen("a running"), v1.PodStatus{}), nil, "192.0.2.1")
	if first.PodIP != "10.0.0.1" || first.HostIP != "192.0.2.1" {
		t.Errorf("%v", first)
	}
	long := metav1.NewTime(time.Unix(1000, 0))
	first.StartTime = &long
	for i := range first.Conditions {
		first.Conditions[i].LastTransitionTime = long
	}
	next := Generate(view(p, seen("a 3"), first),
		map[string]v1.ContainerStateWaiting{"a": {Reason: "CrashLoopBackOff"}}, "")
	c := next.ContainerStatuses[0]
	if c.State.Waiting == nil || c.State.Waiting.Reason != "CrashLoopBackOff" ||
		c.LastTerminationState.Terminated.ExitCode != 3 ||
		!next.StartTime.Equal(&long) {
		t.Errorf("%v", next)
	}
	for _, cond := range next.Conditions {
		changed := cond.Type == v1.PodReady || cond.Type == v1.ContainersReady
		if changed == cond.LastTransitionTime.Equal(&long) {
			t.Errorf("%v", cond)
		}
	}
	again := Generate(view(p, seen("a running", "a 3"), next), map[string]v1.ContainerStateWaiting{"a": {Reason: "old"}},
		"")
	if c := again.ContainerStatuses[0]; c.State.Running == nil || c.LastTerminationState.Terminated.ExitCode != 3 {
		t.Errorf("%v", c)
	}
	lost := Generate(view(p, seen(), again), nil, "")
	if c := lost.ContainerStatuses[0]; c.RestartCount != 3 ||
		c.LastTerminationState.Terminated.Reason != "ContainerStatusUnknown" {
		t.Errorf("%v", c)
	}
	job := podtest.Pod(v1.RestartPolicyNever, "a")
	done := Generate(view(job, seen("a 0"), v1.PodStatus{}), nil, "")
	if s := Generate(view(job, seen(), done), nil, ""); s.Phase != v1.PodSucceeded ||
		s.ContainerStatuses[0].State.Terminated == nil {
		t.Errorf("a job that is done: %v", s)
	}
}

// A pod is Failed because the runtime has lost an exit code. If the exit code turns out to be 0,
// the pod becomes Succeeded. No other change affects the phase of an ended pod.
func TestFailureCorrected(t *testing.T) {
	pod := podtest.Pod(v1.RestartPolicyNever, "init:i", "a")
	for _, c := range []struct {
		first, then *pleg.PodStatus
		want        v1.PodPhase
	}{
		{seen("a 255", "i 0"), seen("a 0", "i 0"), v1.PodSucceeded},
		{seen("a 255", "i 0"), seen("a 3", "i 0"), v1.PodFailed},
		{seen("a 255", "i 0"), seen(), v1.PodFailed},
		{seen("i 255"), seen("i 0"), v1.PodFailed},
		{seen("a 0", "i 0"), seen("a 255", "i 0"), v1.PodSucceeded},
	} {
		first := Generate(view(pod, c.first, v1.PodStatus{}), nil, "")
		if got := Generate(view(pod, c.then, first), nil, "").Phase; got != c.want {
			t.Errorf("%s and then %s, want %s", first.Phase, got, c.want)
		}
	}
}

// If an init container has succeeded, its status is terminated, even if an earlier start of the
// container failed.
func TestReasonOfAnInitContainerThatHasRun(t *testing.T) {
	pod := podtest.Pod(v1.RestartPolicyAlways, "init:i", "a")
	reasons := map[string]v1.ContainerStateWaiting{"i": {Reason: "RunContainerError"}}
	s := Generate(view(pod, seen("i 0"), v1.PodStatus{}), reasons, "").InitContainerStatuses[0]
	if s.State.Terminated == nil || !s.Ready {
		t.Errorf("%+v", s)
	}
}

// If an instance that never ran is removed, the container's restart count does not fall. The next
// instance uses the count of the removed instance.
func TestRestartCountNeverFalls(t *testing.T) {
	pod := podtest.Pod(v1.RestartPolicyAlways, "a")
	before := v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "a", RestartCount: 3, ContainerID: "c://gone"}}}
	v := view(pod, seen("a 1"), before)
	shown, next := Generate(v, nil, "").ContainerStatuses[0].RestartCount, v.RestartCount(&pod.Spec.Containers[0])
	if shown != 3 || next != 3 {
		t.Errorf("%d, then %d", shown, next)
	}
}

// A Directory stores each pod in a complete file, and reads the pods back.
func TestDirectory(t *testing.T) {
	d := Directory(filepath.Join(t.TempDir(), "status"))
	p := podtest.Pod(v1.RestartPolicyAlways, "a")
	p.Status.Phase = v1.PodRunning
	other := p.DeepCopy()
	other.UID = "v"
	torn := func() error { return os.WriteFile(filepath.Join(string(d), "unfinished"), []byte("{"), 0o600) }
	if err := errors.Join(d.Write(p), torn(), d.Write(other), d.Remove(other), d.Remove(other)); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(d.path(p)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("who may read it: %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(string(d), "broken.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	pods, err := d.Read()
	if len(pods) != 1 || pods[0].UID != "u" || pods[0].Status.Phase != v1.PodRunning || err == nil {
		t.Errorf("%v, %v", pods, err)
	}
	if files, err := os.ReadDir(string(d)); len(files) != 2 {
		t.Errorf("%v, %v", files, err)
	}
	if err := Directory("/dev/null/x").Write(p); err == nil {
		t.Error("wrote below a file")
	}
	if pods, err := Directory("/nowhere").Read(); len(pods) != 0 || err != nil {
		t.Errorf("%v, %v", pods, err)
	}
}
