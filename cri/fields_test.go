package cri_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/crimessage"
)

// Checks the source of each field of a listed container.
func TestListedContainer(t *testing.T) {
	c := container("c", "uid")
	c.PodSandboxId = "s"
	c.Image = &runtimeapi.ImageSpec{Image: "registry.example/app:1", RuntimeHandler: "kata"}
	c.ImageId, c.ImageRef = "sha256:1", "registry.example/app@sha256:2"
	c.CreatedAt = 42
	c.Labels["io.kubernetes.container.name"] = "app"
	c.Labels["app"] = "web"
	c.Annotations = map[string]string{"io.kubernetes.container.hash": "fedcba9876543210", "note": "n"}
	c.Metadata.Attempt = 3
	want := pleg.Container{
		ID: pleg.ContainerID{Type: "stub", ID: "c"}, Name: "app", Image: "registry.example/app:1",
		ImageID: "sha256:1", ImageRef: "registry.example/app@sha256:2", ImageRuntimeHandler: "kata",
		Hash: 0xfedcba9876543210, State: pleg.ContainerStateRunning, PodSandboxID: "s", CreatedAt: 42,
		Attempt: 3, Labels: c.Labels, Annotations: c.Annotations,
	}
	listed := func() pleg.Container {
		t.Helper()
		return *getPods(t, newRuntime(&stub{containers: []*runtimeapi.Container{c}}))[0].Containers[0]
	}
	if diff := cmp.Diff(want, listed()); diff != "" {
		t.Error(diff)
	}
	// Without the label, the name comes from the metadata. An older runtime without ImageId returns
	// the image's ID as the reference.
	delete(c.Labels, "io.kubernetes.container.name")
	c.ImageId = ""
	want.Name, want.ImageID = "name-c", c.ImageRef
	if diff := cmp.Diff(want, listed()); diff != "" {
		t.Error(diff)
	}
}

