package pleg

import (
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/kubelet/adapter/container"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// fakeRuntime is a kubelet's runtime with one pod, or none.
type fakeRuntime struct {
	kubecontainer.Runtime

	mu    sync.Mutex
	state kubecontainer.State // state of the container; empty if there is no pod
	lists int
}

func (r *fakeRuntime) set(state kubecontainer.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = state
}

func (r *fakeRuntime) listed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lists
}

func (r *fakeRuntime) pod() *kubecontainer.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == "" {
		return nil
	}
	id := kubecontainer.ContainerID{Type: "fake", ID: "app"}
	return &kubecontainer.Pod{ID: "a", Name: "pod", Containers: []*kubecontainer.Container{{ID: id, State: r.state}}}
}

func (r *fakeRuntime) GetPods(context.Context, bool) ([]*kubecontainer.Pod, error) {
	r.mu.Lock()
	r.lists++
	r.mu.Unlock()
	if pod := r.pod(); pod != nil {
		return []*kubecontainer.Pod{pod}, nil
	}
	return nil, nil
}

func (r *fakeRuntime) GetPod(context.Context, types.UID) (*kubecontainer.Pod, error) {
	if pod := r.pod(); pod != nil {
		return pod, nil
	}
	return nil, kubecontainer.ErrPodNotFound
}

func (r *fakeRuntime) GetPodStatus(_ context.Context, pod *kubecontainer.Pod) (*kubecontainer.PodStatus, error) {
	c := pod.Containers[0]
	return &kubecontainer.PodStatus{ID: pod.ID, Name: pod.Name,
		ContainerStatuses: []*kubecontainer.Status{{ID: c.ID, State: c.State, ExitCode: 3, Reason: "Error"}}}, nil
}

// fakeService is a CRI client with an event stream. The stream ends with the context, or at once if
// err is set.
type fakeService struct {
	events chan *runtimeapi.ContainerEventResponse
	err    error
}

func (s *fakeService) GetContainerEvents(ctx context.Context, out chan *runtimeapi.ContainerEventResponse,
	connected func(runtimeapi.RuntimeService_GetContainerEventsClient)) error {
	if s.err != nil {
		return s.err
	}
	connected(nil)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-s.events:
			out <- e
		}
	}
}

func start(t *testing.T, runtime kubecontainer.Runtime) *GenericPLEG {
	t.Helper()
	g := NewGenericPLEG(runtime, make(chan *PodLifecycleEvent, 10),
		&RelistDuration{RelistPeriod: time.Hour, RelistThreshold: 3 * time.Hour}, kubecontainer.NewCache(),
		clock.RealClock{}).(*GenericPLEG)
	g.Start(t.Context())
	// Up to 1.36, the kubelet starts the generator twice if the gate EventedPLEG is on.
	g.Start(t.Context())
	synctest.Wait()
	return g
}

func take(g *GenericPLEG) []PodLifecycleEvent {
	synctest.Wait()
	var events []PodLifecycleEvent
	for len(g.Watch()) > 0 {
		events = append(events, *<-g.Watch())
	}
	return events
}

// TestEventHasThePodListed shows what the generator does after a runtime event. It lists and
// inspects the pod, without a full list, and sends the pod's event.
func TestEventHasThePodListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := &fakeRuntime{state: kubecontainer.ContainerStateRunning}
		service := &fakeService{events: make(chan *runtimeapi.ContainerEventResponse)}
		g := start(t, NodeRuntime(runtime, service, "", time.Minute))
		defer g.Stop()
		want := []PodLifecycleEvent{{ID: "a", Type: "ContainerStarted", Data: "app"}}
		if got := take(g); !slices.Equal(got, want) {
			t.Fatalf("at the start: %v", got)
		}
		lists := runtime.listed()
		runtime.set(kubecontainer.ContainerStateExited)
		service.events <- &runtimeapi.ContainerEventResponse{ContainerId: "app",
			PodSandboxStatus: &runtimeapi.PodSandboxStatus{Metadata: &runtimeapi.PodSandboxMetadata{Uid: "a"}}}
		want = []PodLifecycleEvent{{ID: "a", Type: "ContainerDied", Data: "app"}}
		if got := take(g); !slices.Equal(got, want) || runtime.listed() != lists {
			t.Errorf("after the event: %v, %d full lists", got, runtime.listed()-lists)
		}
	})
}

