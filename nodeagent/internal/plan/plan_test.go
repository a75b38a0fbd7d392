package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/nodeagent/internal/podtest"
)

// probes maps a container to its failed probe. "startup?" is a startup probe without a result.
type probes map[string]ProbeKind

// The method named of adds the probes to the pod's containers. It returns a function for
// View.Probed.
func (p probes) of(pod *v1.Pod) func(ProbeKind, string) v1.ConditionStatus {
	for _, c := range Containers(pod) {
		switch p[c.Name] {
		case Liveness:
			c.LivenessProbe = &v1.Probe{}
		case Startup, "startup?":
			c.StartupProbe = &v1.Probe{}
		}
	}
	return func(kind ProbeKind, id string) v1.ConditionStatus {
		if p[strings.TrimPrefix(id, "t://")] == kind {
			return v1.ConditionFalse
		}
		return v1.ConditionUnknown
	}
}

// pod returns a pod on the host's network.
func pod(policy v1.RestartPolicy, names ...string) *v1.Pod {
	p := podtest.Pod(policy, names...)
	p.Spec.HostNetwork = true
	return p
}

// seen returns a status with one sandbox and these containers, newest first. Examples are "a
// running", "a created", "a 3" for exit code 3, and "old a 3" for a container in an older sandbox.
func seen(containers ...string) *pleg.PodStatus {
	s := &pleg.PodStatus{SandboxStatuses: []*runtimeapi.PodSandboxStatus{{
		Id: "s", Metadata: &runtimeapi.PodSandboxMetadata{Attempt: 1},
		Annotations: map[string]string{SandboxHashAnnotation: "h"},
	}}}
	for _, text := range containers {
		text, old := strings.CutPrefix(text, "old ")
		c := podtest.Status(text)
		switch c.State {
		case "changed":
			c.State, c.Hash = pleg.ContainerStateRunning, 1
		case "ended":
			c.State, c.Hash = pleg.ContainerStateExited, 1
		}
		s.ContainerStatuses = append(s.ContainerStatuses, c)
		if !old {
			s.ActiveContainerStatuses = append(s.ActiveContainerStatuses, c)
		}
	}
	return s
}

func notReady(s *pleg.PodStatus) *pleg.PodStatus {
	s.SandboxStatuses[0].State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	s.ActiveContainerStatuses = nil
	return s
}

// startError changes a status so that the starts of its exited containers have failed.
func startError(s *pleg.PodStatus) *pleg.PodStatus { return withReason(s, "StartError") }

// withReason sets the reason of the exited containers in a status, and returns the status.
func withReason(s *pleg.PodStatus, reason string) *pleg.PodStatus {
	for _, c := range s.ContainerStatuses {
		if c.State == pleg.ContainerStateExited {
			c.Reason = reason
		}
	}
	return s
}

func text(a PodActions) string {
	var out []string
	for _, k := range slices.Concat(a.Kill...) {
		out = append(out, "kill "+k.Name)
	}
	if len(a.StopSandboxes) > 0 {
		out = append(out, "stop")
	}
	if a.CreateSandbox {
		out = append(out, fmt.Sprint("sandbox ", a.Attempt))
	}
	for _, c := range a.Start {
		out = append(out, "start "+c.Name)
	}
	return strings.Join(out, ", ")
}

