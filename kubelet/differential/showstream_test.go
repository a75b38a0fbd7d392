package kubelet

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	kubepleg "k8s.io/kubernetes/pkg/kubelet/pleg"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
)

// streams sends the runtime's events to both generators. On the kubelet's side, EventedPLEG reads
// the events, as in a kubelet with the gate EventedPLEG on.
type streams struct {
	internalapi.RuntimeService
	events chan *runtimeapi.ContainerEventResponse
	ends   chan struct{} // each value ends a stream of the kubelet
	here   *eventRuntime
}

// follow starts both generators on a node whose runtime has event streams.
func (s *stage) follow() *streams {
	r := &streams{
		events: make(chan *runtimeapi.ContainerEventResponse), ends: make(chan struct{}), here: newEventRuntime(s.node),
	}
	s.here.cache = pleg.NewCache()
	s.here.generator = pleg.NewGenericPLEG(r.here, 1000, pleg.DefaultRelistPeriod, s.here.cache, clock.RealClock{},
		pleg.WithLogger(logr.Discard()))
	s.here.generator.Watch()
	const retries = 5 // the kubelet's value
	evented := kubepleg.NewEventedPLEG(r, s.kubelet.generator, retries)
	s.start()
	evented.Start(klog.NewContext(s.ctx, logr.Discard()))
	s.wait(time.Second + 100*time.Millisecond) // enough for the list that follows the connection
	s.forget()
	return r
}

// GetContainerEvents is the method that the kubelet calls.
func (r *streams) GetContainerEvents(ctx context.Context, observe chan *runtimeapi.ContainerEventResponse,
	connected func(runtimeapi.RuntimeService_GetContainerEventsClient)) error {
	connected(nil)
	for {
		select {
		case e := <-r.events:
			observe <- e
		case <-r.ends:
			return io.EOF
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// send sends both generators an event of a container. If uid is empty, the event names no pod.
func (r *streams) send(uid types.UID, id string, what runtimeapi.ContainerEventType) {
	e := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: what}
	if uid != "" {
		e.PodSandboxStatus = &runtimeapi.PodSandboxStatus{Metadata: &runtimeapi.PodSandboxMetadata{Uid: string(uid)}}
	}
	select {
	case r.events <- e:
	case <-time.After(time.Millisecond): // the kubelet no longer reads a stream
	}
	r.here.events <- pleg.ContainerEvent{PodUID: uid, ContainerID: id}
}

// stop makes a container exit, and sends the event to both generators.
func (r *streams) stop(s *stage, uid types.UID, id string) {
	s.node.set(uid, id, exited)
	r.send(uid, id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	s.wait(10 * time.Millisecond)
}

func showHintOfStart(_ *testing.T, s *stage) {
	s.podWith("a", "a1")
	r := s.follow()
	r.stop(s, "a", "a1")
	s.wantEvents(died("a", "a1"), died("a", "a1"))

	s.node.set("a", "a2", running)
	begun := []event{{"a", "ContainerStarted", "a2"}}
	r.send("a", "a2", runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	s.wait(10 * time.Millisecond)
	s.wantEvents(nil, begun)
	s.wait(time.Second)
	s.wantEvents(begun, nil)
}

func showHintBesideStuck(_ *testing.T, s *stage) {
	s.podWith("a", "a1")
	s.podWith("b", "b1")
	r := s.follow()
	s.node.hang("a")
	for _, uid := range []types.UID{"a", "b"} {
		r.stop(s, uid, string(uid)+"1")
	}
	s.wantEvents(nil, died("b", "b1"))
	s.wait(time.Minute)
	s.wantEvents(nil, nil)
}

func showStreamEnds(_ *testing.T, s *stage) {
	s.podWith("a", "a1")
	r := s.follow()
	for range 5 {
		r.ends <- struct{}{}
		r.here.ends <- struct{}{}
		s.wait(time.Hour)
	}
	r.stop(s, "a", "a1")
	s.wantEvents(nil, died("a", "a1"))
}

func showHintWithoutPod(_ *testing.T, s *stage) {
	s.podWith("a", "a1")
	r := s.follow()
	s.node.set("a", "a1", exited)
	r.send("", "a1", runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	s.wait(10 * time.Millisecond)
	s.wantEvents(nil, died("a", "a1"))
}
