package criserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

func startServer(t *testing.T, opts ...criserver.Option) *criserver.Server {
	t.Helper()
	s, err := criserver.Start(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop()
		s.Stop()
		if _, err := os.Stat(strings.TrimPrefix(s.Endpoint(), "unix://")); !os.IsNotExist(err) {
			t.Error("the socket is left:", err)
		}
	})
	return s
}

// client is a CRI client with its connection.
type client struct {
	runtimeapi.RuntimeServiceClient
	conn *grpc.ClientConn
}

func dial(t *testing.T, s *criserver.Server) client {
	t.Helper()
	conn, err := grpc.NewClient(s.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return client{runtimeapi.NewRuntimeServiceClient(conn), conn}
}

// must returns a function that returns v. If err is not nil, that function fails the test.
func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func listContainers(t *testing.T, c runtimeapi.RuntimeServiceClient,
	f *runtimeapi.ContainerFilter) map[string]*runtimeapi.Container {
	t.Helper()
	resp, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: f})
	if err != nil {
		t.Fatal(err)
	}
	byID := make(map[string]*runtimeapi.Container)
	for _, ctr := range resp.Containers {
		byID[ctr.Id] = ctr
	}
	return byID
}

func containerStatus(t *testing.T, c runtimeapi.RuntimeServiceClient, id string) *runtimeapi.ContainerStatus {
	t.Helper()
	resp, err := c.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		t.Fatal(err)
	}
	return resp.Status
}

func TestServerLifeOfAPod(t *testing.T) {
	s := startServer(t)
	c := dial(t, s)
	sandboxID := s.RunPod(criserver.PodConfig{UID: "uid-1", Name: "web", Namespace: "shop",
		IPs: []string{"10.1.2.3", "fd00::3"}})
	id := must[string](t)(s.CreateContainer(sandboxID, criserver.ContainerConfig{Name: "nginx"}))
	if st := containerStatus(t, c, id); st.State != runtimeapi.ContainerState_CONTAINER_CREATED ||
		st.StartedAt != 0 || st.CreatedAt == 0 {
		t.Error(st)
	}
	if err := s.StartContainer(id); err != nil {
		t.Error(err)
	}
	if err := s.StartContainer(id); status.Code(err) != codes.Unknown {
		t.Error(err)
	}
	newID := must[string](t)(s.RestartContainer(id))
	if err := s.ExitContainer(newID, 3, ""); err != nil {
		t.Error(err)
	}

	var got []string
	for _, id := range []string{id, newID} {
		st := containerStatus(t, c, id)
		got = append(got, fmt.Sprint(st.Metadata.Name, " ", st.Metadata.Attempt, " ", st.State, " ",
			st.ExitCode, " ", st.Reason, " ",
			st.Annotations["io.kubernetes.container.restartCount"], " ",
			st.Labels["io.kubernetes.pod.uid"], " ", st.FinishedAt >= st.StartedAt))
	}
	want := []string{
		"nginx 0 CONTAINER_EXITED 137 Error 0 uid-1 true",
		"nginx 1 CONTAINER_EXITED 3 Error 1 uid-1 true",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	sandbox := must[*runtimeapi.PodSandboxStatusResponse](t)(c.PodSandboxStatus(t.Context(),
		&runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandboxID})).Status
	if sandbox.Network.Ip != "10.1.2.3" || sandbox.Network.AdditionalIps[0].Ip != "fd00::3" ||
		sandbox.Metadata.Namespace != "shop" {
		t.Error(sandbox)
	}
	if err := s.StopPodSandbox(sandboxID); err != nil {
		t.Error(err)
	}
	sandbox = must[*runtimeapi.PodSandboxStatusResponse](t)(c.PodSandboxStatus(t.Context(),
		&runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandboxID})).Status
	if sandbox.Network.GetIp() != "" || sandbox.State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		t.Error(sandbox)
	}
	if _, err := s.CreateContainer(sandboxID,
		criserver.ContainerConfig{}); status.Code(err) != codes.Unknown {
		t.Error(err)
	}
	second := s.RunPod(criserver.PodConfig{UID: "uid-1", Name: "web", Namespace: "shop", IPs: []string{}})
	if diff := cmp.Diff([]string{second, sandboxID}, s.Sandboxes("uid-1")); diff != "" {
		t.Error(diff)
	}
	third := must[string](t)(s.RunContainer(second, criserver.ContainerConfig{Name: "nginx"}))
	if st := containerStatus(t, c, third); st.Metadata.Attempt != 2 {
		t.Error("the count of restarts does not outlive the sandbox:", st)
	}
	for _, id := range []string{sandboxID, sandboxID} {
		if err := s.RemovePodSandbox(id); err != nil {
			t.Error(err)
		}
	}
	if err := s.RemoveContainer(third); err != nil {
		t.Error(err)
	}
	if sandboxes, containers := s.Present(); sandboxes != 1 || containers != 0 || len(s.Containers(second)) != 0 {
		t.Error(sandboxes, containers)
	}
	_, err := c.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: third})
	if status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	_, err = c.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandboxID})
	if status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	if v := s.Violations(); v != nil {
		t.Error("reading calls are said to change something:", v)
	}
}

