package main

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

// labelPodUID is the kubelet's label for the pod of a container or sandbox.
const labelPodUID = "io.kubernetes.pod.uid"

// barePath makes the calls that show the new state of an event's pod: the two lists of the pod,
// then the status of each sandbox and container in them, in parallel each time. It records,
// compares and delivers nothing. A client that trusts no event cannot be faster.
func barePath(ctx context.Context, client runtimeapi.RuntimeServiceClient, e *runtimeapi.ContainerEventResponse) error {
	labels := map[string]string{labelPodUID: e.GetPodSandboxStatus().GetMetadata().GetUid()}
	var (
		sandboxes  *runtimeapi.ListPodSandboxResponse
		containers *runtimeapi.ListContainersResponse
	)
	lists, listing := errgroup.WithContext(ctx)
	lists.Go(func() (err error) {
		sandboxes, err = client.ListPodSandbox(listing,
			&runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: labels}})
		return err
	})
	lists.Go(func() (err error) {
		containers, err = client.ListContainers(listing,
			&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: labels}})
		return err
	})
	if err := lists.Wait(); err != nil {
		return err
	}
	if !slices.ContainsFunc(containers.GetContainers(), func(c *runtimeapi.Container) bool {
		return c.GetId() == e.GetContainerId() && c.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	}) {
		return fmt.Errorf("the list does not show that container %s has exited", e.GetContainerId())
	}
	statuses, inspecting := errgroup.WithContext(ctx)
	for _, s := range sandboxes.GetItems() {
		statuses.Go(func() error {
			_, err := client.PodSandboxStatus(inspecting, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: s.GetId()})
			return err
		})
	}
	for _, c := range containers.GetContainers() {
		statuses.Go(func() error {
			_, err := client.ContainerStatus(inspecting, &runtimeapi.ContainerStatusRequest{ContainerId: c.GetId()})
			return err
		})
	}
	return statuses.Wait()
}

// turns gives each death to the library or to the bare path. They would slow each other down if
// they asked the runtime at the same time.
type turns struct {
	mu sync.Mutex
	// bare has the containers whose death is for the bare path.
	bare map[string]bool
	// held are the library's events of the containers in bare. The library gets them when the bare
	// path has finished with all of them.
	held []func()
}

func newTurns() *turns { return &turns{bare: make(map[string]bool)} }

// give gives the deaths of containers to the bare path.
func (t *turns) give(dying []mortal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range dying {
		t.bare[m.id] = true
	}
}

// isBare reports whether the death of a container is for the bare path.
func (t *turns) isBare(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bare[id]
}

// done records that the bare path has finished with a container.
func (t *turns) done(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.bare, id)
	if len(t.bare) > 0 {
		return
	}
	for _, observe := range t.held {
		observe()
	}
	t.held = nil
}

// pass calls observe with an event for the library, at once or when the bare path has finished.
func (t *turns) pass(observe func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.bare) > 0 {
		t.held = append(t.held, observe)
		return
	}
	observe()
}

// hintPasser is a runtime whose events go through pass.
type hintPasser struct {
	*cri.Runtime
	pass func(hint func())
}

func (r hintPasser) WatchContainerEvents(
	ctx context.Context, connected func(), observe func(pleg.ContainerEvent),
) error {
	return r.Runtime.WatchContainerEvents(ctx, connected, func(e pleg.ContainerEvent) {
		r.pass(func() { observe(e) })
	})
}