func TestComputePodActions(t *testing.T) {
	const (
		always    = v1.RestartPolicyAlways
		onFailure = v1.RestartPolicyOnFailure
		never     = v1.RestartPolicyNever
	)
	none := &pleg.PodStatus{}
	for _, c := range []struct {
		name   string
		pod    *v1.Pod
		status *pleg.PodStatus
		probes probes
		want   string
	}{
		{"a new pod", pod(always, "a", "b"), none, nil, "sandbox 0"},
		{"a new pod with init containers", pod(always, "init:i", "side:s", "a"), none, nil, "sandbox 0"},
		{"all runs", pod(always, "a", "b"), seen("a running", "b running"), nil, ""},
		{"a start that was cut short by a kill", pod(never, "a"), withReason(seen("a 137"), "Error"), nil, "stop"},
		{"a start that containerd was killed over", pod(never, "a"), withReason(seen("a 255"), "Unknown"), nil, "stop"},
		{"one is missing", pod(always, "a", "b"), seen("a running"), nil, "start b"},
		{"one was created only", pod(never, "a"), seen("a created"), nil, "start a"},
		{"one is unknown", pod(always, "a"), seen("a unknown"), nil, "kill a"},
		{"one is no longer in the specification", pod(always, "a"), seen("b running", "c 0", "a running"), nil,
			"kill b"},
		{"one exited, always", pod(always, "a"), seen("a 0"), nil, "start a"},
		{"one exited, on failure", pod(onFailure, "a", "b"), seen("a 0", "b 1"), nil, "start b"},
		{"one exited, never", pod(never, "a", "b"), seen("a 0", "b running"), nil, ""},
		{"all exited, on failure", pod(onFailure, "a"), seen("a 0", "a 1"), nil, "stop"},
		{"all exited, never", pod(never, "a", "b"), seen("a 0", "b 1"), nil, "stop"},
		{"one changed", pod(never, "a", "b"), seen("a changed", "b running"), nil, "kill a"},
		{"one exited and has changed, never", pod(never, "a", "b"), seen("a ended", "b running"), nil, "start a"},
		{"one failed its probe", pod(always, "a"), seen("a running"), probes{"a": "liveness"}, "kill a"},
		{"one failed its probe, never", pod(never, "a"), seen("a running"), probes{"a": "startup"}, "kill a"},

		{"a start was cut short, never", pod(never, "a"), startError(seen("a 128")), nil, "stop"},
		{"a start was cut short, with the sandbox, never", pod(never, "a"), startError(notReady(seen("a 128"))), nil, ""},
		{"a start was cut short, on failure", pod(onFailure, "a"), startError(seen("a 128")), nil, "start a"},
		{"a start was cut short, with the sandbox, on failure", pod(onFailure, "a"), startError(notReady(seen("a 128"))), nil,
			"sandbox 2"},
		{"an init container's start was cut short, never", pod(never, "init:i", "a"), startError(seen("i 128")), nil, "stop"},

		{"the sandbox died", pod(always, "a"), notReady(seen("a 137")), nil, "sandbox 2"},
		{"the sandbox died, on failure", pod(onFailure, "a", "b"), notReady(seen("a 0", "b 137")), nil,
			"sandbox 2"},
		{"the sandbox died with all done", pod(onFailure, "a"), notReady(seen("a 0")), nil, ""},
		{"the sandbox died, never", pod(never, "a"), notReady(seen("a 137")), nil, ""},
		{"the sandbox died before anything ran, never", pod(never, "a"), notReady(seen()), nil,
			"sandbox 2"},
		{"the sandbox died after an init container, never", pod(never, "init:i", "a"), notReady(seen("i 0")), nil,
			"sandbox 2"},
		{"the sandbox died with init containers", pod(always, "init:i", "a"), notReady(seen("i 0", "a 137")), nil,
			"sandbox 2"},
		{"init containers run again in a new sandbox", pod(always, "init:i", "a"), seen("old i 0", "old a 137"), nil,
			"start i"},
		{"and the others after them", pod(always, "init:i", "a"), seen("i 0", "old i 0", "old a 137"), nil, "start a"},

		{"an init container runs", pod(always, "init:i", "init:j", "a"), seen("i running"), nil, ""},
		{"an init container changed", pod(always, "init:i", "a"), seen("i changed"), nil, "kill i"},
		{"an init container is unknown", pod(always, "init:i", "a"), seen("i unknown"), nil, "kill i"},
		{"an init container succeeded", pod(always, "init:i", "init:j", "a"), seen("i 0"), nil, "start j"},
		{"all init containers succeeded", pod(always, "init:i", "init:j", "a", "b"), seen("j 0", "i 0"), nil,
			"start a, start b"},
		{"an init container failed", pod(onFailure, "init:i", "a"), seen("i 1"), nil, "start i"},
		{"an init container failed, never", pod(never, "init:i", "a"), seen("i 1"), nil, "stop"},
		{"the runtime has lost the init containers", pod(always, "init:i", "a"), seen("a running"), nil, ""},

		{"a sidecar has not started", pod(always, "side:s", "a"), seen("s running"), probes{"s": "startup?"}, ""},
		{"a sidecar has started", pod(always, "side:s", "a"), seen("s running"), nil, "start a"},
		{"a sidecar is unknown", pod(always, "side:s", "a"), seen("s unknown"), nil, "kill s"},
		{"a sidecar died", pod(never, "side:s", "a"), seen("s 0", "a running"), nil, "start s"},
		{"a sidecar died before the next", pod(never, "side:s", "init:i", "a"), seen("s 1"), nil, "start s"},
		{"a sidecar restarts beside", pod(never, "side:s", "init:i", "a"), seen("s running", "i 0", "a running"),
			probes{"s": "startup?"}, ""},
		{"a sidecar failed its probe", pod(never, "side:s", "a"), seen("s running", "a running"), probes{"s": "liveness"},
			"kill s"},
		{"all but a sidecar are done", pod(never, "side:s", "a"), seen("s running", "a 0"), nil,
			"kill s, stop"},
		{"all are done and a sidecar died", pod(never, "side:s", "a"), seen("s 1", "a 0"), nil, "stop"},
	} {
		v := View{Pod: c.pod, Seen: c.status, SandboxHash: "h", Hash: func(*v1.Container) uint64 { return 0 },
			Probed: c.probes.of(c.pod)}
		if got := text(ComputePodActions(v)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestSandboxChanged(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, "a")
	two := seen()
	two.SandboxStatuses = append(two.SandboxStatuses,
		&runtimeapi.PodSandboxStatus{Metadata: &runtimeapi.PodSandboxMetadata{Attempt: 7}})
	ours := *p
	ours.Spec.HostNetwork = false
	for _, c := range []struct {
		name    string
		pod     *v1.Pod
		hash    string
		status  *pleg.PodStatus
		changed bool
		attempt uint32
	}{
		{"as it should be", p, "h", seen(), false, 2},
		{"of another specification", p, "other", seen(), true, 2},
		{"two that are ready", p, "h", two, true, 8},
		{"without an address", &ours, "h", seen(), true, 2},
		{"none", p, "h", &pleg.PodStatus{}, true, 0},
	} {
		v := View{Pod: c.pod, Seen: c.status, SandboxHash: c.hash}
		if changed, attempt := v.SandboxChanged(); changed != c.changed || attempt != c.attempt {
			t.Errorf("%s: %v, %d", c.name, changed, attempt)
		}
	}
}

// The attempt of a container's next instance exceeds the attempts of all earlier instances. The
// order of the instances in the status does not matter.
func TestRestartCount(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, "a", "b", "c")
	status := seen("a 1", "a 1", "b 1")
	status.ContainerStatuses[1].RestartCount, status.ContainerStatuses[2].RestartCount = 4, 7
	v := View{Pod: p, Seen: status, Before: v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{
		{Name: "b", RestartCount: 9}, {Name: "c", RestartCount: 2}}}}
	for i, want := range []int{5, 9, 2} {
		if got := v.RestartCount(&p.Spec.Containers[i]); got != want {
			t.Errorf("%s: %d, want %d", p.Spec.Containers[i].Name, got, want)
		}
	}
}

// A port is a number, a number as text, or a port's name.
func TestPort(t *testing.T) {
	c := &v1.Container{Ports: []v1.ContainerPort{{Name: "http", ContainerPort: 80}}}
	for port, want := range map[intstr.IntOrString]int32{
		intstr.FromString("http"): 80, intstr.FromString("8080"): 8080, intstr.FromInt32(81): 81,
		intstr.FromString("https"): 0, intstr.FromInt32(0): 0, intstr.FromInt32(65536): 0,
	} {
		if got, err := Port(c, port); got != want || (err == nil) != (want > 0) {
			t.Errorf("%v: %d, %v", port, got, err)
		}
	}
}
