package contract_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 5: if a full list and a pod list overlap, the first to complete is believed, and the other is dropped.
func TestRule5TheFirstListIsBelieved(t *testing.T) {
	t.Run("the full list began first and completes last", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
			events := n.g.Watch()
			n.start()
			read(events)
			time.Sleep(500 * time.Millisecond)
			n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Stale: true, Delay: 900 * time.Millisecond})
			time.Sleep(600 * time.Millisecond) // the list began, and has a and b running
			n.ExitContainer("a", "a1", 0, "Completed")
			n.RemovePod("b")
			n.SetPod(bare("c", plegtest.Running("c1")))
			for _, uid := range []types.UID{"a", "b", "c"} {
				n.g.RequestRelist(uid)
			}
			time.Sleep(100 * time.Millisecond)
			want(t, "after the pod lists", slices.Sorted(slices.Values(read(events))),
				"a Died a1", "b Died b1", "b Removed b1", "c Started c1")
			time.Sleep(750 * time.Millisecond)
			want(t, "after the old list", read(events))
			if s, _ := n.cache.Get("b"); s.Name != "" {
				t.Errorf("the old list brought b back: %v", s)
			}
			time.Sleep(5 * time.Second)
			want(t, "later", read(events))
		})
	})
	t.Run("the pod list began first and completes last", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.SetPods(bare("a", plegtest.Running("a1")))
			events := n.g.Watch()
			n.start()
			read(events)
			time.Sleep(900 * time.Millisecond)
			n.Inject(plegtest.Fault{Method: plegtest.GetPod, Stale: true, Delay: 500 * time.Millisecond, Times: 1})
			n.g.RequestRelist("a")
			time.Sleep(50 * time.Millisecond)
			n.ExitContainer("a", "a1", 0, "Completed")
			time.Sleep(100 * time.Millisecond)
			want(t, "after the list", read(events), "a Died a1")
			time.Sleep(time.Second)
			want(t, "after the old pod list", read(events))
		})
	})
}

// Rule 5: a runtime answers concurrent calls in any order, and a later call may have read an earlier state. A dead
// container must not start again.
func TestRule5ConcurrentListsInventNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(900 * time.Millisecond)
		// The full list begins at 1 s and reads the state at 1.3 s; the pod lists
		// begin at 1.1 s, read it then, and complete at 1.5 s.
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Delay: 300 * time.Millisecond})
		n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 2, Stale: true, Delay: 400 * time.Millisecond})
		time.Sleep(200 * time.Millisecond)
		n.g.RequestRelist("a")
		n.g.RequestRelist("b")
		time.Sleep(50 * time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		n.RemovePod("b")
		time.Sleep(200 * time.Millisecond)
		want(t, "after the list", read(events), "a Died a1", "b Died b1", "b Removed b1")
		time.Sleep(10 * time.Second)
		want(t, "after the pod lists", read(events))
		if got := n.PodCalls(plegtest.GetPod, "a"); got != 2 {
			t.Errorf("%d pod lists, want another one after the dropped one", got)
		}
	})
}

// Rule 5: a status is as new as the beginning of its list, not as its end.
func TestRule5ListIsStampedBeforeItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(900 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Stale: true, Delay: 300 * time.Millisecond})
		time.Sleep(200 * time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		if s, err := n.cache.GetNewerThan("a", time.Now()); err != nil || s.ContainerStatuses[0].ExitCode != 1 {
			t.Errorf("got %v %v", s, err)
		}
	})
}

// Rule 5: the cache keeps the status with the newer stamp.
func TestRule5OlderNeverReplacesNewer(t *testing.T) {
	c := pleg.NewCache()
	if !c.Set("a", status("a", "new"), nil, at(2)) {
		t.Error("the first status was not stored")
	}
	if c.Set("a", status("a", "old"), nil, at(1)) {
		t.Error("an older status was stored")
	}
	if s, _ := c.Get("a"); s.Name != "new" {
		t.Errorf("the cache has the %s status", s.Name)
	}
	if !c.Set("a", status("a", "same time"), nil, at(2)) {
		t.Error("a status of the same stamp was not stored")
	}
}

// Rule 5: a status carries the stamp of the newest list that its inspection is for.
func TestRule5StatusCarriesTheNewestStamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		began := time.Now()
		stamp := func() time.Duration {
			n.g.RequestReinspect("a")
			synctest.Wait()
			s, _ := n.cache.Get("a")
			return s.TimeStamp.Sub(began)
		}
		time.Sleep(5500 * time.Millisecond)
		if got := stamp(); got != 5*time.Second {
			t.Errorf("the stamp is %v", got)
		}
		// A list that is under way does not count yet.
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Delay: 100 * time.Millisecond, Times: 1})
		time.Sleep(550 * time.Millisecond)
		if got := stamp(); got != 5*time.Second {
			t.Errorf("the stamp is %v", got)
		}
		time.Sleep(100 * time.Millisecond)
		// The same object, and another one with the same content.
		for _, pod := range []*pleg.Pod{n.Pod("a"), bare("a", plegtest.Running("a1"))} {
			time.Sleep(100 * time.Millisecond)
			n.SetPod(pod)
			n.g.RequestRelist("a")
			synctest.Wait()
			if got, want := stamp(), time.Since(began); got != want {
				t.Errorf("the stamp is %v at %v", got, want)
			}
		}
	})
}
