package cri_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// sandboxOf returns a sandbox of the pod "uid".
func sandboxOf(id string, attempt uint32, createdAt int64) *runtimeapi.PodSandbox {
	s := sandbox(id, "uid")
	s.Metadata.Name, s.Metadata.Namespace, s.Metadata.Attempt = "name-"+id, "ns-"+id, attempt
	s.CreatedAt = createdAt
	return s
}

// containerOf returns a container of the pod "uid".
func containerOf(id string, createdAt int64) *runtimeapi.Container {
	c := container(id, "uid")
	c.Labels["io.kubernetes.pod.name"], c.Labels["io.kubernetes.pod.namespace"] = "name-"+id, "ns-"+id
	c.CreatedAt = createdAt
	return c
}

func attemptOf(id string, createdAt int64, attempt uint32) *runtimeapi.Container {
	c := containerOf(id, createdAt)
	c.Metadata.Attempt = attempt
	return c
}

func idsOf(list []*pleg.Container) (ids []string) {
	for _, c := range list {
		ids = append(ids, c.ID.ID)
	}
	return ids
}

// ofName returns a container of the pod "uid" with the given name.
func ofName(name, id string, createdAt int64, attempt uint32) *runtimeapi.Container {
	c := attemptOf(id, createdAt, attempt)
	c.Labels["io.kubernetes.container.name"] = name
	return c
}

// Sandboxes are sorted by attempt, highest first, then by creation time, newest first, then by ID.
// Containers are sorted by creation time, newest first, then by attempt, then by ID. Then the
// containers of each name are put in the order of their attempts. In each test case, one criterion
// decides, and all later criteria would give the opposite order.
func TestOrderWithinAPod(t *testing.T) {
	for _, test := range []struct {
		name       string
		sandboxes  []*runtimeapi.PodSandbox // in the expected order
		containers []*runtimeapi.Container  // in the expected order
	}{
		{name: "sandboxes by attempt", sandboxes: []*runtimeapi.PodSandbox{
			sandboxOf("z", 2, 10), sandboxOf("y", 1, 20), sandboxOf("x", 0, 30),
		}},
		{name: "sandboxes of one attempt by creation time", sandboxes: []*runtimeapi.PodSandbox{
			sandboxOf("z", 1, 30), sandboxOf("y", 1, 20), sandboxOf("x", 1, 10),
		}},
		{name: "sandboxes of one attempt and time by ID", sandboxes: []*runtimeapi.PodSandbox{
			sandboxOf("x", 1, 10), sandboxOf("y", 1, 10), sandboxOf("z", 1, 10),
		}},
		{name: "sandboxes by all three", sandboxes: []*runtimeapi.PodSandbox{
			sandboxOf("z", 7, 10), sandboxOf("y", 3, 30), sandboxOf("a", 3, 20), sandboxOf("b", 3,
				20), sandboxOf("c", 0, 40),
		}},
		{name: "containers by creation time", containers: []*runtimeapi.Container{
			containerOf("z", 30), containerOf("y", 20), containerOf("x", 10),
		}},
		{name: "containers of one time by attempt", containers: []*runtimeapi.Container{
			attemptOf("z", 10, 2), attemptOf("y", 10, 1), attemptOf("x", 10, 0),
		}},
		{name: "containers of one time and attempt by ID", containers: []*runtimeapi.Container{
			containerOf("x", 10), containerOf("y", 10), containerOf("z", 10),
		}},
		{name: "containers by all three", containers: []*runtimeapi.Container{
			containerOf("z", 30), attemptOf("c", 20, 5), containerOf("a", 20), containerOf("b", 20),
			attemptOf("y", 10, 9),
		}},
		{name: "containers after the clock was set back", containers: []*runtimeapi.Container{
			ofName("app", "z", 10, 2), ofName("log", "c", 35, 0), ofName("app", "y", 40, 1),
			ofName("job", "b", 20, 7), ofName("app", "x", 30, 0), ofName("log", "a", 5, 0),
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var wantSandboxes, wantContainers []string
			for _, s := range test.sandboxes {
				wantSandboxes = append(wantSandboxes, s.Id)
			}
			for _, c := range test.containers {
				wantContainers = append(wantContainers, c.Id)
			}
			node := &stub{sandboxes: slices.Clone(test.sandboxes),
				containers: slices.Clone(test.containers)}
			rnd := rand.New(rand.NewPCG(1, 2))
			for range 20 {
				rnd.Shuffle(len(node.sandboxes), func(i, j int) {
					node.sandboxes[i], node.sandboxes[j] = node.sandboxes[j], node.sandboxes[i]
				})
				rnd.Shuffle(len(node.containers), func(i, j int) {
					node.containers[i], node.containers[j] = node.containers[j], node.containers[i]
				})
				pods := getPods(t, newRuntime(node))
				if len(pods) != 1 {
					t.Fatalf("%d pods", len(pods))
				}
				if diff := cmp.Diff(wantSandboxes, idsOf(pods[0].Sandboxes)); diff != "" {
					t.Fatal("sandboxes: ", diff)
				}
				if diff := cmp.Diff(wantContainers, idsOf(pods[0].Containers)); diff != "" {
					t.Fatal("containers: ", diff)
				}
			}
		})
	}
}

