package cri_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// Each operation makes the number of RPCs that the table of the package documentation states.
func TestRPCs(t *testing.T) {
	const plain, streaming, withoutStreams = "plain", "streaming", "without streams"
	for _, lists := range []string{plain, streaming, withoutStreams} {
		t.Run(lists, func(t *testing.T) {
			var serverOpts []criserver.Option
			var opts []cri.Option
			listSandboxes, listContainers := "ListPodSandbox", "ListContainers"
			switch lists {
			case plain:
				opts = append(opts, cri.WithPlainLists())
			case streaming:
				listSandboxes, listContainers = "StreamPodSandboxes", "StreamContainers"
			case withoutStreams:
				serverOpts = append(serverOpts, serverconfig.With[criserver.Option](serverconfig.Config{PlainLists: true}))
			}
			s, err := criserver.Start(serverOpts...)
			must(t, err)
			defer s.Stop()
			const pods = 10
			var apps, inits []string
			for i := range pods {
				sandbox := s.RunPod(criserver.PodConfig{UID: types.UID(fmt.Sprint("pod", i))})
				init := runContainer(t, s, sandbox, "init")
				must(t, s.ExitContainer(init, 0, ""))
				inits = append(inits, init)
				apps = append(apps, runContainer(t, s, sandbox, "app"))
			}

			cost := func(what string, want map[string]int) {
				t.Helper()
				total := 0
				for method, n := range want {
					total += n
					if got := s.Calls(method); got != n {
						t.Errorf("%s: %d %s, want %d", what, got, method, n)
					}
				}
				if got := s.Calls(""); got != total {
					t.Errorf("%s: %d calls in all, want %d", what, got, total)
				}
				serverconfig.Of(s).ResetCalls()
			}

			clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
			settle := func() { clock.SetTime(clock.Now().Add(10 * time.Second)) }
			r := connect(t, s, append(opts, cri.WithClock(clock))...)
			cost("Connect", map[string]int{"Version": 1})

			first := getPods(t, r)
			want := map[string]int{listSandboxes: 1, listContainers: 1}
			if lists == withoutStreams {
				want["StreamPodSandboxes"] = 1
			}
			cost("first list", want)
			for _, pod := range first {
				getPodStatus(t, r, pod)
			}
			cost("first inspections", map[string]int{"PodSandboxStatus": pods, "ContainerStatus": 2 * pods})
			settle()
			for _, pod := range first {
				getPodStatus(t, r, pod)
			}
			cost("inspections 10 s later",
				map[string]int{"PodSandboxStatus": pods, "ContainerStatus": 2 * pods})

			getPods(t, r)
			cost("idle relist", map[string]int{listSandboxes: 1, listContainers: 1})

			must(t, s.KillContainer(apps[3]))
			second := getPods(t, r)
			for i, pod := range second {
				if pod != first[i] {
					getPodStatus(t, r, pod)
				}
			}
			cost("relist with a changed pod", map[string]int{listSandboxes: 1, listContainers: 1,
				"PodSandboxStatus": 1, "ContainerStatus": 1})

			pod, err := r.GetPod(t.Context(), "pod3")
			must(t, err)
			cost("list of one pod", map[string]int{"ListPodSandbox": 1, "ListContainers": 1})
			getPodStatus(t, r, pod)
			cost("inspection of a pod that has just ended",
				map[string]int{"PodSandboxStatus": 1, "ContainerStatus": 1})
			settle()
			getPodStatus(t, r, pod)
			cost("and 10 s later", map[string]int{"PodSandboxStatus": 1, "ContainerStatus": 1})
			getPodStatus(t, r, pod)
			cost("inspection of a pod that has ended", map[string]int{"PodSandboxStatus": 1})

			must(t, s.RemoveContainer(inits[0]))
			getPods(t, r)
			cost("relist with a removal", map[string]int{listSandboxes: 1, listContainers: 1})

			w := watch(t, r)
			<-w.connected
			for s.Calls("GetContainerEvents") == 0 { // if cancelled too soon, the call may never arrive
				runtime.Gosched()
			}
			w.cancel()
			_ = w.ended(t)
			// The stream sent no event, so there may be a second Version call.
			if got := s.Calls("Version"); got != 1 && got != 2 {
				t.Errorf("connection of the event stream: %d Version", got)
			}
			// That call may arrive now, after the client has cancelled it.
			waitFor(t, func() bool { all := s.Calls(""); return all == s.Calls("Version")+1 })
		})
	}
}

