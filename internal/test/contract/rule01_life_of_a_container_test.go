package contract_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 1: the order of containers in a list does not matter.
func TestRule1OrderOfContainersIsNothing(t *testing.T) {
	for _, count := range []int{3, 200} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			list := make([]*pleg.Container, count)
			for i := range list {
				list[i] = plegtest.Running(fmt.Sprint(i))
			}
			n.SetPods(bare("a", list...))
			n.relist()
			events := n.g.Watch()
			read(events)
			other := slices.Clone(list)
			slices.Reverse(other)
			n.SetPods(bare("a", other...))
			n.relist()
			want(t, "events", read(events))
		})
	}
}

// A sandbox is delivered like a container. IsSandbox distinguishes it, even after it is removed.
func TestEventsNameWhatTheyAreAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		pod := bare("a", plegtest.Running("a1"))
		pod.Sandboxes = []*pleg.Container{plegtest.NewSandbox("s1", pleg.ContainerStateRunning)}
		n.SetPods(pod)
		sub := n.g.Subscribe(t.Context(), pleg.WithCapacity(100))
		n.start()
		n.RemovePod("a")
		time.Sleep(1500 * time.Millisecond)
		for len(sub) > 0 {
			e := <-sub
			if e.Pod == nil || e.Pod.Name != "a" || e.Container == nil || e.Container.ID.ID != e.Data {
				t.Errorf("%s: pod %v, container %v", line(e), e.Pod, e.Container)
			}
			if e.IsSandbox() != (e.Data == "s1") {
				t.Errorf("%s: IsSandbox is %v", line(e), e.IsSandbox())
			}
			if e.ListedAt.IsZero() || e.Cause == "" {
				t.Errorf("%s: listed at %v, cause %q", line(e), e.ListedAt, e.Cause)
			}
		}
	})
}
