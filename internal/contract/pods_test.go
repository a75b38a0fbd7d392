package contract_test

import (
	"bytes"
	"encoding/json"
	"sort"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2/textlogger"
	"pgregory.net/rapid"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

func TestFindPod(t *testing.T) {
	old, young := plegtest.NewPod("old"), plegtest.NewPod("young")
	old.Name, young.Name = "cart-0", "cart-0"
	all := pleg.Pods{nil, young, old}
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
		"in none": pleg.Pods(nil).FindPodByID(""), "by no full name": all.FindPodByFullName(""),
	} {
		if got != nil || !got.IsEmpty() {
			t.Errorf("%s: found %v", what, got)
		}
	}
}

func TestFindContainer(t *testing.T) {
	first, second := plegtest.Exited("a1"), plegtest.Running("a2")
	first.Name, second.Name = "app", "app"
	pod := plegtest.NewPod("a", nil, second, first)
	pod.Sandboxes = append(pod.Sandboxes, nil)
	sandbox := pod.Sandboxes[0]
	for what, got := range map[string][2]*pleg.Container{
		"newest of a name":   {pod.FindContainerByName("app"), second},
		"by ID":              {pod.FindContainerByID(first.ID), first},
		"by another type":    {pod.FindContainerByID(pleg.BuildContainerID("x", "a1")), nil},
		"a sandbox by ID":    {pod.FindSandboxByID(sandbox.ID), sandbox},
		"a container's ID":   {pod.FindSandboxByID(first.ID), nil},
		"a sandbox's ID":     {pod.FindContainerByID(sandbox.ID), nil},
		"another name":       {pod.FindContainerByName("x"), nil},
		"a name in no pod":   {(*pleg.Pod)(nil).FindContainerByName("app"), nil},
		"an ID in no pod":    {(*pleg.Pod)(nil).FindContainerByID(first.ID), nil},
		"a sandbox in a nil": {(*pleg.Pod)(nil).FindSandboxByID(sandbox.ID), nil},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %v", what, got[0])
		}
	}
	if pod.IsEmpty() || !(&pleg.Pod{}).IsEmpty() || (&pleg.Pod{Sandboxes: pod.Sandboxes}).IsEmpty() {
		t.Error("IsEmpty is wrong")
	}
}

func TestPodStatusHelpers(t *testing.T) {
	state := func(id string, s pleg.State, created int64) *pleg.Status {
		return &pleg.Status{ID: pleg.BuildContainerID("containerd", id), Name: "app", State: s,
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
	if got := status.FindContainerStatusByName("app"); got != young {
		t.Errorf("the newest of a name: %v", got)
	}
	if got := status.FindContainerStatusByName("x"); got != nil {
		t.Errorf("another name: %v", got)
	}
	if diff := gocmp.Diff([]*pleg.Status{young, side}, status.GetRunningContainerStatuses()); diff != "" {
		t.Error(diff)
	}
	if none := (*pleg.PodStatus)(nil); none.FindContainerStatusByName("app") != nil ||
		none.GetRunningContainerStatuses() != nil {
		t.Error("a nil status has containers")
	}
	sorted := []*pleg.Status{young, old, side}
	sort.Sort(pleg.SortContainerStatusesByCreationTime(sorted))
	if diff := gocmp.Diff([]*pleg.Status{side, old, young}, sorted); diff != "" {
		t.Error(diff)
	}

	running := pleg.ConvertPodStatusToRunningPod("containerd", status)
	if diff := gocmp.Diff(pleg.Pod{ID: "a", Name: "web", Namespace: "shop", CreatedAt: 9, Source: "pod",
		Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "n"}, RuntimeHandler: "kata",
		Containers: []*pleg.Container{
			{ID: young.ID, State: pleg.ContainerStateRunning, Name: "app", Image: "image-2", Hash: 7,
				CreatedAt: 20e9, Source: "2"},
			{ID: side.ID, State: pleg.ContainerStateRunning, Name: "side", Image: "image-3", Hash: 7,
				CreatedAt: 5e9, Source: "3"},
		},
		Sandboxes: []*pleg.Container{
			{ID: pleg.BuildContainerID("containerd", "s2"), State: pleg.ContainerStateRunning, CreatedAt: 9,
				Attempt: 1, Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "n"}},
			{ID: pleg.BuildContainerID("containerd", "s1"), State: pleg.ContainerStateExited, CreatedAt: 3,
				Labels: map[string]string{"app": "old"}},
		},
	}, running); diff != "" {
		t.Error(diff)
	}
	if none := pleg.ConvertPodStatusToRunningPod("containerd", nil); !none.IsEmpty() {
		t.Errorf("of a nil status: %v", none)
	}
	if got := pleg.SandboxToContainerState(9); got != pleg.ContainerStateUnknown {
		t.Errorf("an unheard-of state of a sandbox is %s", got)
	}
}

