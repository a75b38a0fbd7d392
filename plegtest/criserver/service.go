package criserver

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// service implements the CRI calls. callGuard has already refused the calls that are not permitted.
type service struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	s *Server
}

func (c *service) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{
		Version: "0.1.0", RuntimeApiVersion: "v1",
		RuntimeName: c.s.cfg.habits.name, RuntimeVersion: c.s.cfg.habits.version,
	}, nil
}

func (c *service) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true},
		{Type: runtimeapi.NetworkReady, Status: true},
	}}}, nil
}

func (c *service) RuntimeConfig(context.Context,
	*runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	linux := &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_SYSTEMD}
	return &runtimeapi.RuntimeConfigResponse{Linux: linux}, nil
}

func (c *service) ListPodSandbox(_ context.Context,
	req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: c.s.node.listSandboxes(req.GetFilter())}, nil
}

func (c *service) ListContainers(_ context.Context,
	req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: c.s.node.listContainers(req.GetFilter())}, nil
}

// streams contains the streaming lists. They are served by name, because cri-api has them only
// since 0.36. Their messages are encoded like those of plain lists.
var streams = map[string]func(*Server, grpc.ServerStream) error{
	"StreamPodSandboxes": func(s *Server, stream grpc.ServerStream) error {
		var req runtimeapi.ListPodSandboxRequest
		return streamList(s, stream, "StreamPodSandboxes", &req,
			func() []*runtimeapi.PodSandbox { return s.node.listSandboxes(req.GetFilter()) },
			func(batch []*runtimeapi.PodSandbox) any { return &runtimeapi.ListPodSandboxResponse{Items: batch} })
	},
	"StreamContainers": func(s *Server, stream grpc.ServerStream) error {
		var req runtimeapi.ListContainersRequest
		return streamList(s, stream, "StreamContainers", &req,
			func() []*runtimeapi.Container { return s.node.listContainers(req.GetFilter()) },
			func(batch []*runtimeapi.Container) any { return &runtimeapi.ListContainersResponse{Containers: batch} })
	},
}

// streamList handles one call of a streaming list.
func streamList[T any](s *Server, stream grpc.ServerStream, method string, req any, list func() []T,
	answer func([]T) any) error {
	if err := stream.RecvMsg(req); err != nil {
		return err
	}
	if !s.cfg.streamingLists {
		return status.Errorf(codes.Unimplemented, "unknown method %s for service runtime.v1.RuntimeService", method)
	}
	for batch := range slices.Chunk(list(), s.cfg.own.ListBatch) {
		if err := stream.SendMsg(answer(batch)); err != nil {
			return err
		}
	}
	return nil
}

func (c *service) PodSandboxStatus(_ context.Context,
	req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	n := c.s.node
	n.mu.Lock()
	defer n.mu.Unlock()
	s, err := n.sandboxLocked(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	answer := &runtimeapi.PodSandboxStatusResponse{Status: s.status}
	if req.GetVerbose() {
		answer.Info = n.sandboxInfoLocked(s)
	}
	if c.s.cfg.crio && c.s.cfg.events == eventsInTurn {
		answer.Timestamp = n.now()
		for _, ctr := range s.containers {
			answer.ContainersStatuses = append(answer.ContainersStatuses, ctr.status)
		}
	}
	return answer, nil
}

func (c *service) ContainerStatus(_ context.Context,
	req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	n := c.s.node
	n.mu.Lock()
	defer n.mu.Unlock()
	ctr, err := n.containerLocked(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ContainerStatusResponse{Status: ctr.status}
	if req.GetVerbose() {
		resp.Info = n.containerInfoLocked(ctr)
	}
	return resp, nil
}

func (c *service) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream eventStream) error {
	return c.s.hub.serve(stream)
}
