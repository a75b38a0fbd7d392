package plan

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// SandboxHashAnnotation is the annotation of a sandbox that holds the hash of what it was made from.
const SandboxHashAnnotation = "nodeagent.kubepleg.dev/sandbox-hash"

// ProbeKind is the kind of a probe.
type ProbeKind string

// The kinds of probes.
const (
	Liveness  ProbeKind = "liveness"
	Readiness ProbeKind = "readiness"
	Startup   ProbeKind = "startup"
)

// ProbeKinds are all of them.
var ProbeKinds = []ProbeKind{Liveness, Readiness, Startup}

// Probe returns a container's probe of a kind, nil if it has none.
func Probe(c *v1.Container, kind ProbeKind) *v1.Probe {
	return map[ProbeKind]*v1.Probe{
		Liveness: c.LivenessProbe, Readiness: c.ReadinessProbe, Startup: c.StartupProbe,
	}[kind]
}

// IsSidecar reports whether an init container is one that runs beside the others.
func IsSidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// Containers returns all containers of a pod, the init containers first.
func Containers(pod *v1.Pod) []*v1.Container {
	var all []*v1.Container
	for i := range pod.Spec.InitContainers {
		all = append(all, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		all = append(all, &pod.Spec.Containers[i])
	}
	return all
}

// Find returns a container by name, nil if the pod has none of it.
func Find(pod *v1.Pod, name string) *v1.Container {
	for _, c := range Containers(pod) {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// FindStatus returns the status of a container by name, nil if there is none.
func FindStatus(status *v1.PodStatus, name string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{status.ContainerStatuses, status.InitContainerStatuses} {
		if i := slices.IndexFunc(list, func(s v1.ContainerStatus) bool { return s.Name == name }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

// Port returns the number of a container's port, which may be given by name.
func Port(c *v1.Container, port intstr.IntOrString) (int32, error) {
	if port.Type == intstr.String {
		for _, p := range c.Ports {
			if p.Name == port.StrVal {
				return p.ContainerPort, nil
			}
		}
		return 0, fmt.Errorf("the container has no port named %q", port.StrVal)
	}
	if port.IntVal < 1 || port.IntVal > 65535 {
		return 0, fmt.Errorf("%d is no port", port.IntVal)
	}
	return port.IntVal, nil
}

// Restarts reports whether a container runs again after an exit with a code.
func Restarts(pod *v1.Pod, c *v1.Container, exitCode int) bool {
	return IsSidecar(c) || pod.Spec.RestartPolicy == v1.RestartPolicyAlways ||
		pod.Spec.RestartPolicy == v1.RestartPolicyOnFailure && exitCode != 0
}

// ShouldRun reports whether a container that does not run is to be started, now or after a back-off.
func ShouldRun(pod *v1.Pod, c *v1.Container, status *pleg.PodStatus) bool {
	s := status.FindContainerStatusByName(c.Name)
	if s == nil || s.State != pleg.ContainerStateExited { // or created but never started, or unknown
		return s == nil || s.State != pleg.ContainerStateRunning
	}
	return Restarts(pod, c, s.ExitCode)
}

// SandboxChanged reports whether the pod needs a new sandbox, and returns the attempt that it is to have. The present
// sandbox is gone, dead, of another specification, without the address it should have, or one of several.
func SandboxChanged(pod *v1.Pod, sandboxHash string, status *pleg.PodStatus) (changed bool, attempt uint32) {
	if len(status.SandboxStatuses) == 0 {
		return true, 0
	}
	ready := 0
	for _, s := range status.SandboxStatuses {
		attempt = max(attempt, s.GetMetadata().GetAttempt()+1)
		if s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			ready++
		}
	}
	newest := status.SandboxStatuses[0]
	ok := ready == 1 && newest.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY &&
		newest.GetAnnotations()[SandboxHashAnnotation] == sandboxHash &&
		(pod.Spec.HostNetwork || newest.GetNetwork().GetIp() != "")
	return !ok, attempt
}

// HasRegularContainer reports whether any container but the init containers exists in the pod, in any state: its init
// containers have then run.
func HasRegularContainer(pod *v1.Pod, status *pleg.PodStatus) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c v1.Container) bool {
		return status.FindContainerStatusByName(c.Name) != nil
	})
}
