package contract_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// A nil option does nothing, and of several names the last counts.
func TestSubscribeOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.relist()
		for name, opts := range map[string][]pleg.SubscribeOption{
			"nil option":      {nil, pleg.WithName(""), nil},
			"empty name last": {pleg.WithName("x"), pleg.WithName("")},
		} {
			want(t, name, read(n.g.Subscribe(t.Context(), opts...)), "a Started a1")
		}
		if got := n.g.HealthReport().NamedSubscribers; got != nil {
			t.Errorf("reported: %v", got)
		}
	})
}

// The backlog of subscriptions that have a name, and its age by the injected clock, are in
// the report and in the metrics, those of one name together.
func TestNamedSubscribers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := clocktesting.NewFakeClock(epoch)
		reg := prometheus.NewPedanticRegistry()
		rt := plegtest.NewRuntime(plegtest.WithClock(clk))
		g := pleg.NewGenericPLEG(rt, 100, time.Second, pleg.NewCache(), clk,
			pleg.WithLogger(logr.Discard()), pleg.WithRegisterer(reg))
		defer g.Stop()
		ctx, cancel := context.WithCancel(t.Context())
		subscribe := func(ctx context.Context, capacity int, name string) <-chan *pleg.PodLifecycleEvent {
			return g.Subscribe(ctx, pleg.WithCapacity(capacity), pleg.WithName(name))
		}
		check := func(what string, want ...pleg.SubscriberReport) {
			t.Helper()
			if diff := cmp.Diff(want, g.HealthReport().NamedSubscribers); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		age := func(name string) float64 {
			return metric(t, reg, "pleg_named_subscriber_backlog_age_seconds", "subscriber", name)
		}

		rt.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		_ = g.Relist(t.Context())
		g.Subscribe(t.Context(), pleg.WithCapacity(-1))
		subscribe(t.Context(), 100, "up to date")
		clk.Step(time.Second)
		slow := subscribe(t.Context(), 1, "slow")
		clk.Step(time.Second)
		subscribe(ctx, -1, "slow")
		subscribe(t.Context(), -1, "\xff")
		clk.Step(3 * time.Second)
		upToDate := pleg.SubscriberReport{Name: "up to date", Subscriptions: 1}
		odd := pleg.SubscriberReport{Name: "\uFFFD", Subscriptions: 1, Backlog: 2, BehindSince: at(2)}
		check("two of one name",
			pleg.SubscriberReport{Name: "slow", Subscriptions: 2, Backlog: 3, BehindSince: at(1)}, upToDate, odd)
		wantMetric(t, reg, "pleg_named_subscriber_backlog_pods", 3, "subscriber", "slow")
		if a, b, c := age("slow"), age("up to date"), age("\uFFFD"); a != 4 || b != 0 || c != 3 {
			t.Errorf("they are behind by %v, %v and %v s", a, b, c)
		}
		wantMetric(t, reg, "pleg_subscriber_backlog_pods", 7)

		cancel()
		synctest.Wait()
		check("one of them has ended",
			pleg.SubscriberReport{Name: "slow", Subscriptions: 1, Backlog: 1, BehindSince: at(1)}, upToDate, odd)
		rt.ExitContainer("a", "a1", 0, "Completed")
		_ = g.Relist(t.Context())
		clk.Step(time.Second)
		rt.RemovePod("a")
		_ = g.Relist(t.Context())
		want(t, "slow", read(slow), "a Started a1")
		_ = g.Relist(t.Context())
		want(t, "slow", read(slow), "b Started b1")
		odd.Backlog = 1 // a has come and gone for it
		check("the oldest change counts",
			pleg.SubscriberReport{Name: "slow", Subscriptions: 1, Backlog: 1, BehindSince: at(5)}, upToDate, odd)
	})
}
