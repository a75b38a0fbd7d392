package contract_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 15: a list that failed removes nothing, whatever came with the error.
func TestRule15PartialListRemovesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t, pleg.WithPollingOnly())
		n.SetPods(pods(10)...)
		events := n.g.Watch()
		n.start()
		read(events)
		heal := n.Inject(plegtest.Fault{Method: plegtest.GetPods, Err: errors.New("cut off"), Partial: 3})
		time.Sleep(time.Minute)
		want(t, "events", read(events))
		if got := len(n.cache.GetAll()); got != 10 {
			t.Errorf("%d pods left in the cache", got)
		}
		wantMetric(t, reg, "kubelet_running_pods", 10)
		if got := n.g.HealthReport().RelistError; got != "cut off" {
			t.Errorf("the report has %q", got)
		}
		heal()
		time.Sleep(1500 * time.Millisecond)
		if got := n.g.HealthReport().RelistError; got != "" {
			t.Errorf("the report still has %q", got)
		}
	})
}
