package testnode

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// These are the labels and annotations by which the kubelet recognizes its pods.
const (
	labelPodName             = "io.kubernetes.pod.name"
	labelPodNamespace        = "io.kubernetes.pod.namespace"
	labelPodUID              = "io.kubernetes.pod.uid"
	labelContainerName       = "io.kubernetes.container.name"
	annotationHash           = "io.kubernetes.container.hash"
	annotationRestartCount   = "io.kubernetes.container.restartCount"
	annotationMessagePath    = "io.kubernetes.container.terminationMessagePath"
	annotationMessagePolicy  = "io.kubernetes.container.terminationMessagePolicy"
	annotationGracePeriod    = "io.kubernetes.pod.terminationGracePeriod"
	annotationConfigSource   = "kubernetes.io/config.source"
	annotationConfigSeen     = "kubernetes.io/config.seen"
	defaultTerminationPath   = "/dev/termination-log"
	defaultTerminationPolicy = "File"
)

// Pod is a pod that a test runs. Its sandbox uses the host's network, unless RunPodIn made it.
type Pod struct {
	UID       types.UID
	Name      string
	Namespace string
	SandboxID string

	config *runtimeapi.PodSandboxConfig
}

// Container describes a container that a test runs in a pod.
type Container struct {
	Name string
	// Command runs in a busybox image.
	Command []string
	// Restarts is how many containers of this name the pod had before.
	Restarts int
	// Memory is the container's memory limit in bytes; 0 means no limit.
	Memory int64
}

// Hash returns the hash of the specification, for the container's annotation.
func (c Container) Hash() uint64 {
	h := fnv.New32a()
	fmt.Fprint(h, c.Name, c.Command)
	return uint64(h.Sum32())
}

// NewUID returns a random pod UID.
func NewUID() types.UID {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]))
}

// RunPod runs the sandbox of a new pod.
func (c *Client) RunPod(ctx context.Context, namespace, name string) (*Pod, error) {
	return c.runSandbox(ctx, NewUID(), namespace, name, 0)
}

// RunPodIn is like RunPod, but the pod uses the given namespaces. A pod network needs CNI plugins.
func (c *Client) RunPodIn(ctx context.Context, namespace, name string, in *runtimeapi.NamespaceOption) (*Pod, error) {
	return c.runSandboxIn(ctx, NewUID(), namespace, name, 0, in)
}

// RunPodAgain runs a new sandbox for a pod that has lost its sandbox.
func (c *Client) RunPodAgain(ctx context.Context, pod *Pod) (*Pod, error) {
	return c.runSandboxIn(ctx, pod.UID, pod.Namespace, pod.Name, pod.config.Metadata.Attempt+1, pod.namespaces())
}

func (p *Pod) namespaces() *runtimeapi.NamespaceOption {
	return p.config.Linux.SecurityContext.NamespaceOptions
}

func (c *Client) runSandbox(ctx context.Context, uid types.UID, namespace, name string, attempt uint32) (*Pod, error) {
	return c.runSandboxIn(ctx, uid, namespace, name, attempt, hostNetwork())
}

func (c *Client) runSandboxIn(ctx context.Context, uid types.UID, namespace, name string, attempt uint32,
	in *runtimeapi.NamespaceOption) (*Pod, error) {
	pod := &Pod{UID: uid, Name: name, Namespace: namespace}
	pod.config = &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: namespace, Uid: string(uid), Attempt: attempt},
		Labels: map[string]string{
			labelPodName:      name,
			labelPodNamespace: namespace,
			labelPodUID:       string(uid),
			"app":             name,
		},
		Annotations: map[string]string{
			annotationConfigSeen:   "2026-01-01T00:00:00.000000000Z",
			annotationConfigSource: "api",
		},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: cgroupOfPod(c.parent, string(uid)),
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: in,
			},
		},
	}
	r, err := c.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod.config})
	if err != nil {
		return nil, fmt.Errorf("running a sandbox for pod %s/%s: %w", namespace, name, err)
	}
	pod.SandboxID = r.PodSandboxId
	return pod, nil
}

