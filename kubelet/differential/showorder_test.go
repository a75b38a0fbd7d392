package kubelet

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// showClockSetBack sets the clock back before a container is restarted. The kubelet and the library
// read CRI with their own clients.
func showClockSetBack(t *testing.T, s *stage) {
	server, err := criserver.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	server.Inject(criserver.Fault{Method: "ContainerStatus", Edit: func(answer any) {
		c := answer.(*runtimeapi.ContainerStatusResponse).Status
		c.CreatedAt -= int64(c.Metadata.Attempt) * time.Hour.Nanoseconds()
	}})
	first, err := server.RunContainer(server.RunPod(criserver.PodConfig{UID: "a"}), criserver.ContainerConfig{Name: "app"})
	if err != nil {
		t.Fatal(err)
	}
	second, err := server.RestartContainer(first)
	if err != nil {
		t.Fatal(err)
	}

	kubelet, disconnect := newKubeRuntime(t, server.Endpoint())
	defer disconnect()
	pods, err := kubelet.GetPods(s.ctx, true)
	if err != nil {
		t.Fatal(err)
	}
	status, err := kubelet.GetPodStatus(s.ctx, pods[0])
	if err != nil {
		t.Fatal(err)
	}
	s.want("the newest container in the kubelet", first, status.FindContainerStatusByName("app").ID.ID)

	runtime, err := cri.Connect(s.ctx, server.Endpoint(), cri.WithLogger(logr.Discard()))
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.Close()
	listed, err := runtime.GetPods(s.ctx, true)
	if err != nil {
		t.Fatal(err)
	}
	here, err := runtime.GetPodStatus(s.ctx, listed[0])
	if err != nil {
		t.Fatal(err)
	}
	s.want("the newest container here", second, here.FindContainerStatusByName("app").ID.ID)
}
