package pleg_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

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

// Rule 2: the PodSyncs of one relist come by UID.
func TestRule2PodSyncsAreSorted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listsOnly)
		n.SetPods(pods(12)...)
		n.start()
		time.Sleep(2500 * time.Millisecond)
		events := n.g.Watch()
		read(events)
		n.Delay(plegtest.GetPods, plegtest.AnyPod, 100*time.Millisecond)
		time.Sleep(550 * time.Millisecond) // a list is under way, and the next one is for all of them
		for i := range 12 {
			n.Emit(pleg.ContainerEvent{PodUID: types.UID(fmt.Sprintf("pod-%05d", i)), ContainerID: fmt.Sprintf("short-%d", i)})
		}
		time.Sleep(400 * time.Millisecond)
		if got := read(events); len(got) != 12 || !slices.IsSorted(got) {
			t.Errorf("got %q", got)
		}
	})
}
