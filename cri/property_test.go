package cri_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/crimessage"
	"github.com/kubepleg/pleg/internal/test/randtest"
)

// TestDeltaDecodingEqualsWholeDecoding applies random changes to a node. After each change, it
// lists the node twice: with the same Runtime each time, and with a new Runtime, which decodes all
// items. The listings must be equal. An unchanged pod must be the same pointer as before. Every
// field may change, even if the API forbids it.
func TestDeltaDecodingEqualsWholeDecoding(t *testing.T) {
	randtest.Check(t, 200, func(t *testing.T, r *rand.Rand) {
		node := &stub{chunk: 1 + r.IntN(randtest.Pick(r, 10, 200)), batch: r.IntN(4)}
		delta := newRuntime(node, quiet)
		var before []*pleg.Pod
		for range 12 {
			changed := change(t, r, node)
			r.Shuffle(len(node.sandboxes), func(i, j int) {
				node.sandboxes[i], node.sandboxes[j] = node.sandboxes[j], node.sandboxes[i]
			})
			r.Shuffle(len(node.containers), func(i, j int) {
				node.containers[i], node.containers[j] = node.containers[j], node.containers[i]
			})

			got, err := delta.GetPods(t.Context(), true)
			if err != nil {
				t.Fatal(err)
			}
			want, err := newRuntime(&stub{sandboxes: node.sandboxes, containers: node.containers},
				quiet).GetPods(t.Context(), true)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Fatal(diff)
			}
			if !changed && len(before) > 0 && &got[0] != &before[0] {
				t.Fatal("the listing changed, but nothing else")
			}
			for _, p := range before {
				i := slices.IndexFunc(got, func(q *pleg.Pod) bool { return p.ID == q.ID })
				if i >= 0 && got[i] != p && cmp.Equal(got[i], p) {
					t.Fatalf("pod %s was replaced although it did not change", p.ID)
				}
			}
			before = got
		}
	})
}

// quiet turns logs off, for tests in which bad data is normal.
var quiet = cri.WithLogger(klog.Logger{})

// change makes one random change of the node. It reports whether the change may affect a listing.
func change(t *testing.T, r *rand.Rand, node *stub) bool {
	uid := randtest.Pick(r, "uid-1", "uid-2", "uid-3")
	kind := randtest.Pick(r, "nothing", "add sandbox", "add container", "remove sandbox", "remove container",
		"mutate sandbox", "mutate container", "mutate container")
	t.Log(kind, uid)
	switch kind {
	case "add sandbox":
		s := sandbox(fmt.Sprintf("s%d", r.Uint64()), uid)
		s.Labels["app"] = some(r)
		s.Annotations = map[string]string{"k1": "v1", "k2": "v2", "k3": some(r)}
		s.CreatedAt = anyInt64(r)
		node.sandboxes = append(node.sandboxes, s)
		return true
	case "add container":
		c := container(fmt.Sprintf("c%d", r.Uint64()), uid)
		c.PodSandboxId = some(r)
		c.Annotations = map[string]string{"io.kubernetes.container.hash": "1f", "k2": "v2", "k3": some(r)}
		c.Image = &runtimeapi.ImageSpec{Image: "i:1", Annotations: map[string]string{"x": "1", "y": "2"}}
		node.containers = append(node.containers, c)
		return true
	case "remove sandbox":
		if n := len(node.sandboxes); n > 0 {
			i := r.IntN(n)
			node.sandboxes = slices.Delete(node.sandboxes, i, i+1)
			return true
		}
	case "remove container":
		if n := len(node.containers); n > 0 {
			i := r.IntN(n)
			node.containers = slices.Delete(node.containers, i, i+1)
			return true
		}
	case "mutate sandbox":
		if n := len(node.sandboxes); n > 0 {
			i := r.IntN(n)
			node.sandboxes[i] = crimessage.Clone(node.sandboxes[i])
			mutateSandbox(r, node.sandboxes[i], uid)
			t.Log(node.sandboxes[i])
			return true
		}
	case "mutate container":
		if n := len(node.containers); n > 0 {
			i := r.IntN(n)
			node.containers[i] = crimessage.Clone(node.containers[i])
			mutateContainer(r, node.containers[i], uid)
			t.Log(node.containers[i])
			return true
		}
	}
	return false
}

func some(r *rand.Rand) string { return randtest.Pick(r, "", "a", "b", "c", "\u00e4") }

// anyInt64 returns a number of any magnitude and sign.
func anyInt64(r *rand.Rand) int64 { return int64(r.Uint64()) >> r.IntN(65) }

