package contract_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// A pod without a UID is never asked for.
func TestReaderOfNoPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		n.ResetCalls()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, _, _ = n.cache.LookupNewerThan(ctx, "", time.Now())
		if got := n.Calls(plegtest.GetPod); got != 0 {
			t.Errorf("%d lists of the pod without UID, for a reader", got)
		}
	})
}

// WaitForSync reports that the generator was stopped before the pods were inspected.
func TestWaitForSyncAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.Delay(plegtest.GetPodStatus, "a", 500*time.Millisecond)
		n.g.Start(t.Context())
		synctest.Wait()
		n.g.Stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n.g.WaitForSync(ctx); err == nil || !strings.Contains(err.Error(), "is not running") {
			t.Errorf("the pod awaits its inspection, and the error is %v", err)
		}
	})
}

// Rule 4: a death has the last status that was seen of the container, also if that was seen
// before its start was published, by an inspection that was made for an older list.
func TestRule4StatusSeenBySupersededInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a"))
		events := n.g.Watch()
		n.start()
		once := plegtest.Fault{Method: plegtest.GetPodStatus, PodUID: "a", Times: 1, Hang: true}
		first := n.Inject(once)
		n.g.RequestReinspect("a")
		synctest.Wait()
		n.SetContainer("a", "a1", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		synctest.Wait()
		second := n.Inject(once)
		first()
		synctest.Wait()
		if s, _ := n.cache.Get("a"); len(s.ContainerStatuses) != 1 {
			t.Fatal("the cache has not seen a1")
		}
		n.RemoveContainer("a", "a1")
		n.g.RequestRelist("a")
		synctest.Wait()
		second()
		synctest.Wait()
		for len(events) > 0 {
			if e := <-events; e.Type != pleg.PodSync && e.Status == nil {
				t.Errorf("%s has no status, and the cache had one", line(e))
			}
		}
	})
}
