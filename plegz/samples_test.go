package plegz_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubepleg/pleg/plegz"
)

// With a gatherer the samples have how long relists and inspections took since the sample
// before.
func TestDurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		relists := prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pleg_relist_duration_seconds", Help: "Relists."})
		calls := prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Name: "kubelet_runtime_operations_duration_seconds", Help: "Calls."},
			[]string{"operation_type"})
		reg.MustRegister(relists, calls)
		relists.Observe(100) // before anybody looked
		n := newNode(t, plegz.WithGatherer(reg))
		n.get("/")
		synctest.Wait()
		relists.Observe(1)
		relists.Observe(3)
		calls.WithLabelValues("container_status").Observe(5)
		calls.WithLabelValues("podsandbox_status").Observe(7)
		calls.WithLabelValues("list_containers").Observe(1000)
		n.pass(2100 * time.Millisecond)
		s := n.state().Samples
		if len(s) != 2 || s[0].Relist == nil || *s[0].Relist != 2 || *s[0].Inspection != 6 || s[1].Relist != nil ||
			s[0].RelistAge == nil {
			t.Errorf("%+v", s)
		}
		relists.Observe(math.NaN()) // which JSON has no way to write
		calls.WithLabelValues("container_status").Observe(math.Inf(1))
		n.pass(time.Second)
		if s := n.state().Samples; len(s) != 3 || s[2].RelistAge == nil || s[2].Relist != nil || s[2].Inspection != nil {
			t.Errorf("%+v", s)
		}
	})
}