func mutateSandbox(r *rand.Rand, s *runtimeapi.PodSandbox, uid string) {
	switch r.IntN(8) {
	case 0:
		s.State = runtimeapi.PodSandboxState(r.IntN(5) - 1)
	case 1:
		s.CreatedAt = anyInt64(r)
	case 2:
		mutateLabels(r, s.Labels, uid)
	case 3:
		s.Metadata = nil
	case 4:
		s.Metadata = &runtimeapi.PodSandboxMetadata{Name: some(r), Namespace: some(r), Attempt: uint32(anyInt64(r))}
	case 5:
		s.RuntimeHandler = some(r)
	case 6:
		crimessage.Of(s).ProtoReflect().SetUnknown(unknownFields(r))
	case 7:
		mutateAnnotations(r, &s.Annotations)
	}
}

func mutateContainer(r *rand.Rand, c *runtimeapi.Container, uid string) {
	switch r.IntN(11) {
	case 0, 1:
		c.State = runtimeapi.ContainerState(r.IntN(7) - 1)
	case 2:
		c.CreatedAt = anyInt64(r)
	case 3:
		mutateLabels(r, c.Labels, uid)
	case 4:
		c.Metadata = nil
	case 5:
		c.Metadata = &runtimeapi.ContainerMetadata{Name: some(r), Attempt: uint32(anyInt64(r))}
	case 6:
		c.Image = &runtimeapi.ImageSpec{Image: some(r), RuntimeHandler: some(r), UserSpecifiedImage: some(r)}
	case 7:
		c.ImageId, c.ImageRef = some(r), some(r)
	case 8:
		c.PodSandboxId = some(r)
	case 9:
		crimessage.Of(c).ProtoReflect().SetUnknown(unknownFields(r))
	case 10:
		mutateAnnotations(r, &c.Annotations)
	}
}

func mutateLabels(r *rand.Rand, labels map[string]string, uid string) {
	key := randtest.Pick(r, "io.kubernetes.pod.uid", "io.kubernetes.pod.name", "io.kubernetes.pod.namespace",
		"io.kubernetes.container.name", "app")
	switch {
	case randtest.Bool(r):
		delete(labels, key)
	case key == "io.kubernetes.pod.uid":
		labels[key] = uid
	default:
		labels[key] = some(r)
	}
}

func mutateAnnotations(r *rand.Rand, annotations *map[string]string) {
	key := randtest.Pick(r, "k1", "k3", "io.kubernetes.container.hash")
	switch {
	case randtest.Bool(r):
		delete(*annotations, key)
	case *annotations == nil:
		*annotations = map[string]string{key: some(r)}
	default:
		(*annotations)[key] = some(r)
	}
}

// unknownFields returns fields that the API does not define, of every wire type.
func unknownFields(r *rand.Rand) []byte {
	var b []byte
	b = protowire.AppendTag(b, 3000, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(anyInt64(r)))
	b = protowire.AppendTag(b, 3001, protowire.Fixed32Type)
	b = protowire.AppendFixed32(b, 1)
	b = protowire.AppendTag(b, 3002, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, 1)
	b = protowire.AppendTag(b, 3003, protowire.StartGroupType)
	b = protowire.AppendTag(b, 3003, protowire.EndGroupType)
	return b
}

