package criserver_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// nodeStates returns the containers of the node: "pod/container#attempt state exit".
func nodeStates(t *testing.T, c runtimeapi.RuntimeServiceClient) []string {
	t.Helper()
	got := []string{}
	for _, s := range must[*runtimeapi.ListPodSandboxResponse](t)(c.ListPodSandbox(t.Context(),
		&runtimeapi.ListPodSandboxRequest{})).Items {
		got = append(got, s.Metadata.Name+" "+s.State.String())
	}
	for id, ctr := range listContainers(t, c, nil) {
		st := containerStatus(t, c, id)
		got = append(got, fmt.Sprintf("%s/%s#%d %s %d %s", ctr.Labels["io.kubernetes.pod.name"],
			ctr.Metadata.Name, ctr.Metadata.Attempt,
			ctr.State, st.ExitCode, st.Reason))
	}
	slices.Sort(got)
	return got
}

func TestServerPlay(t *testing.T) {
	clk := testingclock.NewFakeClock(time.Unix(1000, 0))
	s := startServer(t, criserver.WithClock(clk))
	c := dial(t, s)
	s.Play(
		criserver.PodPlan{
			PodConfig: criserver.PodConfig{Name: "web"},
			Containers: []criserver.ContainerPlan{
				{ContainerConfig: criserver.ContainerConfig{Name: "crash"}, RunFor: time.Second,
					ExitCode: 1, Restart: criserver.RestartOnFailure, BackOff: 10 * time.Second},
				{ContainerConfig: criserver.ContainerConfig{Name: "late"}, StartAfter: 5 * time.Second},
			},
		},
		criserver.PodPlan{
			PodConfig:  criserver.PodConfig{Name: "job"},
			StartAfter: 2 * time.Second,
			Containers: []criserver.ContainerPlan{
				{ContainerConfig: criserver.ContainerConfig{Name: "work"}, RunFor: 3 * time.Second,
					Restart: criserver.RestartOnFailure},
			},
			LiveFor: 10 * time.Second, LingerFor: 5 * time.Second, ReturnAfter: time.Minute,
		},
	)
	start := clk.Now()
	at := func(d time.Duration, want ...string) {
		t.Helper()
		for clk.Since(start) < d {
			clk.Step(time.Second)
			s.Settle()
		}
		s.Settle()
		if diff := cmp.Diff(want, nodeStates(t, c)); diff != "" {
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

func TestServerPlayIsSeeded(t *testing.T) {
	run := func() []string {
		clk := testingclock.NewFakeClock(time.Unix(1000, 0))
		s := startServer(t, criserver.WithClock(clk), criserver.WithConfig(serverconfig.Config{Seed: 5}))
		s.Play(slices.Repeat([]criserver.PodPlan{{
			Jitter: 0.5, LiveFor: 7 * time.Second, LingerFor: time.Second, ReturnAfter: time.Second,
			Containers: []criserver.ContainerPlan{{RunFor: time.Second, Restart: criserver.RestartAlways,
				BackOff: time.Second, Restarts: 3}},
		}}, 5)...)
		for range 300 {
			clk.Step(100 * time.Millisecond)
			s.Settle()
		}
		c := dial(t, s)
		var got []string
		for id, ctr := range listContainers(t, c, nil) {
			got = append(got, fmt.Sprint(id, ctr.CreatedAt, ctr.State))
		}
		slices.Sort(got)
		return got
	}
	a, b := run(), run()
	if diff := cmp.Diff(a, b); diff != "" || len(a) == 0 {
		t.Error(len(a), diff)
	}
}

// A plan does not undo the operations of the test.
func TestServerPlayAndOperate(t *testing.T) {
	clk := testingclock.NewFakeClock(time.Unix(1000, 0))
	s := startServer(t, criserver.WithClock(clk))
	s.Settle() // nothing plays
	s.Play(criserver.PodPlan{
		PodConfig: criserver.PodConfig{UID: "a"},
		Containers: []criserver.ContainerPlan{{RunFor: time.Second, Restart: criserver.RestartAlways,
			MaxBackOff: time.Second}},
		LiveFor: time.Minute,
	})
	s.Settle()
	sandbox := s.Sandboxes("a")[0]
	if err := s.KillContainer(s.Containers(sandbox)[0]); err != nil {
		t.Error(err)
	}
	clk.Step(10 * time.Second)
	s.Settle()
	if got := s.Containers(sandbox); len(got) != 1 {
		t.Error(got)
	}
	if err := s.RemovePodSandbox(sandbox); err != nil {
		t.Error(err)
	}
	clk.Step(time.Hour)
	s.Settle()
	if sandboxes, _ := s.Present(); sandboxes != 0 {
		t.Error(sandboxes)
	}
	s.Stop()
	s.Play(criserver.PodPlan{}) // too late
	s.Settle()
}
