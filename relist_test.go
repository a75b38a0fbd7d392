package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// A Relist whose list Stop has cancelled makes another, and is complete.
func TestRelistGoesOnWhenItsListIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		heal := n.Hang(plegtest.GetPods, plegtest.AnyPod)
		n.g.Start()
		synctest.Wait()
		heal()
		n.g.Stop()
		heal = n.Hang(plegtest.GetPods, plegtest.AnyPod)
		done := make(chan struct{})
		go func() { defer close(done); n.g.Relist() }()
		synctest.Wait()
		heal() // the call in flight goes on hanging
		n.g.Stop()
		<-done
		if got := len(n.cache.GetAll()); got != 1 {
			t.Errorf("%d pods in the cache", got)
		}
	})
}

// Rules 5 and 12: where a full list and a single-pod list conflict, Relist waits for
// one more list, so that the conflict is resolved when it returns: beside Start and,
// where nothing else would ever resolve it, without.
func TestRelistResolvesConflicts(t *testing.T) {
	for _, started := range []bool{false, true} {
		t.Run(fmt.Sprintf("started=%v", started), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(bare("a", plegtest.Running("a1")))
				events := n.g.Watch()
				if started {
					n.start()
					time.Sleep(500 * time.Millisecond)
				} else {
					n.g.Relist()
				}
				read(events)
				n.Inject(plegtest.Fault{Method: plegtest.GetPods, Delay: 100 * time.Millisecond})
				n.Inject(plegtest.Fault{Method: plegtest.GetPod, Delay: 10 * time.Millisecond})
				n.g.RequestRelist("a")
				done := make(chan struct{})
				go func() {
					n.g.Relist()
					close(done)
				}()
				time.Sleep(50 * time.Millisecond)
				n.ExitContainer("a", "a1", 1, "Error")
				<-done
				want(t, "after Relist", read(events), "a Died a1")
				if !fresh(n.cache, "a", time.Now().Add(-200*time.Millisecond)) {
					t.Error("the pod is held back still")
				}
				n.g.Stop()
			})
		})
	}
}

// flapping is a runtime whose one container starts and exits at the pace of the lists,
// so that each full list conflicts with the single-pod list before it.
type flapping struct {
	observe atomic.Pointer[func(pleg.ContainerEvent)]
	lists   atomic.Int64
}

func (f *flapping) GetPods(ctx context.Context, _ bool) ([]*pleg.Pod, error) {
	f.lists.Add(1)
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	(*f.observe.Load())(pleg.ContainerEvent{PodUID: "a", ContainerID: "a1"})
	return []*pleg.Pod{bare("a", plegtest.Exited("a1"))}, nil
}

func (f *flapping) GetPod(context.Context, types.UID) (*pleg.Pod, error) {
	time.Sleep(time.Millisecond)
	return bare("a", plegtest.Running("a1")), nil
}

func (f *flapping) GetPodStatus(_ context.Context, p *pleg.Pod) (*pleg.PodStatus, error) {
	return &pleg.PodStatus{ID: p.ID}, nil
}

func (f *flapping) WatchContainerEvents(ctx context.Context, connected func(), observe func(pleg.ContainerEvent)) error {
	f.observe.Store(&observe)
	connected()
	<-ctx.Done()
	return ctx.Err()
}

// A pod whose lists conflict again and again does not keep Relist for ever.
func TestRelistEndsBesideEndlessConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flapping{}
		f.observe.Store(new(func(pleg.ContainerEvent) {}))
		n := newNodeOf(t, func(*plegtest.Runtime) pleg.Runtime { return f })
		n.start()
		time.Sleep(5500 * time.Millisecond)
		for range 10 {
			lists := f.lists.Load()
			n.g.RequestRelist("a")
			n.g.Relist()
			if got := f.lists.Load() - lists; got > 4 {
				t.Errorf("%d lists", got)
			}
		}
		n.g.Stop()
	})
}

// Where the list that was to resolve a conflict fails, Relist is complete as far as
// the first one goes.
func TestRelistWhoseSecondListFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		events := n.g.Watch()
		n.g.Relist()
		read(events)
		var lists atomic.Int64
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Delay: 100 * time.Millisecond, Do: func(context.Context) error {
			if lists.Add(1) == 2 {
				return errors.New("no")
			}
			return nil
		}})
		n.Inject(plegtest.Fault{Method: plegtest.GetPod, Delay: 10 * time.Millisecond})
		n.Delay(plegtest.GetPodStatus, "b", 300*time.Millisecond)
		n.g.RequestRelist("a")
		before := time.Now().Add(-1)
		done := make(chan struct{})
		go func() { defer close(done); n.g.Relist() }()
		time.Sleep(50 * time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		n.ExitContainer("b", "b1", 1, "Error")
		<-done
		want(t, "events", read(events), "a Died a1", "b Died b1")
		if !fresh(n.cache, "a", before) || !fresh(n.cache, "b", before) {
			t.Error("a pod is held back")
		}
		n.g.Stop()
	})
}
