package criserver_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/internal/test/garbage"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

func TestServerFaults(t *testing.T) {
	clk := testingclock.NewFakeClock(time.Unix(1000, 0))
	s := startServer(t, serverconfig.With[criserver.Option](serverconfig.Config{Clock: clk}))
	c := dial(t, s)
	a, b := s.RunPod(criserver.PodConfig{UID: "a"}), s.RunPod(criserver.PodConfig{UID: "b"})
	sandboxStatus := func(ctx context.Context, id string) error {
		_, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
		return err
	}
	canceled, cancel := context.WithCancel(t.Context())

	heal := s.Inject(criserver.Fault{Method: "PodSandboxStatus", Object: a, Times: 2,
		Err: status.Error(codes.DataLoss, "oops")})
	for i, want := range []codes.Code{codes.DataLoss, codes.DataLoss, codes.OK} {
		if err := sandboxStatus(t.Context(), a); status.Code(err) != want {
			t.Error(i, err)
		}
	}
	if err := sandboxStatus(t.Context(), b); err != nil {
		t.Error(err)
	}
	heal()
	heal()

	errs := make(chan error, 2)
	heal = s.Inject(criserver.Fault{Object: "a", Block: true})
	for _, ctx := range []context.Context{t.Context(), canceled} {
		go func() {
			_, err := c.ListPodSandbox(ctx,
				&runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
					LabelSelector: map[string]string{"io.kubernetes.pod.uid": "a"},
				}})
			errs <- err
		}()
	}
	if _, err := c.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{}); err != nil {
		t.Error("a list that does not name the pod:", err)
	}
	cancel()
	if err := <-errs; status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	heal()
	if err := <-errs; err != nil {
		t.Error(err)
	}

	s.Delay("Version", "", time.Hour)
	go func() {
		_, err := c.Version(t.Context(), &runtimeapi.VersionRequest{})
		errs <- err
	}()
	for !clk.HasWaiters() {
		runtime.Gosched()
	}
	clk.Step(time.Hour)
	if err := <-errs; err != nil {
		t.Error(err)
	}

	s.Inject(criserver.Fault{Method: "Status", Cut: true, Times: 1})
	if _, err := c.Status(t.Context(), &runtimeapi.StatusRequest{}); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if _, err := c.Status(t.Context(), &runtimeapi.StatusRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Error("after the cut:", err)
	}

	// Stop does not wait for a stuck call.
	s.Block("RuntimeConfig", "")
	go func() {
		_, err := c.RuntimeConfig(t.Context(), &runtimeapi.RuntimeConfigRequest{})
		errs <- err
	}()
	for serverconfig.Of(s).InFlight("RuntimeConfig") == 0 {
		if err := sandboxStatus(t.Context(), a); err != nil { // gives the other call time to arrive
			t.Fatal(err)
		}
	}
	s.Stop()
	if err := <-errs; status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
		t.Error(err)
	}
}

func TestServerGarbage(t *testing.T) {
	s := startServer(t)
	c := dial(t, s)
	a := s.RunPod(criserver.PodConfig{UID: "a"})
	id := must[string](t)(s.RunContainer(a, criserver.ContainerConfig{}))
	must[string](t)(s.RunContainer(a, criserver.ContainerConfig{}))
	edits := map[string]struct {
		edit  func(any)
		shows func(*runtimeapi.Container) bool
	}{
		"NilMetadata": {garbage.NilMetadata,
			func(c *runtimeapi.Container) bool { return c.Metadata == nil }},
		"EmptyIDs":      {garbage.EmptyIDs, func(c *runtimeapi.Container) bool { return c.Id == "" }},
		"UnknownStates": {garbage.UnknownStates, func(c *runtimeapi.Container) bool { return c.State == 77 }},
		"MissingLabels": {garbage.MissingLabels,
			func(c *runtimeapi.Container) bool { return len(c.Labels) == 0 }},
		"NegativeTimes": {garbage.NegativeTimes,
			func(c *runtimeapi.Container) bool { return c.CreatedAt < 0 }},
	}
	for name, tc := range edits {
		heal := s.Inject(criserver.Fault{Edit: tc.edit})
		resp := must[*runtimeapi.ListContainersResponse](t)(c.ListContainers(t.Context(),
			&runtimeapi.ListContainersRequest{}))
		for _, ctr := range resp.Containers {
			if !tc.shows(ctr) {
				t.Errorf("%s: %v", name, ctr)
			}
		}
		for _, call := range []func() error{
			func() error {
				_, err := c.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
				return err
			},
			func() error {
				_, err := c.PodSandboxStatus(t.Context(),
					&runtimeapi.PodSandboxStatusRequest{PodSandboxId: a})
				return err
			},
			func() error {
				_, err := c.ContainerStatus(t.Context(),
					&runtimeapi.ContainerStatusRequest{ContainerId: id})
				return err
			},
			func() error { _, _, err := streamContainers(t.Context(), c); return err },
		} {
			if err := call(); err != nil {
				t.Error(name, err)
			}
		}
		heal()
	}
	heal := s.Inject(criserver.Fault{Edit: garbage.DuplicateIDs})
	resp := must[*runtimeapi.ListContainersResponse](t)(c.ListContainers(t.Context(),
		&runtimeapi.ListContainersRequest{}))
	if len(resp.Containers) != 2 || resp.Containers[0].Id != resp.Containers[1].Id {
		t.Error(resp)
	}
	heal()
	heal = s.Inject(criserver.Fault{Edit: garbage.NilStatus})
	if st := containerStatus(t, c, id); st != nil {
		t.Error(st)
	}
	heal()
	heal = s.Inject(criserver.Fault{Raw: []byte{0xff}})
	if _, err := c.ListContainers(t.Context(),
		&runtimeapi.ListContainersRequest{}); status.Code(err) != codes.Internal {
		t.Error("malformed bytes:", err)
	}
	if _, _, err := streamContainers(t.Context(), c); status.Code(err) != codes.Internal {
		t.Error("malformed bytes in a stream:", err)
	}
	heal()
	heal = s.Inject(criserver.Fault{Padding: 100})
	if st := containerStatus(t, c, id); st.Id != id {
		t.Error("a padded answer:", st)
	}
	heal()
	heal = s.Inject(criserver.Fault{Padding: 16 << 20})
	if _, err := c.ListContainers(t.Context(),
		&runtimeapi.ListContainersRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Error("an oversized answer:", err)
	}
	heal()
	if got := listContainers(t, c, nil); got[id].Metadata == nil || len(got) != 2 {
		t.Error("an edit modified the server's own:", got)
	}
}
