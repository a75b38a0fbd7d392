package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/nodeagent/internal/runtime"
)

const (
	// containerDeletorBufferLimit is how many containers can wait for their removal.
	containerDeletorBufferLimit = 50
	// maxContainers is how many dead instances of a container stay, for logs and exit codes.
	maxContainers = 1
	// deletionRetry is how often an unwanted pod's containers are handed over again.
	deletionRetry = 5 * time.Second
)

// podContainerDeletor removes dead containers and their logs, one after another, in a goroutine of
// its own. A worker never waits for a removal. The methods are safe for concurrent use.
type podContainerDeletor struct {
	// Set once by newPodContainerDeletor.
	deleteContainer  func(context.Context, deletion) error
	containersToKeep int
	buffer           chan deletion
	logger           klog.Logger

	mu      sync.Mutex
	pending sets.Set[string] // IDs of the containers in buffer and of the one being removed; guarded by mu
}

type deletion struct {
	pod       *v1.Pod
	container *pleg.Status
}

func newPodContainerDeletor(deleteContainer func(context.Context, deletion) error, containersToKeep int,
	logger klog.Logger) *podContainerDeletor {
	return &podContainerDeletor{deleteContainer: deleteContainer, containersToKeep: containersToKeep,
		buffer: make(chan deletion, containerDeletorBufferLimit), logger: logger, pending: sets.New[string]()}
}

// deleteContainer returns a function that removes a container and its logs from the runtime.
func deleteContainer(client *runtime.Client) func(context.Context, deletion) error {
	return func(ctx context.Context, d deletion) error {
		return errors.Join(client.RemoveContainer(ctx, d.container.ID.ID),
			client.RemoveLogs(d.pod, d.container.Name, d.container.RestartCount))
	}
}

// run removes containers until ctx ends. Containers that still wait then stay.
func (d *podContainerDeletor) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case next := <-d.buffer:
			if err := d.deleteContainer(ctx, next); err != nil && ctx.Err() == nil {
				d.logger.Error(err, "A dead container could not be removed", "pod", klog.KObj(next.pod),
					"container", next.container.Name)
			}
			d.mu.Lock()
			d.pending.Delete(next.container.ID.ID)
			d.mu.Unlock()
		}
	}
}

// deleteContainersInPod hands over the containers of getContainersToDeleteInPod or, if removeAll is
// true, all containers of the pod. The caller must then have ended them. If the buffer is full, the
// other containers stay until the next call.
func (d *podContainerDeletor) deleteContainersInPod(pod *v1.Pod, status *pleg.PodStatus, removeAll bool) {
	containers := status.ContainerStatuses
	if !removeAll {
		containers = getContainersToDeleteInPod(status, d.containersToKeep)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range containers {
		if d.pending.Has(c.ID.ID) {
			continue
		}
		select {
		case d.buffer <- deletion{pod, c}:
			d.pending.Insert(c.ID.ID)
		default:
			d.logger.V(1).Info("A dead container waits for other removals", "pod", klog.KObj(pod), "container", c.Name)
		}
	}
}

// getContainersToDeleteInPod returns the dead containers that are not needed any more. Of each
// container, it keeps the newest dead instances. An instance that was replaced before its start is
// not needed either.
func getContainersToDeleteInPod(status *pleg.PodStatus, containersToKeep int) (remove []*pleg.Status) {
	kept := map[string]int{}
	for _, s := range status.ContainerStatuses { // newest first
		switch replaced := s != status.FindContainerStatusByName(s.Name); {
		case s.State == pleg.ContainerStateCreated && replaced:
			remove = append(remove, s)
		case s.State != pleg.ContainerStateExited:
		case kept[s.Name] == containersToKeep:
			remove = append(remove, s)
		default:
			kept[s.Name]++
		}
	}
	return remove
}
