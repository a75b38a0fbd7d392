package mixin_test

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// metric is a metric that the library exports.
type metric struct {
	family string // the metric's name without a histogram suffix such as _bucket
	labels map[string]map[string]bool
}

// exported returns the metrics of an agent by series name, as Prometheus sees them. The agent
// exports all metrics and its node name.
func exported(t *testing.T) map[string]metric {
	t.Helper()
	server, err := criserver.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	server.RunPod(criserver.PodConfig{})
	runtime, err := cri.Connect(t.Context(), server.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.Close()
	registry := prometheus.NewRegistry()
	node := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_node_name",
		Help: "The node's name. The count is always 1.", ConstLabels: prometheus.Labels{"node": "node-7"}})
	node.Set(1)
	registry.MustRegister(node)
	generator := pleg.NewGenericPLEG(runtime, pleg.DefaultChannelCapacity, time.Second, pleg.NewCache(),
		clock.RealClock{}, pleg.WithLogger(logr.Discard()), pleg.WithRegisterer(registry))
	generator.Subscribe(t.Context(), pleg.WithCapacity(1))
	generator.Start(t.Context())
	defer generator.Stop()
	if err := generator.WaitForSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) < 25 {
		t.Fatalf("only %d metrics", len(families))
	}
	all := make(map[string]metric)
	for _, f := range families {
		labels := make(map[string]map[string]bool)
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if labels[l.GetName()] == nil {
					labels[l.GetName()] = make(map[string]bool)
				}
				labels[l.GetName()][l.GetValue()] = true
			}
		}
		if f.GetType() != dto.MetricType_HISTOGRAM {
			all[f.GetName()] = metric{f.GetName(), labels}
			continue
		}
		for _, suffix := range [...]string{"_sum", "_count", "_bucket"} {
			all[f.GetName()+suffix] = metric{f.GetName(), labels}
		}
	}
	return all
}