func TestServerFilters(t *testing.T) {
	s := startServer(t)
	c := dial(t, s)
	a, b := s.RunPod(criserver.PodConfig{UID: "a"}), s.RunPod(criserver.PodConfig{UID: "b",
		Labels: map[string]string{"app": "b"}})
	a1 := must[string](t)(s.RunContainer(a, criserver.ContainerConfig{Name: "one"}))
	a2 := must[string](t)(s.CreateContainer(a, criserver.ContainerConfig{Name: "two"}))
	b1 := must[string](t)(s.RunContainer(b, criserver.ContainerConfig{Name: "one"}))
	if err := s.StopPodSandbox(b); err != nil {
		t.Fatal(err)
	}
	label := func(k, v string) map[string]string { return map[string]string{k: v} }
	state := func(s runtimeapi.ContainerState) *runtimeapi.ContainerStateValue {
		return &runtimeapi.ContainerStateValue{State: s}
	}
	for i, tc := range []struct {
		filter *runtimeapi.ContainerFilter
		want   []string
	}{
		{nil, []string{a1, a2, b1}},
		{&runtimeapi.ContainerFilter{}, []string{a1, a2, b1}},
		{&runtimeapi.ContainerFilter{Id: a2}, []string{a2}},
		{&runtimeapi.ContainerFilter{Id: "no such"}, nil},
		{&runtimeapi.ContainerFilter{PodSandboxId: b}, []string{b1}},
		{&runtimeapi.ContainerFilter{State: state(runtimeapi.ContainerState_CONTAINER_CREATED)}, []string{a2}},
		{&runtimeapi.ContainerFilter{State: state(runtimeapi.ContainerState_CONTAINER_EXITED)}, []string{b1}},
		{&runtimeapi.ContainerFilter{LabelSelector: label("io.kubernetes.pod.uid", "a")}, []string{a1, a2}},
		{&runtimeapi.ContainerFilter{LabelSelector: label("io.kubernetes.container.name", "one"),
			PodSandboxId: a}, []string{a1}},
		{&runtimeapi.ContainerFilter{LabelSelector: label("absent", "")}, nil},
	} {
		got := listContainers(t, c, tc.filter)
		for _, id := range tc.want {
			if got[id] == nil {
				t.Errorf("%d: %v is missing", i, id)
			}
		}
		if len(got) != len(tc.want) {
			t.Errorf("%d: %d containers, want %d", i, len(got), len(tc.want))
		}
	}
	for i, tc := range []struct {
		filter *runtimeapi.PodSandboxFilter
		want   int
	}{
		{nil, 2},
		{&runtimeapi.PodSandboxFilter{Id: a}, 1},
		{&runtimeapi.PodSandboxFilter{State: &runtimeapi.PodSandboxStateValue{
			State: runtimeapi.PodSandboxState_SANDBOX_READY,
		}}, 1},
		{&runtimeapi.PodSandboxFilter{LabelSelector: label("app", "b")}, 1},
		{&runtimeapi.PodSandboxFilter{Id: a, LabelSelector: label("app", "b")}, 0},
	} {
		resp := must[*runtimeapi.ListPodSandboxResponse](t)(c.ListPodSandbox(t.Context(),
			&runtimeapi.ListPodSandboxRequest{Filter: tc.filter}))
		if len(resp.Items) != tc.want {
			t.Errorf("%d: %v", i, resp.Items)
		}
	}
}

