package criserver

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/serverconfig"
)

// writingCalls contains the CRI methods that only a server with programs permits.
var writingCalls = map[string]bool{
	"RunPodSandbox": true, "StopPodSandbox": true, "RemovePodSandbox": true,
	"CreateContainer": true, "StartContainer": true, "StopContainer": true, "RemoveContainer": true,
	"ExecSync": true, "PullImage": true,
}

// loopback is the address of every pod whose programs run in this process.
const loopback = "127.0.0.1"

// RunPodSandbox implements runtimeapi.RuntimeServiceServer.
func (c *service) RunPodSandbox(_ context.Context,
	req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	meta := req.GetConfig().GetMetadata()
	if meta.GetName() == "" || meta.GetNamespace() == "" || meta.GetUid() == "" {
		return nil, status.Error(codes.InvalidArgument, "the sandbox config lacks metadata")
	}
	config := PodConfig{
		UID: types.UID(meta.Uid), Name: meta.Name, Namespace: meta.Namespace,
		Labels: req.Config.Labels, Annotations: req.Config.Annotations, RuntimeHandler: req.RuntimeHandler,
		IPs: []string{loopback}, given: req.Config,
	}
	if req.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE {
		config.IPs = []string{}
	}
	n := c.s.node
	n.mu.Lock()
	for _, sb := range n.sandboxes {
		if sb.config.UID == config.UID && sb.attempt == meta.Attempt {
			n.mu.Unlock()
			return nil, status.Errorf(codes.Unknown, "failed to reserve sandbox name %q: name is reserved for %q",
				meta.Name, sb.item.Id)
		}
	}
	n.podLocked(config.UID).nextAttempt = meta.Attempt
	sb := n.addSandboxLocked(config)
	id := sb.item.Id
	events := c.s.ranLocked(sb)
	n.mu.Unlock()
	c.s.hub.send(events...)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// crioGrace is the grace period that CRI-O gives containers when their sandbox is stopped or they
// are removed. containerd kills them at once.
const crioGrace = 10 * time.Second

// StopPodSandbox implements runtimeapi.RuntimeServiceServer.
func (c *service) StopPodSandbox(ctx context.Context,
	req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	if err := c.beforeRemoval(ctx, c.s.Containers(req.PodSandboxId)...); err != nil {
		return nil, err
	}
	return &runtimeapi.StopPodSandboxResponse{}, c.stopped(c.s.StopPodSandbox(req.PodSandboxId))
}

// stopped takes the error of a stop and returns the error for the client. It returns nil if the
// model ignores that the stopped object does not exist.
func (c *service) stopped(err error) error {
	if c.s.cfg.missingIsError {
		return err
	}
	return nil
}

// RemovePodSandbox implements runtimeapi.RuntimeServiceServer.
func (c *service) RemovePodSandbox(ctx context.Context,
	req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	if err := c.beforeRemoval(ctx, c.s.Containers(req.PodSandboxId)...); err != nil {
		return nil, err
	}
	return &runtimeapi.RemovePodSandboxResponse{}, c.s.RemovePodSandbox(req.PodSandboxId)
}

// CreateContainer implements runtimeapi.RuntimeServiceServer.
func (c *service) CreateContainer(_ context.Context,
	req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	config := req.GetConfig()
	name, attempt := config.GetMetadata().GetName(), config.GetMetadata().GetAttempt()
	image := config.GetImage().GetImage()
	if name == "" {
		return nil, status.Error(codes.InvalidArgument, "the container config lacks metadata")
	}
	program, ok := c.s.cfg.programOf(image)
	if !ok {
		return nil, status.Errorf(codes.NotFound, "failed to resolve image %q: not found", image)
	}
	run := Process{ContainerName: name, Image: image, Attempt: attempt,
		Args: slices.Concat(config.Command, config.Args), Env: environment(config)}
	if c.s.cfg.crio && program.Start != nil {
		if err := program.Start(&run); err != nil {
			return nil, status.Errorf(codes.Unknown, "container create failed: %v", err)
		}
	}
	n := c.s.node
	n.mu.Lock()
	sb, err := n.sandboxLocked(req.PodSandboxId)
	switch {
	case err != nil:
	case !sb.ready:
		err = status.Errorf(c.s.cfg.refusal, "sandbox container %q is not running", req.PodSandboxId)
	case slices.ContainsFunc(sb.containers, func(o *simContainer) bool {
		return o.config.Name == name && o.attempt == attempt
	}):
		err = status.Errorf(codes.Unknown, "failed to reserve container name %q of attempt %d: it is reserved", name, attempt)
	}
	if err != nil {
		n.mu.Unlock()
		return nil, err
	}
	n.podLocked(sb.config.UID).restarts[name] = attempt
	ctr := n.addContainerLocked(sb, ContainerConfig{Name: name, Image: image,
		Labels: config.Labels, Annotations: config.Annotations, given: config})
	id := ctr.item.Id
	c.s.containerChanged(createTopic, id)
	run.ContainerID, run.PodUID, run.PodNamespace, run.PodName = id, sb.config.UID, sb.config.Namespace, sb.config.Name
	ctr.process = newProcess(c.s.lifetime, program, run)
	event := c.s.eventLocked(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, id, sb)
	n.mu.Unlock()
	c.s.hub.send(event)
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// StartContainer implements runtimeapi.RuntimeServiceServer.
func (c *service) StartContainer(_ context.Context,
	req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	p, err := c.processOf(req.ContainerId)
	if err == nil && p != nil && p.program.Start != nil && !c.s.cfg.crio {
		if err := p.program.Start(&p.Process); err != nil {
			return nil, c.s.failStart(req.ContainerId, err)
		}
	}
	if err := c.s.StartContainer(req.ContainerId); err != nil {
		return nil, err
	}
	if p != nil {
		c.s.runProgram(p)
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// processOf returns the process of a container. It returns nil for a container that the test made
// with the server's own methods.
func (c *service) processOf(containerID string) (*process, error) {
	c.s.node.mu.Lock()
	defer c.s.node.mu.Unlock()
	ctr, err := c.s.node.containerLocked(containerID)
	if err != nil {
		return nil, err
	}
	return ctr.process, nil
}

// StopContainer implements runtimeapi.RuntimeServiceServer. It asks the program to end, and kills
// the container when the timeout expires.
func (c *service) StopContainer(ctx context.Context,
	req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	if req.Timeout > 0 {
		if ended, err := c.letEnd(ctx, time.Duration(req.Timeout)*time.Second, req.ContainerId); ended || err != nil {
			return &runtimeapi.StopContainerResponse{}, err
		}
	}
	return &runtimeapi.StopContainerResponse{}, c.stopped(c.s.KillContainer(req.ContainerId))
}

// beforeRemoval gives containers the grace period that the model grants before it kills them.
func (c *service) beforeRemoval(ctx context.Context, ids ...string) (err error) {
	if c.s.cfg.crio {
		_, err = c.letEnd(ctx, crioGrace, ids...)
	}
	return err
}

// letEnd asks the programs of running containers to end, and waits for them until the grace period
// is over. It returns true if there was at least one program and all have ended.
func (c *service) letEnd(ctx context.Context, grace time.Duration, ids ...string) (bool, error) {
	var ending []*process
	for _, id := range ids {
		if p, err := c.processOf(id); err == nil && p != nil && c.running(id) {
			p.terminate()
			ending = append(ending, p)
		}
	}
	timer := c.s.cfg.own.Clock.NewTimer(grace)
	defer timer.Stop()
	for _, p := range ending {
		select {
		case <-p.ctx.Done():
		case <-timer.C():
			return false, nil
		case <-ctx.Done():
			return false, status.FromContextError(ctx.Err()).Err()
		}
	}
	return len(ending) > 0, nil
}

func (c *service) running(containerID string) bool {
	c.s.node.mu.Lock()
	defer c.s.node.mu.Unlock()
	ctr, err := c.s.node.containerLocked(containerID)
	return err == nil && ctr.state == runtimeapi.ContainerState_CONTAINER_RUNNING
}

// RemoveContainer implements runtimeapi.RuntimeServiceServer.
func (c *service) RemoveContainer(ctx context.Context,
	req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	if err := c.beforeRemoval(ctx, req.ContainerId); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveContainerResponse{}, c.s.RemoveContainer(req.ContainerId)
}

// ExecSync implements runtimeapi.RuntimeServiceServer.
func (c *service) ExecSync(ctx context.Context,
	req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	p, err := c.processOf(req.ContainerId)
	switch {
	case err != nil:
		return nil, err
	case !c.running(req.ContainerId):
		return nil, status.Errorf(codes.FailedPrecondition, "container %q is not running", req.ContainerId)
	case p == nil || p.program.Exec == nil || len(req.Cmd) == 0:
		return nil, status.Errorf(codes.Unknown, "failed to exec %q: executable file not found", req.Cmd)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(context.Canceled) })()
	if req.Timeout > 0 {
		timer := c.s.cfg.own.Clock.NewTimer(time.Duration(req.Timeout) * time.Second)
		defer timer.Stop()
		stop := make(chan struct{})
		defer close(stop)
		c.s.programs.Go(func() {
			select {
			case <-timer.C():
				cancel(errExecTimeout)
			case <-stop:
			}
		})
	}
	var stdout, stderr bytes.Buffer
	run := p.Process
	run.Args, run.Stdout, run.Stderr = req.Cmd, &stdout, &stderr
	done := make(chan int, 1)
	c.s.programs.Go(func() {
		code := guardedRun(ctx, p.program.Exec, run)
		exit := serverconfig.TaskExit{ContainerID: req.ContainerId, ID: "exec"}
		exit.ExitCode = uint32(code) //nolint:gosec // small
		c.s.sendTaskExit(exit)
		done <- code
	})
	select {
	case code := <-done:
		return &runtimeapi.ExecSyncResponse{Stdout: stdout.Bytes(), Stderr: stderr.Bytes(),
			ExitCode: int32(code)}, nil //nolint:gosec // exit codes are small
	case <-ctx.Done():
	}
	if errors.Is(context.Cause(ctx), errExecTimeout) {
		return nil, status.Errorf(codes.DeadlineExceeded, "failed to exec %q: timeout %ds exceeded", req.Cmd, req.Timeout)
	}
	return nil, status.FromContextError(ctx.Err()).Err()
}

// errExecTimeout is the context's cause if a command has timed out.
var errExecTimeout = errors.New("the command has timed out")