// TestPodThatIsNotFoundIsGone shows that a pod counts as removed if the kubelet returns
// ErrPodNotFound.
func TestPodThatIsNotFoundIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := &fakeRuntime{state: kubecontainer.ContainerStateRunning}
		g := start(t, runtime)
		defer g.Stop()
		take(g)
		runtime.set("")
		g.RequestRelist(klog.Background(), "a")
		want := []PodLifecycleEvent{
			{ID: "a", Type: "ContainerDied", Data: "app"}, {ID: "a", Type: "ContainerRemoved", Data: "app"},
		}
		if got := take(g); !slices.Equal(got, want) {
			t.Errorf("after the end of the pod: %v", got)
		}
	})
}

// TestEndsHaveTheirReason shows that the adapter passes on the exit code and the reason. The
// library counts exits by reason.
func TestEndsHaveTheirReason(t *testing.T) {
	runtime := &fakeRuntime{state: kubecontainer.ContainerStateExited}
	status, err := podRuntime{runtime}.GetPodStatus(t.Context(), convertPod(runtime.pod()))
	if err != nil {
		t.Fatal(err)
	}
	if end := status.ContainerStatuses[0]; end.ExitCode != 3 || end.Reason != "Error" {
		t.Errorf("it ended with %d, %q", end.ExitCode, end.Reason)
	}
}

// TestRefusedStream shows which stream errors mean that the runtime has no event stream.
func TestRefusedStream(t *testing.T) {
	for _, c := range []struct {
		err     error
		refused bool
	}{
		{status.Error(codes.Unimplemented, "none"), true},
		// This is CRI-O without enable_pod_events, or a CRI-O that is being stopped.
		{io.EOF, false},
		{status.Error(codes.Unavailable, "restarting"), false},
	} {
		r := eventedRuntime{service: &fakeService{err: c.err}}
		err := r.WatchContainerEvents(t.Context(), func() {}, func(pleg.ContainerEvent) {})
		if got := errors.Is(err, pleg.ErrEventsUnsupported); got != c.refused {
			t.Errorf("%v is a refusal: %v", c.err, got)
		}
	}
}

// TestSteppedRelistDelivers shows that Relist without Start delivers events before it returns, as
// the kubelet's tests expect. A full channel does not block Relist.
func TestSteppedRelistDelivers(t *testing.T) {
	runtime := &fakeRuntime{state: kubecontainer.ContainerStateRunning}
	g := NewGenericPLEG(runtime, make(chan *PodLifecycleEvent, 1),
		&RelistDuration{RelistPeriod: time.Hour, RelistThreshold: 3 * time.Hour}, kubecontainer.NewCache(),
		clock.RealClock{}).(*GenericPLEG)
	for _, state := range []kubecontainer.State{kubecontainer.ContainerStateRunning, kubecontainer.ContainerStateExited} {
		runtime.set(state)
		g.Relist(t.Context())
	}
	if got := <-g.Watch(); got.Type != "ContainerStarted" {
		t.Errorf("the first event is %v", got)
	}
	g.Relist(t.Context())
	if got := <-g.Watch(); got.Type != "ContainerDied" {
		t.Errorf("the second event is %v", got)
	}
}

