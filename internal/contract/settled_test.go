package contract_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 22: an inspection that is slow settles an end, and the reason is still asked for.
func TestRule22LateReasonBesideASlowInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		n.ExitContainer("a", "a1", 137, "Error")
		time.Sleep(1500 * time.Millisecond) // died at 1 s
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Stale: true, Delay: 3 * time.Second, Times: 1})
		n.g.RequestReinspect("a")
		time.Sleep(100 * time.Millisecond)
		n.ExitContainer("a", "a1", 137, "OOMKilled")
		time.Sleep(time.Hour)
		if s, err := n.cache.Get("a"); s.ContainerStatuses[0].Reason != "OOMKilled" || err != nil {
			t.Errorf("the cache has %v, %v", s.ContainerStatuses[0].Reason, err)
		}
	})
}

// Rule 22: the end of a container is settled, although its pod waits for a worker that stuck pods hold.
func TestRule22EndBesideManyStuckPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("z", plegtest.Running("z1")))
		n.start()
		l := &lives{}
		h := l.handler()
		h.Want = func(p *pleg.Pod) bool { return p.ID == "z" }
		go func() { _ = n.g.Handle(t.Context(), h) }()
		synctest.Wait()
		for i := range 80 { // 64 slow ones give their worker back, 8 more keep it
			uid := types.UID(fmt.Sprintf("p%02d", i))
			defer n.HangIgnoringCancel(plegtest.GetPodStatus, uid)()
			n.SetPod(bare(uid, plegtest.Running(string(uid)+"-1")))
		}
		time.Sleep(15 * time.Second)
		n.EmitExit(exitOf("z1", 137))
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := fmt.Sprint(l.lines); got != "[initially started z1 died z1 137? ended z1 137?]" {
			t.Error(got)
		}
	})
}

// Rule 22: a pod that changes during each of its inspections keeps nothing of containers that are gone.
func TestRule22EndsOfAPodThatGoesOnChanging(t *testing.T) {
	if raceEnabled {
		t.Skip("counts the heap")
	}
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a0")))
		n.start()
		n.Delay(plegtest.GetPodStatus, "a", 1200*time.Millisecond)
		churn := func(from, to int) int64 {
			for i := from; i < to; i++ {
				n.SetContainer("a", fmt.Sprint("a", i+1), pleg.ContainerStateRunning)
				time.Sleep(300 * time.Millisecond)
				n.ExitContainer("a", fmt.Sprint("a", i), 0, strings.Repeat("reason", 1000)+fmt.Sprint(i))
				time.Sleep(300 * time.Millisecond)
				if i > 2 {
					n.RemoveContainer("a", fmt.Sprint("a", i-2))
				}
				time.Sleep(300 * time.Millisecond)
			}
			return int64(heapInUse())
		}
		before := churn(0, 200)
		if grew := churn(200, 1200) - before; grew > 2<<20 {
			t.Errorf("a pod of four containers takes %d more bytes after 1,000 restarts", grew)
		}
	})
}
