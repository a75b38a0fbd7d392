package kubelettypes_test

import (
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/kubelettypes"
	"github.com/kubepleg/pleg/plegtest"
)

func TestFindPod(t *testing.T) {
	old, young := plegtest.NewPod("old"), plegtest.NewPod("young")
	old.Name, young.Name = "cart-0", "cart-0"
	all := kubelettypes.Pods{nil, young, old}
	for what, got := range map[string]*pleg.Pod{
		"by ID":                 all.FindPodByID("young"),
		"by full name":          all.FindPodByFullName("cart-0_default"),
		"by either, full name":  all.FindPod("cart-0_default", "old"),
		"by either, without it": all.FindPod("", "young"),
	} {
		if got != young {
			t.Errorf("%s: %v", what, got)
		}
	}
	for what, got := range map[string]*pleg.Pod{
		"by ID": all.FindPodByID("x"), "by full name": all.FindPodByFullName("x"), "by either": all.FindPod("x", "old"),
		"in none": kubelettypes.Pods(nil).FindPod("", ""), "by no full name": all.FindPodByFullName(""),
	} {
		if got != nil {
			t.Errorf("%s: found %v", what, got)
		}
	}
}

func TestPodFullNames(t *testing.T) {
	if full := kubelettypes.BuildPodFullName("web-0", "shop"); full != "web-0_shop" {
		t.Error(full)
	}
	name, namespace, err := kubelettypes.ParsePodFullName("web-0_shop")
	if name != "web-0" || namespace != "shop" || err != nil {
		t.Error(name, namespace, err)
	}
	for _, bad := range []string{"", "web", "_", "web_", "_shop", "a_b_c", "web__"} {
		if name, namespace, err := kubelettypes.ParsePodFullName(bad); err == nil || name != "" || namespace != "" {
			t.Errorf("%q: %q %q", bad, name, namespace)
		}
	}
}

func TestConvertPodStatusToRunningPod(t *testing.T) {
	state := func(id string, s pleg.State, created int64) *pleg.Status {
		return &pleg.Status{ID: kubelettypes.BuildContainerID("containerd", id), Name: "app", State: s,
			CreatedAt: time.Unix(created, 0), Image: "image-" + id, Hash: 7, Source: id}
	}
	young, old := state("2", pleg.ContainerStateRunning, 20), state("1", pleg.ContainerStateExited, 10)
	side := state("3", pleg.ContainerStateRunning, 5)
	side.Name = "side"
	status := &pleg.PodStatus{ID: "a", Name: "web", Namespace: "shop", Source: "pod",
		ContainerStatuses: []*pleg.Status{young, nil, old, side},
		SandboxStatuses: []*runtimeapi.PodSandboxStatus{
			nil, {Id: "s2", State: runtimeapi.PodSandboxState_SANDBOX_READY, CreatedAt: 9, RuntimeHandler: "kata",
				Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "n"},
				Metadata: &runtimeapi.PodSandboxMetadata{Attempt: 1}},
			{Id: "s1", State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY, CreatedAt: 3, RuntimeHandler: "runc",
				Labels: map[string]string{"app": "old"}},
		}}
	running := kubelettypes.ConvertPodStatusToRunningPod("containerd", status)
	if diff := gocmp.Diff(pleg.Pod{ID: "a", Name: "web", Namespace: "shop", CreatedAt: 9, Source: "pod",
		Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "n"}, RuntimeHandler: "kata",
		Containers: []*pleg.Container{
			{ID: young.ID, State: pleg.ContainerStateRunning, Name: "app", Image: "image-2", Hash: 7,
				CreatedAt: 20e9, Source: "2"},
			{ID: side.ID, State: pleg.ContainerStateRunning, Name: "side", Image: "image-3", Hash: 7,
				CreatedAt: 5e9, Source: "3"},
		},
		Sandboxes: []*pleg.Container{
			{ID: kubelettypes.BuildContainerID("containerd", "s2"), State: pleg.ContainerStateRunning, CreatedAt: 9,
				Attempt: 1, Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "n"}},
			{ID: kubelettypes.BuildContainerID("containerd", "s1"), State: pleg.ContainerStateExited, CreatedAt: 3,
				Labels: map[string]string{"app": "old"}},
		},
	}, running); diff != "" {
		t.Error(diff)
	}
	if none := kubelettypes.ConvertPodStatusToRunningPod("containerd", nil); none.ID != "" || none.Sandboxes != nil {
		t.Errorf("of a nil status: %v", none)
	}
	if got := kubelettypes.SandboxToContainerState(9); got != pleg.ContainerStateUnknown {
		t.Errorf("an unheard-of state of a sandbox is %s", got)
	}
}
