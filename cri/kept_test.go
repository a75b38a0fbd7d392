package cri_test

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// A status contains the container's own labels, annotations, sandbox ID and log path. If the labels
// or annotations equal those in the list, the status shares the list's map.
func TestFieldsOfAStatus(t *testing.T) {
	s, r := serverAndRuntime(t)
	sandbox := s.RunPod(criserver.PodConfig{UID: "uid", Namespace: "shop", Name: "web"})
	_, err := s.RunContainer(sandbox, criserver.ContainerConfig{
		Labels: map[string]string{"of": "app"}, Annotations: map[string]string{"note": "app"}})
	must(t, err)
	pod := getPods(t, r)[0]
	listed := pod.Containers[0]
	want := func(what string, shared bool) {
		t.Helper()
		inspected := getPodStatus(t, r, pod)
		got := inspected.ContainerStatuses[0]
		if got.PodSandboxID != sandbox || got.LogPath != "/var/log/pods/shop_web/app/0.log" ||
			!maps.Equal(got.Annotations, listed.Annotations) || got.Labels["of"] != "app" {
			t.Errorf("%s: %+v", what, got)
		}
		if sameMap(got.Labels, listed.Labels) != shared || !sameMap(got.Annotations, listed.Annotations) {
			t.Errorf("%s: the maps are not shared as they should be", what)
		}
		if of := inspected.SandboxStatuses[0]; !sameMap(of.Labels, pod.Labels) || !sameMap(of.Annotations, pod.Annotations) {
			t.Errorf("%s: the maps of the sandbox are not shared", what)
		}
	}
	want("running", true)
	defer s.Inject(criserver.Fault{Method: "ContainerStatus", Edit: func(answer any) {
		answer.(*runtimeapi.ContainerStatusResponse).Status.Labels["more"] = "1"
	}})()
	want("with other labels than the list", false)
}

// With WithAnnotations, only the chosen annotations are held in pods, containers and statuses. The
// library still reads its own fields from the other annotations.
func TestWithAnnotations(t *testing.T) {
	s, all := serverAndRuntime(t)
	none := connect(t, s, cri.WithAnnotations())
	chosen := connect(t, s, cri.WithAnnotations("note"), cri.WithAnnotations("x"))
	annotations := map[string]string{"note": "kept", "other": strings.Repeat("x", 1000)}
	sandbox := s.RunPod(criserver.PodConfig{UID: "uid", Annotations: annotations})
	_, err := s.RunContainer(sandbox, criserver.ContainerConfig{Annotations: annotations})
	must(t, err)
	kept := func(r *cri.Runtime) (sets []map[string]string, hash uint64) {
		pod := getPods(t, r)[0]
		single, err := r.GetPod(t.Context(), "uid")
		must(t, err)
		if single != pod {
			t.Error("the list of the pod is not that of the node")
		}
		inspected := getPodStatus(t, r, pod)
		c := inspected.ContainerStatuses[0]
		if c.Hash != pod.Containers[0].Hash {
			t.Errorf("hashes %d and %d", c.Hash, pod.Containers[0].Hash)
		}
		return []map[string]string{pod.Annotations, pod.Sandboxes[0].Annotations, pod.Containers[0].Annotations,
			inspected.SandboxStatuses[0].Annotations, c.Annotations}, c.Hash
	}
	want, hash := kept(all)
	if hash == 0 || want[0]["other"] == "" || want[4]["other"] == "" {
		t.Fatalf("without the option: %v, hash %d", want, hash)
	}
	sets, got := kept(none)
	for i, set := range sets {
		if len(set) != 0 || got != hash {
			t.Errorf("no keys, %d: %v, hash %d", i, set, got)
		}
	}
	sets, got = kept(chosen)
	for i, set := range sets {
		if !maps.Equal(set, map[string]string{"note": "kept"}) || got != hash {
			t.Errorf("one key, %d: %v, hash %d", i, set, got)
		}
	}

	// If annotations were dropped, the next list still recognises the pod and does not decode it
	// again.
	before := getPods(t, none)
	decoded := func() float64 { return metric(t, none, "pleg_cri_listed_items_total", "decoded") }
	was := decoded()
	if after := getPods(t, none); &after[0] != &before[0] || decoded() != was {
		t.Error("what did not change was decoded again")
	}
	defer s.Inject(criserver.Fault{Edit: func(answer any) {
		if list, is := answer.(*runtimeapi.ListPodSandboxResponse); is {
			for _, item := range list.Items {
				item.Annotations["other"] = "changed"
			}
		}
	}})()
	if after := getPods(t, none); &after[0] != &before[0] {
		t.Error("a change of what is dropped is a change")
	}
}

