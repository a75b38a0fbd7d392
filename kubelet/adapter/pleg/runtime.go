package pleg

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

// podRuntime adapts the kubelet's runtime to pleg.Runtime and, from 1.36 on, to pleg.PodGetter. The
// Source of a pod, container or status is the kubelet's own object.
type podRuntime struct{ kubecontainer.Runtime }

// GetPods implements pleg.Runtime.
func (r podRuntime) GetPods(ctx context.Context, all bool) ([]*pleg.Pod, error) {
	listed, err := r.Runtime.GetPods(ctx, all)
	if err != nil {
		return nil, err
	}
	pods := make([]*pleg.Pod, len(listed))
	for i, pod := range listed {
		pods[i] = convertPod(pod)
	}
	return pods, nil
}

// confirmed is appended to the message of each exit in the runtime's status. So the message differs
// from that of the exit event, and the library sends a PodSync when the runtime confirms the exit.
// The kubelet then publishes the exit. The kubelet does not see the appended text, because the
// cache returns the kubelet's own status.
const confirmed = " (confirmed)"

// GetPodStatus implements pleg.Runtime.
func (r podRuntime) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	source, ok := pod.Source.(*kubecontainer.Pod)
	if !ok {
		return nil, fmt.Errorf("inspecting pod %s: it was not listed by the kubelet's runtime", pod.ID)
	}
	inspected, err := inspect(ctx, r.Runtime, source)
	if err != nil || inspected == nil {
		return nil, err
	}
	converted := &pleg.PodStatus{
		ID: inspected.ID, Name: inspected.Name, Namespace: inspected.Namespace, IPs: inspected.IPs,
		SandboxStatuses: inspected.SandboxStatuses, Source: inspected,
	}
	for _, s := range inspected.ContainerStatuses {
		message := s.Message
		if s.State == kubecontainer.ContainerStateExited {
			message += confirmed
		}
		converted.ContainerStatuses = append(converted.ContainerStatuses, &pleg.Status{
			ID: pleg.ContainerID(s.ID), Name: s.Name, State: pleg.State(s.State), ExitCode: s.ExitCode, Reason: s.Reason,
			Message: message, CreatedAt: s.CreatedAt, StartedAt: s.StartedAt, FinishedAt: s.FinishedAt, Source: s,
			EndUnknown: isUnknown(s),
		})
	}
	return converted, nil
}

func convertPod(pod *kubecontainer.Pod) *pleg.Pod {
	if pod == nil {
		return nil
	}
	return &pleg.Pod{
		ID: pod.ID, Name: pod.Name, Namespace: pod.Namespace, CreatedAt: pod.CreatedAt, Source: pod,
		Containers: convertContainers(pod.Containers), Sandboxes: convertContainers(pod.Sandboxes),
	}
}

func convertContainers(listed []*kubecontainer.Container) []*pleg.Container {
	containers := make([]*pleg.Container, len(listed))
	for i, c := range listed {
		containers[i] = convertContainer(c)
	}
	return containers
}

// eventService contains the method of the kubelet's CRI client that the library needs.
type eventService interface {
	GetContainerEvents(ctx context.Context, events chan *runtimeapi.ContainerEventResponse,
		connected func(runtimeapi.RuntimeService_GetContainerEventsClient)) error
}

// nodeRuntime is the kubelet's runtime with all other inputs of a node's generator.
type nodeRuntime struct {
	kubecontainer.Runtime
	service  eventService
	endpoint string
	timeout  time.Duration
	ends     *seenEnds // a pointer, because NewGenericPLEG before 1.36 makes a copy of this struct
}

// NodeRuntime returns runtime with inputs that the kubelet does not pass to its generator: the
// kubelet's CRI client for events, the endpoint for exit events, and the runtime-request-timeout.
// Only a call of NodeRuntime must be added to kubelet.go.
func NodeRuntime(runtime kubecontainer.Runtime, service eventService, endpoint string, timeout time.Duration,
) kubecontainer.Runtime {
	return &nodeRuntime{runtime, service, endpoint, timeout, &seenEnds{}}
}

// eventedRuntime is a podRuntime with an event stream. It implements pleg.EventSource.
type eventedRuntime struct {
	podRuntime
	service eventService
}

// exitingRuntime is an eventedRuntime with exit events. It implements pleg.ExitSource. Exit events
// use their own connection, because the kubelet's client can only make CRI calls.
type exitingRuntime struct {
	eventedRuntime
	pleg.ExitSource
	ends *seenEnds
}

// adapt returns a pleg.Runtime. It reports exits if exits is true and an endpoint is known.
func (r *nodeRuntime) adapt(exits bool) (pleg.Runtime, error) {
	evented := eventedRuntime{podRuntime{r}, r.service}
	if !exits || r.endpoint == "" {
		return evented, nil
	}
	source, err := cri.Dial(r.endpoint)
	if err != nil {
		return evented, err
	}
	return exitingRuntime{evented, source, r.ends}, nil
}

// WatchContainerEvents implements pleg.EventSource.
func (r eventedRuntime) WatchContainerEvents(ctx context.Context, connected func(),
	observe func(pleg.ContainerEvent),
) error {
	events := make(chan *runtimeapi.ContainerEventResponse)
	ended := make(chan error, 1)
	go func() {
		defer close(events)
		ended <- r.service.GetContainerEvents(ctx, events,
			func(runtimeapi.RuntimeService_GetContainerEventsClient) { connected() })
	}()
	for e := range events { // read on after ctx has ended: without a reader, the client blocks
		observe(pleg.ContainerEvent{
			PodUID:      types.UID(e.GetPodSandboxStatus().GetMetadata().GetUid()),
			ContainerID: e.GetContainerId(),
			CreatedAt:   time.Unix(0, e.GetCreatedAt()),
		})
	}
	err := <-ended
	if status.Code(err) == codes.Unimplemented {
		return fmt.Errorf("%w: %w", pleg.ErrEventsUnsupported, err)
	}
	return err
}
