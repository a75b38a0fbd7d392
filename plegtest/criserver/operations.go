package criserver

import (
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The exit codes of the models.
const (
	exitKilled       = 137 // the container was killed by SIGKILL
	exitNeverStarted = 2   // CRI-O: the container was stopped before it was started
	exitStartError   = 128 // the container failed to start
	exitUnknown      = 255 // containerd: the exit happened while containerd was down
)

const reasonOOM = "OOMKilled"

// RunPod creates a ready sandbox without containers and returns its ID. If a pod with this UID
// exists, the pod gets one more sandbox, as when the kubelet replaces a dead sandbox.
func (s *Server) RunPod(config PodConfig) (sandboxID string) {
	n := s.node
	n.mu.Lock()
	sb := n.addSandboxLocked(config)
	id := sb.item.Id
	events := s.ranLocked(sb)
	n.mu.Unlock()
	s.hub.send(events...)
	return id
}

// ranLocked sends containerd's own events for a new sandbox, and returns its CRI events.
func (s *Server) ranLocked(sb *simSandbox) (events []*runtimeapi.ContainerEventResponse) {
	s.containerChanged(createTopic, sb.item.Id)
	s.processStarted(sb.item.Id, madeUpPID(sb.item.Id))
	if !s.cfg.crio {
		events = append(events, s.eventLocked(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, sb.item.Id, sb))
	}
	return append(events, s.eventLocked(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, sb.item.Id, sb))
}

// CreateContainer creates a container in a ready sandbox and returns its ID. Its restart count is
// the number of earlier containers of the pod with the same name.
func (s *Server) CreateContainer(sandboxID string, config ContainerConfig) (containerID string, err error) {
	n := s.node
	n.mu.Lock()
	sb, err := n.sandboxLocked(sandboxID)
	if err == nil && !sb.ready {
		err = status.Errorf(s.cfg.refusal, "sandbox container %q is not running", sandboxID)
	}
	if err != nil {
		n.mu.Unlock()
		return "", err
	}
	id := n.addContainerLocked(sb, config).item.Id
	s.containerChanged(createTopic, id)
	event := s.eventLocked(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, id, sb)
	n.mu.Unlock()
	s.hub.send(event)
	return id, nil
}

// StartContainer starts a created container.
func (s *Server) StartContainer(containerID string) error {
	n := s.node
	n.mu.Lock()
	c, err := n.containerLocked(containerID)
	if err == nil && c.state != runtimeapi.ContainerState_CONTAINER_CREATED {
		err = status.Errorf(codes.Unknown, "container %q is in state %s", containerID, c.state)
	}
	if err != nil {
		n.mu.Unlock()
		return err
	}
	c.state, c.startedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, n.now()
	n.showContainerLocked(c)
	s.processStarted(containerID, c.pid())
	event := s.eventLocked(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, containerID, c.sandbox)
	n.mu.Unlock()
	s.hub.send(event)
	return nil
}

// failStart ends a created container that cannot start. As in containerd, it sends no event.
func (s *Server) failStart(containerID string, cause error) error {
	n := s.node
	n.mu.Lock()
	defer n.mu.Unlock()
	c, err := n.containerLocked(containerID)
	if err == nil && c.state == runtimeapi.ContainerState_CONTAINER_CREATED {
		err = status.Errorf(codes.Unknown, "failed to create containerd task: %v", cause)
		c.message = status.Convert(err).Message()
		s.exitLocked(c, exitStartError, "StartError")
	}
	return err
}

// RunContainer creates and starts a container, and returns its ID. The container runs no program of
// WithPrograms.
func (s *Server) RunContainer(sandboxID string, config ContainerConfig) (containerID string, err error) {
	id, err := s.CreateContainer(sandboxID, config)
	if err != nil {
		return "", err
	}
	return id, s.StartContainer(id)
}

// ExitContainer makes a running container exit. If reason is empty, the reason is "Completed" for
// exit code 0 and "Error" otherwise.
func (s *Server) ExitContainer(containerID string, exitCode int, reason string) error {
	n := s.node
	n.mu.Lock()
	c, err := n.containerLocked(containerID)
	if err == nil && c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		err = status.Errorf(codes.Unknown, "container %q is in state %s", containerID, c.state)
	}
	if err != nil {
		n.mu.Unlock()
		return err
	}
	event := s.exitLocked(c, int32(exitCode), reason) //nolint:gosec // exit codes are small
	n.mu.Unlock()
	s.hub.send(event)
	return nil
}

func (c controls) OOMKill(containerID string) error {
	n := c.node
	n.mu.Lock()
	defer n.mu.Unlock()
	ctr, err := n.containerLocked(containerID)
	if err == nil && ctr.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
		ctr.outOfMemory = true
		c.containerChanged(oomTopic, containerID)
		if !n.crio {
			ctr.reason = reasonOOM
			n.showContainerLocked(ctr)
		}
	}
	return err
}

