package recipes

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// recordCrashes writes a Kubernetes Event for each failed container, until ctx ends.
func recordCrashes(ctx context.Context, g *pleg.GenericPLEG, recorder record.EventRecorder) error {
	return g.Handle(ctx, pleg.Handler{OnContainerEnded: func(e *pleg.PodLifecycleEvent) {
		code, reason, seen := e.Exit()
		if e.Initial || !seen || code == 0 {
			return
		}
		pod := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", UID: e.ID,
			Namespace: e.Pod.Namespace, Name: e.Pod.Name, FieldPath: "spec.containers{" + e.Container.Name + "}"}
		recorder.Eventf(pod, corev1.EventTypeWarning, "ContainerCrashed",
			"Container %s exited with code %d (%s)", e.Container.Name, code, reason)
	}})
}

func TestKubernetesEvents(t *testing.T) {
	onNode(t, func(t *testing.T, runtime *plegtest.Runtime, g *pleg.GenericPLEG) {
		recorder := record.NewFakeRecorder(10)
		go func() { _ = recordCrashes(t.Context(), g, recorder) }()
		time.Sleep(time.Second)
		runtime.ExitContainer("web", "setup", 0, "Completed")
		runtime.ExitContainer("web", "nginx", 137, "Error")
		time.Sleep(time.Second)
		runtime.ExitContainer("web", "nginx", 137, "OOMKilled") // the runtime corrects the reason
		time.Sleep(5 * time.Second)
		const want = "Warning ContainerCrashed Container nginx exited with code 137 (OOMKilled)"
		if got := <-recorder.Events; got != want || len(recorder.Events) != 0 {
			t.Errorf("%q, and %d more", got, len(recorder.Events))
		}
	})
}

// onNode runs a test in a bubble, on a node with one pod. The pod contains two running containers
// and one failed container.
func onNode(t *testing.T, test func(t *testing.T, runtime *plegtest.Runtime, g *pleg.GenericPLEG)) {
	synctest.Test(t, func(t *testing.T) {
		runtime := plegtest.NewRuntime()
		runtime.SetPod(plegtest.NewPod("web", plegtest.Running("nginx"), plegtest.Running("setup"), plegtest.Running("old")))
		runtime.ExitContainer("web", "old", 1, "Error")
		g := pleg.New(runtime)
		g.Start(t.Context())
		defer g.Stop()
		test(t, runtime, g)
	})
}