func TestPodFullNames(t *testing.T) {
	if full := pleg.BuildPodFullName("web-0", "shop"); full != "web-0_shop" {
		t.Error(full)
	}
	if name, namespace, err := pleg.ParsePodFullName("web-0_shop"); name != "web-0" || namespace != "shop" || err != nil {
		t.Error(name, namespace, err)
	}
	for _, bad := range []string{"", "web", "_", "web_", "_shop", "a_b_c", "web__"} {
		if name, namespace, err := pleg.ParsePodFullName(bad); err == nil || name != "" || namespace != "" {
			t.Errorf("%q: %q %q", bad, name, namespace)
		}
	}
}

func TestContainerIDForms(t *testing.T) {
	id, err := pleg.ParseContainerID("containerd://3f2a")
	if err != nil || id != pleg.BuildContainerID("containerd", "3f2a") || id.IsEmpty() {
		t.Errorf("%v %v", id, err)
	}
	for _, bad := range []string{"", "3f2a", "containerd:/3f2a", "a://b://c"} {
		id := pleg.BuildContainerID("was", "there")
		got, err := pleg.ParseContainerID(bad)
		if err == nil || !got.IsEmpty() || !strings.Contains(err.Error(), "type://id") {
			t.Errorf("%q: %v %v", bad, got, err)
		}
		text, _ := json.Marshal(bad)
		if id.ParseString(bad) == nil || id.UnmarshalJSON(text) == nil || id.ID != "there" {
			t.Errorf("%q is parsed: %v", bad, id)
		}
	}
	if err := id.ParseString(`"cri-o://1"`); err != nil || id != pleg.BuildContainerID("cri-o", "1") {
		t.Errorf("in quotation marks: %v %v", id, err)
	}
	for _, bad := range []string{"{}", "1", "x", ""} {
		if err := id.UnmarshalJSON([]byte(bad)); err == nil {
			t.Errorf("JSON %q is parsed: %v", bad, id)
		}
	}
	if err := json.Unmarshal([]byte("null"), &id); err != nil || id.ID != "1" {
		t.Errorf("null: %v %v", id, err)
	}
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.StringOf(rapid.SampledFrom([]rune(`abc"\<&é/:` + "\n")))
		in := struct{ ID pleg.ContainerID }{pleg.BuildContainerID(part.Draw(t, "type"), part.Draw(t, "id"))}
		if strings.Count(in.ID.String(), "://") != 1 {
			t.Skip("has no such form")
		}
		text, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		out := in
		out.ID = pleg.ContainerID{}
		if err := json.Unmarshal(text, &out); err != nil || out.ID.String() != in.ID.String() {
			t.Fatalf("%s: %v, %v", text, out.ID, err)
		}
	})
}

