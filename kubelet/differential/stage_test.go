package kubelet

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// stage is a node with both generators, for tests of deviations.
type stage struct {
	t       *testing.T
	node    *node
	kubelet *kubeletSide
	here    *plegSide
	ctx     context.Context
	end     context.CancelFunc
}

func newStage(t *testing.T, capacity int) *stage {
	n := newNode()
	s := &stage{t: t, node: n, kubelet: newKubeletSide(n, capacity),
		here: newPLEGSideOf(&getterRuntime{plegRuntime{n}}, capacity)}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s
}

// leave stops both generators, and releases all blocked calls and readers.
func (s *stage) leave() {
	s.end()
	for uid := range s.node.hangs {
		s.node.heal(uid)
	}
	if s.node.listIsStuck != nil {
		close(s.node.listIsStuck)
		s.node.listIsStuck = nil
	}
	s.kubelet.generator.Stop()
	s.here.generator.Stop()
	s.kubelet.release()
	synctest.Wait()
}

func (s *stage) relist() {
	s.kubelet.generator.Relist(context.Background())
	_ = s.here.generator.Relist(context.Background())
}

// start starts both generators, and discards the events of existing pods.
func (s *stage) start() {
	s.kubelet.generator.Start(context.Background())
	s.here.generator.Start(context.Background())
	s.wait(100 * time.Millisecond)
	s.forget()
}

// wait lets time pass, and waits for the work that is due.
func (s *stage) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (s *stage) forget() {
	s.kubelet.events()
	s.here.events()
}

// wantEvents compares the events since the last call with the wanted ones.
func (s *stage) wantEvents(kubelet, here []event) {
	s.t.Helper()
	s.want("events of the kubelet", kubelet, s.kubelet.events())
	s.want("events here", here, s.here.events())
}

func (s *stage) wantStatus(uid types.UID, kubelet, here answer) {
	s.t.Helper()
	got, err := s.kubelet.get(uid)
	s.want("status in the kubelet", kubelet, answer{got, err})
	got, err = s.here.get(uid)
	s.want("status here", here, answer{got, err})
}

func (s *stage) want(what string, want, got any) {
	s.t.Helper()
	if d := diff(want, got); d != "" {
		s.t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// wantAnswered checks whether a reader has an answer or is still blocked.
func (s *stage) wantAnswered(what string, want bool, reader <-chan answer) {
	s.t.Helper()
	synctest.Wait()
	if _, got := received(reader); got != want {
		s.t.Errorf("%s: answered is %v, want %v", what, got, want)
	}
}

// podWith makes a pod with a running sandbox and a running container. It returns the events of the
// first list that shows the pod.
func (s *stage) podWith(uid types.UID, container string) (listed []event) {
	s.node.set(uid, container, running)
	return []event{
		{uid, "ContainerStarted", container},
		{uid, "ContainerStarted", string(uid) + "-sandbox"},
	}
}

// died returns the events of a container that exits.
func died(uid types.UID, container string) []event {
	return []event{{uid, "ContainerDied", container}}
}
