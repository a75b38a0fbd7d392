package contract_test

import (
	"testing"
	"testing/synctest"

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