// Two lists of one server differ in their order. Two servers generate the same IDs and the same
// sequence of orders.
func TestServerIsSeeded(t *testing.T) {
	orders := func() (first, second string) {
		s := startServer(t)
		c := dial(t, s)
		for range 10 {
			s.RunPod(criserver.PodConfig{})
		}
		order := func() (ids string) {
			for _, i := range must[*runtimeapi.ListPodSandboxResponse](t)(c.ListPodSandbox(t.Context(),
				&runtimeapi.ListPodSandboxRequest{})).Items {
				ids += i.Id
			}
			return ids
		}
		return order(), order()
	}
	a1, a2 := orders()
	if a1 == a2 {
		t.Error("two lists in the same order")
	}
	if b1, b2 := orders(); a1 != b1 || a2 != b2 {
		t.Error("two servers differ")
	}
}

func TestServerRefusesChanges(t *testing.T) {
	s := startServer(t)
	c := dial(t, s)
	id := s.RunPod(criserver.PodConfig{})
	_, err := c.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	if status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
	_, err = c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{})
	if status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
	if _, err = c.ListContainerStats(t.Context(),
		&runtimeapi.ListContainerStatsRequest{}); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	conn, err := grpc.NewClient(s.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	images := runtimeapi.NewImageServiceClient(conn)
	if _, err = images.ListImages(t.Context(),
		&runtimeapi.ListImagesRequest{}); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	if _, err = images.PullImage(t.Context(),
		&runtimeapi.PullImageRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"StopPodSandbox", "RunPodSandbox", "PullImage"}, s.Violations()); diff != "" {
		t.Error(diff)
	}
	if s.Calls("StopPodSandbox") != 1 || s.Calls("") != 5 {
		t.Error(s.Calls(""))
	}
	serverconfig.Of(s).ResetCalls()
	if s.Calls("") != 0 {
		t.Error(s.Calls(""))
	}
}

func TestServerVersion(t *testing.T) {
	for _, tc := range []struct {
		opts []criserver.Option
		want string
	}{
		{nil, "containerd v2.4.2"},
		{[]criserver.Option{nil, criserver.WithModel(criserver.CRIO)}, "cri-o 1.37.0"}, // nil is ignored
		{[]criserver.Option{criserver.WithVersion("mine", "9"), criserver.WithModel(criserver.Containerd17)},
			"mine 9"},
	} {
		c := dial(t, startServer(t, tc.opts...))
		v := must[*runtimeapi.VersionResponse](t)(c.Version(t.Context(), &runtimeapi.VersionRequest{}))
		if got := v.RuntimeName + " " + v.RuntimeVersion; got != tc.want || v.RuntimeApiVersion != "v1" {
			t.Error(v)
		}
		st := must[*runtimeapi.StatusResponse](t)(c.Status(t.Context(), &runtimeapi.StatusRequest{}))
		if len(st.Status.Conditions) != 2 || !st.Status.Conditions[0].Status {
			t.Error(st)
		}
		if _, err := c.RuntimeConfig(t.Context(), &runtimeapi.RuntimeConfigRequest{}); err != nil {
			t.Error(err)
		}
	}
}

// openStream calls a streaming list by name, because older versions of cri-api do not include it.
func openStream(ctx context.Context, c client, method string, request any) (grpc.ClientStream, error) {
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/runtime.v1.RuntimeService/"+method)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(request); err != nil {
		return nil, err
	}
	return stream, stream.CloseSend()
}

func streamContainers(ctx context.Context, c client) (items, messages int, err error) {
	stream, err := openStream(ctx, c, "StreamContainers", &runtimeapi.ListContainersRequest{})
	if err != nil {
		return 0, 0, err
	}
	for {
		var resp runtimeapi.ListContainersResponse
		err := stream.RecvMsg(&resp)
		if errors.Is(err, io.EOF) {
			return items, messages, nil
		}
		if err != nil {
			return items, messages, err
		}
		items += len(resp.Containers)
		messages++
	}
}

