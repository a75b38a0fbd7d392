package contract_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

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

// A nil context is a mistake of the caller's code, and leaves no subscription.
func TestSubscribeWithNilContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.relist()
		var none context.Context
		for name, subscribe := range map[string]func(){
			"Subscribe": func() { n.g.Subscribe(none) },
			"Handle":    func() { _ = n.g.Handle(none, pleg.Handler{}) },
		} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s does not panic", name)
					}
				}()
				subscribe()
			}()
		}
		if got := n.g.HealthReport().Subscribers; got != 0 {
			t.Errorf("%d subscriptions are left", got)
		}
		n.relist()
	})
}

// The backlog of subscriptions that have a name is in the report and in the metrics, that of one
// name together.
func TestNamedSubscribers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		ctx, cancel := context.WithCancel(t.Context())
		subscribe := func(ctx context.Context, capacity int, name string) <-chan *pleg.PodLifecycleEvent {
			return n.g.Subscribe(ctx, pleg.WithCapacity(capacity), pleg.WithName(name))
		}
		check := func(what string, want ...pleg.SubscriberReport) {
			t.Helper()
			if diff := cmp.Diff(want, n.g.HealthReport().NamedSubscribers); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}

		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.relist()
		n.g.Subscribe(t.Context(), pleg.WithCapacity(-1))
		subscribe(t.Context(), 100, "up to date")
		slow := subscribe(t.Context(), 1, "slow")
		subscribe(ctx, -1, "slow")
		subscribe(t.Context(), -1, "\xff")
		upToDate := pleg.SubscriberReport{Name: "up to date", Subscriptions: 1}
		odd := pleg.SubscriberReport{Name: "\uFFFD", Subscriptions: 1, Backlog: 2}
		check("two of one name", pleg.SubscriberReport{Name: "slow", Subscriptions: 2, Backlog: 3}, upToDate, odd)
		wantMetric(t, reg, "pleg_named_subscriber_backlog_pods", 3, "subscriber", "slow")
		wantMetric(t, reg, "pleg_named_subscriber_backlog_pods", 0, "subscriber", "up to date")
		wantMetric(t, reg, "pleg_subscriber_backlog_pods", 7)

		cancel()
		synctest.Wait()
		check("one of them has ended", pleg.SubscriberReport{Name: "slow", Subscriptions: 1, Backlog: 1}, upToDate, odd)
		n.SetPod(bare("c", plegtest.Running("c1")))
		n.RemovePod("a")
		n.relist()
		odd.Backlog = 3 // with a, which existed when it began
		check("changes", pleg.SubscriberReport{Name: "slow", Subscriptions: 1, Backlog: 3}, upToDate, odd)
		n.RemovePod("c")
		n.relist()
		odd.Backlog = 2
		check("c has come and gone", pleg.SubscriberReport{Name: "slow", Subscriptions: 1, Backlog: 2}, upToDate, odd)
		var got []string
		for range 4 {
			got = append(got, read(slow)...)
			n.relist()
		}
		want(t, "slow", got, "a Started a1", "b Started b1", "a Died a1", "a Removed a1")
		check("it has read", pleg.SubscriberReport{Name: "slow", Subscriptions: 1}, upToDate, odd)
	})
}
