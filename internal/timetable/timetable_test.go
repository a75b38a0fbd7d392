package timetable_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/internal/timetable"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start starts a server and its timetable with a fake clock.
func start(t *testing.T) (*criserver.Server, *timetable.Timetable, *testingclock.FakeClock) {
	t.Helper()
	clk := testingclock.NewFakeClock(time.Unix(1000, 0))
	s, err := criserver.Start(serverconfig.With[criserver.Option](serverconfig.Config{Clock: clk}))
	if err != nil {
		t.Fatal(err)
	}
	plans := timetable.New(s, clk)
	t.Cleanup(func() {
		plans.Stop()
		plans.Stop()
	})
	return s, plans, clk
}

// nodeStates returns the containers of the node in the form "pod/container#attempt state exit".
func nodeStates(t *testing.T, s *criserver.Server) []string {
	t.Helper()
	conn, err := grpc.NewClient(s.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := runtimeapi.NewRuntimeServiceClient(conn)
	got := []string{}
	sandboxes, err := c.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sandboxes.Items {
		got = append(got, s.Metadata.Name+" "+s.State.String())
	}
	containers, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ctr := range containers.Containers {
		answer, err := c.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: ctr.Id})
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s/%s#%d %s %d %s", ctr.Labels["io.kubernetes.pod.name"],
			ctr.Metadata.Name, ctr.Metadata.Attempt, ctr.State, answer.Status.ExitCode, answer.Status.Reason))
	}
	slices.Sort(got)
	return got
}

func TestPlay(t *testing.T) {
	s, plans, clk := start(t)
	plans.Play(
		timetable.PodPlan{
			PodConfig: criserver.PodConfig{Name: "web"},
			Containers: []timetable.ContainerPlan{
				{ContainerConfig: criserver.ContainerConfig{Name: "crash"}, RunFor: time.Second,
					ExitCode: 1, Restarts: timetable.Forever, BackOff: 10 * time.Second},
				{ContainerConfig: criserver.ContainerConfig{Name: "late"}, StartAfter: 5 * time.Second},
			},
		},
		timetable.PodPlan{
			PodConfig:  criserver.PodConfig{Name: "job"},
			StartAfter: 2 * time.Second,
			Containers: []timetable.ContainerPlan{
				{ContainerConfig: criserver.ContainerConfig{Name: "work"}, RunFor: 3 * time.Second},
			},
			LiveFor: 10 * time.Second, LingerFor: 5 * time.Second, ReturnAfter: time.Minute,
		},
	)
	began := clk.Now()
	at := func(d time.Duration, want ...string) {
		t.Helper()
		for clk.Since(began) < d {
			clk.Step(time.Second)
			plans.Settle()
		}
		plans.Settle()
		if diff := cmp.Diff(want, nodeStates(t, s)); diff != "" {
			t.Errorf("at %v: %s", d, diff)
		}
	}
	const ready, notReady = " SANDBOX_READY", " SANDBOX_NOTREADY"
	const up, down = " CONTAINER_RUNNING 0 ", " CONTAINER_EXITED "
	at(0, "web"+ready, "web/crash#0"+up)
	at(1*time.Second, "web"+ready, "web/crash#0"+down+"1 Error")
	at(2*time.Second, "job"+ready, "job/work#0"+up, "web"+ready, "web/crash#0"+down+"1 Error")
	at(5*time.Second, "job"+ready, "job/work#0"+down+"0 Completed", "web"+ready, "web/crash#0"+down+"1 Error",
		"web/late#0"+up)
	at(11*time.Second, "job"+ready, "job/work#0"+down+"0 Completed", "web"+ready, "web/crash#0"+down+"1 Error",
		"web/crash#1"+up, "web/late#0"+up)
	at(12*time.Second, "job"+notReady, "job/work#0"+down+"0 Completed", "web"+ready, "web/crash#1"+down+"1 Error",
		"web/late#0"+up)
	at(17*time.Second, "web"+ready, "web/crash#1"+down+"1 Error", "web/late#0"+up)
	at(32*time.Second, "web"+ready, "web/crash#1"+down+"1 Error", "web/crash#2"+up, "web/late#0"+up)
	at(77*time.Second, "job"+ready, "job/work#0"+up, "web"+ready, "web/crash#3"+down+"1 Error", "web/late#0"+up)
}

// A plan continues after the test has operated on its pods, and does not undo the test's
// operations.
func TestPlayAndOperate(t *testing.T) {
	s, plans, clk := start(t)
	plans.Settle() // no plan is running yet
	plans.Play(timetable.PodPlan{
		PodConfig: criserver.PodConfig{UID: "a"},
		Containers: []timetable.ContainerPlan{{RunFor: time.Second, Restarts: timetable.Forever,
			BackOff: time.Second}},
		LiveFor: time.Minute,
	})
	plans.Settle()
	sandbox := s.Sandboxes("a")[0]
	if err := s.KillContainer(s.Containers(sandbox)[0]); err != nil {
		t.Error(err)
	}
	clk.Step(10 * time.Second)
	plans.Settle()
	if got := s.Containers(sandbox); len(got) != 1 {
		t.Error(got)
	}
	if err := s.RemovePodSandbox(sandbox); err != nil {
		t.Error(err)
	}
	clk.Step(time.Hour)
	plans.Settle()
	if sandboxes, _ := s.Present(); sandboxes != 0 {
		t.Error(sandboxes)
	}
	plans.Stop()
	plans.Play(timetable.PodPlan{}) // after Stop, Play does nothing
	plans.Settle()
}
