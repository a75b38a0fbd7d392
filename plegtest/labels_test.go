package plegtest_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// If a test sets labels, annotations, attempts and the runtime handler of a pod, lists and sandbox
// statuses contain them unchanged. New sandboxes and restarted containers inherit them.
func TestRuntimeLabels(t *testing.T) {
	pod := plegtest.NewPod("a", plegtest.Running("a1"))
	pod.Labels, pod.Annotations = map[string]string{"app": "web"}, map[string]string{"note": "pod"}
	pod.RuntimeHandler = "kata"
	pod.Containers[0].Labels = map[string]string{"of": "container"}
	pod.Containers[0].Annotations = map[string]string{"note": "container"}
	pod.Containers[0].Attempt = 3
	rt := plegtest.NewRuntime()
	rt.SetPod(pod)
	if got := list(t, rt)[0]; got != pod {
		t.Errorf("listed as %+v", got)
	}

	rt.RestartContainer("a", "a1", "a2")
	rt.SetSandbox("a", "a-sandbox-2", pleg.ContainerStateRunning)
	got := rt.Pod("a")
	c, s := got.Containers[0], got.Sandboxes[0]
	if c.ID.ID != "a2" || c.Labels["of"] != "container" || c.Annotations["note"] != "container" || c.Attempt != 4 {
		t.Errorf("restarted as %+v", c)
	}
	if s.ID.ID != "a-sandbox-2" || s.Labels["app"] != "web" || s.Annotations["note"] != "pod" || s.Attempt != 1 {
		t.Errorf("the new sandbox is %+v", s)
	}
	status, err := rt.GetPodStatus(t.Context(), got)
	if err != nil {
		t.Fatal(err)
	}
	shown := status.SandboxStatuses[0]
	if shown.Labels["app"] != "web" || shown.Annotations["note"] != "pod" || shown.RuntimeHandler != "kata" ||
		shown.Metadata.Attempt != 1 {
		t.Errorf("the status of the sandbox is %+v", shown)
	}

	// The function passed to UpdatePod may modify the maps of its copy.
	rt.UpdatePod("a", func(pod *pleg.Pod) {
		pod.Labels["app"], pod.Annotations["note"] = "shop", "new"
		pod.Containers[0].Labels["of"], pod.Containers[0].Annotations["note"] = "other", "new"
	})
	updated := rt.Pod("a")
	if updated.Labels["app"] != "shop" || updated.Containers[0].Annotations["note"] != "new" {
		t.Errorf("updated to %+v", updated)
	}
	if diff := cmp.Diff([]string{"web", "pod", "container", "container"}, []string{got.Labels["app"],
		got.Annotations["note"], got.Containers[0].Labels["of"], got.Containers[0].Annotations["note"]}); diff != "" {
		t.Errorf("the pod before was modified: %s", diff)
	}
}
