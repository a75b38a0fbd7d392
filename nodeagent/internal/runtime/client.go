// Package runtime makes the agent's own calls to the container runtime, such as RunPodSandbox and
// StopContainer. The library makes the calls that list and inspect pods.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/distribution/reference"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const startGrace = 10 * time.Second

// callTimeout is the timeout of a call. A call that waits, for example for a grace period, may last
// callTimeout longer than its wait. pullTimeout limits the pull of an image, and readyTimeout
// limits the call of Ready.
const callTimeout, pullTimeout, readyTimeout = 2 * time.Minute, 15 * time.Minute, 30 * time.Second

// Client changes pods in a CRI v1 runtime. Its methods are safe for concurrent use. All calls to
// the runtime have timeouts.
type Client struct {
	cri                    runtimeapi.RuntimeServiceClient
	images                 runtimeapi.ImageServiceClient
	stateDir, cgroupParent string
}

// New returns a client that uses a connection, and stores volumes and logs in stateDir. If
// cgroupParent is empty, the runtime uses its default.
func New(conn grpc.ClientConnInterface, stateDir, cgroupParent string) *Client {
	return &Client{
		runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn), stateDir, cgroupParent,
	}
}

// call makes a call with a timeout. If the call fails, the error begins with the text what.
func call[Req, Resp any](ctx context.Context, timeout time.Duration, what string,
	method func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp, err := method(ctx, req)
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return resp, err
}

// end makes a call that stops or removes an object. It returns nil if the object does not exist.
func end[Req, Resp any](ctx context.Context, timeout time.Duration, what string,
	method func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) error {
	if _, err := call(ctx, timeout, what, method, req); status.Code(err) != codes.NotFound {
		return err
	}
	return nil
}

// ErrNotReady means that the runtime answers, but reports that it is not ready.
var ErrNotReady = errors.New("the runtime is not ready")

// Ready returns nil if the runtime is ready to run containers. Otherwise, it returns the reason,
// which wraps ErrNotReady if the runtime gave it.
func (c *Client) Ready(ctx context.Context) error {
	r, err := call(ctx, readyTimeout, "asking for the runtime's status", c.cri.Status, &runtimeapi.StatusRequest{})
	if err != nil {
		return err
	}
	for _, cond := range r.GetStatus().GetConditions() {
		if cond.GetType() == runtimeapi.RuntimeReady && !cond.GetStatus() {
			return fmt.Errorf("%w: %s: %s", ErrNotReady, cond.GetReason(), cond.GetMessage())
		}
	}
	return nil
}

// RunPodSandbox runs a sandbox of a pod and returns the sandbox's ID.
func (c *Client) RunPodSandbox(ctx context.Context, pod *v1.Pod, attempt uint32) (id string, err error) {
	r, err := call(ctx, 2*callTimeout, "running a sandbox", c.cri.RunPodSandbox, // the kubelet's timeout
		&runtimeapi.RunPodSandboxRequest{Config: c.sandboxConfig(pod, attempt)})
	return r.GetPodSandboxId(), err
}

// StopPodSandbox stops a sandbox and its containers. It returns nil if the sandbox does not exist.
func (c *Client) StopPodSandbox(ctx context.Context, id string) error {
	return end(ctx, callTimeout, "stopping sandbox "+id, c.cri.StopPodSandbox,
		&runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
}

// RemovePodSandbox removes a sandbox and its containers.
func (c *Client) RemovePodSandbox(ctx context.Context, id string) error {
	return end(ctx, callTimeout, "removing sandbox "+id, c.cri.RemovePodSandbox,
		&runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
}

// ErrConfig means that a container cannot be created from its specification.
var ErrConfig = errors.New("the container cannot be configured")

// CreateContainer creates a container of a pod in a sandbox, and returns the container's ID.
// pod.Status must be set.
func (c *Client) CreateContainer(ctx context.Context, pod *v1.Pod, container *v1.Container,
	sandboxID string, sandboxAttempt, restartCount uint32) (id string, err error) {
	image, err := c.image(ctx, container.Image)
	if err != nil {
		return "", err
	}
	config, err := c.containerConfig(pod, container, image, restartCount)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrConfig, err)
	}
	// containerd creates this directory itself, but CRI-O does not.
	if err := os.MkdirAll(filepath.Join(c.LogDir(pod), container.Name), 0o700); err != nil {
		return "", fmt.Errorf("making the directory of the log: %w", err)
	}
	r, err := call(ctx, callTimeout, "creating container "+container.Name, c.cri.CreateContainer,
		&runtimeapi.CreateContainerRequest{
			PodSandboxId: sandboxID, Config: config, SandboxConfig: c.sandboxConfig(pod, sandboxAttempt),
		})
	return r.GetContainerId(), err
}