// TestExitEvents shows that the generator's runtime reports exits if the gate is on and the
// endpoint is a socket.
func TestExitEvents(t *testing.T) {
	if !utilfeature.DefaultFeatureGate.Enabled(ExitEvents) {
		t.Error("the gate is off")
	}
	server, err := criserver.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	node := NodeRuntime(&fakeRuntime{}, &fakeService{}, server.Endpoint(), time.Minute).(*nodeRuntime)
	if adapted, err := node.adapt(false); err != nil {
		t.Error(err)
	} else if _, ok := adapted.(pleg.ExitSource); ok {
		t.Error("it reports exits with the gate off")
	}
	adapted, err := node.adapt(true)
	if err != nil {
		t.Fatal(err)
	}
	defer adapted.(exitingRuntime).ExitSource.(*cri.Runtime).Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var reported pleg.ContainerExit
	sandbox := server.RunPod(criserver.PodConfig{})
	err = adapted.(pleg.ExitSource).WatchContainerExits(ctx, func() {
		for serverconfig.Of(server).TaskExitReaders() == 0 && ctx.Err() == nil {
			runtime.Gosched()
		}
		_ = server.StopPodSandbox(sandbox)
	}, func(e pleg.ContainerExit) {
		reported = e
		cancel()
	})
	if reported.ContainerID != sandbox || !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", reported, err)
	}
	node = NodeRuntime(&fakeRuntime{}, &fakeService{}, "npipe:////./pipe/x", time.Minute).(*nodeRuntime)
	if adapted, err := node.adapt(true); err == nil || adapted == nil {
		t.Errorf("%v, %v of an endpoint that is no socket", adapted, err)
	}
}

// fakeExits is a pleg.ExitSource. It reports the exits that are sent to the channel.
type fakeExits chan pleg.ContainerExit

func (s fakeExits) WatchContainerExits(ctx context.Context, connected func(), observe func(pleg.ContainerExit)) error {
	connected()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-s:
			observe(e)
		}
	}
}

// TestEndsArePublishedOnce shows that the kubelet may act on an exit at once. It publishes the exit
// only when the runtime's status shows it. The generator then sends a PodSync. If the runtime's
// status takes longer than syncAfter, the generator has sent one more PodSync by then.
func TestEndsArePublishedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := &fakeRuntime{state: kubecontainer.ContainerStateRunning}
		service := &fakeService{events: make(chan *runtimeapi.ContainerEventResponse)}
		exits, cache := make(fakeExits), container.NewCache()
		own := cache.(interface{ PLEGCache() *pleg.PodCache }).PLEGCache()
		g := &GenericPLEG{events: make(chan *PodLifecycleEvent, 10), GenericPLEG: pleg.NewGenericPLEG(
			exitingRuntime{eventedRuntime{podRuntime{runtime}, service}, exits, &seenEnds{}}, 10, time.Second, own,
			clock.RealClock{})}
		g.Start(t.Context())
		defer g.Stop()
		take(g)

		exits <- pleg.ContainerExit{ContainerID: "app", ExitCode: 3, FinishedAt: time.Now()}
		if got := take(g); !slices.Equal(got, []PodLifecycleEvent{{ID: "a", Type: "ContainerDied", Data: "app"}}) {
			t.Errorf("after the exit: %v", got)
		}
		status, err := cache.Get(t.Context(), "a")
		if err != nil || status.ContainerStatuses[0].State != kubecontainer.ContainerStateExited {
			t.Errorf("what it acts on is %+v, %v", status.ContainerStatuses[0], err)
		}
		if s := container.Published(status, false).ContainerStatuses[0]; s.State != kubecontainer.ContainerStateRunning {
			t.Errorf("it publishes %+v", s)
		}

		time.Sleep(6 * time.Second)
		if got := take(g); !slices.Equal(got, []PodLifecycleEvent{{ID: "a", Type: "PodSync"}}) {
			t.Errorf("while the runtime does not confirm the exit: %v", got)
		}

		runtime.set(kubecontainer.ContainerStateExited) // with the same code and reason
		service.events <- &runtimeapi.ContainerEventResponse{ContainerId: "app",
			PodSandboxStatus: &runtimeapi.PodSandboxStatus{Metadata: &runtimeapi.PodSandboxMetadata{Uid: "a"}}}
		if got := take(g); !slices.Equal(got, []PodLifecycleEvent{{ID: "a", Type: "PodSync"}}) {
			t.Errorf("when the runtime confirms it: %v", got)
		}
		status, err = cache.Get(t.Context(), "a")
		s := container.Published(status, false).ContainerStatuses[0]
		if err != nil || s.Reason != "Error" || s.ExitCode != 3 {
			t.Errorf("it publishes %+v, %v", s, err)
		}
		time.Sleep(time.Minute)
		if got := take(g); len(got) > 0 {
			t.Errorf("then: %v", got)
		}
	})
}
