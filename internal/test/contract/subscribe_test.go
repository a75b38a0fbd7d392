package contract_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// A nil option has no effect.
func TestNilSubscribeOption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.relist()
		want(t, "nil option", read(n.g.Subscribe(t.Context(), nil, pleg.WithCapacity(1))), "a Started a1")
	})
}

// A nil context is a mistake in the caller's code. Subscribe panics and leaves no subscription.
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

// The report and the metrics show the backlog of all subscriptions.
func TestBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		check := func(what string, want int) {
			t.Helper()
			if got := n.g.HealthReport().Backlog; got != want {
				t.Errorf("%s: a backlog of %d pods, not %d", what, got, want)
			}
			wantMetric(t, reg, "pleg_subscriber_backlog_pods", float64(want))
		}
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.relist()
		ctx, cancel := context.WithCancel(t.Context())
		n.g.Subscribe(t.Context(), pleg.WithCapacity(100))
		n.g.Subscribe(ctx, pleg.WithCapacity(-1))
		slow := n.g.Subscribe(t.Context(), pleg.WithCapacity(1))
		check("three subscriptions", 3)
		cancel()
		synctest.Wait()
		check("one of them has ended", 1)
		n.SetPod(bare("c", plegtest.Running("c1")))
		n.RemovePod("a")
		n.relist()
		check("changes", 3)
		n.RemovePod("c")
		n.relist()
		check("c has come and gone", 2)
		var got []string
		for range 4 {
			got = append(got, read(slow)...)
			n.relist()
		}
		want(t, "slow", got, "a Started a1", "b Started b1", "a Died a1", "a Removed a1")
		check("it has read", 0)
	})
}

func TestSubscriptionEndsWithItsContext(t *testing.T) {
	for _, started := range []bool{false, true} {
		for _, capacity := range []int{-1, 0, 1, 100} {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(pods(10)...)
				if started {
					n.start()
				}
				ctx, cancel := context.WithCancel(t.Context())
				sub := n.g.Subscribe(ctx, pleg.WithCapacity(capacity))
				n.relist()
				synctest.Wait()
				cancel()
				synctest.Wait()
				lines := read(sub)
				if len(lines) == 0 || lines[len(lines)-1] != "closed" {
					t.Errorf("started=%v capacity=%d: not closed", started, capacity)
				}
				if got := n.g.HealthReport().Subscribers; got != 0 {
					t.Errorf("%d subscriptions left", got)
				}
				n.ExitContainer("pod-00000", "pod-00000-a", 0, "")
				n.relist()
			})
		}
	}
}

func TestSubscribeWithEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		sub := n.g.Subscribe(ctx, pleg.WithCapacity(1))
		synctest.Wait()
		want(t, "subscription", read(sub), "closed")
	})
}

// If an update of a pod was delivered only in part, the backlog counts the pod.
func TestBacklogCountsWhatIsHalfDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2"), plegtest.Running("a3")))
		n.g.Subscribe(t.Context(), pleg.WithCapacity(1))
		n.relist()
		if got := n.g.HealthReport().Backlog; got != 1 {
			t.Errorf("a backlog of %d pods", got)
		}
	})
}
