package cri_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// serverAndRuntime starts a CRI server and connects to it.
func serverAndRuntime(t *testing.T, opts ...criserver.Option) (*criserver.Server, *cri.Runtime) {
	t.Helper()
	s, err := criserver.Start(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s, connect(t, s)
}

// inMemory starts a server that listens in memory, and returns the option that connects a Runtime
// to the server.
func inMemory(t *testing.T, opts ...criserver.Option) (*criserver.Server, cri.Option) {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	s, err := criserver.Start(append(opts, criserver.WithListener(func() (net.Listener, error) { return l, nil }))...)
	must(t, err)
	return s, cri.WithDialOptions(grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return l.DialContext(ctx)
	}))
}

// inBubble runs test in a synctest bubble, with a server and a generator that has synced on the
// empty node.
func inBubble(t *testing.T, test func(*testing.T, *criserver.Server, *pleg.GenericPLEG), opts ...criserver.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, dialer := inMemory(t, opts...)
		defer s.Stop()
		r, err := cri.Dial("/memory", cri.WithLogger(logr.Discard()), dialer)
		must(t, err)
		defer r.Close()
		g := pleg.New(r, pleg.WithLogger(logr.Discard()))
		g.Start(t.Context())
		defer g.Stop()
		must(t, g.WaitForSync(t.Context()))
		synctest.Wait()
		test(t, s, g)
	})
}

func connect(t *testing.T, s *criserver.Server, opts ...cri.Option) *cri.Runtime {
	t.Helper()
	r, err := cri.Connect(t.Context(), s.Endpoint(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if v := s.Violations(); len(v) > 0 {
			t.Errorf("calls that change something: %v", v)
		}
	})
	return r
}

