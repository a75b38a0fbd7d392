package contract_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// The verbosity levels are the kubelet's: 2 logs finished containers, 4
// transitions and statuses, 5 relists.
func TestVerbosity(t *testing.T) {
	for _, c := range []struct {
		verbosity                       int
		finished, transition, relisting bool
	}{
		{0, false, false, false},
		{2, true, false, false},
		{4, true, true, false},
		{5, true, true, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			log := &logLines{}
			n := newNode(t, pleg.WithLogger(log.logger(c.verbosity)))
			n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
			n.start()
			n.ExitContainer("a", "a1", 137, "OOMKilled")
			time.Sleep(1500 * time.Millisecond)
			finished := log.matching("Container finished")
			if (len(finished) == 1) != c.finished {
				t.Errorf("verbosity %d: finished: %q", c.verbosity, finished)
			}
			if c.finished && !strings.Contains(finished[0], `"exitCode"=137 "reason"="OOMKilled"`) {
				t.Errorf("verbosity %d: %q", c.verbosity, finished)
			}
			// a1 and a2 started, a1 died.
			if got := log.matching("Transition"); (len(got) == 3) != c.transition || len(got) != 0 && !c.transition {
				t.Errorf("verbosity %d: transitions: %q", c.verbosity, got)
			}
			if got := len(log.matching("Relisting")) > 0; got != c.relisting {
				t.Errorf("verbosity %d: relisting: %v", c.verbosity, got)
			}
		})
	}
}
