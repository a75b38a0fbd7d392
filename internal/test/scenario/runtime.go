package scenario

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// recordingRuntime wraps the fake runtime. It records the calls and replaces some answers by
// garbage.
type recordingRuntime struct{ s *scenario }

func (r *recordingRuntime) GetPods(ctx context.Context, all bool) ([]*pleg.Pod, error) {
	r.s.calls.add(plegtest.GetPods, "", r.s.clock.Now())
	return r.s.runtime.GetPods(ctx, all)
}

func (r *recordingRuntime) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	r.s.calls.add(plegtest.GetPodStatus, pod.ID, r.s.clock.Now())
	status, err := r.s.runtime.GetPodStatus(ctx, pod)
	switch r.s.garbage[pod.ID] {
	case "nil-status":
		return nil, nil
	case "wrong-status":
		return &pleg.PodStatus{ID: "somebody-else"}, nil
	case "nil-items-in-status":
		status.ContainerStatuses = append(status.ContainerStatuses, nil)
		status.SandboxStatuses = append(status.SandboxStatuses, nil)
	}
	return status, err
}

// recordingCompanions is a recordingRuntime that also implements the optional interfaces of a
// runtime.
type recordingCompanions struct{ recordingRuntime }

func (r *recordingCompanions) GetPod(ctx context.Context, uid types.UID) (*pleg.Pod, error) {
	r.s.calls.add(plegtest.GetPod, uid, r.s.clock.Now())
	switch r.s.garbage[uid] {
	case "nil-pod-list":
		return nil, nil
	case "wrong-pod-list":
		return &pleg.Pod{ID: "somebody-else"}, nil
	}
	return r.s.runtime.GetPod(ctx, uid)
}

func (r *recordingCompanions) WatchContainerEvents(
	ctx context.Context, connected func(), observe func(pleg.ContainerEvent),
) error {
	return r.s.runtime.WatchContainerEvents(ctx, connected, observe)
}
