package contract_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Exit says how a container ended, and that nobody saw the end where nobody did.
func TestExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(plegtest.NewPod("a", plegtest.Running("a1"), plegtest.Running("a2"), plegtest.Running("a3")))
		n.relist()
		sub := n.g.Subscribe(t.Context())
		n.ExitContainer("a", "a1", 137, "OOMKilled")
		n.ExitContainer("a", "a2", 0, "Completed")
		n.relist()
		n.RemovePod("a")
		n.relist()
		type end struct {
			code   int
			reason string
			ok     bool
		}
		want := map[string]end{
			"ContainerDied a1": {137, "OOMKilled", true}, "ContainerRemoved a1": {137, "OOMKilled", true},
			"ContainerDied a2": {0, "Completed", true}, "ContainerRemoved a2": {0, "Completed", true},
		}
		for len(sub) > 0 {
			e := <-sub
			code, reason, ok := e.Exit()
			key := string(e.Type) + " " + e.Data.(string)
			if got := (end{code, reason, ok}); got != want[key] {
				t.Errorf("%s: %v, want %v", key, got, want[key])
			}
			delete(want, key)
		}
		if len(want) > 0 {
			t.Errorf("no event of %v", want)
		}
		if _, _, ok := (*pleg.PodLifecycleEvent)(nil).Exit(); ok {
			t.Error("no event has an exit")
		}
	})
}

// A PodSync that corrects how containers ended has each of them, also for a subscriber that was
// behind; one that corrects nothing has none.
func TestPodSyncOfALateReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2"), plegtest.Running("a3")))
		n.start()
		sub := n.g.Subscribe(t.Context())
		slow := n.g.Subscribe(t.Context(), pleg.WithCapacity(-1))
		for range 3 { // it holds the next event in its hand
			<-slow
		}
		for id, code := range map[string]int{"a1": 137, "a2": 1, "a3": 137} {
			n.ExitContainer("a", id, code, "Error")
		}
		time.Sleep(1100 * time.Millisecond)
		n.ExitContainer("a", "a1", 137, "OOMKilled")
		n.ExitContainer("a", "a3", 137, "OOMKilled")
		time.Sleep(3 * time.Second)
		n.g.RequestReinspect("a")
		synctest.Wait()
		tell := func(e *pleg.PodLifecycleEvent) string {
			code, reason, ok := e.Exit()
			name := ""
			if e.Container != nil {
				name = e.Container.ID.ID
			}
			return fmt.Sprintf("%s %s %d %s %v", e.Type, name, code, reason, ok)
		}
		var got []string
		for len(sub) > 0 {
			if e := <-sub; !e.Initial {
				got = append(got, tell(e))
			}
		}
		want(t, "events", got, "ContainerDied a1 137 Error true", "ContainerDied a2 1 Error true",
			"ContainerDied a3 137 Error true", "PodSync a1 137 OOMKilled true", "PodSync a3 137 OOMKilled true",
			"PodSync  0  false")
		got = nil
		for range 4 {
			got = append(got, tell(<-slow))
		}
		want(t, "behind", got, "ContainerDied a1 137 Error true", "ContainerDied a2 1 Error true",
			"ContainerDied a3 137 Error true", "PodSync a1 137 OOMKilled true")
	})
}
