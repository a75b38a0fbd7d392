package cri_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/crimessage"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// notUTF8 encodes a message, and replaces each BAD in it by bytes that are not UTF-8.
func notUTF8(t *testing.T, m crimessage.Message) []byte {
	t.Helper()
	raw, err := crimessage.Marshal(m)
	must(t, err)
	return bytes.ReplaceAll(raw, []byte("BAD"), []byte("a\xff\xfe"))
}

const replaced = "a\uFFFD" // the string that is read for BAD

// Rule 14: if a string in any field of an item is not UTF-8, the item counts as bad data. Other
// pods are not affected.
func TestListWithStringsThatAreNotUTF8(t *testing.T) {
	for field, edit := range map[string]func(*runtimeapi.Container){
		"ID":             func(c *runtimeapi.Container) { c.Id = "BAD" },
		"name":           func(c *runtimeapi.Container) { c.Metadata.Name = "BAD" },
		"image":          func(c *runtimeapi.Container) { c.Image = &runtimeapi.ImageSpec{Image: "BAD"} },
		"key of a label": func(c *runtimeapi.Container) { c.Labels["BAD"] = "v" },
		"value":          func(c *runtimeapi.Container) { c.Annotations = map[string]string{"k": "BAD"} },
		"pod UID":        func(c *runtimeapi.Container) { c.Labels["io.kubernetes.pod.uid"] = "BAD" },
	} {
		bad := container("bad", "of bad")
		edit(bad)
		r := newRuntime(&stub{chunk: 7, raw: notUTF8(t, &runtimeapi.ListContainersResponse{
			Containers: []*runtimeapi.Container{container("first", "good"), bad, container("last", "good")},
		})}, cri.WithPlainLists(), quiet)
		pods := getPods(t, r)
		if len(pods) != 2 {
			t.Fatalf("%s: %d pods", field, len(pods))
		}
		for _, pod := range pods {
			if want := map[bool]int{true: 2, false: 1}[pod.ID == "good"]; len(pod.Containers) != want {
				t.Errorf("%s: pod %q has %d containers", field, pod.ID, len(pod.Containers))
			}
			c := pod.Containers[0]
			read := c.ID.ID == replaced || c.Name == replaced || c.Image == replaced || c.Labels[replaced] == "v" ||
				c.Annotations["k"] == replaced || pod.ID == replaced
			if field == "name" {
				read = pod.ID == "of bad" // only the pod is checked
			}
			if pod.ID != "good" && !read {
				t.Errorf("%s: %+v", field, c)
			}
		}
		if got := metric(t, r, "pleg_cri_bad_items_total", "invalid_utf8"); got != 1 {
			t.Errorf("%s: %v counted", field, got)
		}
		if again := getPods(t, r); &again[0] != &pods[0] {
			t.Errorf("%s: the same list is another one", field)
		}
		if got := metric(t, r, "pleg_cri_bad_items_total", "invalid_utf8"); got != 2 {
			t.Errorf("%s: %v counted in two lists", field, got)
		}
	}
}

// If a string in a status or an event is not UTF-8, the inspection does not fail, and the stream of
// events does not end.
func TestStatusAndEventWithStringsThatAreNotUTF8(t *testing.T) {
	s, r := serverAndRuntime(t)
	sandboxID := s.RunPod(criserver.PodConfig{UID: "uid"})
	app := runContainer(t, s, sandboxID, "app")
	for _, fault := range []criserver.Fault{
		{Method: "ContainerStatus", Raw: notUTF8(t, &statusResponse{Status: &runtimeapi.ContainerStatus{
			Id: app, State: runtimeapi.ContainerState_CONTAINER_EXITED, Message: "BAD"}})},
		{Method: "PodSandboxStatus", Raw: notUTF8(t, &sandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
			Id: sandboxID, RuntimeHandler: "BAD"}})},
	} {
		s.Inject(fault)
	}
	status := getPodStatus(t, r, getPods(t, r)[0])
	if got := status.ContainerStatuses[0].Message; got != replaced {
		t.Errorf("message %q", got)
	}
	if got := status.SandboxStatuses[0].RuntimeHandler; got != replaced {
		t.Errorf("handler %q", got)
	}
	if got := metric(t, r, "pleg_cri_bad_items_total", "invalid_utf8"); got != 2 {
		t.Errorf("%v counted", got)
	}

	s.Inject(criserver.Fault{Method: "GetContainerEvents", Raw: notUTF8(t,
		&runtimeapi.ContainerEventResponse{ContainerId: "c", PodSandboxStatus: &runtimeapi.PodSandboxStatus{
			Labels: map[string]string{"io.kubernetes.pod.uid": "uid", "note": "BAD"}}})})
	w := watch(t, r)
	<-w.connected
	for range 2 {
		s.RunPod(criserver.PodConfig{UID: "another"}) // the fault replaces the event of this pod
		if e := <-w.events; e.PodUID != "uid" || e.ContainerID != "c" {
			t.Errorf("%+v", e)
		}
	}
	if got := metric(t, r, "pleg_cri_bad_items_total", "invalid_utf8"); got < 4 {
		t.Errorf("%v counted", got)
	}
}

// In the runtime's version, bytes that are not UTF-8 are replaced. A long version is cut in errors
// and in DescribeRuntime.
func TestVersionThatIsNotUTF8OrTooLong(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	s, err := criserver.Start(criserver.WithVersion("containerd", "1.7."+long))
	must(t, err)
	t.Cleanup(s.Stop)
	r := connect(t, s, quiet, cri.WithoutExitEvents())
	err = r.WatchContainerEvents(t.Context(), nil, nil)
	if !errors.Is(err, pleg.ErrEventsUnsupported) || len(err.Error()) > 8<<10 {
		t.Errorf("an error of %d bytes: %.100v", len(fmt.Sprint(err)), err)
	}
	if got := r.DescribeRuntime(); len(got) > 8<<10 {
		t.Errorf("the description has %d bytes", len(got))
	}
	s.Inject(criserver.Fault{Method: "Version", Raw: notUTF8(t, &runtimeapi.VersionResponse{
		RuntimeName: "containerd", RuntimeVersion: "BAD"})})
	r = connect(t, s, quiet)
	getPods(t, r)
	if got := r.DescribeRuntime(); !strings.Contains(got, replaced) {
		t.Error(got)
	}
}

// If an answer is also malformed in other ways, the list fails.
func TestNotUTF8AndMalformed(t *testing.T) {
	raw := listItem(idField("a\xff"), []byte{0x12, 9})
	r := newRuntime(&stub{chunk: 7, raw: raw}, cri.WithPlainLists(), quiet)
	if pods, err := r.GetPods(t.Context(), true); err == nil {
		t.Errorf("%v", pods)
	}
}
