package runtime

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelet "k8s.io/kubelet/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/nodeagent/internal/security"
)

// These annotations are the kubelet's. The kubelet and the library use them to recognize pods and
// containers.
const (
	annotationHash         = "io.kubernetes.container.hash"
	annotationRestartCount = "io.kubernetes.container.restartCount"
	annotationSource       = "kubernetes.io/config.source"
	annotationGracePeriod  = "io.kubernetes.pod.terminationGracePeriod"
)

// source returns the value of annotationSource. An agent with this state directory sets this value
// in all sandboxes that it creates.
func (c *Client) source() string { return "nodeagent " + c.stateDir }

// Orphan returns a pod with the names and the grace period in the runtime's status. It returns nil
// if no agent with this state directory created the pod.
func (c *Client) Orphan(seen *pleg.PodStatus) *v1.Pod {
	if len(seen.SandboxStatuses) == 0 || seen.SandboxStatuses[0].GetAnnotations()[annotationSource] != c.source() {
		return nil
	}
	seconds, err := strconv.ParseInt(seen.SandboxStatuses[0].GetAnnotations()[annotationGracePeriod], 10, 32)
	if err != nil || seconds < 0 {
		seconds = v1.DefaultTerminationGracePeriodSeconds
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: seen.ID, Name: seen.Name, Namespace: seen.Namespace},
		Spec:       v1.PodSpec{TerminationGracePeriodSeconds: &seconds},
	}
}

func (c *Client) sandboxConfig(pod *v1.Pod, attempt uint32) *runtimeapi.PodSandboxConfig {
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID),
			Attempt: attempt},
		LogDirectory: c.LogDir(pod),
		Labels:       labels.Merge(pod.Labels, podLabels(pod)),
		Annotations: labels.Merge(pod.Annotations, map[string]string{
			annotationSource:           c.source(),
			annotationGracePeriod:      strconv.FormatInt(*pod.Spec.TerminationGracePeriodSeconds, 10),
			plan.SandboxHashAnnotation: SandboxHash(pod),
		}),
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: c.cgroupParent, SecurityContext: security.Sandbox(pod)},
	}
	if !pod.Spec.HostNetwork { // on the host's network, runtimes refuse a host name
		config.Hostname = plan.Hostname(pod)
	}
	return config
}

func podLabels(pod *v1.Pod) map[string]string {
	return map[string]string{
		kubelet.KubernetesPodNameLabel: pod.Name, kubelet.KubernetesPodNamespaceLabel: pod.Namespace,
		kubelet.KubernetesPodUIDLabel: string(pod.UID),
	}
}

// propagations maps values of mountPropagation to CRI's values. Without mountPropagation, a mount
// is private.
var propagations = map[v1.MountPropagationMode]runtimeapi.MountPropagation{
	v1.MountPropagationHostToContainer: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
	v1.MountPropagationBidirectional:   runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL,
}

// containerConfig returns CRI's configuration of a container. It needs pod.Status for the pod's
// addresses.
func (c *Client) containerConfig(pod *v1.Pod, container *v1.Container, image *runtimeapi.Image,
	restartCount uint32) (*runtimeapi.ContainerConfig, error) {
	securityContext, err := security.Container(pod, container, image)
	if err != nil {
		return nil, err
	}
	config := &runtimeapi.ContainerConfig{
		Metadata:   &runtimeapi.ContainerMetadata{Name: container.Name, Attempt: restartCount},
		Image:      &runtimeapi.ImageSpec{Image: container.Image, UserSpecifiedImage: container.Image},
		WorkingDir: container.WorkingDir,
		Stdin:      container.Stdin, StdinOnce: container.StdinOnce, Tty: container.TTY,
		Labels: labels.Merge(podLabels(pod), labels.Set{kubelet.KubernetesContainerNameLabel: container.Name}),
		Annotations: map[string]string{
			annotationHash:         strconv.FormatUint(ContainerHash(pod, container), 16),
			annotationRestartCount: strconv.FormatUint(uint64(restartCount), 10),
		},
		LogPath: filepath.Join(container.Name, strconv.FormatUint(uint64(restartCount), 10)+".log"),
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: resources(pod, container), SecurityContext: securityContext},
	}
	if config.Mounts, err = c.mounts(pod, container); err != nil {
		return nil, err
	}
	references := map[string]string{"$$": "$"} // maps each reference to its value
	for _, e := range container.Env {
		value := expand(e.Value, references)
		if e.ValueFrom != nil {
			value, _ = plan.Field(pod, e.ValueFrom.FieldRef.FieldPath) // validation has checked that the field exists
		}
		references["$("+e.Name+")"] = value
		config.Envs = append(config.Envs, &runtimeapi.KeyValue{Key: e.Name, Value: []byte(value)})
	}
	for _, arg := range container.Command {
		config.Command = append(config.Command, expand(arg, references))
	}
	for _, arg := range container.Args {
		config.Args = append(config.Args, expand(arg, references))
	}
	return config, nil
}

