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

// A pod without transitions is known and inspected all the same.
func TestPodWithoutTransitionsIsInspected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a"), bare("b", plegtest.Created("b1")))
		events := n.g.Watch()
		n.relist()
		want(t, "events", read(events))
		if got := len(n.cache.GetAll()); got != 2 {
			t.Errorf("%d pods in the cache", got)
		}
	})
}

// Rule 1, and the state table of the kubelet: the events of each step of a container
// from one list to the next.
func TestRule1StateTable(t *testing.T) {
	absent := (*pleg.Container)(nil)
	created, running := plegtest.Created("c"), plegtest.Running("c")
	exited, unknown := plegtest.Exited("c"), plegtest.Unknown("c")
	for _, step := range []struct {
		from, to *pleg.Container
		events   []string
	}{
		{absent, created, nil},
		{absent, unknown, nil},
		{absent, running, []string{"a Started c"}},
		{absent, exited, []string{"a Died c"}},
		{created, running, []string{"a Started c"}},
		{created, exited, []string{"a Died c"}},
		{created, unknown, nil},
		{created, absent, []string{"a Died c", "a Removed c"}},
		{unknown, running, []string{"a Started c"}},
		{unknown, exited, []string{"a Died c"}},
		{unknown, absent, []string{"a Died c", "a Removed c"}},
		{running, running, nil},
		{running, exited, []string{"a Died c"}},
		{running, unknown, nil},
		{running, absent, []string{"a Died c", "a Removed c"}},
		{exited, exited, nil},
		{exited, unknown, nil},
		{exited, absent, []string{"a Removed c"}},
	} {
		name := func(c *pleg.Container) string {
			if c == nil {
				return "absent"
			}
			return string(c.State)
		}
		t.Run(name(step.from)+" to "+name(step.to), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				// Both as a container and as a sandbox, which count alike.
				for _, sandbox := range []bool{false, true} {
					pod := func(c *pleg.Container) *pleg.Pod {
						p := bare("a", plegtest.Created("other"))
						switch {
						case c == nil:
						case sandbox:
							p.Sandboxes = []*pleg.Container{c}
						default:
							p.Containers = append(p.Containers, c)
						}
						return p
					}
					n.SetPods()
					n.relist()
					n.SetPods(pod(step.from))
					n.relist()
					events := n.g.Subscribe(t.Context(), pleg.WithCapacity(100))
					before := len(read(events))
					n.SetPods(pod(step.to))
					n.relist()
					want(t, fmt.Sprintf("after %d events", before), read(events), step.events...)
				}
				n.g.Stop()
			})
		})
	}
}

// Rule 1: the order in which a runtime lists containers means nothing.
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

// The sandbox of a pod counts as a container, and can be distinguished, even when it
// is gone.
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