func TestEventInALine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		pod := plegtest.NewPod("uid", plegtest.Running("0123456789abcdef"))
		pod.Name, pod.Namespace, pod.Containers[0].Name = "cart-0", "shop", "cart"
		n.SetPod(pod)
		events := n.g.Watch()
		n.g.Relist()
		n.g.RequestReinspect("uid")
		n.g.Relist()
		n.ExitContainer("uid", "0123456789abcdef", 137, "OOMKilled")
		n.g.Relist()
		n.RemovePod("uid")
		n.g.Relist()
		var lines []string
		var logged bytes.Buffer
		logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&logged)))
		for len(events) > 0 {
			e := <-events
			lines = append(lines, e.String())
			logger.Info("Event", "event", e, "value", e.MarshalLog())
		}
		want(t, "events", lines,
			"shop/cart-0 cart (0123456789abc…) ContainerStarted",
			"shop/cart-0 sandbox (uid-sandbox) ContainerStarted",
			"shop/cart-0 PodSync",
			"shop/cart-0 cart (0123456789abc…) ContainerDied exit 137 OOMKilled",
			"shop/cart-0 cart (0123456789abc…) ContainerRemoved",
			"shop/cart-0 sandbox (uid-sandbox) ContainerDied",
			"shop/cart-0 sandbox (uid-sandbox) ContainerRemoved")
		if strings.Contains(logged.String(), "registry.example") {
			t.Errorf("the whole pod is in the log:\n%s", &logged)
		}
	})
	for want, e := range map[string]*pleg.PodLifecycleEvent{
		"no event":                         nil,
		"uid ContainerDied":                {ID: "uid", Type: pleg.ContainerDied},
		"uid container (c1) ContainerDied": {ID: "uid", Type: pleg.ContainerDied, Data: "c1"},
		"uid container (c1) ContainerDied exit 0": {ID: "uid", Type: pleg.ContainerDied, Data: "c1",
			Status: &pleg.Status{State: pleg.ContainerStateExited}},
		"uid container (c2) ContainerDied": {ID: "uid", Type: pleg.ContainerDied, Data: "c2",
			Status: &pleg.Status{State: pleg.ContainerStateRunning, ExitCode: 1}},
		"uid container (17) ContainerDied":  {ID: "uid", Type: pleg.ContainerDied, Data: 17},
		"uid container (c1) ContainerStart": {ID: "uid", Type: "ContainerStart", Data: "c1", Pod: &pleg.Pod{}},
	} {
		if got := e.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	text, err := json.Marshal((&pleg.PodLifecycleEvent{ID: "uid", Type: pleg.ContainerDied, Data: "c1",
		Pod: &pleg.Pod{Name: "web"}}).MarshalLog())
	if err != nil || string(text) != `{"ID":"uid","Type":"ContainerDied","Data":"c1"}` {
		t.Errorf("%s %v", text, err)
	}
	if (*pleg.PodLifecycleEvent)(nil).MarshalLog() != nil {
		t.Error("no event is logged as something")
	}
}

// What a runtime puts into Source comes out untouched, whatever it is, and a change of it
// alone is no change.
func TestSourceIsPassedThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		podWith := func(tag string) *pleg.Pod {
			pod := bare("a", plegtest.Running("a1"))
			pod.Containers[0].Source = func() string { return tag } // cannot be compared
			status := statusOf(pod)
			status.Source = map[string]string{"tag": tag}
			status.ContainerStatuses[0].Source = []byte(tag)
			n.SetStatus("a", status)
			pod.Containers = append(pod.Containers, nil) // bad data, which has the pod copied
			pod.Source = []string{tag}
			return pod
		}
		n.SetPod(podWith("first"))
		events := n.g.Watch()
		n.g.Relist()
		e := <-events
		if e.Pod.Source.([]string)[0] != "first" || e.Container.Source.(func() string)() != "first" {
			t.Errorf("got %v %v", e.Pod.Source, e.Container)
		}
		s, err := n.cache.Get("a")
		if err != nil || s.Source.(map[string]string)["tag"] != "first" ||
			string(s.ContainerStatuses[0].Source.([]byte)) != "first" {
			t.Errorf("got %v, %v", s, err)
		}
		inspections := n.Calls(plegtest.GetPodStatus)
		n.SetPod(podWith("second"))
		n.g.Relist()
		want(t, "events of another Source", read(events))
		if got := n.Calls(plegtest.GetPodStatus); got != inspections {
			t.Errorf("another Source cost %d inspections", got-inspections)
		}
	})
}