func getPods(t *testing.T, r *cri.Runtime) []*pleg.Pod {
	t.Helper()
	pods, err := r.GetPods(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

// runContainer runs a container in the test's server.
func runContainer(t *testing.T, s *criserver.Server, sandbox, name string) string {
	t.Helper()
	return runProcess(t, s, sandbox, name, 0)
}

// runProcess runs a container whose first process uses the given PID. The PID must be free.
func runProcess(t *testing.T, s *criserver.Server, sandbox, name string, pid int) string {
	t.Helper()
	id, err := s.RunContainer(sandbox, criserver.ContainerConfig{Name: name, PID: pid})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestGetPodsGroupsAndSorts(t *testing.T) {
	s, r := serverAndRuntime(t)
	oldB := s.RunPod(criserver.PodConfig{UID: "uid-b", Name: "b", Namespace: "ns-b"})
	appB := runContainer(t, s, oldB, "app")
	must(t, s.StopPodSandbox(oldB))
	newB := s.RunPod(criserver.PodConfig{UID: "uid-b", Name: "b", Namespace: "ns-b"})
	appB2 := runContainer(t, s, newB, "app")
	a := s.RunPod(criserver.PodConfig{UID: "uid-a", Name: "a"})
	created, err := s.CreateContainer(a, criserver.ContainerConfig{Name: "waiting"})
	must(t, err)

	for range 5 { // the server's lists come in random order
		pods := getPods(t, connect(t, s))
		var got []string
		for _, p := range pods {
			got = append(got, fmt.Sprintf("%s %s/%s", p.ID, p.Namespace, p.Name))
			for _, c := range p.Sandboxes {
				got = append(got, fmt.Sprintf("  %s %s", c.ID, c.State))
			}
			for _, c := range p.Containers {
				got = append(got, fmt.Sprintf("  %s %s %s in %s", c.ID, c.Name, c.State,
					c.PodSandboxID))
			}
		}
		want := []string{
			"uid-a default/a",
			"  containerd://" + a + " running",
			"  containerd://" + created + " waiting created in " + a,
			"uid-b ns-b/b",
			"  containerd://" + newB + " running",
			"  containerd://" + oldB + " exited",
			"  containerd://" + appB2 + " app running in " + newB,
			"  containerd://" + appB + " app exited in " + oldB,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
		if app := pods[0].Containers[0]; app.Hash == 0 || app.Image == "" || app.ImageID == "" ||
			app.ImageRef == "" || app.CreatedAt == 0 {
			t.Errorf("%+v", app)
		}
		if b := pods[1]; b.CreatedAt != uint64(b.Sandboxes[0].CreatedAt) {
			t.Errorf("pod of %d, newest sandbox of %d", b.CreatedAt, b.Sandboxes[0].CreatedAt)
		}
	}

	live, err := r.GetPods(t.Context(), false)
	must(t, err)
	if len(live) != 2 || len(live[0].Containers) != 0 || len(live[1].Sandboxes) != 1 ||
		len(live[1].Containers) != 1 {
		t.Errorf("live pods: %+v", live)
	}
}

// GetPods returns the same *Pod again if nothing in the pod changed, and otherwise another *Pod.
func TestGetPodsHandsOutAgain(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			s, _ := serverAndRuntime(t)
			var opts []cri.Option
			if plain {
				opts = append(opts, cri.WithPlainLists())
			}
			r := connect(t, s, opts...)
			var apps []string
			for _, uid := range []string{"a", "b", "c"} {
				apps = append(apps, runContainer(t, s,
					s.RunPod(criserver.PodConfig{Name: uid, UID: types.UID(uid)}), "app"))
			}
			first := getPods(t, r)
			second := getPods(t, r)
			if &first[0] != &second[0] {
				t.Error("an idle list made a new slice")
			}
			must(t, s.KillContainer(apps[1]))
			third := getPods(t, r)
			if third[0] != first[0] || third[2] != first[2] {
				t.Error("pods that did not change were replaced")
			}
			if third[1] == first[1] || third[1].Containers[0].State != pleg.ContainerStateExited {
				t.Error("a pod that changed was returned again")
			}
			if third[1].Sandboxes[0] != first[1].Sandboxes[0] {
				t.Error("a sandbox that did not change was replaced")
			}
			if first[1].Containers[0].State != pleg.ContainerStateRunning {
				t.Error("a returned pod was modified")
			}

			same, err := r.GetPod(t.Context(), "b")
			must(t, err)
			if same != third[1] {
				t.Error("GetPod returned another pod although nothing changed")
			}
			must(t, s.RemoveContainer(apps[1]))
			other, err := r.GetPod(t.Context(), "b")
			must(t, err)
			if other == third[1] || len(other.Containers) != 0 {
				t.Errorf("GetPod: %+v", other)
			}

			must(t, s.RemovePodSandbox(s.Sandboxes("a")[0]))
			if left := getPods(t, r); len(left) != 2 || left[0].ID != "b" || left[1] != first[2] {
				t.Errorf("after a removal: %+v", left)
			}
		})
	}
}

func TestGetPodNotFound(t *testing.T) {
	s, r := serverAndRuntime(t)
	s.RunPod(criserver.PodConfig{UID: "there"})
	for _, uid := range []string{"gone", ""} {
		if pod, err := r.GetPod(t.Context(), types.UID(uid)); !errors.Is(err, pleg.ErrPodNotFound) ||
			pod != nil {
			t.Errorf("pod %q: %v, %v", uid, pod, err)
		}
	}
}

// A runtime may ignore the label selector of a list. So GetPod selects the pod from the answer.
func TestGetPodOfRuntimeThatDoesNotFilter(t *testing.T) {
	r := newRuntime(&stub{sandboxes: []*runtimeapi.PodSandbox{sandbox("s1", "one"), sandbox("s2", "two")}})
	pod, err := r.GetPod(t.Context(), "two")
	if err != nil || pod.ID != "two" || len(pod.Sandboxes) != 1 {
		t.Errorf("%+v, %v", pod, err)
	}
	if _, err := r.GetPod(t.Context(), "three"); !errors.Is(err, pleg.ErrPodNotFound) {
		t.Error(err)
	}
}

// Rule 15: a partial list is a failed list, and removes no pod.
func TestEitherListFailing(t *testing.T) {
	unavailable := status.Error(codes.Unavailable, "down for maintenance")
	for _, test := range []struct {
		name  string
		fault criserver.Fault
		opts  []cri.Option
		want  []string
	}{
		{"ListPodSandbox", criserver.Fault{Method: "ListPodSandbox", Err: unavailable},
			[]cri.Option{cri.WithPlainLists()}, nil},
		{"ListContainers", criserver.Fault{Method: "ListContainers", Err: unavailable},
			[]cri.Option{cri.WithPlainLists()}, nil},
		{"StreamPodSandboxes", criserver.Fault{Method: "StreamPodSandboxes", Err: unavailable}, nil, nil},
		{"StreamContainers", criserver.Fault{Method: "StreamContainers", Err: unavailable}, nil, nil},
		{"break", criserver.Fault{Method: "StreamContainers", BreakAfter: 2, Err: unavailable}, nil,
			[]string{"StreamContainers"}},
		{"garbage", criserver.Fault{Method: "ListContainers", Raw: []byte{0xff}},
			[]cri.Option{cri.WithPlainLists()}, []string{"ListContainers", "malformed answer"}},
		{"garbage item", criserver.Fault{Method: "StreamContainers", Raw: []byte{0x0a, 1, 0xff}}, nil,
			[]string{"StreamContainers", "malformed answer"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, _ := serverAndRuntime(t, serverconfig.With[criserver.Option](serverconfig.Config{ListBatch: 2}))
			r := connect(t, s, test.opts...)
			for i := range 5 {
				runContainer(t, s, s.RunPod(criserver.PodConfig{UID: types.UID(fmt.Sprint(i))}), "app")
			}
			before := getPods(t, r)
			heal := s.Inject(test.fault)
			pods, err := r.GetPods(t.Context(), true)
			if err == nil || pods != nil {
				t.Fatalf("%v, %v", pods, err)
			}
			if test.fault.Err != nil && status.Code(err) != codes.Unavailable {
				t.Errorf("code %v of %v", status.Code(err), err)
			}
			for _, want := range append(test.want, test.fault.Method, s.Endpoint()) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %q", err, want)
				}
			}
			heal()
			if after := getPods(t, r); &after[0] != &before[0] {
				t.Error("the failed list left traces")
			}
		})
	}
}