// KillContainer kills a running container with exit code 137, like a client's StopContainer without
// a grace period. With containerd, it does not change a container that is not running. With CRI-O,
// a container that was not started exits with code 2, and an exited container gets a new finish
// time without an event.
func (s *Server) KillContainer(containerID string) error {
	n := s.node
	n.mu.Lock()
	c, err := n.containerLocked(containerID)
	if err != nil {
		n.mu.Unlock()
		return err
	}
	events := s.killLocked(nil, c)
	if len(events) == 0 && n.crio {
		c.finishedAt = n.now()
		n.showContainerLocked(c)
	}
	n.mu.Unlock()
	s.hub.send(events...)
	return nil
}

// killLocked ends a running container, and with CRI-O also a container that was not started. It
// appends the exit's event to the slice events and returns the slice.
func (s *Server) killLocked(events []*runtimeapi.ContainerEventResponse,
	c *simContainer) []*runtimeapi.ContainerEventResponse {
	switch {
	case c.state == runtimeapi.ContainerState_CONTAINER_RUNNING:
		return append(events, s.exitLocked(c, exitKilled, ""))
	case c.state == runtimeapi.ContainerState_CONTAINER_CREATED && s.cfg.crio:
		c.startedAt = zeroTime
		return append(events, s.exitLocked(c, exitNeverStarted, ""))
	}
	return events
}

// RestartContainer starts a successor of a container: a new container with the same name and
// sandbox, and a restart count that is higher by one. If the old container is running, it is killed
// first. The old container stays until it is removed.
func (s *Server) RestartContainer(containerID string) (newID string, err error) {
	if err := s.KillContainer(containerID); err != nil {
		return "", err
	}
	s.node.mu.Lock()
	c, err := s.node.containerLocked(containerID)
	if err != nil {
		s.node.mu.Unlock()
		return "", err
	}
	sandboxID, config := c.sandbox.item.Id, c.config
	s.node.mu.Unlock()
	return s.RunContainer(sandboxID, config)
}

// RemoveContainer removes a container. If the container is running, it is killed first. If it does
// not exist, nothing happens.
func (s *Server) RemoveContainer(containerID string) error {
	n := s.node
	n.mu.Lock()
	c, err := n.containerLocked(containerID)
	if err != nil {
		n.mu.Unlock()
		return nil //nolint:nilerr // removing is idempotent in CRI
	}
	events := s.removeLocked(nil, c)
	n.mu.Unlock()
	s.hub.send(events...)
	return nil
}

// StopPodSandbox kills the containers of a sandbox and makes the sandbox not ready. The sandbox
// then has no address, except with CRI-O.
func (s *Server) StopPodSandbox(sandboxID string) error {
	n := s.node
	n.mu.Lock()
	sb, err := n.sandboxLocked(sandboxID)
	if err != nil {
		n.mu.Unlock()
		return err
	}
	events := s.stopLocked(nil, sb)
	n.mu.Unlock()
	s.hub.send(events...)
	return nil
}

// RemovePodSandbox removes a sandbox with its containers. If the sandbox is ready, it is stopped
// first. If it does not exist, nothing happens.
func (s *Server) RemovePodSandbox(sandboxID string) error {
	n := s.node
	n.mu.Lock()
	sb, err := n.sandboxLocked(sandboxID)
	if err != nil {
		n.mu.Unlock()
		return nil //nolint:nilerr // removing is idempotent in CRI
	}
	var events []*runtimeapi.ContainerEventResponse
	if s.cfg.crio { // CRI-O sends events for exits, but not for removals
		for _, c := range sb.containers {
			events = s.killLocked(events, c)
		}
		for _, c := range slices.Clone(sb.containers) {
			s.removeLocked(nil, c)
		}
		n.removeSandboxLocked(sb)
		n.mu.Unlock()
		s.hub.send(events...)
		return nil
	}
	events = s.stopLocked(events, sb)
	for _, c := range slices.Clone(sb.containers) {
		events = s.removeLocked(events, c)
	}
	s.containerChanged(deleteTopic, sandboxID)
	if s.cfg.deletedFirst {
		// The event comes first, so a list that the event triggers may still contain the sandbox.
		events = append(events, s.deletedLocked(sb))
		n.mu.Unlock()
		s.hub.send(events...)
		n.mu.Lock()
		if n.byID[sandboxID] == sb {
			n.removeSandboxLocked(sb)
		}
		n.mu.Unlock()
		return nil
	}
	n.removeSandboxLocked(sb)
	events = append(events, s.eventLocked(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, sandboxID, nil))
	n.mu.Unlock()
	s.hub.send(events...)
	return nil
}