// mounts prepares the volumes of a container, and returns the mounts. If the pod has an address,
// mounts also prepares the pod's hosts file.
func (c *Client) mounts(pod *v1.Pod, container *v1.Container) (mounts []*runtimeapi.Mount, err error) {
	hasHosts := len(pod.Status.PodIPs) == 0
	for _, m := range container.VolumeMounts {
		hasHosts = hasHosts || m.MountPath == hostsPath
		path, err := c.volume(pod, volumeOf(pod, m))
		if err != nil {
			return nil, fmt.Errorf("preparing volume %s: %w", m.Name, err)
		}
		mounts = append(mounts, &runtimeapi.Mount{HostPath: path, ContainerPath: m.MountPath,
			Readonly: m.ReadOnly, Propagation: propagations[ptr.Deref(m.MountPropagation, "")]})
	}
	if hasHosts {
		return mounts, nil
	}
	path, err := c.hosts(pod)
	return append(mounts, &runtimeapi.Mount{HostPath: path, ContainerPath: hostsPath}), err
}

// referencePattern matches "$$" and "$(NAME)".
var referencePattern = regexp.MustCompile(`\$(\$|\([^)]*\))`)

// expand replaces references by their values. Unknown references stay unchanged.
func expand(s string, references map[string]string) string {
	return referencePattern.ReplaceAllStringFunc(s, func(found string) string {
		if value, known := references[found]; known {
			return value
		}
		return found
	})
}

// resources converts requests and limits as the kubelet does. A request of one CPU becomes 1024
// shares. A limit of one CPU becomes a quota of a full period.
func resources(pod *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources {
	// The kernel's values; period and minQuota are in µs.
	const period, minShares, maxShares, minQuota = 100_000, 2, 1 << 18, 1000
	r := &runtimeapi.LinuxContainerResources{
		MemoryLimitInBytes: c.Resources.Limits.Memory().Value(), OomScoreAdj: oomScoreAdj(pod, c, nodeMemory()),
	}
	limited := c.Resources.Limits.Cpu().MilliValue()
	r.CpuShares = min(max(c.Resources.Requests.Cpu().MilliValue()*1024/1000, minShares), maxShares)
	if limited > 0 {
		r.CpuPeriod, r.CpuQuota = period, max(limited*period/1000, minQuota)
	}
	return r
}

// QOS returns the quality of service of a pod, from its containers' requests and limits.
func QOS(pod *v1.Pod) v1.PodQOSClass {
	asks, guaranteed := false, true
	for _, c := range plan.Containers(pod) {
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			request, limit := c.Resources.Requests[name], c.Resources.Limits[name]
			asks = asks || !request.IsZero() || !limit.IsZero()
			guaranteed = guaranteed && !limit.IsZero() && request.Equal(limit)
		}
	}
	switch {
	case guaranteed:
		return v1.PodQOSGuaranteed
	case asks:
		return v1.PodQOSBurstable
	default:
		return v1.PodQOSBestEffort
	}
}

// oomScoreAdj returns the OOM score adjustment that the kubelet would set for a container's
// processes. When memory runs out, the kernel first kills containers that request little memory and
// use more than they request.
func oomScoreAdj(pod *v1.Pod, c *v1.Container, memory int64) int64 {
	const guaranteed, bestEffort = -997, 1000
	class := QOS(pod)
	switch {
	case class == v1.PodQOSGuaranteed || pod.Spec.PriorityClassName == "system-node-critical":
		return guaranteed
	case class == v1.PodQOSBestEffort:
		return bestEffort
	}
	request := c.Resources.Requests.Memory().Value()
	if plan.IsSidecar(c) { // a sidecar must not be the first container that the kernel kills
		least := slices.MinFunc(pod.Spec.Containers, func(a, b v1.Container) int {
			return a.Resources.Requests.Memory().Cmp(*b.Resources.Requests.Memory())
		})
		request = max(request, least.Resources.Requests.Memory().Value())
	}
	return min(max(bestEffort-1000*request/memory, bestEffort+guaranteed), bestEffort-1)
}