// A relist of an unchanged node decodes no item, in whatever order the runtime lists the items.
func TestIdleRelistDecodesNothing(t *testing.T) {
	for _, opts := range [][]cri.Option{nil, {cri.WithPlainLists()}} {
		s, _ := serverAndRuntime(t)
		fill(s, 100, 10)
		r := connect(t, s, opts...)
		getPods(t, r)
		decoded := metric(t, r, "pleg_cri_listed_items_total", "decoded")
		for range 3 {
			getPods(t, r)
		}
		if decoded != 150 {
			t.Errorf("the first list decoded %v items", decoded)
		}
		if got := metric(t, r, "pleg_cri_listed_items_total", "decoded"); got != decoded {
			t.Errorf("%v items were decoded again", got-decoded)
		}
		if got := metric(t, r, "pleg_cri_listed_items_total", "skipped"); got != 3*150 {
			t.Errorf("%v items were skipped", got)
		}
	}
}

// Apart from gRPC's own allocations, the number of allocations of an idle relist does not grow with
// the number of containers.
func TestIdleRelistAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("counts allocations: with the race detector, gRPC's pools drop some at random")
	}
	own := func(containers int) float64 {
		endpoint := startServerProcess(t, containers, 10)
		ctx, conn := t.Context(), dial(t, endpoint)
		floor := testing.AllocsPerRun(30, func() { receiveLists(t, ctx, conn) })
		r, err := cri.Connect(ctx, endpoint, cri.WithPlainLists())
		must(t, err)
		defer r.Close()
		getPods(t, r)
		return testing.AllocsPerRun(30, func() {
			if _, err := r.GetPods(ctx, true); err != nil {
				t.Fatal(err)
			}
		}) - floor
	}
	for _, containers := range []int{100, 2000} {
		if got := own(containers); got > 100 {
			t.Errorf("%v allocations more than receiving the lists of %d containers takes", got, containers)
		} else {
			t.Logf("%d containers: %v allocations", containers, got)
		}
	}
}

func TestStreamingListBeyondTheMessageLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 20,000 containers")
	}
	const containers = 20000
	s, r := serverAndRuntime(t, serverconfig.With[criserver.Option](serverconfig.Config{ListBatch: 100}))
	fill(s, containers, 0)
	pods := getPods(t, r)
	if len(pods) != containers/2 {
		t.Fatalf("%d pods", len(pods))
	}
	if got := r.DescribeRuntime(); !strings.HasSuffix(got, ", streaming lists") {
		t.Error(got)
	}
	// If a stream breaks in the middle, the list fails and removes no pod.
	broken := status.Error(codes.Unavailable, "broken")
	heal := s.Inject(criserver.Fault{Method: "StreamContainers", BreakAfter: 100, Err: broken})
	if _, err := r.GetPods(t.Context(), true); status.Code(err) != codes.Unavailable {
		t.Errorf("a stream that breaks: %v", err)
	}
	heal()
	if again := getPods(t, r); &again[0] != &pods[0] {
		t.Error("the broken stream left traces")
	}

	defer s.Inject(criserver.Fault{Method: "ListContainers", Padding: 60 << 20})() // more than 64 MiB with the items
	_, err := connect(t, s, cri.WithPlainLists()).GetPods(t.Context(), true)
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "the limit is 64 MiB a message") {
		t.Errorf("a plain list: %v", err)
	}
}