func TestServerStreamingLists(t *testing.T) {
	s := startServer(t, serverconfig.With[criserver.Option](serverconfig.Config{ListBatch: 4}))
	c := dial(t, s)
	if items, messages, err := streamContainers(t.Context(), c); items != 0 || messages != 0 || err != nil {
		t.Error("an empty node:", items, messages, err)
	}
	sandbox := s.RunPod(criserver.PodConfig{})
	for range 10 {
		must[string](t)(s.RunContainer(sandbox, criserver.ContainerConfig{}))
	}
	if items, messages, err := streamContainers(t.Context(), c); items != 10 || messages != 3 || err != nil {
		t.Error(items, messages, err)
	}
	stream, err := openStream(t.Context(), c, "StreamPodSandboxes", &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var resp runtimeapi.ListPodSandboxResponse
	if err := stream.RecvMsg(&resp); err != nil || len(resp.Items) != 1 {
		t.Error(resp.Items, err)
	}
	if err := stream.RecvMsg(&resp); !errors.Is(err, io.EOF) {
		t.Error(err)
	}

	heal := s.Inject(criserver.Fault{Method: "StreamContainers", BreakAfter: 2,
		Err: status.Error(codes.Unavailable, "broken")})
	if items, _, err := streamContainers(t.Context(), c); items != 8 || status.Code(err) != codes.Unavailable {
		t.Error("broken midway:", items, err)
	}
	heal()
	heal = s.Inject(criserver.Fault{Method: "StreamContainers", BreakAfter: 1})
	if items, _, err := streamContainers(t.Context(), c); items != 4 || err != nil {
		t.Error("cut short without an error:", items, err)
	}
	heal()
	heal = s.Inject(criserver.Fault{Method: "StreamContainers", BreakAfter: 1, Cut: true})
	if _, _, err := streamContainers(t.Context(), c); status.Code(err) != codes.Unavailable {
		t.Error("connection cut:", err)
	}
	heal()

	for _, opt := range []criserver.Option{serverconfig.With[criserver.Option](serverconfig.Config{PlainLists: true}),
		criserver.WithModel(criserver.Containerd17)} {
		old := dial(t, startServer(t, opt))
		if _, _, err := streamContainers(t.Context(), old); status.Code(err) != codes.Unimplemented {
			t.Error(err)
		}
	}
}

func TestServerEncodedLists(t *testing.T) {
	s := startServer(t, serverconfig.With[criserver.Option](serverconfig.Config{EncodedLists: true}))
	c := dial(t, s)
	if got := listContainers(t, c, nil); len(got) != 0 {
		t.Error(got)
	}
	a := s.RunPod(criserver.PodConfig{UID: "a"})
	id := must[string](t)(s.RunContainer(a, criserver.ContainerConfig{}))
	for range 2 {
		if got := listContainers(t, c, nil); got[id].GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Error(got)
		}
	}
	if err := s.ExitContainer(id, 0, ""); err != nil {
		t.Error(err)
	}
	if got := listContainers(t, c, nil); got[id].GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
		t.Error("a change does not show:", got)
	}
	if got := listContainers(t, c, &runtimeapi.ContainerFilter{Id: "no such"}); len(got) != 0 {
		t.Error("the filter is ignored:", got)
	}
	if resp := must[*runtimeapi.ListPodSandboxResponse](t)(c.ListPodSandbox(t.Context(),
		&runtimeapi.ListPodSandboxRequest{})); len(resp.Items) != 1 {
		t.Error(resp)
	}
}

