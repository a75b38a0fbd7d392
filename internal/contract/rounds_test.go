package contract_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 20: what is kept of exited containers that statuses alone show is bounded.
func TestRule20ExitsOfStatusesAreBounded(t *testing.T) {
	var calls atomic.Int64
	pod := bare("a", plegtest.Running("a1"))
	s := &scripted{
		pods: func() ([]*pleg.Pod, error) { return []*pleg.Pod{pod}, nil },
		status: func(*pleg.Pod) (*pleg.PodStatus, error) {
			status := statusOf(pod)
			for range 100 {
				x := plegtest.Exited(fmt.Sprintf("x%d", calls.Add(1)))
				status.ContainerStatuses = append(status.ContainerStatuses, &pleg.Status{ID: x.ID, State: x.State})
			}
			return status, nil
		},
	}
	g := pleg.NewGenericPLEG(struct{ pleg.Runtime }{s}, 0, 0, pleg.NewCache(), clock.RealClock{},
		pleg.WithLogger(logr.Discard()))
	defer g.Stop()
	inspect := func(times int) {
		for range times {
			g.RequestReinspect("a")
			_ = g.Relist(t.Context())
		}
	}
	inspect(500) // the look-ups keep 10,000 of the containers that are gone
	before := heapInUse()
	inspect(500)
	if grown := heapInUse() - before; grown > 1<<20 {
		t.Errorf("after 500 inspections the heap has grown by %d bytes", grown)
	}
}

// Rule 23 holds with one worker too, and a wedged pod that comes first.
func TestRule23OneWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, pleg.WithInspectionWorkers(1))
		n.setSingles(10)
		events := n.g.Watch()
		n.start()
		read(events)
		defer n.Heal()
		n.wedged()
		n.HangIgnoringCancel(plegtest.GetPodStatus, "pod-00")
		time.Sleep(10 * time.Second)
		n.ExitContainer("pod-05", "pod-05-1", 1, "Error")
		time.Sleep(10 * time.Minute)
		want(t, "ten minutes later", readStatuses(events), "pod-05 Died pod-05-1 exited 1 Error")
	})
}

// Rule 23: a full list that always takes a little longer than a period does not hang.
func TestRule23SlowLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		const pods = 100
		for i := range pods {
			uid := fmt.Sprintf("pod-%03d", i)
			n.SetPod(bare(types.UID(uid), plegtest.Running(uid+"-1")))
		}
		n.start()
		n.Delay(plegtest.GetPods, "", 1200*time.Millisecond)
		n.Delay(plegtest.GetPodStatus, "", 5*time.Millisecond)
		time.Sleep(10 * time.Second)
		n.ResetCalls()
		time.Sleep(time.Minute)
		if got := n.Calls(plegtest.GetPodStatus); got > 0 {
			t.Errorf("%d inspections in a minute beside %d lists", got, n.Calls(plegtest.GetPods))
		}
	})
}

// stubborn is an ExitSource that ignores cancellation, and calls observe after its return.
type stubborn struct {
	pleg.Runtime
	release chan struct{}
	watches *atomic.Int64
	observe atomic.Pointer[func(pleg.ContainerExit)]
}

func (s *stubborn) WatchContainerExits(_ context.Context, connected func(), observe func(pleg.ContainerExit)) error {
	s.watches.Add(1)
	s.observe.Store(&observe)
	connected()
	<-s.release
	panic("at last")
}

func TestExitStreamIgnoresCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPods(bare("a", plegtest.Running("a1")))
		s := &stubborn{Runtime: rt.Plain(), release: make(chan struct{}), watches: new(atomic.Int64)}
		g := pleg.NewGenericPLEG(s, 0, 0, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		events := g.Watch()
		g.Start(t.Context())
		synctest.Wait()
		read(events)
		began := time.Now()
		g.Stop()
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("Stop took %v", took)
		}
		g.Start(t.Context())
		time.Sleep(time.Minute)
		(*s.observe.Load())(exitOf("a1", 1))
		time.Sleep(time.Minute)
		want(t, "of a closed stream", read(events))
		if s.watches.Load() != 1 {
			t.Errorf("%d watches", s.watches.Load())
		}
		close(s.release)
		time.Sleep(5 * time.Minute)
		if s.watches.Load() < 2 {
			t.Errorf("%d watches", s.watches.Load())
		}
		g.Stop()
	})
}

// Rule 23: rounds beside many wedged pods leave workers, and slow calls that release theirs, for those
// of which somebody wants to know.
func TestRule23RoundsLeaveWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		defer n.Heal()
		const pods = 110
		for i := range pods {
			uid := types.UID(fmt.Sprintf("pod-%03d", i))
			n.SetPod(bare(uid, plegtest.Running(string(uid)+"-1")))
		}
		events := n.g.Watch()
		n.start()
		read(events)
		for i := range pods {
			if i%5 != 0 {
				n.HangIgnoringCancel(plegtest.GetPodStatus, types.UID(fmt.Sprintf("pod-%03d", i)))
			}
		}
		heal := n.wedged()
		time.Sleep(3 * time.Minute)
		heal()
		time.Sleep(3 * time.Second)
		read(events)
		n.ExitContainer("pod-005", "pod-005-1", 1, "Error")
		time.Sleep(10 * time.Minute)
		want(t, "ten minutes after the lists recovered", readStatuses(events), "pod-005 Died pod-005-1 exited 1 Error")
		healthy(t, n.g)
	})
}

// Rule 23: as many wedged pods as workers, the first by UID, do not keep the others from being asked.
func TestRule23WedgedPodsComeFirst(t *testing.T) {
	for _, workers := range []int{1, 2, pleg.DefaultInspectionWorkers} {
		t.Run(fmt.Sprintf("workers=%d", workers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, pleg.WithInspectionWorkers(workers))
				n.setSingles(30)
				events := n.g.Watch()
				n.start()
				read(events)
				defer n.Heal()
				n.wedged()
				for i := range workers {
					n.HangIgnoringCancel(plegtest.GetPodStatus, types.UID(fmt.Sprintf("pod-%02d", i)))
				}
				time.Sleep(10 * time.Second)
				n.ExitContainer("pod-25", "pod-25-1", 1, "Error")
				time.Sleep(10 * time.Minute)
				var got []string
				for _, e := range readStatuses(events) {
					if strings.HasPrefix(e, "pod-25") {
						got = append(got, e)
					}
				}
				want(t, "ten minutes later", got, "pod-25 Died pod-25-1 exited 1 Error")
			})
		})
	}
}