// sandbox returns a ready sandbox of a pod.
func sandbox(id, uid string) *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{
		Id:       id,
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "name-" + uid, Namespace: "ns", Uid: uid},
		Labels:   map[string]string{"io.kubernetes.pod.uid": uid},
	}
}

// container returns a running container of a pod.
func container(id, uid string) *runtimeapi.Container {
	return &runtimeapi.Container{
		Id:       id,
		Metadata: &runtimeapi.ContainerMetadata{Name: "name-" + id},
		State:    runtimeapi.ContainerState_CONTAINER_RUNNING,
		Labels:   map[string]string{"io.kubernetes.pod.uid": uid, "io.kubernetes.pod.name": "name-" + uid},
	}
}

// Rule 14: bad data is skipped or read as unknown, counted by reason, and logged once. Other pods
// are not affected.
func TestBadItems(t *testing.T) {
	edit := func(c *runtimeapi.Container, f func(*runtimeapi.Container)) *runtimeapi.Container {
		f(c)
		return c
	}
	for _, test := range []struct {
		reason string
		item   *runtimeapi.Container
		local  bool // true if only a client in this process can return the item
		state  pleg.State
	}{
		{reason: "nil_item", item: nil, local: true},
		{reason: "item_without_id", item: container("", "bad")},
		{reason: "duplicate_id", item: container("good", "bad")},
		{reason: "without_pod_uid_label", item: container("x", "")},
		{reason: "without_metadata", item: edit(container("x", "bad"),
			func(c *runtimeapi.Container) { c.Metadata = nil }), state: pleg.ContainerStateRunning},
		{reason: "unknown_state", item: edit(container("x", "bad"),
			func(c *runtimeapi.Container) { c.State = 77 }), state: pleg.ContainerStateUnknown},
		{reason: "unreadable_hash", item: edit(container("x", "bad"), func(c *runtimeapi.Container) {
			c.Annotations = map[string]string{"io.kubernetes.container.hash": "xyz"}
		}), state: pleg.ContainerStateRunning},
	} {
		for _, chunk := range []int{0, 16} {
			if test.local && chunk > 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s/chunk=%d", test.reason, chunk), func(t *testing.T) {
				logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true),
					ktesting.Verbosity(2)))
				r := newRuntime(&stub{
					chunk:      chunk,
					sandboxes:  []*runtimeapi.PodSandbox{sandbox("s", "good")},
					containers: []*runtimeapi.Container{container("good", "good"), test.item},
				}, cri.WithLogger(logger))
				for range 3 {
					pods := getPods(t, r)
					good := pods[len(pods)-1]
					if good.ID != "good" || len(good.Containers) != 1 || len(good.Sandboxes) != 1 ||
						good.Containers[0].State != pleg.ContainerStateRunning {
						t.Errorf("the other pod: %+v", good)
					}
					var state pleg.State
					if len(pods) > 1 {
						state = pods[0].Containers[0].State
					}
					if state != test.state {
						t.Errorf("state %q, want %q", state, test.state)
					}
				}
				if got := metric(t, r, "pleg_cri_bad_items_total", test.reason); got != 3 {
					t.Errorf("counted %v times", got)
				}
				logs := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
				if n := strings.Count(logs, "Bad data"); n != 1 {
					t.Errorf("logged %d times:\n%s", n, logs)
				}
			})
		}
	}
}

