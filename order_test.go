package pleg_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 2: the events of other pods do not wait for a pod that hangs.
func TestRule2HungPodDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(2)...)
		n.start()
		events := n.g.Watch()
		defer n.HangDeaf(plegtest.GetPodStatus, "pod-00000")()
		n.ExitContainer("pod-00000", "pod-00000-a", 1, "")
		n.g.RequestRelist("pod-00000")
		time.Sleep(1500 * time.Millisecond)
		read(events)
		n.SetContainer("pod-00000", "x", pleg.ContainerStateRunning)
		n.ExitContainer("pod-00001", "pod-00001-a", 1, "")
		if !atOnce(n.g.Relist) {
			t.Error("Relist waits")
		}
		want(t, "at once", read(events), "pod-00001 Died pod-00001-a")
	})
}
