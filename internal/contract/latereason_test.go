package contract_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 22: the inspection that shows a late reason also shows another exit of the pod, and is too old to be
// stored. Subscribers get the reason all the same: what the cache has and what they were sent agree in the end.
func TestRule22LateReasonBesideAnotherExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		events := n.g.Watch()
		n.start()
		time.Sleep(300 * time.Millisecond)
		n.ExitContainer("a", "a1", 137, "Error")
		time.Sleep(4 * time.Second) // the inspection of rule 22 has found nothing new
		read(events)
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Delay: 300 * time.Millisecond, Times: 1})
		n.g.RequestReinspect("a")
		time.Sleep(50 * time.Millisecond)
		n.g.RequestRelist("a") // shows no change: the pod is fresher than the inspection
		time.Sleep(50 * time.Millisecond)
		n.SetContainer("a", "a3", pleg.ContainerStateRunning)
		n.g.RequestRelist("a") // shows a change, which supersedes the inspection
		time.Sleep(50 * time.Millisecond)
		n.ExitContainer("a", "a1", 137, "OOMKilled")
		n.ExitContainer("a", "a2", 1, "Error")
		time.Sleep(time.Minute)
		sent := make(map[string]string) // the reasons, by container
		for len(events) > 0 {
			if e := <-events; e.Status != nil && e.Status.State == pleg.ContainerStateExited {
				sent[e.Container.ID.ID] = e.Status.Reason
			}
		}
		if sent["a1"] != "OOMKilled" || sent["a2"] != "Error" {
			t.Errorf("subscribers were sent %v", sent)
		}
		if s := mustGet(t, n.cache).FindContainerStatusByName("a1"); s.Reason != "OOMKilled" {
			t.Errorf("the cache has %+v", s)
		}
	})
}