// metric returns the value of a counter, or the count of a histogram. label is the value of the
// metric's first label.
func metric(t *testing.T, c prometheus.Collector, name, label string) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" && len(m.GetLabel()) == 0 || len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	t.Fatalf("no metric %s of %s", name, label)
	return 0
}

// A container whose sandbox is not listed still belongs to its pod, as in the kubelet.
func TestContainerWithoutSandbox(t *testing.T) {
	r := newRuntime(&stub{containers: []*runtimeapi.Container{container("c", "uid")}})
	pods := getPods(t, r)
	if len(pods) != 1 || pods[0].ID != "uid" || pods[0].Name != "name-uid" || len(pods[0].Containers) != 1 ||
		len(pods[0].Sandboxes) != 0 {
		t.Errorf("%+v", pods)
	}
}

func TestFullListsRunOneAtATime(t *testing.T) {
	s, _ := serverAndRuntime(t)
	now := time.Unix(1_000_000_000, 0)
	r := connect(t, s, cri.WithPlainLists(), cri.WithClock(clocktesting.NewFakePassiveClock(now)))
	getPods(t, r)
	heal := s.Block("ListPodSandbox", "")
	first := make(chan error, 1)
	go func() {
		_, err := r.GetPods(context.WithoutCancel(t.Context()), true)
		first <- err
	}()
	waitFor(t, func() bool { return len(inFlight(r)) == 1 })
	if got := inFlight(r)[0]; got.Method != "ListPodSandbox" || got.Object != "" || !got.Since.Equal(now) {
		t.Errorf("in flight: %+v", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := r.GetPods(ctx, true); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the second list: %v", err)
	}
	if got := serverconfig.Of(s).InFlight("ListPodSandbox"); got > 1 {
		t.Errorf("%d lists in flight", got)
	}
	heal()
	must(t, <-first)
	if got := inFlight(r); len(got) != 0 {
		t.Errorf("in flight: %+v", got)
	}
}

// Bad data is logged with the keys that the kubelet uses.
func TestBadDataIsLoggedWithKeysOfTheKubelet(t *testing.T) {
	bad := containerOf("c1", 1)
	bad.State = 77
	worse := sandboxOf("s1", 1, 1)
	worse.Metadata = nil
	worse.Labels["io.kubernetes.pod.name"], worse.Labels["io.kubernetes.pod.namespace"] = "web", "prod"
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(4)))
	r := newRuntime(&stub{
		sandboxes:  []*runtimeapi.PodSandbox{worse, nil},
		containers: []*runtimeapi.Container{bad},
		sandboxStatus: func(context.Context, *sandboxStatusRequest) (*sandboxStatusResponse, error) {
			return &sandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
				Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "nowhere"},
			}}, nil
		},
		containerStatus: func(context.Context, *statusRequest) (*statusResponse, error) {
			return &statusResponse{Status: &runtimeapi.ContainerStatus{
				Annotations: map[string]string{"io.kubernetes.container.restartCount": "many"},
			}}, nil
		},
	}, cri.WithLogger(logger))
	getPodStatus(t, r, getPods(t, r)[0])
	logs := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	for _, want := range []string{
		`reason="unknown_state" handling="the state is read as unknown"` +
			` pod="ns-c1/name-c1" podUID="uid" containerID="c1"`,
		`reason="without_metadata" handling="the item is kept, its labels suffice"` +
			` pod="prod/web" podUID="uid" podSandboxID="s1"`,
		`reason="nil_item" handling="the item is skipped" pod="" podUID="" podSandboxID=""`,
		`reason="unreadable_ip" handling="the pod gets no addresses"` +
			` pod="prod/web" podUID="uid" podSandboxID="s1"`,
		`reason="unreadable_restart_count" handling="the restart count is read as 0"` +
			` pod="prod/web" podUID="uid" containerID="c1"`,
	} {
		if !strings.Contains(logs, want) {
			t.Errorf("the logs lack %s:\n%s", want, logs)
		}
	}
}

func inFlight(r *cri.Runtime) []pleg.RuntimeCall {
	calls, _ := r.CallsInFlight()
	return calls
}
