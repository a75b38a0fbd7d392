// Package runtime makes the calls that change something in the container runtime, for pods.
// Everything that is read comes from the library.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// callTimeout bounds every call, beside what it is asked to wait for; pullTimeout bounds
// the pull of an image.
const (
	callTimeout = 2 * time.Minute
	pullTimeout = 15 * time.Minute
)

// Options are what pods have in common.
type Options struct {
	// StateDir is the directory of emptyDir volumes and logs.
	StateDir string
	// CgroupParent is the cgroup that the pods are in; empty for the runtime's default.
	CgroupParent string
}

// Client changes pods in a CRI v1 runtime. Its methods are safe for concurrent use; each
// returns when its context ends, or after two minutes more than it was asked to wait.
type Client struct {
	cri    runtimeapi.RuntimeServiceClient
	images runtimeapi.ImageServiceClient
	opts   Options
}

// New returns a client on a connection, which stays the caller's.
func New(conn grpc.ClientConnInterface, opts Options) *Client {
	return &Client{runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn), opts}
}

// Ready returns nil if the runtime says that it can run containers, else why not.
func (c *Client) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := c.cri.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return fmt.Errorf("asking for the runtime's status: %w", err)
	}
	for _, cond := range r.GetStatus().GetConditions() {
		if cond.GetType() == runtimeapi.RuntimeReady {
			if cond.GetStatus() {
				return nil
			}
			return fmt.Errorf("the runtime is not ready: %s: %s", cond.GetReason(), cond.GetMessage())
		}
	}
	return errors.New("the runtime does not say whether it is ready")
}

// RunPodSandbox runs a sandbox of a pod and returns its ID.
func (c *Client) RunPodSandbox(ctx context.Context, pod *v1.Pod, attempt uint32) (id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*callTimeout) // as the kubelet gives it
	defer cancel()
	r, err := c.cri.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: c.sandboxConfig(pod, attempt)})
	if err != nil {
		return "", fmt.Errorf("running a sandbox: %w", err)
	}
	return r.PodSandboxId, nil
}

// StopPodSandbox ends everything in a sandbox. One that is not there is stopped.
func (c *Client) StopPodSandbox(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := c.cri.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return explained(err, "stopping sandbox", id)
}

// RemovePodSandbox removes a sandbox and its containers.
func (c *Client) RemovePodSandbox(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := c.cri.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return explained(err, "removing sandbox", id)
}

// CreateContainer creates a container of a pod in a sandbox and returns its ID.
func (c *Client) CreateContainer(ctx context.Context, pod *v1.Pod, container *v1.Container,
	sandboxID string, sandboxAttempt, restartCount uint32) (id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	config, err := c.containerConfig(pod, container, restartCount)
	if err != nil {
		return "", err
	}
	r, err := c.cri.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandboxID, Config: config, SandboxConfig: c.sandboxConfig(pod, sandboxAttempt),
	})
	if err != nil {
		return "", fmt.Errorf("creating container %s: %w", container.Name, err)
	}
	return r.ContainerId, nil
}

// StartContainer starts a container that was created.
func (c *Client) StartContainer(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := c.cri.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		return fmt.Errorf("starting container %.13s: %w", id, err)
	}
	return nil
}

// StopContainer asks a container to end, and kills it when the grace period is over. One
// that is not there is stopped.
func (c *Client) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, grace+callTimeout)
	defer cancel()
	_, err := c.cri.StopContainer(ctx, &runtimeapi.StopContainerRequest{
		ContainerId: id, Timeout: int64((grace + time.Second - 1) / time.Second),
	})
	return explained(err, "stopping container", id)
}

// RemoveContainer removes a container.
func (c *Client) RemoveContainer(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := c.cri.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
	return explained(err, "removing container", id)
}

// explained returns an error that says what was tried; nil if the object is not there.
func explained(err error, what, id string) error {
	if err == nil || status.Code(err) == codes.NotFound {
		return nil
	}
	return fmt.Errorf("%s %.13s: %w", what, id, err)
}

// ErrExecTimeout says that a command ran for longer than its timeout.
var ErrExecTimeout = errors.New("the command has timed out")

// Exec runs a command in a container and returns its output and exit code.
func (c *Client) Exec(ctx context.Context, id pleg.ContainerID, command []string,
	timeout time.Duration) (output string, code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout+callTimeout)
	defer cancel()
	r, err := c.cri.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
		ContainerId: id.ID, Cmd: command, Timeout: int64(timeout / time.Second),
	})
	switch {
	case status.Code(err) == codes.DeadlineExceeded && ctx.Err() == nil:
		return "", 0, fmt.Errorf("%w: %v", ErrExecTimeout, command)
	case err != nil:
		return "", 0, fmt.Errorf("running %q in container %.13s: %w", command, id.ID, err)
	}
	return string(r.Stdout) + string(r.Stderr), int(r.ExitCode), nil
}

// The reasons why the image of a container is not there.
var (
	ErrImageNeverPull = errors.New("the image is not there, and its pull policy is Never")
	ErrImagePull      = errors.New("pulling the image")
)

// ImagePresent reports whether the runtime has an image.
func (c *Client) ImagePresent(ctx context.Context, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := c.images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	if err != nil {
		return false, fmt.Errorf("asking for image %q: %w", name, err)
	}
	return r.Image != nil, nil
}

// PullImage pulls an image.
func (c *Client) PullImage(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	_, err := c.images.PullImage(ctx, &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: name},
	})
	if err != nil {
		return fmt.Errorf("%w %q: %w", ErrImagePull, name, err)
	}
	return nil
}