// nodeMemory returns the size of the node's memory in bytes.
func nodeMemory() int64 {
	var info syscall.Sysinfo_t
	_ = syscall.Sysinfo(&info)                           // fails only for a bad address
	return max(int64(info.Totalram)*int64(info.Unit), 1) //nolint:gosec // it is less than 8 EiB
}

// node is what a node offers.
type node struct {
	milliCPU, memory int64 // in thousandths of a CPU, and in bytes
	appArmor         bool  // true if the kernel enforces AppArmor profiles
}

// Admit returns the kubelet's reason and message if this node cannot run a pod: if the pod requests
// more than the node has, or AppArmor on a node without it. Otherwise, the reason is empty. Admit
// does not count the requests of other pods.
func Admit(pod *v1.Pod) (reason, message string) {
	cpus, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*") // the pattern is valid
	enabled, _ := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return node{
		milliCPU: int64(max(len(cpus), runtime.NumCPU())) * 1000, memory: nodeMemory(), // NumCPU may be a part of them
		appArmor: strings.HasPrefix(string(enabled), "Y"),
	}.admit(pod)
}

func (n node) admit(pod *v1.Pod) (reason, message string) {
	const rejected = "Pod was rejected: "
	if security.WantsAppArmor(pod) && !n.appArmor {
		return "AppArmor", rejected + "Cannot enforce AppArmor: AppArmor is not enabled on the host"
	}
	cpu := request(pod, func(c *v1.Container) int64 { return c.Resources.Requests.Cpu().MilliValue() })
	memory := request(pod, func(c *v1.Container) int64 { return c.Resources.Requests.Memory().Value() })
	const format = rejected + "Node didn't have enough resource: %s, requested: %d, used: 0, capacity: %d"
	switch {
	case cpu > n.milliCPU:
		return "OutOfcpu", fmt.Sprintf(format, v1.ResourceCPU, cpu, n.milliCPU)
	case memory > n.memory:
		return "OutOfmemory", fmt.Sprintf(format, v1.ResourceMemory, memory, n.memory)
	default:
		return "", ""
	}
}

// request returns what a pod's containers that run at the same time request at most. of returns the
// request of one container.
func request(pod *v1.Pod, of func(*v1.Container) int64) int64 {
	var lasting, most int64 // the requests of the containers that keep running, and the most at any time
	for i, c := range plan.Containers(pod) {
		if i < len(pod.Spec.InitContainers) && !plan.IsSidecar(c) {
			most = max(most, lasting+of(c))
			continue
		}
		lasting += of(c)
		most = max(most, lasting)
	}
	return most
}

// ContainerHash returns the hash of a container's specification and its volumes. If the hash
// changes, the agent replaces the container. The kubelet hashes only the name and the image,
// because the API server allows no other changes.
func ContainerHash(pod *v1.Pod, c *v1.Container) uint64 {
	parts := []any{c}
	for _, m := range c.VolumeMounts {
		parts = append(parts, volumeOf(pod, m))
	}
	return hashOf(parts)
}

// SandboxHash returns the hash of a sandbox's specification. If the hash changes, the agent starts
// the pod again in a new sandbox. The hash includes init containers, but no sidecars. It includes
// no labels and annotations, because a pod need not restart when they change.
func SandboxHash(pod *v1.Pod) string {
	parts := []any{pod.Spec.Hostname, security.Sandbox(pod), pod.Spec.SecurityContext}
	if len(pod.Spec.HostAliases) > 0 { // without aliases, the hash must be the same as in older versions
		parts = append(parts, pod.Spec.HostAliases)
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; !plan.IsSidecar(c) {
			parts = append(parts, ContainerHash(pod, c))
		}
	}
	return strconv.FormatUint(hashOf(parts), 16)
}

// hashOf hashes the JSON of a value to 32 bits, like the kubelet.
func hashOf(v any) uint64 {
	h := fnv.New32a()
	_ = json.NewEncoder(h).Encode(v) // cannot fail for these types and a hash
	return uint64(h.Sum32())
}
