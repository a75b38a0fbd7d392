package pleg

import (
	"context"
	"sync"
	"time"

	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/kubepleg/pleg"
)

// containerd shows the exit code 255 and the reason "Unknown" for a container that ended while containerd
// was away. The library may have seen the end, by its own connection. Then the kubelet gets that, in the
// statuses of the generator and wherever else it inspects a pod: before a pod is terminated, for example.

const (
	unknownCode   = 255
	unknownReason = "Unknown"
)

// seenEnds is the library's own connection, which knows ends that the kubelet's does not. It is set before the
// generator starts, unless there are no exit events.
type seenEnds struct{ pleg.Runtime }

// withSeenEnds has a status show the ends that the library has seen in place of those that nobody knows.
func (r *nodeRuntime) withSeenEnds(ctx context.Context, status *kubecontainer.PodStatus) error {
	if status == nil || r.ends.Runtime == nil {
		return nil
	}
	isUnknown := func(s *kubecontainer.Status) bool {
		return s.State == kubecontainer.ContainerStateExited && s.ExitCode == unknownCode && s.Reason == unknownReason
	}
	pod := &pleg.Pod{ID: status.ID}
	for _, s := range status.ContainerStatuses {
		if isUnknown(s) {
			pod.Containers = append(pod.Containers,
				&pleg.Container{ID: pleg.ContainerID(s.ID), Name: s.Name, State: pleg.ContainerStateExited})
		}
	}
	if len(pod.Containers) == 0 {
		return nil
	}
	seen, err := r.ends.GetPodStatus(ctx, pod)
	if err != nil {
		return err
	}
	for _, s := range status.ContainerStatuses {
		if end := seen.FindContainerStatusByID(s.ID.ID); isUnknown(s) && end != nil && !end.EndUnknown {
			s.ExitCode, s.Reason, s.Message, s.FinishedAt = end.ExitCode, end.Reason, end.Message, end.FinishedAt
		}
	}
	return nil
}

// followEvery is how often the library's own connection lists and, after a list that failed, tries again.
const (
	followEvery = time.Minute
	followAgain = time.Second
)

// WatchContainerExits implements pleg.ExitSource.
func (r exitingRuntime) WatchContainerExits(ctx context.Context, connected func(), observe func(pleg.ContainerExit),
) error {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	if runtime, ok := r.ExitSource.(pleg.Runtime); ok {
		following.Go(func() { follow(ctx, runtime) })
	}
	return r.ExitSource.WatchContainerExits(ctx, connected, observe)
}

// follow has the library's connection know which containers exist, so that it keeps their ends, and forgets those
// that are gone. The generator's lists are made over the kubelet's connection.
func follow(ctx context.Context, runtime pleg.Runtime) {
	for ctx.Err() == nil {
		wait := followAgain
		if _, err := runtime.GetPods(ctx, true); err == nil {
			wait = followEvery
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}