// Sandboxes returns the IDs of a pod's sandboxes, newest first.
func (s *Server) Sandboxes(uid types.UID) []string {
	s.node.mu.Lock()
	defer s.node.mu.Unlock()
	var of []*simSandbox
	for _, sb := range s.node.sandboxes {
		if sb.config.UID == uid {
			of = append(of, sb)
		}
	}
	slices.SortFunc(of, func(a, b *simSandbox) int { return int(b.attempt) - int(a.attempt) })
	ids := make([]string, len(of))
	for i, sb := range of {
		ids[i] = sb.item.Id
	}
	return ids
}

// Containers returns the IDs of a sandbox's containers in the order of creation.
func (s *Server) Containers(sandboxID string) []string {
	s.node.mu.Lock()
	defer s.node.mu.Unlock()
	sb := s.node.byID[sandboxID]
	if sb == nil {
		return nil
	}
	ids := make([]string, len(sb.containers))
	for i, c := range sb.containers {
		ids[i] = c.item.Id
	}
	return ids
}

// Present returns the numbers of existing sandboxes and containers. Sandboxes that are not ready
// and exited containers count too.
func (s *Server) Present() (sandboxes, containers int) {
	s.node.mu.Lock()
	defer s.node.mu.Unlock()
	return len(s.node.sandboxes), len(s.node.containers)
}

// exitLocked ends a container and returns the CRI event.
func (s *Server) exitLocked(c *simContainer, exitCode int32, reason string) *runtimeapi.ContainerEventResponse {
	switch {
	case reason != "":
	case c.outOfMemory:
		reason = reasonOOM
	case exitCode != 0:
		reason = "Error"
	default:
		reason = "Completed"
	}
	at := s.node.now()
	if c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
		s.processExited(c.item.Id, c.pid(), exitCode, at)
	}
	if s.node.down && !s.cfg.knowsExits {
		exitCode, reason, c.exitLost = exitUnknown, "Unknown", true
	}
	c.state, c.finishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, at
	c.exitCode, c.reason = exitCode, reason
	if c.process != nil {
		c.process.exit()
	}
	s.node.showContainerLocked(c)
	return s.eventLocked(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, c.item.Id, c.sandbox)
}

func (s *Server) removeLocked(events []*runtimeapi.ContainerEventResponse,
	c *simContainer) []*runtimeapi.ContainerEventResponse {
	events = s.killLocked(events, c)
	if c.process != nil {
		c.process.exit() // releases the context, even if the program never started
	}
	s.node.removeContainerLocked(c)
	s.containerChanged(deleteTopic, c.item.Id)
	return append(events, s.eventLocked(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, c.item.Id,
		c.sandbox))
}

func (s *Server) stopLocked(events []*runtimeapi.ContainerEventResponse,
	sb *simSandbox) []*runtimeapi.ContainerEventResponse {
	for _, c := range sb.containers {
		events = s.killLocked(events, c)
	}
	if !sb.ready {
		return events
	}
	sb.ready = false
	if !s.cfg.crio { // CRI-O's sandboxes have no process
		s.processExited(sb.item.Id, madeUpPID(sb.item.Id), exitKilled, s.node.now())
	}
	s.node.showSandboxLocked(sb)
	return append(events, s.eventLocked(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, sb.item.Id, sb))
}

// eventLocked returns an event with the present statuses of the sandbox and its containers. As in
// the real runtimes, the event gets its timestamp later, when it is sent.
func (s *Server) eventLocked(kind runtimeapi.ContainerEventType, id string,
	sb *simSandbox) *runtimeapi.ContainerEventResponse {
	event := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: kind}
	if sb == nil || s.cfg.own.BareEvents {
		return event
	}
	event.PodSandboxStatus = sb.status
	for _, c := range sb.containers {
		event.ContainersStatuses = append(event.ContainersStatuses, c.status)
	}
	if s.cfg.crio { // CRI-O adds the containers of the pod's other sandboxes
		for _, c := range s.node.containers {
			if c.sandbox != sb && c.sandbox.config.UID == sb.config.UID {
				event.ContainersStatuses = append(event.ContainersStatuses, c.status)
			}
		}
	}
	return event
}

// deletedLocked returns the last event of a sandbox that containerd 2 is removing. As in containerd
// 2, the event does not contain the sandbox's creation time.
func (s *Server) deletedLocked(sb *simSandbox) *runtimeapi.ContainerEventResponse {
	event := s.eventLocked(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, sb.item.Id, sb)
	if old := event.PodSandboxStatus; old != nil {
		event.PodSandboxStatus = &runtimeapi.PodSandboxStatus{
			Id: old.Id, Metadata: old.Metadata, State: old.State, CreatedAt: zeroTime, Network: old.Network,
			Labels: old.Labels, Annotations: old.Annotations, RuntimeHandler: old.RuntimeHandler,
		}
	}
	return event
}
