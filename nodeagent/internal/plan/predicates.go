package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// ProbeKind is the kind of a probe.
type ProbeKind string

// The kinds of probes.
const (
	Liveness  ProbeKind = "liveness"
	Readiness ProbeKind = "readiness"
	Startup   ProbeKind = "startup"
)

// ProbeKinds are all kinds of probes.
var ProbeKinds = []ProbeKind{Liveness, Readiness, Startup}

// Probe returns a container's probe of a kind, or nil.
func Probe(c *v1.Container, kind ProbeKind) *v1.Probe {
	return map[ProbeKind]*v1.Probe{
		Liveness: c.LivenessProbe, Readiness: c.ReadinessProbe, Startup: c.StartupProbe,
	}[kind]
}

// IsSidecar reports whether an init container is a sidecar. A sidecar keeps running with the other
// containers.
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

// Find returns a container by name, or nil.
func Find(pod *v1.Pod, name string) *v1.Container {
	for _, c := range Containers(pod) {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// FindStatus returns the status of a container by name, or nil.
func FindStatus(status *v1.PodStatus, name string) *v1.ContainerStatus {
	for _, s := range slices.Concat(status.InitContainerStatuses, status.ContainerStatuses) {
		if s.Name == name {
			return &s
		}
	}
	return nil
}

// Port returns the number of a container's port, given by number or name.
func Port(c *v1.Container, port intstr.IntOrString) (int32, error) {
	for _, p := range c.Ports {
		if port.Type == intstr.String && p.Name == port.StrVal {
			return p.ContainerPort, nil
		}
	}
	if n, err := strconv.ParseUint(port.String(), 10, 16); err == nil && n > 0 {
		return int32(n), nil
	}
	return 0, fmt.Errorf("the container has no port named %q", port.String())
}

// Hostname returns the host name inside a pod.
func Hostname(pod *v1.Pod) string {
	return cmp.Or(pod.Spec.Hostname, pod.Name[:min(len(pod.Name), 63)])
}

// Field returns the value of a pod's field for an environment variable. pod.Status must be set.
// Field returns false if environment variables cannot use the field.
func Field(pod *v1.Pod, path string) (value string, ok bool) {
	ips := []string{}
	for _, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	values := map[string]string{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "metadata.uid": string(pod.UID),
		"spec.nodeName": pod.Spec.NodeName, "spec.serviceAccountName": pod.Spec.ServiceAccountName,
		"status.hostIP": pod.Status.HostIP, "status.hostIPs": pod.Status.HostIP,
		"status.podIP": pod.Status.PodIP, "status.podIPs": strings.Join(ips, ","),
	}
	name, key, _ := strings.Cut(path, "['")
	if key, ok = strings.CutSuffix(key, "']"); ok {
		in, ok := map[string]map[string]string{"metadata.labels": pod.Labels, "metadata.annotations": pod.Annotations}[name]
		return in[key], ok
	}
	value, ok = values[path]
	return value, ok
}

// Grace returns the grace period of a pod. If probe is not nil and sets its own grace period, Grace
// returns the probe's grace period.
func Grace(pod *v1.Pod, probe *v1.Probe) time.Duration {
	seconds := *pod.Spec.TerminationGracePeriodSeconds
	if probe != nil {
		seconds = ptr.Deref(probe.TerminationGracePeriodSeconds, seconds)
	}
	return time.Duration(seconds) * time.Second
}