// StartContainer starts a created container. If ctx ends during the start, the start continues for
// up to startGrace. After an interrupted start, nobody knows whether the container has begun its
// work.
func (c *Client) StartContainer(ctx context.Context, id string) error {
	start, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(startGrace, cancel) })()
	_, err := call(start, callTimeout, "starting container "+id, c.cri.StartContainer,
		&runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}

// StopContainer asks a container to end, and kills the container after the grace period. It returns
// nil if the container does not exist.
func (c *Client) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	return end(ctx, grace+callTimeout, "stopping container "+id, c.cri.StopContainer,
		&runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds(grace)})
}

// seconds returns a duration in whole seconds, rounded up. In CRI, a grace period of 0 means an
// immediate kill, and a command with a timeout of 0 has no limit.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// RemoveContainer removes a container.
func (c *Client) RemoveContainer(ctx context.Context, id string) error {
	return end(ctx, callTimeout, "removing container "+id, c.cri.RemoveContainer,
		&runtimeapi.RemoveContainerRequest{ContainerId: id})
}

// ReopenContainerLog makes a container continue in a new log file, after its log was renamed.
func (c *Client) ReopenContainerLog(ctx context.Context, id string) error {
	_, err := call(ctx, callTimeout, "reopening the log of container "+id, c.cri.ReopenContainerLog,
		&runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	return err
}

// ErrExecTimeout means that a command ran longer than its timeout.
var ErrExecTimeout = errors.New("the command has timed out")

// Exec runs a command in a container and returns its output and exit code.
func (c *Client) Exec(ctx context.Context, id string, command []string,
	timeout time.Duration) (output string, code int, err error) {
	r, err := call(ctx, timeout+callTimeout, fmt.Sprintf("running %q", command), c.cri.ExecSync,
		&runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: seconds(timeout)})
	if status.Code(err) == codes.DeadlineExceeded && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", ErrExecTimeout, err)
	}
	return string(r.GetStdout()) + string(r.GetStderr()), int(r.GetExitCode()), err
}

// EnsureImage pulls a container's image if the pull policy requires a pull, except during a
// back-off. If the image is not available, EnsureImage returns the kubelet's reason and a message.
// During a back-off, it also returns a time at which the back-off has ended.
func (c *Client) EnsureImage(ctx context.Context, of *v1.Container,
	backoff *flowcontrol.Backoff) (reason, message string, until time.Time) {
	if _, err := reference.ParseNormalizedNamed(of.Image); err != nil {
		return "InvalidImageName", fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %q: %v",
			of.Image, of.Image, err), until
	}
	image, err := c.image(ctx, of.Image)
	switch now := backoff.Clock.Now(); {
	case err != nil:
		return "ImageInspectError", err.Error(), until
	case image != nil && of.ImagePullPolicy != v1.PullAlways:
		return "", "", until
	case of.ImagePullPolicy == v1.PullNever:
		return "ErrImageNeverPull",
			fmt.Sprintf("Container image %q is not present with pull policy of Never", of.Image), until
	case backoff.IsInBackOffSinceUpdate(of.Image, now):
		return "ImagePullBackOff", fmt.Sprintf("Back-off pulling image %q", of.Image), now.Add(backoff.Get(of.Image))
	}
	_, err = call(ctx, pullTimeout, "pulling image "+of.Image, c.images.PullImage, &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: of.Image, UserSpecifiedImage: of.Image},
	})
	if err != nil {
		backoff.Next(of.Image, backoff.Clock.Now())
		return "ErrImagePull", err.Error(), until
	}
	return "", "", until
}

// image returns the image with this name, or nil if the runtime does not store it.
func (c *Client) image(ctx context.Context, name string) (*runtimeapi.Image, error) {
	r, err := call(ctx, callTimeout, "asking for image "+name, c.images.ImageStatus,
		&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	return r.GetImage(), err
}