// The first list decides between streaming and plain lists, and DescribeRuntime reports which.
func TestChoiceOfLists(t *testing.T) {
	for _, test := range []struct {
		name string
		opts []criserver.Option
		want string
	}{
		{"has streams", nil, ", streaming lists"},
		{"has none", []criserver.Option{serverconfig.With[criserver.Option](serverconfig.Config{PlainLists: true})},
			", plain lists"},
		{"containerd 1.7", []criserver.Option{criserver.WithModel(criserver.Containerd17)}, ", plain lists"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, r := serverAndRuntime(t, test.opts...)
			s.RunPod(criserver.PodConfig{})
			if got := r.DescribeRuntime(); strings.Contains(got, "lists") {
				t.Errorf("%q before the first list", got)
			}
			for range 3 {
				if got := len(getPods(t, r)); got != 1 {
					t.Errorf("%d pods", got)
				}
			}
			if got := r.DescribeRuntime(); !strings.HasSuffix(got, test.want) {
				t.Errorf("%q, want %q", got, test.want)
			}
			if got := s.Calls("StreamPodSandboxes") + s.Calls("ListPodSandbox"); got > 4 {
				t.Errorf("%d lists of sandboxes", got)
			}
			for _, operation := range []string{"list_podsandbox", "list_containers"} {
				if got := metric(t, r, "kubelet_runtime_operations_errors_total", operation); got != 0 {
					t.Errorf("%v errors of %s", got, operation)
				}
			}
		})
	}
}

// If a stream breaks after its first message, no plain list follows, even if the error is
// Unimplemented.
func TestBrokenStreamDoesNotFallBack(t *testing.T) {
	s, r := serverAndRuntime(t, serverconfig.With[criserver.Option](serverconfig.Config{ListBatch: 1}))
	s.RunPod(criserver.PodConfig{})
	s.RunPod(criserver.PodConfig{})
	s.Inject(criserver.Fault{Method: "StreamPodSandboxes", BreakAfter: 1, Times: 1,
		Err: status.Error(codes.Unimplemented, "too late")})
	if _, err := r.GetPods(t.Context(), true); err == nil {
		t.Error("no error")
	}
	getPods(t, r)
	if got := s.Calls("ListPodSandbox"); got != 0 {
		t.Errorf("%d plain lists", got)
	}
}

// Every call is counted under the kubelet's names. Only real errors count as errors.
func TestMetrics(t *testing.T) {
	s, _ := serverAndRuntime(t)
	app := runContainer(t, s, s.RunPod(criserver.PodConfig{UID: "uid"}), "app")
	r := connect(t, s)
	pod := getPods(t, r)[0]
	getPodStatus(t, r, pod)
	must(t, s.RemoveContainer(app))
	getPodStatus(t, r, pod)
	want := map[string][2]float64{ // calls, errors
		"version":           {1, 0},
		"list_podsandbox":   {1, 0},
		"list_containers":   {1, 0},
		"podsandbox_status": {2, 0},
		"container_status":  {2, 1}, // NotFound is an error, as in the kubelet
	}
	for operation, n := range want {
		if got := metric(t, r, "kubelet_runtime_operations_total", operation); got != n[0] {
			t.Errorf("%s: %v calls, want %v", operation, got, n[0])
		}
		if got := metric(t, r, "kubelet_runtime_operations_duration_seconds", operation); got != n[0] {
			t.Errorf("%s: %v durations, want %v", operation, got, n[0])
		}
		if got := metric(t, r, "kubelet_runtime_operations_errors_total", operation); got != n[1] {
			t.Errorf("%s: %v errors, want %v", operation, got, n[1])
		}
	}
}

// If a generator cancels a call because its deadline has passed, the call counts as an error of the
// runtime. If a call is cancelled for another reason, such as Stop, it does not count as an error.
func TestMetricsOfCallsThatAreCancelled(t *testing.T) {
	for name, c := range map[string]struct {
		cause  error
		errors float64
	}{
		"deadline": {fmt.Errorf("GetPodStatus has not returned within 2m0s: %w", context.DeadlineExceeded), 1},
		"Stop":     {errors.New("the generator was stopped"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			s, r := serverAndRuntime(t)
			runContainer(t, s, s.RunPod(criserver.PodConfig{UID: "uid"}), "app")
			pod := getPods(t, r)[0]
			defer s.Block("ContainerStatus", "")()
			ctx, cancel := context.WithCancelCause(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := r.GetPodStatus(ctx, pod)
				done <- err
			}()
			server := serverconfig.Of(s)
			waitFor(t, func() bool {
				return server.InFlight("ContainerStatus") == 1 && server.InFlight("PodSandboxStatus") == 0
			})
			cancel(c.cause)
			if err := <-done; status.Code(err) != codes.Canceled {
				t.Error(err)
			}
			if got := metric(t, r, "kubelet_runtime_operations_errors_total", "container_status"); got != c.errors {
				t.Errorf("%v errors", got)
			}
		})
	}
}
