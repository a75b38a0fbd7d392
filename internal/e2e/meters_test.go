package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// meters contains the metrics of a generator and its adapter.
type meters struct{ *prometheus.Registry }

func newMeters() meters { return meters{prometheus.NewRegistry()} }

// sum adds up the series of a metric that have the given labels.
func (m meters) sum(t *testing.T, name string, labels ...string) (sum float64) {
	t.Helper()
	families, err := m.Gather()
	if err != nil {
		t.Fatal("gathering metrics:", err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, metric := range f.GetMetric() {
			var have []string
			for _, l := range metric.GetLabel() {
				have = append(have, fmt.Sprintf("%s=%s", l.GetName(), l.GetValue()))
			}
			if !strings.Contains(strings.Join(have, ","), strings.Join(labels, ",")) {
				continue
			}
			sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() +
				float64(metric.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// checkBadData fails the test if data of the real runtime was counted as bad.
func (m meters) checkBadData(t *testing.T) {
	t.Helper()
	for _, name := range []string{"pleg_bad_data_total", "pleg_cri_bad_items_total"} {
		if bad := m.sum(t, name); bad != 0 {
			t.Errorf("%s is %v; nothing that a runtime says is bad data", name, bad)
		}
	}
}

// story returns a summary of the metrics, for a log.
func (m meters) story(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, name := range []string{
		"kubelet_pleg_relist_duration_seconds",
		"kubelet_pleg_pod_relist_duration_seconds",
		"kubelet_pleg_discard_events",
		"kubelet_evented_pleg_connection_success_count",
		"kubelet_evented_pleg_connection_error_count",
		"pleg_inspection_retries_total",
		"kubelet_runtime_operations_total",
		"kubelet_runtime_operations_errors_total",
	} {
		fmt.Fprintf(&b, "\n  %s %.0f", name, m.sum(t, name))
	}
	return b.String()
}