// Statuses are sorted by the creation times in the statuses, newest first. The times in the lists
// are not exact enough, because cri-dockerd lists whole seconds. Statuses of one name are sorted by
// attempt.
func TestOrderOfStatuses(t *testing.T) {
	const second = int64(time.Second)
	createdAt := map[string]int64{"a": 5*second + 10, "b": 5*second + 30, "c": 5*second + 20, "d": 5*second + 20,
		"e": 5*second + 25, "f": 5*second + 15}
	node := &stub{
		sandboxes: []*runtimeapi.PodSandbox{sandboxOf("s", 0, second)},
		sandboxStatus: func(context.Context, *sandboxStatusRequest) (*sandboxStatusResponse, error) {
			return &sandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{Id: "s"}}, nil
		},
		containerStatus: func(_ context.Context, req *statusRequest) (*statusResponse, error) {
			return &statusResponse{Status: &runtimeapi.ContainerStatus{
				Id: req.ContainerId, CreatedAt: createdAt[req.ContainerId]}}, nil
		},
	}
	for id := range createdAt {
		c := attemptOf(id, 5*second, 0)
		if id == "e" || id == "f" {
			c = ofName("app", id, 5*second, uint32(id[0]-'e'))
		}
		c.PodSandboxId = "s"
		node.containers = append(node.containers, c)
	}
	r := newRuntime(node)
	s := getPodStatus(t, r, getPods(t, r)[0])
	for _, of := range [][]*pleg.Status{s.ContainerStatuses, s.ActiveContainerStatuses} {
		var got []string
		for _, c := range of {
			got = append(got, c.ID.ID)
		}
		if diff := cmp.Diff([]string{"b", "f", "c", "d", "e", "a"}, got); diff != "" {
			t.Error(diff)
		}
	}
}

// The name and creation time of a pod are those of its newest sandbox. If the sandbox has no name,
// the name is that of the newest container.
func TestNamesAndTimeOfAPod(t *testing.T) {
	unnamed := sandboxOf("s", 0, 10)
	unnamed.Metadata.Name, unnamed.Metadata.Namespace = "", ""
	nameOnly := sandboxOf("s", 0, 10)
	nameOnly.Metadata.Namespace = ""
	labelled := sandboxOf("s", 0, 10)
	labelled.Labels["io.kubernetes.pod.name"], labelled.Labels["io.kubernetes.pod.namespace"] = "label", "label-ns"
	for _, test := range []struct {
		name           string
		node           *stub
		podName, podNS string
		createdAt      uint64
	}{
		{"the newest sandbox", &stub{
			sandboxes:  []*runtimeapi.PodSandbox{sandboxOf("old", 0, 30), sandboxOf("new", 1, 20)},
			containers: []*runtimeapi.Container{containerOf("c", 40)},
		}, "name-new", "ns-new", 20},
		{"a sandbox's labels before its metadata", &stub{
			sandboxes: []*runtimeapi.PodSandbox{labelled},
		}, "label", "label-ns", 10},
		{"the newest container", &stub{
			sandboxes: []*runtimeapi.PodSandbox{unnamed},
			containers: []*runtimeapi.Container{containerOf("a", 20), containerOf("b", 40),
				containerOf("c", 30)},
		}, "name-b", "ns-b", 10},
		{"the newest container for what is missing", &stub{
			sandboxes:  []*runtimeapi.PodSandbox{nameOnly},
			containers: []*runtimeapi.Container{containerOf("a", 20), containerOf("b", 40)},
		}, "name-s", "ns-b", 10},
		{"no sandbox", &stub{
			containers: []*runtimeapi.Container{containerOf("a", 20)},
		}, "name-a", "ns-a", 0},
		{"a time before 1970", &stub{
			sandboxes: []*runtimeapi.PodSandbox{sandboxOf("s", 0, -5)},
		}, "name-s", "ns-s", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := getPods(t, newRuntime(test.node))[0]
			if pod.Name != test.podName || pod.Namespace != test.podNS || pod.CreatedAt != test.createdAt {
				t.Errorf("%s/%s of %d", pod.Namespace, pod.Name, pod.CreatedAt)
			}
		})
	}
}

// After the clock was set back, a container's creation time is earlier than its predecessor's. In
// the list and in the cache, this container is still the newest of its name.
func TestClockSetBack(t *testing.T) {
	inBubble(t, func(t *testing.T, s *criserver.Server, g *pleg.GenericPLEG) {
		back := func(attempt uint32, times ...*int64) {
			for _, at := range times {
				*at -= int64(attempt) * time.Hour.Nanoseconds()
			}
		}
		s.Inject(criserver.Fault{Edit: func(answer any) {
			switch a := answer.(type) {
			case *runtimeapi.ListContainersResponse:
				for _, c := range a.Containers {
					back(c.Metadata.Attempt, &c.CreatedAt)
				}
			case *runtimeapi.ContainerStatusResponse:
				back(a.Status.Metadata.Attempt, &a.Status.CreatedAt, &a.Status.StartedAt, &a.Status.FinishedAt)
			}
		}})
		newest := runContainer(t, s, s.RunPod(criserver.PodConfig{UID: "uid"}), "app")
		for range 2 {
			time.Sleep(3 * time.Second)
			var err error
			newest, err = s.RestartContainer(newest)
			must(t, err)
		}
		time.Sleep(3 * time.Second)
		status, err := g.Cache().Get("uid")
		must(t, err)
		app := status.FindContainerStatusByName("app")
		listed := g.Pod("uid").Containers
		if app.ID.ID != newest || app.RestartCount != 2 || listed[0].ID.ID != newest || listed[2].Attempt != 0 ||
			status.ActiveContainerStatuses[0] != app {
			t.Errorf("the present container is %+v, and the list %v", app, idsOf(listed))
		}
	})
}