// Annotations that WithAnnotations drops occupy no memory, neither in lists nor in statuses.
func TestAnnotationsThatAreDroppedAreNotHeld(t *testing.T) {
	const pods = 40 // with 256 KiB each: 10 MiB
	s, _ := serverAndRuntime(t)
	for range pods {
		s.RunPod(criserver.PodConfig{Annotations: map[string]string{"a": strings.Repeat("x", 256<<10)}})
	}
	held := func(opts ...cri.Option) uint64 {
		r := connect(t, s, opts...)
		var statuses []*pleg.PodStatus
		inspect := func() any {
			statuses = nil
			for _, pod := range getPods(t, r) {
				statuses = append(statuses, getPodStatus(t, r, pod))
			}
			return statuses
		}
		before := heapOf(inspect) // also fills the buffer pools, which two garbage collections empty
		statuses = nil
		runtime.GC()
		return max(before, heapOf(inspect))
	}
	if all, none := held(), held(cri.WithAnnotations()); all < 10*mib || none > all/4 {
		t.Errorf("%d KiB are held, and %d KiB without annotations", all>>10, none>>10)
	}
}

// byMetadata returns a node with two pods. The kubelet has made the pod "labelled". The other pod
// has no labels of the kubelet: sandbox s1 with container c1.
func byMetadata() *stub {
	own := sandbox("s0", "labelled")
	own.Metadata = &runtimeapi.PodSandboxMetadata{Uid: "otherwise"}
	return &stub{chunk: 100, batch: 5, containers: []*runtimeapi.Container{container("c0", "labelled"), bare("c1", "s1")},
		sandboxes: []*runtimeapi.PodSandbox{own, {Id: "s1",
			Metadata: &runtimeapi.PodSandboxMetadata{Uid: "m1", Name: "web", Namespace: "shop"}}}}
}

// bare returns a container without labels.
func bare(id, sandbox string) *runtimeapi.Container {
	return &runtimeapi.Container{Id: id, PodSandboxId: sandbox, Metadata: &runtimeapi.ContainerMetadata{Name: "app"}}
}

func describe(pods []*pleg.Pod) string {
	var all []string
	for _, p := range pods {
		all = append(all, fmt.Sprintf("%s %s/%s %d %d", p.ID, p.Namespace, p.Name, len(p.Sandboxes), len(p.Containers)))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func TestWithPodsByMetadata(t *testing.T) {
	node := byMetadata()
	got := describe(getPods(t, newRuntime(node, quiet)))
	if !strings.HasPrefix(got, "labelled ") || strings.Contains(got, "m1") {
		t.Errorf("without the option: %s", got)
	}
	for name, opts := range map[string][]cri.Option{"streamed": nil, "plain": {cri.WithPlainLists()}} {
		t.Run(name, func(t *testing.T) {
			node := byMetadata()
			r := newRuntime(node, append(opts, quiet, cri.WithPodsByMetadata())...)
			want := func(what string, more ...string) {
				t.Helper()
				own := strings.Split(describe(getPods(t, newRuntime(node, quiet))), ", ")
				if got := describe(getPods(t, r)); got != strings.Join(append(own, more...), ", ") {
					t.Errorf("%s: %s", what, got)
				}
			}
			want("the first list", "m1 shop/web 1 1")
			if bad := metric(t, r, "pleg_cri_bad_items_total", "without_pod_uid_label"); bad != 0 {
				t.Errorf("%v bad items", bad)
			}
			before := getPods(t, r)
			if after := getPods(t, r); &before[0] != &after[0] {
				t.Error("nothing has changed")
			}
			pod, err := r.GetPod(t.Context(), "m1")
			if err != nil || !slices.Contains(before, pod) {
				t.Errorf("the list of the pod: %v, %v", pod, err)
			}
			if _, err := r.GetPod(t.Context(), "otherwise"); !errors.Is(err, pleg.ErrPodNotFound) {
				t.Errorf("the label does not come first: %v", err)
			}

			// A container is listed before its sandbox.
			node.containers = append(node.containers, bare("c2", "s2"))
			want("a container without its sandbox", "m1 shop/web 1 1")
			node.sandboxes = append(node.sandboxes, &runtimeapi.PodSandbox{Id: "s2",
				Metadata: &runtimeapi.PodSandboxMetadata{Uid: "m2", Name: "db", Namespace: "shop"}})
			want("then with it", "m1 shop/web 1 1", "m2 shop/db 1 1")
			node.containers[1].State = runtimeapi.ContainerState_CONTAINER_EXITED
			want("a container that changes", "m1 shop/web 1 1", "m2 shop/db 1 1")
			// The new containers are more than the limit for containers without a known pod.
			for i := range 200 {
				node.containers = append(node.containers, bare(fmt.Sprint("more", i), "s2"))
			}
			want("many containers", "m1 shop/web 1 1", "m2 shop/db 1 201")
			node.containers, node.sandboxes = node.containers[:2], node.sandboxes[:2]
			want("they are gone", "m1 shop/web 1 1")
		})
	}
}
