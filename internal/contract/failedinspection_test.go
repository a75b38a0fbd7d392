package contract_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 22: the first inspection of a death fails, because the runtime was killed between the list and the
// inspection, or takes no end. The death has no exit code. A PodSync brings the code when the cache has it.
func TestRule22DeathWhoseInspectionFails(t *testing.T) {
	for name, fault := range map[string]plegtest.Fault{
		"fails":     {Method: plegtest.GetPodStatus, Err: errors.New("connection refused")},
		"times out": {Method: plegtest.GetPodStatus, Hang: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, pleg.WithRuntimeRequestTimeout(5*time.Second))
				n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Exited("a2")))
				events := n.g.Watch()
				n.start()
				read(events)
				heal := n.Inject(fault)
				n.ExitContainer("a", "a1", 3, "Error")
				time.Sleep(10 * time.Second)
				want(t, "while inspections fail", readStatuses(events), "a Died a1 running")
				heal()
				time.Sleep(time.Minute)
				if s := mustGet(t, n.cache).ContainerStatuses[0]; s.ExitCode != 3 {
					t.Errorf("the cache has %+v", s)
				}
				want(t, "once one succeeds", readStatuses(events), "a PodSync exited 3 Error")
			})
		})
	}
}