// Create creates a container in a pod and returns its ID.
func (c *Client) Create(ctx context.Context, pod *Pod, container Container) (string, error) {
	r, err := c.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId:  pod.SandboxID,
		SandboxConfig: pod.config,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: container.Name, Attempt: uint32(container.Restarts)},
			Image:    &runtimeapi.ImageSpec{Image: BusyboxImage, UserSpecifiedImage: BusyboxImage},
			Command:  container.Command,
			Labels: map[string]string{
				labelPodName:       pod.Name,
				labelPodNamespace:  pod.Namespace,
				labelPodUID:        string(pod.UID),
				labelContainerName: container.Name,
			},
			Annotations: map[string]string{
				annotationHash:          strconv.FormatUint(container.Hash(), 16),
				annotationRestartCount:  strconv.Itoa(container.Restarts),
				annotationMessagePath:   defaultTerminationPath,
				annotationMessagePolicy: defaultTerminationPolicy,
				annotationGracePeriod:   "30",
			},
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources:       &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: container.Memory},
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: pod.namespaces()},
			},
		},
	})
	if err != nil {
		return "", fmt.Errorf("creating container %s of pod %s/%s: %w", container.Name, pod.Namespace, pod.Name, err)
	}
	return r.ContainerId, nil
}

// Start starts a container that was created.
func (c *Client) Start(ctx context.Context, id string) error {
	if _, err := c.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		return fmt.Errorf("starting container %s: %w", id, err)
	}
	return nil
}

// Run creates and starts a container, and returns its ID.
func (c *Client) Run(ctx context.Context, pod *Pod, container Container) (string, error) {
	id, err := c.Create(ctx, pod, container)
	if err != nil {
		return "", err
	}
	return id, c.Start(ctx, id)
}

// Stop kills a container at once, without a grace period.
func (c *Client) Stop(ctx context.Context, id string) error {
	if _, err := c.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id}); gone(err) != nil {
		return fmt.Errorf("stopping container %s: %w", id, err)
	}
	return nil
}

// Remove removes a container. A running container is killed first.
func (c *Client) Remove(ctx context.Context, id string) error {
	if _, err := c.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); gone(err) != nil {
		return fmt.Errorf("removing container %s: %w", id, err)
	}
	return nil
}

// StopPod stops a pod's sandbox and every container in it.
func (c *Client) StopPod(ctx context.Context, pod *Pod) error {
	if _, err := c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod.SandboxID}); gone(err) != nil {
		return fmt.Errorf("stopping the sandbox of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// RemovePod removes a pod's sandbox and every container in it.
func (c *Client) RemovePod(ctx context.Context, pod *Pod) error {
	if _, err := c.RemovePodSandbox(ctx,
		&runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod.SandboxID}); gone(err) != nil {
		return fmt.Errorf("removing the sandbox of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// RemovePods removes all pods of the runtime, including pods that other clients made. Until ctx ends, it tries again:
// containerd refuses to remove a container while it starts, also if the client that started it was killed.
func (c *Client) RemovePods(ctx context.Context) error {
	return untilDone(ctx, func() error { return c.removePods(ctx) })
}

func (c *Client) removePods(ctx context.Context) error {
	list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("listing the sandboxes: %w", err)
	}
	containers, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("listing the containers: %w", err)
	}
	var errs []error
	// Without this step, CRI-O would terminate each container and wait for ten seconds.
	for _, container := range containers.Containers {
		errs = append(errs, c.Stop(ctx, container.Id))
	}
	for _, s := range list.Items {
		pod := &Pod{Name: s.Metadata.GetName(), Namespace: s.Metadata.GetNamespace(), SandboxID: s.Id}
		errs = append(errs, c.StopPod(ctx, pod), c.RemovePod(ctx, pod))
	}
	return errors.Join(errs...)
}

// Sleep returns a command that does nothing until it is killed. It exits with 137 on SIGTERM, too:
// CRI-O first sends SIGTERM, and would otherwise wait for ten seconds.
func Sleep() []string { return Script("trap 'exit 137' TERM", "sleep 1000000 & wait") }

// Exit returns a command that exits at once with a code.
func Exit(code int) []string { return Script("exit " + strconv.Itoa(code)) }

// ExitOnSignal returns a command that exits with a code on SIGUSR1.
func ExitOnSignal(code int) []string {
	return Script(fmt.Sprintf("trap 'exit %d' USR1", code), "sleep 1000000 & wait")
}

// Script returns a command that runs lines of shell code.
func Script(lines ...string) []string { return []string{"sh", "-c", strings.Join(lines, "\n")} }

func hostNetwork() *runtimeapi.NamespaceOption {
	return &runtimeapi.NamespaceOption{
		Network: runtimeapi.NamespaceMode_NODE,
		Pid:     runtimeapi.NamespaceMode_CONTAINER,
	}
}
