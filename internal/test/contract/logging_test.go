package contract_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// The verbosity levels are the kubelet's: 2 logs finished containers, 4 logs transitions and
// statuses, 5 logs relists.
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

func TestListErrorsAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logLines{}
		n := newNodeOf(t, polling, pleg.WithLogger(log.logger(0)))
		heal := n.Fail(plegtest.GetPods, plegtest.AnyPod, errors.New("connection refused"))
		n.start()
		for i := range 60 { // each error has a different text
			time.Sleep(time.Second)
			before := heal
			heal = n.Fail(plegtest.GetPods, plegtest.AnyPod, fmt.Errorf("connection %d is refused", i))
			before()
		}
		heal()
		time.Sleep(time.Minute)
		if got := log.matching("Cannot list pods"); len(got) != 1 {
			t.Errorf("logged %q", got)
		}
		if got := log.matching("Relist succeeded again"); len(got) != 1 {
			t.Errorf("logged %q", got)
		}
	})
}

// Every line of the log includes the logger's name.
func TestLoggerHasAName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		prefixes := map[string]int{}
		n := newNode(t, pleg.WithLogger(funcr.New(func(prefix, _ string) {
			mu.Lock()
			defer mu.Unlock()
			prefixes[prefix]++
		}, funcr.Options{Verbosity: 5})))
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		n.g.Stop()
		if len(prefixes) != 1 || prefixes["pleg"] == 0 {
			t.Errorf("lines by the name of their logger: %v", prefixes)
		}
	})
}

// If the inspection of a pod fails repeatedly, only the first failure is logged, with the pod.
func TestInspectionErrorsAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logLines{}
		n := newNode(t, pleg.WithLogger(log.logger(0)))
		n.SetPods(pods(1)...)
		n.Fail(plegtest.GetPodStatus, "pod-00000", errors.New("broken"))
		n.start()
		time.Sleep(10 * time.Minute)
		got := log.matching("Cannot inspect pod")
		if len(got) != 1 || !strings.Contains(got[0], `"pod"={"name"="pod-00000" "namespace"="default"}`) {
			t.Errorf("logged %q", got)
		}
	})
}
