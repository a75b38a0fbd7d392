package pleg

import (
	"context"
	"sync"
	"time"

	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/kubepleg/pleg"
)

// containerd reports this code and reason for a container that ended while containerd was away, and CRI-O the code
// while it has no exit file. If the library's own connection has reported the end, the kubelet gets that end instead:
// in the generator's statuses and in its own inspections, such as the one before a pod is terminated.
const (
	unknownCode   = 255
	unknownReason = "Unknown"
	crioNoCode    = -1
)

func isUnknown(s *kubecontainer.Status) bool {
	return s.State == kubecontainer.ContainerStateExited &&
		(s.ExitCode == unknownCode && s.Reason == unknownReason || s.ExitCode == crioNoCode)
}

// maxEnds is how many ends are kept, far more than a node has containers.
const maxEnds = 10000

// seenEnds has the exits that the library has reported, by container ID.
type seenEnds struct {
	mu   sync.Mutex
	byID map[string]pleg.ContainerExit
}

func (e *seenEnds) add(exit pleg.ContainerExit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byID == nil || len(e.byID) >= maxEnds {
		e.byID = make(map[string]pleg.ContainerExit)
	}
	e.byID[exit.ContainerID] = exit
}

// correct replaces unknown ends in a status by the exits that the library has reported.
func (e *seenEnds) correct(status *kubecontainer.PodStatus) {
	if status == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range status.ContainerStatuses {
		exit, seen := e.byID[s.ID.ID]
		if !seen || !isUnknown(s) {
			continue
		}
		s.ExitCode, s.FinishedAt, s.Reason, s.Message = exit.ExitCode, exit.FinishedAt, "Completed", ""
		if exit.ExitCode != 0 {
			s.Reason = "Error"
		}
	}
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
	return r.ExitSource.WatchContainerExits(ctx, connected, func(exit pleg.ContainerExit) {
		r.ends.add(exit)
		observe(exit)
	})
}

// follow makes full lists over the library's connection, so that runtime notices unanswered lists and knows the pods
// of containers. The generator lists over the kubelet's connection.
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
