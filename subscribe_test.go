package pleg_test

import (
	"context"
	"fmt"
	"strings"
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

// in moves a pod to a namespace.
func in(namespace string, pod *pleg.Pod) *pleg.Pod {
	pod.Namespace = namespace
	return pod
}

// A subscription with a filter gets the events of the pods that it wants, and is behind
// with no other. The filter is asked once per pod, and again about a pod that comes back.
func TestFilter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newOrderlyNode(t)
		n.SetPods(in("shop", bare("a", plegtest.Running("a1"))), bare("b", plegtest.Running("b1")))
		n.g.Relist()
		var asked []string
		shop := pleg.WithFilter(func(pod *pleg.Pod) bool {
			asked = append(asked, fmt.Sprint(pod.ID, " ", len(pod.Containers)))
			return pod.Namespace == "shop"
		})
		sub := n.g.Subscribe(t.Context(), 100, shop)
		full := n.g.Subscribe(t.Context(), 0, pleg.WithFilter(func(*pleg.Pod) bool { return false }))
		want(t, "what exists", read(sub), "a Started a1")
		n.ExitContainer("b", "b1", 1, "Error")
		n.SetPod(in("shop", bare("c", plegtest.Running("c1"))))
		n.SetPod(bare("d", plegtest.Running("d1")))
		n.g.Relist()
		n.g.RequestReinspect("a")
		n.g.RequestReinspect("b")
		n.RemovePod("d")
		n.g.Relist()
		want(t, "later", read(sub), "a PodSync", "c Started c1")
		n.RemovePod("a")
		n.RemovePod("b")
		n.g.Relist()
		want(t, "at the end", read(sub), "a Died a1", "a Removed a1")
		n.SetPod(bare("a", plegtest.Running("a2")))
		n.SetPod(in("shop", bare("b", plegtest.Running("b2"))))
		n.g.Relist()
		n.RemovePod("a")
		n.g.Relist()
		want(t, "pods that come back", read(sub), "b Started b2")
		want(t, "asked", asked, "a 1", "b 1", "c 1", "d 1", "a 1", "b 1")
		want(t, "nothing", read(full))
		if r := n.g.HealthReport(); r.Subscribers != 2 || r.Backlog != 0 {
			t.Errorf("%d subscribers with a backlog of %d pods", r.Subscribers, r.Backlog)
		}
	})
}

// A filter that panics says no, to the caller of Subscribe and to the loop. It is counted
// and logged once, and disturbs nobody.
func TestFilterThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logLines{}
		n, reg := newNodeWithMetrics(t, pleg.WithLogger(log.logger(0)))
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		n.start()
		panics := pleg.WithFilter(func(pod *pleg.Pod) bool {
			if pod.ID != "b" {
				panic("what is " + pod.Name + "?")
			}
			return true
		})
		other := n.g.Subscribe(t.Context(), 100)
		sub := n.g.Subscribe(t.Context(), 100, panics, pleg.WithName("careless"))
		n.SetPod(bare("c", plegtest.Running("c1")))
		n.g.Relist()
		want(t, "it", read(sub), "b Started b1")
		want(t, "another", read(other), "a Started a1", "b Started b1", "c Started c1")
		wantMetric(t, reg, "pleg_bad_data_total", 2, "reason", "filter_panic")
		got := log.matching("filter_panic")
		if len(got) != 1 || !strings.Contains(got[0], "careless") || !strings.Contains(got[0], "what is a?") {
			t.Errorf("logged %q", got)
		}
		healthy(t, n.g)
	})
}

// A nil filter wants every pod, a nil option does nothing, and of several the last counts.
func TestSubscribeOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.g.Relist()
		nobody := pleg.WithFilter(func(*pleg.Pod) bool { return false })
		for name, c := range map[string]struct {
			opts   []pleg.SubscribeOption
			events []string
		}{
			"nil filter":      {[]pleg.SubscribeOption{pleg.WithFilter(nil)}, []string{"a Started a1"}},
			"nil option":      {[]pleg.SubscribeOption{nil, nobody, nil}, nil},
			"nil filter last": {[]pleg.SubscribeOption{nobody, pleg.WithFilter(nil)}, []string{"a Started a1"}},
			"filter last":     {[]pleg.SubscribeOption{pleg.WithFilter(nil), nobody}, nil},
			"empty name last": {[]pleg.SubscribeOption{pleg.WithName("x"), pleg.WithName("")}, []string{"a Started a1"}},
		} {
			want(t, name, read(n.g.Subscribe(t.Context(), 1, c.opts...)), c.events...)
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
			return g.Subscribe(ctx, capacity, pleg.WithName(name))
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
		g.Relist()
		g.Subscribe(t.Context(), 0)
		subscribe(t.Context(), 100, "up to date")
		clk.Step(time.Second)
		slow := subscribe(t.Context(), 1, "slow")
		clk.Step(time.Second)
		subscribe(ctx, 0, "slow")
		subscribe(t.Context(), 0, "\xff")
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
		g.Relist()
		clk.Step(time.Second)
		rt.RemovePod("a")
		g.Relist()
		want(t, "slow", read(slow), "a Started a1")
		g.Relist()
		want(t, "slow", read(slow), "b Started b1")
		odd.Backlog = 1 // a has come and gone for it
		check("the oldest change counts",
			pleg.SubscriberReport{Name: "slow", Subscriptions: 1, Backlog: 1, BehindSince: at(5)}, upToDate, odd)
	})
}
