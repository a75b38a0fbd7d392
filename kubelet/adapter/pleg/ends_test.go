package pleg

import (
	"context"
	"testing"
	"time"

	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// forgetful is a kubelet's runtime. It shows every container as exited with code 255 and the reason
// "Unknown".
type forgetful struct {
	kubecontainer.Runtime
	ids []string
}

func (r *forgetful) GetPodStatus(context.Context, *kubecontainer.Pod) (*kubecontainer.PodStatus, error) {
	status := &kubecontainer.PodStatus{ID: "uid"}
	for _, id := range r.ids {
		status.ContainerStatuses = append(status.ContainerStatuses, &kubecontainer.Status{
			ID: kubecontainer.ContainerID{Type: "containerd", ID: id}, State: kubecontainer.ContainerStateExited,
			ExitCode: 255, Reason: "Unknown", FinishedAt: time.Now(),
		})
	}
	return status, nil
}

// TestUnknownEndThatWasSeen shows that the end in an exit event replaces containerd's "Unknown", in
// inspections by the kubelet and by the generator. Without an exit event, the end stays unknown.
func TestUnknownEndThatWasSeen(t *testing.T) {
	server, err := criserver.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	sandbox := server.RunPod(criserver.PodConfig{UID: "uid"})
	var ids []string
	for _, name := range []string{"seen", "unseen"} {
		id, err := server.RunContainer(sandbox, criserver.ContainerConfig{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	node := NodeRuntime(&forgetful{ids: ids}, &fakeService{}, server.Endpoint(), time.Minute).(*nodeRuntime)
	adapted, err := node.adapt(true)
	if err != nil {
		t.Fatal(err)
	}
	exiting := adapted.(exitingRuntime)
	defer exiting.ExitSource.(*cri.Runtime).Close()
	ctx, cancel := context.WithCancel(t.Context())
	reported, done := make(chan pleg.ContainerExit, 10), make(chan struct{})
	go func() {
		defer close(done)
		// The watch ends when the server goes down.
		_ = exiting.WatchContainerExits(ctx, func() {}, func(e pleg.ContainerExit) { reported <- e })
	}()
	defer func() {
		cancel()
		<-done
	}()
	// Wait until the exits of existing containers are watched.
	for serverconfig.Of(server).TaskExitReaders() == 0 || server.Calls("StreamContainers") == 0 {
		select {
		case <-done:
			t.Fatal("the watch has ended")
		case <-time.After(time.Millisecond):
		}
	}
	end := time.Unix(1_700_000_000, 0)
	serverconfig.Of(server).SendTaskExit(serverconfig.TaskExit{ContainerID: ids[0], ExitCode: 3, ExitedAt: end})
	<-reported
	server.Down()
	for _, id := range ids {
		if err := server.ExitContainer(id, 3, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := server.Up(); err != nil {
		t.Fatal(err)
	}
	var status *kubecontainer.PodStatus
	for { // the library may need a moment to reconnect
		if status, err = node.GetPodStatus(t.Context(), &kubecontainer.Pod{ID: "uid"}); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if s := status.ContainerStatuses[0]; s.ExitCode != 3 || s.Reason != "Error" || !s.FinishedAt.Equal(end) {
		t.Errorf("what was seen: %+v", s)
	}
	if s := status.ContainerStatuses[1]; s.ExitCode != 255 || s.Reason != "Unknown" {
		t.Errorf("what nobody has seen: %+v", s)
	}
	inspected, err := exiting.GetPodStatus(t.Context(), &pleg.Pod{ID: "uid", Source: &kubecontainer.Pod{ID: "uid"}})
	if err != nil || inspected.ContainerStatuses[0].ExitCode != 3 || inspected.ContainerStatuses[1].ExitCode != 255 {
		t.Errorf("the generator gets %+v, %v", inspected, err)
	}
}
