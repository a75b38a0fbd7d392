package contract_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Handle: a container that was gone before the first inspection of its pod dies before it ends.
func TestHandleEndOfAContainerThatWasGoneFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Stale: true, Delay: 15 * time.Second, Times: 1})
		want := (&lives{}).follow(t, n)
		n.start()
		n.EmitExit(exitOf("a1", 0))
		n.RemoveContainer("a", "a1")
		time.Sleep(20 * time.Second)
		want("in order", "initially started a1", "initially started a2", "died a1 0?", "ended a1 0?", "removed a1")
	})
}

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

// Handle: a container ends before it is started again under its ID.
func TestHandleEndBeforeStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		want := (&lives{}).follow(t, n)
		n.ExitContainer("a", "a1", 137, "Error")
		time.Sleep(1100 * time.Millisecond)
		n.SetContainer("a", "a1", pleg.ContainerStateRunning)
		time.Sleep(10 * time.Second)
		want("two lives", "initially started a1", "died a1 137 Error", "ended a1 137 Error", "started a1")
	})
}

// Handle: a container is started before its death, although no inspection has shown either.
func TestHandleStartedBeforeADeathThatIsNotInspected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a0")))
		n.start()
		want := (&lives{}).follow(t, n)
		heal := n.Fail(plegtest.GetPodStatus, "a", errors.New("broken"))
		n.SetPod(bare("a", plegtest.Running("a0"), plegtest.Running("a1")))
		n.ExitContainer("a", "a1", 1, "Error")
		time.Sleep(1500 * time.Millisecond)
		heal()
		time.Sleep(20 * time.Second)
		want("short", "initially started a0", "started a1", "died a1 unseen", "ended a1 1 Error")
	})
}

// Handle: what the first full list shows dead ends initially, also if it is gone before its pod is inspected.
func TestHandleInitialEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, pleg.WithInspectionWorkers(1))
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1"), plegtest.Exited("b0")))
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, PodUID: "a", Delay: 500 * time.Millisecond, Times: 1})
		want := (&lives{}).follow(t, n)
		n.start()
		time.Sleep(100 * time.Millisecond)
		n.RemoveContainer("b", "b0") // b waits for the worker
		n.g.RequestRelist("b")
		time.Sleep(5 * time.Second)
		want("what exists", "initially started a1", "initially started b1", "initially started b0",
			"initially died b0 unseen", "initially ended b0 unseen", "removed b0")
	})
}

// Look-ups: a key of a pod that is gone takes one of the 10,000 places.
func TestLookupsOfWhatIsGoneAreCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		var list []*pleg.Pod
		for i := range 4500 { // a name and a container each
			list = append(list, bare(types.UID(fmt.Sprint("p", i)), plegtest.Exited(fmt.Sprint("c", i))))
		}
		n.SetPods(list...)
		n.start()
		n.SetPods()
		time.Sleep(2 * time.Second)
		found := 0
		for i := range list {
			if _, ok := n.cache.ByContainerID(fmt.Sprint("c", i)); ok {
				found++
			}
		}
		if found < len(list) {
			t.Errorf("of %d containers and as many names that are gone, %d are found", len(list), found)
		}
	})
}