// Valid encodings that no encoder produces are listed like any other encoding.
func TestOddEncodings(t *testing.T) {
	entry, item := mapEntry, listItem
	whole, err := crimessage.Marshal(container("c", "uid"))
	must(t, err)
	state := func(s runtimeapi.ContainerState) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, 6, protowire.VarintType), uint64(s))
	}
	metadata := func(name string) []byte {
		m := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
		return protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), m)
	}
	id := func(s string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), s)
	}
	uid := func(s string) []byte { return entry(8, "io.kubernetes.pod.uid", s) }

	// One Runtime lists all these encodings.
	r := &stub{chunk: 7}
	delta := newRuntime(r, quiet)
	for i, odd := range [][]byte{
		item(whole),
		item(whole, state(runtimeapi.ContainerState_CONTAINER_EXITED)), // the state twice: the last is used
		item(whole, state(runtimeapi.ContainerState_CONTAINER_EXITED)), // unchanged
		item(whole, metadata("other")),                                 // metadata twice: fields are combined
		item(whole, id("d")),                                           // the ID twice: the last is used
		item(whole),                                                    // the first item again
		item(state(runtimeapi.ContainerState_CONTAINER_RUNNING), id("c"), uid("uid")), // fields not in order
		item(id("c"), uid("a"), uid("b")),                                             // a label twice
		item(id("c"), uid("b"), uid("a")),                                             // both values exchanged
		item(id("c"), uid("a")),                                                       // the label once
		item(id("c"), uid("a"), uid("a")),                                             // twice with one value
		item(id("c"), uid("a"), entry(8, "io.kubernetes.pod.name", "n")),              // one more label
		item(id("c"), uid("a")),                                                       // the pod's name removed
		item(id("c"), entry(8, "app", "x")),                                           // only an ignored label
		item(id("c"), uid("a"), entry(8, "", "x")),                                    // a label with an empty key
		item(id("c"), uid("a"), entry(9, "k", "v")),                                   // one more annotation
		item(id("c"), uid("a"), entry(9, "k", "v"), entry(9, "k", "w")),               // the annotation twice
		item(id("c"), uid("a"), entry(9, "k", "w"), entry(9, "k", "v")),               // both values exchanged
		item(id("c"), uid("a"), entry(9, "k", "w"), entry(8, "k", "v")),               // the second entry is a label
		item(id("c"), uid("a"), entry(9, "k", "v"), entry(8, "k", "w")),               // both values exchanged
		slices.Concat(protowire.AppendTag(nil, 9, protowire.VarintType), []byte{0x80, 0x01}, item(whole)),
		slices.Concat(unknownGroup(), item(whole), unknownGroup(), item(id("d"), uid("a"))),
		{},
	} {
		r.raw = odd
		got, err := delta.GetPods(t.Context(), true)
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		var resp runtimeapi.ListContainersResponse
		must(t, crimessage.Unmarshal(odd, &resp))
		want, err := newRuntime(&stub{containers: resp.Containers}, quiet).GetPods(t.Context(), true)
		must(t, err)
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%d: %s", i, diff)
		}
	}
}

// mapEntry returns an encoded entry of a map field.
func mapEntry(number protowire.Number, key, value string) []byte {
	var e []byte
	e = protowire.AppendTag(e, 1, protowire.BytesType)
	e = protowire.AppendString(e, key)
	e = protowire.AppendTag(e, 2, protowire.BytesType)
	e = protowire.AppendString(e, value)
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), e)
}

// listItem returns an encoded item of a list.
func listItem(parts ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), slices.Concat(parts...))
}

func unknownGroup() []byte {
	return protowire.AppendTag(protowire.AppendTag(nil, 77, protowire.StartGroupType), 77, protowire.EndGroupType)
}

// FuzzList lists two answers of arbitrary bytes after a valid answer, in buffers of any size. If
// generated code can decode an answer, the listing must equal the listing of the decoded items.
// Otherwise the list must fail. Nothing may panic.
func FuzzList(f *testing.F) {
	good, err := crimessage.Marshal(&runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{
		container("c", "uid"), container("d", "uid"),
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, good, uint8(3))
	f.Add(good[:len(good)-1], good, uint8(200))
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f}, []byte{0x0b}, uint8(0))
	f.Add(unknownGroup(), slices.Concat(good, unknownGroup(), good), uint8(0))
	f.Fuzz(func(t *testing.T, first, second []byte, chunk uint8) {
		node := &stub{chunk: 1 + int(chunk)}
		r := newRuntime(node, cri.WithPlainLists(), quiet)
		for _, raw := range [][]byte{good, first, second} {
			node.raw = append([]byte{}, raw...)
			got, err := r.GetPods(t.Context(), true)
			var resp runtimeapi.ListContainersResponse
			wholeErr := errors.Join(crimessage.Unmarshal(raw, &resp), strictly(raw, &resp))
			if err != nil && wholeErr == nil {
				t.Fatalf("an error for a message: %v", err)
			}
			if wholeErr != nil {
				continue
			}
			want, err := newRuntime(&stub{containers: resp.Containers}, quiet).GetPods(t.Context(),
				true)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

// strictly decodes with the current protobuf module, which rejects more messages than gogo's code.
func strictly(raw []byte, m crimessage.Message) error {
	return proto.Unmarshal(raw, dynamicpb.NewMessage(crimessage.Of(m).ProtoReflect().Descriptor()))
}

// The memory for reading an answer is at most a small multiple of the answer's size, even if its
// fields claim huge lengths.
func TestClaimedLengthsAllocateNothing(t *testing.T) {
	huge := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.BytesType), 1<<40)
	inner := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), huge)
	for _, raw := range [][]byte{huge, inner} {
		node := &stub{chunk: 4, raw: raw}
		r := newRuntime(node, cri.WithPlainLists(), quiet)
		const lists = 100
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range lists {
			if _, err := r.GetPods(t.Context(), true); err == nil {
				t.Fatal("no error")
			}
		}
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) / lists; n > 16<<10 {
			t.Errorf("%d bytes allocated for %d", n, len(raw))
		}
	}
}
