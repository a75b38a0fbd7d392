package contract_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

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
