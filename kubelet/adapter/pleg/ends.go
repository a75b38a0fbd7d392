package pleg

import (
	"context"
	"sync"
	"time"

	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/kubepleg/pleg"
)

// These values mean that the runtime does not know how a container ended. If containerd was down
// when the container ended, it reports unknownCode with unknownReason. While CRI-O has no exit
// file, it reports crioNoCode. The library's own connection may have reported the exit. The kubelet
// then gets that exit instead, in the generator's statuses and in the kubelet's own inspections.
// For example, the kubelet makes an inspection before it terminates a pod.
const (
	unknownCode   = 255
	unknownReason = "Unknown"
	crioNoCode    = -1
)

func isUnknown(s *kubecontainer.Status) bool {
	return s.State == kubecontainer.ContainerStateExited &&
		(s.ExitCode == unknownCode && s.Reason == unknownReason || s.ExitCode == crioNoCode)
}

// maxEnds is how many exits are kept. A node has far fewer containers.
const maxEnds = 10000

// seenEnds stores the exits that the library has reported, by container ID.
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

// correct modifies a status: it replaces unknown ends by the exits that the library has reported.
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

// These are the delays between two full lists on the library's own connection: followAgain after a
// failed list, and otherwise followEvery.
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

// follow makes full lists over the library's own connection. From these lists, the cri.Runtime
// learns whether lists are answered, and to which pod a container belongs. The generator's lists do
// not serve this purpose, because they use the kubelet's connection.
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
