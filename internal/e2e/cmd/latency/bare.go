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

// labelPodUID is the kubelet's label with the UID of a container's or sandbox's pod.
const labelPodUID = "io.kubernetes.pod.uid"

// barePath makes only the calls that read the new state of an event's pod. It first makes the two
// lists of the pod in parallel. Then it asks in parallel for the status of each listed sandbox and
// container. It stores, compares and delivers nothing. No client that reads the state by calls can
// be faster.
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

// turns assigns each death either to the library or to the bare path. If both asked the runtime at
// the same time, they would slow each other down.
type turns struct {
	mu sync.Mutex
	// bare contains the containers whose deaths are assigned to the bare path.
	bare map[string]bool
	// held are delayed events for the library. They are delivered when the bare path has finished
	// with all containers in the map bare.
	held []func()
}

func newTurns() *turns { return &turns{bare: make(map[string]bool)} }

// give assigns the deaths of containers to the bare path.
func (t *turns) give(dying []mortal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range dying {
		t.bare[m.id] = true
	}
}

// isBare reports whether the death of a container is assigned to the bare path.
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

// pass delivers an event to the library by calling observe. If the bare path is busy, pass delays
// the call until the bare path has finished.
func (t *turns) pass(observe func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.bare) > 0 {
		t.held = append(t.held, observe)
		return
	}
	observe()
}

// hintPasser is a runtime that sends its events through the function pass.
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