// Checks the source of each field of a listed pod and its sandbox.
func TestListedSandbox(t *testing.T) {
	old, s := sandbox("s1", "uid"), sandbox("s2", "uid")
	old.Labels["app"], old.RuntimeHandler = "old", "runc"
	s.Labels["app"], s.Labels["io.kubernetes.pod.name"], s.Labels["io.kubernetes.pod.namespace"] = "web", "n", "ns"
	s.Annotations = map[string]string{"note": "n"}
	s.Metadata.Attempt, s.RuntimeHandler, s.CreatedAt = 1, "kata", 42
	got := getPods(t, newRuntime(&stub{sandboxes: []*runtimeapi.PodSandbox{old, s}}))[0]
	id := func(s string) pleg.ContainerID { return pleg.ContainerID{Type: "stub", ID: s} }
	want := &pleg.Pod{
		ID: "uid", Name: "n", Namespace: "ns", CreatedAt: 42,
		Labels: s.Labels, Annotations: s.Annotations, RuntimeHandler: "kata",
		Sandboxes: []*pleg.Container{
			{ID: id("s2"), State: pleg.ContainerStateRunning, CreatedAt: 42, Attempt: 1,
				Labels: s.Labels, Annotations: s.Annotations},
			{ID: id("s1"), State: pleg.ContainerStateRunning, Labels: old.Labels},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// A pod without sandboxes has no labels, even if its containers have some.
	bare := getPods(t, newRuntime(&stub{containers: []*runtimeapi.Container{container("c", "uid")}}))[0]
	if bare.Labels != nil || bare.Annotations != nil || bare.Containers[0].Labels == nil {
		t.Errorf("a pod without sandboxes has labels: %+v", bare)
	}
}

// If a held item changes, the next list returns the same pods as a new Runtime does, and counts the
// same bad data.
func TestEveryChangeOfAnItemShows(t *testing.T) {
	type (
		sandbox   = runtimeapi.PodSandbox
		container = runtimeapi.Container
	)
	const podUID = "io.kubernetes.pod.uid"
	for _, test := range []struct {
		name   string
		change func(s *sandbox, c *container)
		bad    string // the kind of bad data that is counted
	}{
		{name: "attempt", change: func(s *sandbox, _ *container) { s.Metadata.Attempt = 0 }},
		{name: "pod's name", change: func(s *sandbox, _ *container) { s.Metadata.Name = "other" }},
		{name: "pod's namespace", change: func(s *sandbox, _ *container) { s.Metadata.Namespace = "other" }},
		{name: "sandbox's pod", change: func(s *sandbox, _ *container) { s.Labels[podUID] = "other" }},
		{name: "sandbox's state", change: func(s *sandbox, _ *container) { s.State++ }},
		{name: "container's pod", change: func(_ *sandbox, c *container) { c.Labels[podUID] = "other" }},
		{name: "container's state", change: func(_ *sandbox, c *container) { c.State++ }},
		{name: "container's image", change: func(_ *sandbox, c *container) { c.ImageRef = "other" }},
		{name: "sandbox's label lost", change: func(s *sandbox, _ *container) { delete(s.Labels, "app") }},
		{name: "container's label lost", change: func(_ *sandbox, c *container) { delete(c.Labels, "app") }},
		{name: "entry moved", change: func(_ *sandbox, c *container) {
			delete(c.Labels, "app")
			c.Annotations["app"] = "web"
		}},
		{name: "metadata lost", change: func(_ *sandbox, c *container) { c.Metadata = nil },
			bad: "without_metadata"},
	} {
		for _, chunk := range []int{0, 16} {
			t.Run(fmt.Sprintf("%s/chunk=%d", test.name, chunk), func(t *testing.T) {
				// The name comes from a label, so it does not depend on the metadata.
				s, c := sandboxOf("b", 1, 10), containerOf("c", 10)
				c.Labels["io.kubernetes.container.name"] = "app"
				s.Labels["app"], c.Labels["app"] = "web", "web"
				c.Annotations = map[string]string{"note": "n"}
				node := &stub{
					chunk:      chunk,
					sandboxes:  []*runtimeapi.PodSandbox{sandboxOf("a", 0, 10), s},
					containers: []*runtimeapi.Container{c},
				}
				r := newRuntime(node, quiet)
				getPods(t, r)

				s, c = crimessage.Clone(s), crimessage.Clone(c)
				test.change(s, c)
				node.sandboxes[1], node.containers[0] = s, c
				want := getPods(t, newRuntime(&stub{sandboxes: node.sandboxes,
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

// Every field of a listed item may change, even if the API forbids the change. GetPods and GetPod
// then return the same as with a new Runtime.
func TestEveryFieldMayChange(t *testing.T) {
	before := &stub{
		sandboxes:  []*runtimeapi.PodSandbox{sandboxOf("s", 1, 10)},
		containers: []*runtimeapi.Container{containerOf("c", 10)},
	}
	before.sandboxes[0].Annotations = map[string]string{"note": "n"}
	before.containers[0].Annotations = map[string]string{"io.kubernetes.container.hash": "1f"}
	before.containers[0].Image = &runtimeapi.ImageSpec{Image: "i"}
	check := func(what string, sandboxes []*runtimeapi.PodSandbox, containers []*runtimeapi.Container) {
		t.Helper()
		for _, chunk := range []int{0, 16} {
			node := &stub{chunk: chunk, sandboxes: before.sandboxes, containers: before.containers}
			r := newRuntime(node, quiet)
			getPods(t, r)
			node.sandboxes, node.containers = sandboxes, containers
			first := newRuntime(&stub{sandboxes: sandboxes, containers: containers}, quiet)
			want, wantErr := first.GetPod(t.Context(), "uid")
			got, err := r.GetPod(t.Context(), "uid")
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || (err == nil) != (wantErr == nil) {
				t.Errorf("%s, chunk=%d: GetPod: %s, %v", what, chunk, diff, err)
			}
			if diff := cmp.Diff(getPods(t, first), getPods(t, r), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s, chunk=%d: GetPods: %s", what, chunk, diff)
			}
		}
	}
	changes := 0
	eachChange(before.sandboxes[0], func(what string, changed *runtimeapi.PodSandbox) {
		changes++
		check("sandbox: "+what, []*runtimeapi.PodSandbox{changed}, before.containers)
	})
	eachChange(before.containers[0], func(what string, changed *runtimeapi.Container) {
		changes++
		check("container: "+what, before.sandboxes, []*runtimeapi.Container{changed})
	})
	if changes < 25 {
		t.Errorf("%d changes", changes)
	}
}

// eachChange calls f with copies of a message. In each copy, one field, which may be nested, has
// another value.
func eachChange[M crimessage.Message](m M, f func(what string, changed M)) {
	var walk func(of protoreflect.Message, name string, in func(M) protoreflect.Message)
	walk = func(of protoreflect.Message, name string, in func(M) protoreflect.Message) {
		fields := of.Descriptor().Fields()
		for i := range fields.Len() {
			field := fields.Get(i)
			change := func(what string, change func(protoreflect.Message)) {
				changed := crimessage.Clone(m)
				change(in(changed))
				f(name+string(field.Name())+what, changed)
			}
			switch {
			case field.IsMap():
				change(" with one more", func(m protoreflect.Message) {
					m.Mutable(field).Map().Set(protoreflect.ValueOfString("new").MapKey(), protoreflect.ValueOfString("x"))
				})
				of.Get(field).Map().Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
					change("["+key.String()+"]", func(m protoreflect.Message) {
						m.Mutable(field).Map().Set(key, protoreflect.ValueOfString("2e"))
					})
					change(" without "+key.String(), func(m protoreflect.Message) { m.Mutable(field).Map().Clear(key) })
					return true
				})
			case field.Kind() == protoreflect.MessageKind:
				change(" lost", func(m protoreflect.Message) { m.Clear(field) })
				walk(of.Get(field).Message(), name+string(field.Name())+".", func(m M) protoreflect.Message {
					return in(m).Mutable(field).Message()
				})
			default:
				change("", func(m protoreflect.Message) { m.Set(field, another(m.Get(field))) })
			}
		}
	}
	of := func(m M) protoreflect.Message { return crimessage.Of(m).ProtoReflect() }
	walk(of(m), "", of)
}

// another returns a different value of the same kind.
func another(v protoreflect.Value) protoreflect.Value {
	switch v := v.Interface().(type) {
	case string:
		return protoreflect.ValueOfString(v + "2")
	case int64:
		return protoreflect.ValueOfInt64(v + 1)
	case uint32:
		return protoreflect.ValueOfUint32(v + 1)
	case protoreflect.EnumNumber:
		return protoreflect.ValueOfEnum(1 - v)
	default:
		panic(fmt.Sprintf("a %T in a listed item", v))
	}
}

// If only the pod's name or namespace changes, GetPod returns the new value.
func TestGetPodOfRenamedPod(t *testing.T) {
	for _, label := range []string{"io.kubernetes.pod.name", "io.kubernetes.pod.namespace"} {
		node := &stub{containers: []*runtimeapi.Container{containerOf("c", 1)}}
		r := newRuntime(node)
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
