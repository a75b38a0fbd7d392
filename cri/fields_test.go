package cri_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

// The source of each field of a listed container.
func TestListedContainer(t *testing.T) {
	c := container("c", "uid")
	c.PodSandboxId = "s"
	c.Image = &runtimeapi.ImageSpec{Image: "registry.example/app:1", RuntimeHandler: "kata"}
	c.ImageId, c.ImageRef = "sha256:1", "registry.example/app@sha256:2"
	c.CreatedAt = 42
	c.Labels["io.kubernetes.container.name"] = "app"
	c.Annotations = map[string]string{"io.kubernetes.container.hash": "fedcba9876543210"}
	want := pleg.Container{
		ID: pleg.ContainerID{Type: "stub", ID: "c"}, Name: "app", Image: "registry.example/app:1",
		ImageID: "sha256:1", ImageRef: "registry.example/app@sha256:2", ImageRuntimeHandler: "kata",
		Hash: 0xfedcba9876543210, State: pleg.ContainerStateRunning, PodSandboxID: "s", CreatedAt: 42,
	}
	listed := func() pleg.Container {
		t.Helper()
		return *getPods(t, cri.NewRuntime(&stub{containers: []*runtimeapi.Container{c}}))[0].Containers[0]
	}
	if diff := cmp.Diff(want, listed()); diff != "" {
		t.Error(diff)
	}
	// Without the label the name is that of the metadata. A runtime older than the field
	// ImageId returns the image's ID as its reference.
	delete(c.Labels, "io.kubernetes.container.name")
	c.ImageId = ""
	want.Name, want.ImageID = "name-c", c.ImageRef
	if diff := cmp.Diff(want, listed()); diff != "" {
		t.Error(diff)
	}
}

// If a held item changes, the listing and the count of bad data are the same as for a first
// list of the node.
func TestEveryChangeOfAnItemShows(t *testing.T) {
	type (
		sandbox   = runtimeapi.PodSandbox
		container = runtimeapi.Container
	)
	const podUID = "io.kubernetes.pod.uid"
	for _, test := range []struct {
		name   string
		change func(s *sandbox, c *container)
		bad    string // counted afterwards
	}{
		{name: "attempt", change: func(s *sandbox, _ *container) { s.Metadata.Attempt = 0 }},
		{name: "pod's name", change: func(s *sandbox, _ *container) { s.Metadata.Name = "other" }},
		{name: "pod's namespace", change: func(s *sandbox, _ *container) { s.Metadata.Namespace = "other" }},
		{name: "sandbox's pod", change: func(s *sandbox, _ *container) { s.Labels[podUID] = "other" }},
		{name: "sandbox's state", change: func(s *sandbox, _ *container) { s.State++ }},
		{name: "container's pod", change: func(_ *sandbox, c *container) { c.Labels[podUID] = "other" }},
		{name: "container's state", change: func(_ *sandbox, c *container) { c.State++ }},
		{name: "container's image", change: func(_ *sandbox, c *container) { c.ImageRef = "other" }},
		{name: "metadata lost", change: func(_ *sandbox, c *container) { c.Metadata = nil },
			bad: "without_metadata"},
	} {
		for _, chunk := range []int{0, 16} {
			t.Run(fmt.Sprintf("%s/chunk=%d", test.name, chunk), func(t *testing.T) {
				// The container's name is from a label, so its metadata does not show.
				s, c := sandboxOf("b", 1, 10), containerOf("c", 10)
				c.Labels["io.kubernetes.container.name"] = "app"
				node := &stub{
					chunk:      chunk,
					sandboxes:  []*runtimeapi.PodSandbox{sandboxOf("a", 0, 10), s},
					containers: []*runtimeapi.Container{c},
				}
				r := cri.NewRuntime(node, quiet)
				getPods(t, r)

				s, c = proto.Clone(s).(*runtimeapi.PodSandbox), proto.Clone(c).(*runtimeapi.Container)
				test.change(s, c)
				node.sandboxes[1], node.containers[0] = s, c
				want := getPods(t, cri.NewRuntime(&stub{sandboxes: node.sandboxes,
					containers: node.containers}, quiet))
				if diff := cmp.Diff(want, getPods(t, r)); diff != "" {
					t.Error(diff)
				}
				if test.bad != "" {
					if got := metric(t, r, "pleg_cri_bad_items_total", test.bad); got != 1 {
						t.Errorf("%s was counted %v times", test.bad, got)
					}
				}
			})
		}
	}
}

// A change of only the pod's name shows in GetPod.
func TestGetPodOfRenamedPod(t *testing.T) {
	for _, label := range []string{"io.kubernetes.pod.name", "io.kubernetes.pod.namespace"} {
		node := &stub{containers: []*runtimeapi.Container{containerOf("c", 1)}}
		r := cri.NewRuntime(node)
		getPods(t, r)
		renamed := containerOf("c", 1)
		renamed.Labels[label] = "other"
		node.containers[0] = renamed
		pod, err := r.GetPod(t.Context(), "uid")
		must(t, err)
		if pod.Name != "other" && pod.Namespace != "other" {
			t.Errorf("%s: %s/%s", label, pod.Namespace, pod.Name)
		}
	}
}
