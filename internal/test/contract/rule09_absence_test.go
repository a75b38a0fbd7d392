package contract_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// A pod comes back while its earlier inspection is stuck. StuckSince stays the start of that
// inspection. ListedAt is the time of the list that shows the new pod. If the earlier inspection
// returns while the next one is stuck, StuckSince does not change.
func TestPodComesBackWithItsOwnTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		heal := n.BlockIgnoringCancel(plegtest.GetPodStatus, "a")
		n.start()
		began := time.Now()
		time.Sleep(1500 * time.Millisecond)
		n.SetPods()
		time.Sleep(time.Second)
		n.SetPods(bare("a", plegtest.Running("a2")))
		time.Sleep(time.Second)
		if got := n.g.HealthReport().FailingPods; len(got) != 1 || !got[0].StuckSince.Equal(began) {
			t.Errorf("reported: %v", got)
		}
		time.Sleep(pleg.DefaultRuntimeRequestTimeout)
		if e := <-events; line(e) != "a Started a2" || !e.ListedAt.Equal(began.Add(3*time.Second)) {
			t.Errorf("%s, listed at %v", line(e), e.ListedAt.Sub(began))
		}
		healAgain := n.BlockIgnoringCancel(plegtest.GetPodStatus, "a")
		heal()
		time.Sleep(70 * time.Second) // longer than any back-off
		if got := n.g.HealthReport().FailingPods; len(got) != 1 || !got[0].StuckSince.Equal(began) {
			t.Errorf("reported: %v", got)
		}
		healAgain()
		time.Sleep(time.Second)
		if got := n.g.HealthReport().FailingPods; len(got) != 0 {
			t.Errorf("reported: %v", got)
		}
		if s, err := n.cache.Get("a"); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("the cache has %v %v", s, err)
		}
	})
}

// Rule 9: in a cache without a generator, a blocked reader of an absent pod is answered with an
// empty status.
func TestRule9AbsenceIsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pleg.NewCache()
		c.Set("a", status("a", "there"), nil, at(1))
		got := make(chan *pleg.PodStatus)
		for range 2 {
			go func() {
				s, err := c.GetNewerThan("a", at(5))
				if err != nil {
					t.Error(err)
				}
				got <- s
			}()
			synctest.Wait()
			c.Delete("a")
			synctest.Wait()
			c.SetObservedTime("a", at(6))
			if s := <-got; s.ID != "a" || s.Name != "" {
				t.Errorf("got %v", s)
			}
			// The second round uses a new cache.
			c.UpdateTime(at(6))
			c = pleg.NewCache()
			c.Set("a", status("a", "there"), nil, at(1))
		}
		if len(c.GetAll()) != 1 {
			t.Error("GetAll shows what is absent")
		}
	})
}

// Rule 9: a list without an error omits a container that has ended, and a later list shows it. The
// container is new, and its death is counted again.
func TestRule9OmittedContainerIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		pod, ended := shortLived(pleg.ContainerStateExited, time.Now(), -time.Minute)
		running, begun := shortLived(pleg.ContainerStateRunning, time.Now(), -time.Minute)
		n.SetStatus("a", begun)
		n.SetPods(running)
		want := new(lives).follow(t, n)
		n.start()
		n.SetStatus("a", ended)
		n.SetPods(pod)
		time.Sleep(5 * time.Second)
		want("one life", "initially started a1", "died a1 3 Error", "ended a1 3 Error")
		n.SetPods()
		time.Sleep(5 * time.Second)
		want("omitted", "removed a1")
		n.SetPods(pod)
		time.Sleep(5 * time.Second)
		want("shown again", "started a1", "died a1 3 Error", "ended a1 3 Error")
		wantExits(t, reg, "shown again", map[string]float64{"Error": 2})
	})
}