func TestServerDownUpFreezeThaw(t *testing.T) {
	s := startServer(t)
	c := dial(t, s)
	s.RunPod(criserver.PodConfig{UID: "a"})
	list := func(ctx context.Context) (int, error) {
		resp, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}, grpc.WaitForReady(true))
		return len(resp.GetItems()), err
	}
	if n, err := list(t.Context()); n != 1 || err != nil {
		t.Error(n, err)
	}
	s.Down()
	s.Down()
	if _, err := c.ListPodSandbox(t.Context(),
		&runtimeapi.ListPodSandboxRequest{}); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	s.RunPod(criserver.PodConfig{UID: "b"}) // containers can run while the server is down
	for range 2 {
		if err := s.Up(); err != nil {
			t.Fatal(err)
		}
	}
	// A new connection avoids the back-off of the old one, which would make the test slow.
	c = dial(t, s)
	if n, err := list(t.Context()); n != 2 || err != nil {
		t.Error(n, err)
	}

	s.Freeze()
	errs := make(chan error, 1)
	go func() {
		_, err := list(t.Context())
		errs <- err
	}()
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := list(short); status.Code(err) != codes.DeadlineExceeded {
		t.Error("a frozen server answers:", err)
	}
	select {
	case err := <-errs:
		t.Error("a frozen server answers:", err)
	default:
	}
	s.Thaw()
	if err := <-errs; err != nil {
		t.Error(err)
	}
	s.Freeze() // Stop must work on a frozen server
}

func TestServerManyContainers(t *testing.T) {
	if raceEnabled {
		t.Skip("a test of size, which the race detector makes slow")
	}
	s := startServer(t)
	c := dial(t, s)
	const pods, each = 1000, 20
	for range pods {
		id := s.RunPod(criserver.PodConfig{})
		for i := range each {
			must[string](t)(s.RunContainer(id, criserver.ContainerConfig{Name: fmt.Sprint("c", i)}))
		}
	}
	if items, _, err := streamContainers(t.Context(), c); items != pods*each || err != nil {
		t.Error(items, err)
	}
	if _, err := c.ListContainers(t.Context(),
		&runtimeapi.ListContainersRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%d containers fit into 16 MiB: %v", pods*each, err)
	}
}

// The server accepts a unique prefix of an ID in place of the ID, like containerd and CRI-O.
func TestServerResolvesPrefixes(t *testing.T) {
	for model, ambiguous := range map[criserver.Model]codes.Code{
		criserver.Containerd2: codes.Unknown, criserver.CRIO: codes.NotFound,
	} {
		s := startServer(t, criserver.WithModel(model))
		c := dial(t, s)
		var sandbox, id string
		byDigit := map[byte]int{}
		for range 17 { // 17 IDs, so that at least two begin with the same digit
			sandbox = s.RunPod(criserver.PodConfig{})
			id = must[string](t)(s.RunContainer(sandbox, criserver.ContainerConfig{}))
			byDigit[id[0]]++
		}
		if st := containerStatus(t, c, id[:12]); st.GetId() != id {
			t.Errorf("status: %v", st)
		}
		resp, err := c.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox[:12]})
		if err != nil || resp.GetStatus().GetId() != sandbox {
			t.Errorf("status of the sandbox: %v, %v", resp, err)
		}
		for _, f := range []*runtimeapi.ContainerFilter{{Id: id[:12]}, {PodSandboxId: sandbox[:12]}} {
			if got := listContainers(t, c, f); len(got) != 1 || got[id] == nil {
				t.Errorf("list by %v: %v", f, got)
			}
		}
		list, err := c.ListPodSandbox(t.Context(),
			&runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: sandbox[:12]}})
		if err != nil || len(list.GetItems()) != 1 {
			t.Errorf("list of sandboxes: %v, %v", list, err)
		}
		for digit, times := range byDigit {
			want := codes.OK
			if times > 1 {
				want = ambiguous
			}
			if _, err := c.ContainerStatus(t.Context(),
				&runtimeapi.ContainerStatusRequest{ContainerId: string(digit)}); status.Code(err) != want {
				t.Errorf("%d containers begin with %c: %v", times, digit, err)
			}
		}
		for _, nobody := range []string{"", "x", id + "0"} {
			if _, err := c.ContainerStatus(t.Context(),
				&runtimeapi.ContainerStatusRequest{ContainerId: nobody}); status.Code(err) != codes.NotFound {
				t.Errorf("%q: %v", nobody, err)
			}
		}
	}
}
