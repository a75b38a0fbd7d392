package cri_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/crimessage"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/internal/test/garbage"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

func getPodStatus(t *testing.T, r *cri.Runtime, pod *pleg.Pod) *pleg.PodStatus {
	t.Helper()
	s, err := r.GetPodStatus(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestGetPodStatus(t *testing.T) {
	s, r := serverAndRuntime(t)
	old := s.RunPod(criserver.PodConfig{UID: "uid", Name: "web", Namespace: "prod", IPs: []string{"10.0.0.1"}})
	first := runContainer(t, s, old, "app")
	must(t, s.ExitContainer(first, 3, "Error"))
	must(t, s.StopPodSandbox(old))
	now := s.RunPod(criserver.PodConfig{UID: "uid", Name: "web", Namespace: "prod",
		IPs: []string{"10.0.0.2", "fd00::2"}})
	second := runContainer(t, s, now, "app")
	waiting, err := s.CreateContainer(now, criserver.ContainerConfig{Name: "late"})
	must(t, err)

	pod := getPods(t, r)[0]
	got := getPodStatus(t, r, pod)
	if got.ID != "uid" || got.Name != "web" || got.Namespace != "prod" || !got.TimeStamp.IsZero() {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff([]string{"10.0.0.2", "fd00::2"}, got.IPs); diff != "" {
		t.Error(diff)
	}
	if len(got.SandboxStatuses) != 2 || got.SandboxStatuses[0].Id != now || got.SandboxStatuses[1].Id != old {
		t.Errorf("sandboxes: %v", got.SandboxStatuses)
	}
	ids := func(list []*pleg.Status) (ids []string) {
		for _, c := range list {
			ids = append(ids, c.ID.ID)
		}
		return ids
	}
	if diff := cmp.Diff([]string{waiting, second, first}, ids(got.ContainerStatuses)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{waiting, second}, ids(got.ActiveContainerStatuses)); diff != "" {
		t.Error(diff)
	}
	must(t, s.StopPodSandbox(now))
	if stopped := getPodStatus(t, r, getPods(t, r)[0]); len(stopped.ActiveContainerStatuses) != 0 ||
		len(stopped.IPs) != 0 {
		t.Errorf("active in a sandbox that is not ready: %v, %v", ids(stopped.ActiveContainerStatuses),
			stopped.IPs)
	}
	created, running, exited := got.ContainerStatuses[0], got.ContainerStatuses[1], got.ContainerStatuses[2]
	if created.State != pleg.ContainerStateCreated || created.CreatedAt.IsZero() || !created.StartedAt.IsZero() ||
		!created.FinishedAt.IsZero() {
		t.Errorf("created: %+v", created)
	}
	if running.State != pleg.ContainerStateRunning || running.StartedAt.IsZero() || !running.FinishedAt.IsZero() ||
		running.Name != "app" || running.RestartCount != 1 || running.Hash != pod.Containers[1].Hash {
		t.Errorf("running: %+v", running)
	}
	if exited.State != pleg.ContainerStateExited || exited.ExitCode != 3 || exited.Reason != "Error" ||
		exited.FinishedAt.IsZero() || exited.ID.Type != "containerd" {
		t.Errorf("exited: %+v", exited)
	}
}

// GetPodStatus stops asking about an exited container once its status has settled.
func TestExitedContainersAreAskedForOnce(t *testing.T) {
	s, _ := serverAndRuntime(t)
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	r := connect(t, s, cri.WithClock(clock))
	sandbox := s.RunPod(criserver.PodConfig{UID: "uid"})
	done := runContainer(t, s, sandbox, "init")
	must(t, s.ExitContainer(done, 0, ""))
	app := runContainer(t, s, sandbox, "app")
	settle := func() { clock.SetTime(clock.Now().Add(10 * time.Second)) }
	expect := func(pod *pleg.Pod, want int) {
		t.Helper()
		serverconfig.Of(s).ResetCalls()
		getPodStatus(t, r, pod)
		if sandboxes, containers := s.Calls("PodSandboxStatus"), s.Calls("ContainerStatus"); sandboxes != 1 ||
			containers != want {
			t.Errorf("%d sandboxes and %d containers were asked for, want 1 and %d", sandboxes, containers,
				want)
		}
	}
	pod := getPods(t, r)[0]
	expect(pod, 2)
	expect(pod, 2)
	settle()
	expect(pod, 2)
	expect(pod, 1)
	// GetPod shows the exit before a full list does.
	must(t, s.ExitContainer(app, 1, ""))
	pod, err := r.GetPod(t.Context(), "uid")
	must(t, err)
	expect(pod, 1)
	settle()
	expect(pod, 1)
	expect(pod, 0)
	expect(getPods(t, r)[0], 0)
	// Nothing is held for a container that no full list has shown yet.
	short := runContainer(t, s, sandbox, "short")
	must(t, s.ExitContainer(short, 2, ""))
	pod, err = r.GetPod(t.Context(), "uid")
	must(t, err)
	expect(pod, 1)
	settle()
	expect(pod, 1)
	expect(getPods(t, r)[0], 1)
	settle()
	expect(pod, 1)
	expect(pod, 0)
	if got := getPodStatus(t, r, pod).ContainerStatuses[0]; got.ExitCode != 2 || got.Name != "short" {
		t.Errorf("%+v", got)
	}
	// A pod from an older list may still contain a container that is gone.
	must(t, s.RemoveContainer(short))
	getPods(t, r)
	expect(pod, 1)
	if got := getPodStatus(t, r, pod); len(got.ContainerStatuses) != 2 {
		t.Errorf("%+v", got)
	}
}

// When a container is gone, the Runtime releases everything that it held for the container. For a
// container that no full list has shown, it holds nothing.
func TestHeldIsReleased(t *testing.T) {
	s, r := serverAndRuntime(t)
	for _, uid := range []types.UID{"listed", "never listed"} {
		sandbox := s.RunPod(criserver.PodConfig{UID: uid})
		must(t, s.ExitContainer(runContainer(t, s, sandbox, "app"), 0, ""))
		var want [3]int
		if uid == "listed" {
			getPods(t, r)
			want = [3]int{2, 1, 1}
		}
		pod, err := r.GetPod(t.Context(), uid)
		must(t, err)
		getPodStatus(t, r, pod)
		if items, pods, statuses := cri.Held(r); [3]int{items, pods, statuses} != want {
			t.Errorf("%s: %d items, %d pods, %d statuses are held, want %v", uid, items, pods, statuses,
				want)
		}
		must(t, s.RemovePodSandbox(sandbox))
		getPods(t, r)
		if items, pods, statuses := cri.Held(r); items+pods+statuses != 0 {
			t.Errorf("%s: %d items, %d pods, %d statuses are held of nothing", uid, items, pods, statuses)
		}
	}
}

func TestNotFoundIsNoFailure(t *testing.T) {
	s, r := serverAndRuntime(t)
	sandbox := s.RunPod(criserver.PodConfig{UID: "uid"})
	app := runContainer(t, s, sandbox, "app")
	pod := getPods(t, r)[0]
	must(t, s.RemoveContainer(app))
	if got := getPodStatus(t, r, pod); len(got.ContainerStatuses) != 0 || len(got.SandboxStatuses) != 1 {
		t.Errorf("%+v", got)
	}
	must(t, s.RemovePodSandbox(sandbox))
	if got := getPodStatus(t, r, pod); len(got.SandboxStatuses) != 0 || got.IPs != nil || got.ID != "uid" {
		t.Errorf("%+v", got)
	}
}

// cri-dockerd reports only in its error text that a sandbox or a container is gone. The same text
// from another runtime is an error.
func TestNotFoundOfDocker(t *testing.T) {
	gone := status.Error(codes.Unknown, "Error response from daemon: No such container: c")
	for _, test := range []struct {
		runtime string
		err     error
		ok      bool
	}{
		{"docker", gone, true},
		{"docker", status.Error(codes.Unknown, "Error response from daemon: No such image: i"), false},
		{"docker", status.Error(codes.Internal, "No such container: c"), false},
		{"containerd", gone, false},
	} {
		node := &stub{
			name:       test.runtime,
			sandboxes:  []*runtimeapi.PodSandbox{sandbox("s", "uid")},
			containers: []*runtimeapi.Container{container("c", "uid")},
			sandboxStatus: func(context.Context, *sandboxStatusRequest) (*sandboxStatusResponse, error) {
				return nil, test.err
			},
			containerStatus: func(context.Context, *statusRequest) (*statusResponse, error) {
				return nil, test.err
			},
		}
		r := newRuntime(node)
		got, err := r.GetPodStatus(t.Context(), getPods(t, r)[0])
		if (err == nil) != test.ok {
			t.Errorf("%s, %v: %v", test.runtime, test.err, err)
		}
		if err == nil && len(got.ContainerStatuses)+len(got.SandboxStatuses) != 0 {
			t.Errorf("%+v", got)
		}
	}
}

func TestGetPodStatusFails(t *testing.T) {
	s, r := serverAndRuntime(t)
	app := runContainer(t, s, s.RunPod(criserver.PodConfig{UID: "the-uid"}), "app")
	pod := getPods(t, r)[0]
	for _, test := range []struct {
		name  string
		fault criserver.Fault
		code  codes.Code
		want  []string
	}{
		{"container", criserver.Fault{Method: "ContainerStatus",
			Err: status.Error(codes.Internal, "disk on fire")}, codes.Internal,
			[]string{"ContainerStatus of container app (" + app[:13], "the-uid", "disk on fire",
				s.Endpoint()}},
		{"sandbox", criserver.Fault{Method: "PodSandboxStatus", Err: status.Error(codes.Internal, "no shim")},
			codes.Internal,
			[]string{"PodSandboxStatus of sandbox (" + pod.Sandboxes[0].ID.ID[:13], "no shim"}},
		{"nil container", criserver.Fault{Method: "ContainerStatus", Edit: garbage.NilStatus}, codes.Unknown,
			[]string{"ContainerStatus", "has no status"}},
		{"nil sandbox", criserver.Fault{Method: "PodSandboxStatus", Edit: garbage.NilStatus}, codes.Unknown,
			[]string{"PodSandboxStatus", "has no status"}},
		{"another container", criserver.Fault{Method: "ContainerStatus", Edit: garbage.OtherIDs}, codes.Unknown,
			[]string{"ContainerStatus of container app (" + app[:13], "the answer is about another one: other-" + app}},
		{"another sandbox", criserver.Fault{Method: "PodSandboxStatus", Edit: garbage.OtherIDs}, codes.Unknown,
			[]string{"PodSandboxStatus of sandbox (", "the answer is about another one: other-"}},
		{"garbage", criserver.Fault{Method: "ContainerStatus", Raw: []byte{0xff}}, codes.Internal,
			[]string{"ContainerStatus of container app"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			heal := s.Inject(test.fault)
			defer heal()
			got, err := r.GetPodStatus(t.Context(), pod)
			if err == nil || len(got.ContainerStatuses)+len(got.SandboxStatuses) != 1 { // of the other object
				t.Fatalf("%+v, %v", got, err)
			}
			var failed pleg.CallError
			if !errors.As(err, &failed) || failed.Call().Method != test.fault.Method || failed.Call().ObjectID == "" {
				t.Errorf("the failed call is not in %v", err)
			}
			if status.Code(err) != test.code {
				t.Errorf("code %v of %v", status.Code(err), err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
		})
	}
	if _, err := r.GetPodStatus(t.Context(), nil); err == nil {
		t.Error("no error for no pod")
	}
	if bad := metric(t, r, "pleg_cri_bad_items_total", "wrong_id"); bad != 2 {
		t.Errorf("%v statuses of others", bad)
	}
}

// A state that the API does not define is read as unknown and counted, in lists and in statuses. A
// sandbox in such a state counts as not ready, and its pod has no addresses.
func TestUnknownStates(t *testing.T) {
	s, r := serverAndRuntime(t)
	app := runContainer(t, s, s.RunPod(criserver.PodConfig{UID: "uid"}), "app")
	defer s.Inject(criserver.Fault{Edit: garbage.UnknownStates})()
	bad := func() float64 { return metric(t, r, "pleg_cri_bad_items_total", "unknown_state") }
	pod := getPods(t, r)[0]
	if pod.Containers[0].State != pleg.ContainerStateUnknown || pod.Sandboxes[0].State != pleg.ContainerStateUnknown ||
		bad() != 2 {
		t.Errorf("%+v, %+v, %v counted", pod.Containers[0], pod.Sandboxes[0], bad())
	}
	got := getPodStatus(t, r, pod)
	if c := got.FindContainerStatusByID(app); c.State != pleg.ContainerStateUnknown || len(got.IPs) > 0 ||
		len(got.ActiveContainerStatuses) > 0 || bad() != 4 {
		t.Errorf("%+v, %v counted", c, bad())
	}
}

// If one container cannot be inspected, the statuses of the pod's other objects are still returned,
// even if the failed call returns first.
func TestPartialStatus(t *testing.T) {
	s, r := serverAndRuntime(t)
	sandbox := s.RunPod(criserver.PodConfig{UID: "uid"})
	app, bad := runContainer(t, s, sandbox, "app"), runContainer(t, s, sandbox, "bad")
	must(t, s.ExitContainer(app, 3, ""))
	pod := getPods(t, r)[0]
	defer s.Fail("ContainerStatus", bad, status.Error(codes.Internal, "no shim"))()
	defer s.Delay("ContainerStatus", app, 100*time.Millisecond)()
	got, err := r.GetPodStatus(t.Context(), pod)
	if c := got.FindContainerStatusByID(app); status.Code(err) != codes.Internal || c == nil || c.ExitCode != 3 ||
		len(got.ContainerStatuses) != 1 || len(got.SandboxStatuses) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// CallsInFlight returns an inspection call that is stuck. The end of the context ends the call.
func TestInspectionInFlight(t *testing.T) {
	s, r := serverAndRuntime(t)
	app := runContainer(t, s, s.RunPod(criserver.PodConfig{UID: "uid"}), "app")
	pod := getPods(t, r)[0]
	heal := s.Block("ContainerStatus", "")
	defer heal()

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := r.GetPodStatus(ctx, pod)
		done <- err
	}()
	want := pleg.RuntimeCall{
		Method: "ContainerStatus", PodUID: "uid", Object: "container app (" + app[:13] + "…)", ObjectID: app,
	}
	waitFor(t, func() bool {
		calls := inFlight(r)
		if len(calls) != 1 {
			return false
		}
		calls[0].Since = time.Time{}
		return calls[0] == want
	})
	cancel()
	if err := <-done; status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	if calls := inFlight(r); len(calls) != 0 {
		t.Errorf("in flight: %+v", calls)
	}
}

// waitFor waits until a condition is true.
func waitFor(t *testing.T, what func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	tooLong := time.After(20 * time.Second)
	for !what() {
		select {
		case <-tick.C:
		case <-tooLong:
			t.Fatal("the condition did not become true")
		}
	}
}

func TestIPs(t *testing.T) {
	ready, notReady := runtimeapi.PodSandboxState_SANDBOX_READY, runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	for _, test := range []struct {
		name  string
		state runtimeapi.PodSandboxState
		ips   []string
		want  []string
	}{
		{"one", ready, []string{"10.1.2.3"}, []string{"10.1.2.3"}},
		{"two families", ready, []string{"fd00::1", "10.1.2.3"}, []string{"fd00::1", "10.1.2.3"}},
		{"host network", ready, []string{""}, nil},
		{"additional only", ready, []string{"", "10.1.2.3"}, []string{"10.1.2.3"}},
		{"not ready", notReady, []string{"10.1.2.3"}, nil},
		{"unreadable", ready, []string{"10.1.2"}, nil},
		{"unreadable additional", ready, []string{"10.1.2.3", "x"}, nil},
		{"leading zeros", ready, []string{"010.001.002.003"}, []string{"010.001.002.003"}},
		{"no network", ready, nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var network *runtimeapi.PodSandboxNetworkStatus
			for i, ip := range test.ips {
				if i == 0 {
					network = &runtimeapi.PodSandboxNetworkStatus{Ip: ip}
				} else {
					network.AdditionalIps = append(network.AdditionalIps, &runtimeapi.PodIP{Ip: ip})
				}
			}
			r := newRuntime(&stub{
				sandboxes: []*runtimeapi.PodSandbox{sandbox("s", "uid")},
				sandboxStatus: func(context.Context,
					*sandboxStatusRequest) (*sandboxStatusResponse, error) {
					s := &runtimeapi.PodSandboxStatus{State: test.state, Network: network}
					return &sandboxStatusResponse{Status: s}, nil
				},
			}, quiet)
			got := getPodStatus(t, r, getPods(t, r)[0])
			if diff := cmp.Diff(test.want, got.IPs); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The stop signal is decoded even if cri-api's type does not contain the field.
func TestStopSignal(t *testing.T) {
	s, r := serverAndRuntime(t)
	id, err := s.RunContainer(s.RunPod(criserver.PodConfig{Name: "web"}), criserver.ContainerConfig{Name: "app"})
	must(t, err)
	pod := getPods(t, r)[0]
	for _, want := range []int32{0, 15} {
		status, err := crimessage.Marshal(
			&runtimeapi.ContainerStatus{Id: id, State: runtimeapi.ContainerState_CONTAINER_RUNNING})
		must(t, err)
		if want != 0 {
			status = protowire.AppendTag(status, 19, protowire.VarintType)
			status = protowire.AppendVarint(status, uint64(want))
		}
		answer := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), status)
		heal := s.Inject(criserver.Fault{Method: "ContainerStatus", Raw: answer})
		if got := getPodStatus(t, r, pod).ContainerStatuses[0]; got.StopSignal != want || got.ID.ID != id {
			t.Errorf("%+v; want the signal %d", got, want)
		}
		heal()
	}
}

// A status contains the fields that the kubelet's rules allow for its state. Bad data is counted.
func TestContainerStatusConversion(t *testing.T) {
	full := func(state runtimeapi.ContainerState) *runtimeapi.ContainerStatus {
		return &runtimeapi.ContainerStatus{
			Id: "c", State: state, CreatedAt: 1, StartedAt: 2, FinishedAt: 3,
			ExitCode: 4, Reason: "R", Message: "M",
			Image: &runtimeapi.ImageSpec{Image: "i", RuntimeHandler: "h"}, ImageRef: "ref",
			Labels: map[string]string{"io.kubernetes.container.name": "app"},
			Annotations: map[string]string{
				"io.kubernetes.container.hash": "ff", "io.kubernetes.container.restartCount": "7",
			},
		}
	}
	base := pleg.Status{
		ID: pleg.ContainerID{Type: "stub", ID: "c"}, Name: "app", CreatedAt: time.Unix(0, 1),
		Image: "i", ImageID: "ref", ImageRef: "ref", ImageRuntimeHandler: "h",
		Hash: 255, RestartCount: 7,
	}
	with := func(edit func(*pleg.Status)) *pleg.Status {
		s := base
		edit(&s)
		return &s
	}
	annotated := func(hash, restarts string) *runtimeapi.ContainerStatus {
		return &runtimeapi.ContainerStatus{Annotations: map[string]string{
			"io.kubernetes.container.hash": hash, "io.kubernetes.container.restartCount": restarts,
		}}
	}
	// CRI-O and cri-dockerd send Go's zero time for an event that has not happened.
	neverStarted := full(runtimeapi.ContainerState_CONTAINER_EXITED)
	neverStarted.CreatedAt, neverStarted.StartedAt, neverStarted.FinishedAt =
		time.Time{}.UnixNano(), time.Time{}.UnixNano(), -1
	bare := &pleg.Status{ID: base.ID, Name: "name-c", State: pleg.ContainerStateCreated}
	for _, test := range []struct {
		name   string
		status *runtimeapi.ContainerStatus
		want   *pleg.Status
		bad    string
	}{
		{"created", full(runtimeapi.ContainerState_CONTAINER_CREATED),
			with(func(s *pleg.Status) { s.State = pleg.ContainerStateCreated }), ""},
		{"running", full(runtimeapi.ContainerState_CONTAINER_RUNNING), with(func(s *pleg.Status) {
			s.State, s.StartedAt = pleg.ContainerStateRunning, time.Unix(0, 2)
		}), ""},
		{"exited", full(runtimeapi.ContainerState_CONTAINER_EXITED), with(func(s *pleg.Status) {
			s.State, s.StartedAt, s.FinishedAt = pleg.ContainerStateExited, time.Unix(0, 2), time.Unix(0, 3)
			s.ExitCode, s.Reason, s.Message = 4, "R", "M"
		}), ""},
		{"unknown", full(runtimeapi.ContainerState_CONTAINER_UNKNOWN), with(func(s *pleg.Status) {
			s.State, s.StartedAt = pleg.ContainerStateUnknown, time.Unix(0, 2)
		}), ""},
		{"exited, never started", neverStarted, with(func(s *pleg.Status) {
			s.State, s.CreatedAt = pleg.ContainerStateExited, time.Time{}
			s.ExitCode, s.Reason, s.Message = 4, "R", "M"
		}), ""},
		{"no such state", full(42), with(func(s *pleg.Status) {
			s.State, s.StartedAt = pleg.ContainerStateUnknown, time.Unix(0, 2)
		}), "unknown_state"},
		{"empty", &runtimeapi.ContainerStatus{}, bare, ""},
		{"bad hash", annotated("-", ""), bare, "unreadable_hash"},
		{"bad restarts", annotated("", "many"), bare, "unreadable_restart_count"},
		{"negative restarts", annotated("", "-1"), bare, "unreadable_restart_count"},
		{"more restarts than an int32", annotated("", "2147483648"), bare, "unreadable_restart_count"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRuntime(&stub{
				containers: []*runtimeapi.Container{container("c", "uid")},
				containerStatus: func(context.Context, *statusRequest) (*statusResponse, error) {
					return &statusResponse{Status: test.status}, nil
				},
			}, quiet)
			got := getPodStatus(t, r, getPods(t, r)[0])
			want := *test.want
			want.Labels, want.Annotations = test.status.Labels, test.status.Annotations
			if diff := cmp.Diff([]*pleg.Status{&want}, got.ContainerStatuses); diff != "" {
				t.Error(diff)
			}
			if test.bad != "" && metric(t, r, "pleg_cri_bad_items_total", test.bad) != 1 {
				t.Errorf("%s was not counted", test.bad)
			}
		})
	}
}

// BenchmarkGetPodStatus measures the inspection of a pod. The runtime takes half a millisecond per
// call, as containerd does.
func BenchmarkGetPodStatus(b *testing.B) {
	for _, containers := range []int{1, 2, 5, 20} {
		b.Run(fmt.Sprintf("containers=%d", containers), func(b *testing.B) {
			r, pod := slowPod(b, containers)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.GetPodStatus(b.Context(), pod); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkGetPod measures the list of one pod. The runtime takes half a millisecond per call.
func BenchmarkGetPod(b *testing.B) {
	r, pod := slowPod(b, 2)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.GetPod(b.Context(), pod.ID); err != nil {
			b.Fatal(err)
		}
	}
}

// slowPod returns a runtime that takes half a millisecond per call, and its only pod.
func slowPod(b *testing.B, containers int) (*cri.Runtime, *pleg.Pod) {
	b.Helper()
	s, err := criserver.Start()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Stop)
	sandbox := s.RunPod(criserver.PodConfig{UID: "uid"})
	for i := range containers {
		if _, err := s.RunContainer(sandbox, criserver.ContainerConfig{Name: fmt.Sprint("c", i)}); err != nil {
			b.Fatal(err)
		}
	}
	r, err := cri.Connect(b.Context(), s.Endpoint())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = r.Close() })
	pods, err := r.GetPods(b.Context(), true)
	if err != nil {
		b.Fatal(err)
	}
	s.Inject(criserver.Fault{Delay: 500 * time.Microsecond})
	return r, pods[0]
}
