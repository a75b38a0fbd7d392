package recipes

import (
	"context"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// countExits counts the exits of containers in an OpenTelemetry counter, until ctx ends.
func countExits(ctx context.Context, g *pleg.GenericPLEG, meter metric.Meter) error {
	exits, err := meter.Int64Counter("container.exits", metric.WithDescription("Containers that have exited."))
	if err != nil {
		return err
	}
	return g.Handle(ctx, pleg.Handler{OnContainerEnded: func(e *pleg.PodLifecycleEvent) {
		if e.Initial {
			return
		}
		_, reason, seen := e.Exit()
		if !seen {
			reason = "unknown"
		}
		exits.Add(ctx, 1, metric.WithAttributes(
			attribute.String("k8s.namespace.name", e.Pod.Namespace), attribute.String("reason", reason)))
	}})
}

func TestOpenTelemetryCounter(t *testing.T) {
	onNode(t, func(t *testing.T, runtime *plegtest.Runtime, g *pleg.GenericPLEG) {
		reader := sdkmetric.NewManualReader()
		meter := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("agent")
		go func() { _ = countExits(t.Context(), g, meter) }()
		time.Sleep(time.Second)
		runtime.ExitContainer("web", "nginx", 137, "Error")
		time.Sleep(time.Second)
		runtime.ExitContainer("web", "nginx", 137, "OOMKilled") // the runtime corrects the reason
		time.Sleep(5 * time.Second)
		var metrics metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &metrics); err != nil {
			t.Fatal(err)
		}
		m := metrics.ScopeMetrics[0].Metrics[0]
		exits, _ := m.Data.(metricdata.Sum[int64])
		labels := exits.DataPoints[0].Attributes.Encoded(attribute.DefaultEncoder())
		if m.Name != "container.exits" || exits.DataPoints[0].Value != 1 ||
			labels != "k8s.namespace.name=default,reason=OOMKilled" {
			t.Errorf("%+v, %s", m, labels)
		}
	})
}
