package contract_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 17: a full relist follows every connection, because a stream cannot be resumed.
func TestRule17ConnectionIsFollowedByFullRelist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPods(bare("pod-00000", plegtest.Running("pod-00000-a")))
		g := pleg.NewGenericPLEG(rt, 0, time.Hour, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		g.Start(t.Context())
		defer g.Stop()
		events := g.Watch()
		time.Sleep(time.Second)
		read(events)
		for range 20 {
			rt.BreakEventStreams(errors.New("reset"))
			synctest.Wait()
			c := rt.Pod("pod-00000").Containers[0].ID.ID
			rt.SetPod(bare("pod-00000", plegtest.Running(c+"'"))) // while no stream is open
			time.Sleep(2 * time.Minute)
			if rt.Streams() != 1 {
				t.Fatal("not connected again")
			}
			want(t, "events", read(events), "pod-00000 Died "+c, "pod-00000 Removed "+c, "pod-00000 Started "+c+"'")
		}
	})
}

// Rule 17: reconnection attempts never end. The first wait is 1 s, and each further wait is 2 s.
// After a stream that lasted a minute, the first wait is 1 s again.
func TestRule17Backoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		attempts := make(chan time.Time, 1000)
		var broken atomic.Bool
		broken.Store(true)
		n.Inject(plegtest.Fault{Method: plegtest.WatchContainerEvents, Do: func(context.Context) error {
			attempts <- time.Now()
			if broken.Load() {
				return errors.New("connection refused")
			}
			return nil
		}})
		n.start()
		last := <-attempts
		for i, want := range []time.Duration{1, 2, 2, 2, 2, 2, 2, 2, 2, 2} {
			next := <-attempts
			if wait := next.Sub(last); wait != want*time.Second {
				t.Errorf("wait %d was %v", i, wait)
			}
			last = next
			if i == 5 {
				if got := n.g.HealthReport().Stream; got.State != pleg.StreamConnecting && got.Error == "" {
					t.Errorf("the stream is %v", got)
				}
			}
		}
		if got := metric(t, reg, "kubelet_evented_pleg_connection_error_count"); got < 10 {
			t.Errorf("%v errors counted", got)
		}
		synctest.Wait() // the last attempt has failed
		broken.Store(false)
		<-attempts
		for _, c := range []struct{ lasts, waits time.Duration }{
			{time.Minute + time.Second, time.Second}, {10 * time.Second, 2 * time.Second},
			{10 * time.Second, 2 * time.Second}, {time.Hour, time.Second},
		} {
			time.Sleep(c.lasts)
			n.BreakEventStreams(errors.New("reset"))
			began := time.Now()
			if wait := (<-attempts).Sub(began); wait != c.waits {
				t.Errorf("after a stream of %v it waited %v", c.lasts, wait)
			}
			synctest.Wait()
		}
		wantMetric(t, reg, "kubelet_evented_pleg_connection_success_count", 5)
	})
}

// Rule 17: if a runtime did not support events before and supports them now, the earlier back-off
// does not delay a reconnection.
func TestRule17BackoffBeginsAnewAfterUnsupported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		var calls atomic.Int32
		attempts := make(chan time.Time, 100)
		n.Inject(plegtest.Fault{Method: plegtest.WatchContainerEvents, Do: func(context.Context) error {
			attempts <- time.Now()
			if calls.Add(1) == 6 {
				return pleg.ErrEventsUnsupported
			}
			return errors.New("connection refused")
		}})
		n.start()
		for range 6 {
			<-attempts
		}
		began := <-attempts
		if wait := (<-attempts).Sub(began); wait > time.Second {
			t.Errorf("it waited %v", wait)
		}
	})
}

// Rule 17: if a runtime does not support events, it is asked again only rarely.
func TestRule17Unsupported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetEventMode(plegtest.EventsUnsupported)
		n.SetPods(pods(1)...)
		n.start()
		time.Sleep(59*time.Minute + 30*time.Second)
		if got := n.Calls(plegtest.WatchContainerEvents); got < 59 || got > 60 {
			t.Errorf("asked %d times in an hour", got)
		}
		got := n.g.HealthReport().Stream
		if got.State != pleg.StreamUnsupported || got.NextTry.Before(time.Now()) || got.Error == "" {
			t.Errorf("the stream is %v", got)
		}
		wantMetric(t, reg, "kubelet_evented_pleg_connection_error_count", 0)
		n.SetEventMode(plegtest.EventsServed)
		time.Sleep(6 * time.Minute)
		if got := n.g.HealthReport().Stream.State; got != pleg.StreamConnected {
			t.Errorf("the stream is %s", got)
		}
	})
}

// Rule 17: a stream that returns without an error has ended, however short it was and whatever it
// sent. Only ErrEventsUnsupported means that the runtime has no stream.
func TestRule17EndWithoutAnError(t *testing.T) {
	for _, lasts := range []time.Duration{0, 10 * time.Second, time.Hour} {
		for _, event := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.start()
				if event {
					n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "a1"})
				}
				time.Sleep(lasts)
				synctest.Wait()
				n.BreakEventStreams(nil)
				synctest.Wait()
				got := n.g.HealthReport().Stream
				if got.State != pleg.StreamBroken || time.Until(got.NextTry) > time.Second || got.Error == "" {
					t.Errorf("after %v, with an event: %v: the stream is %+v", lasts, event, got)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if got := n.g.HealthReport().Stream; got.State != pleg.StreamConnected || !got.NextTry.IsZero() {
					t.Errorf("then the stream is %+v", got)
				}
			})
		}
	}
}

// Rule 17: a stream that is not accepted has a deadline. An accepted stream has none.
func TestRule17Deadline(t *testing.T) {
	for name, c := range map[string]struct {
		fault plegtest.Fault
		calls int
	}{
		"the first call is lost": {plegtest.Fault{Block: true, Times: 1}, 2},
		"it is slow":             {plegtest.Fault{Delay: 9 * time.Second}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				c.fault.Method = plegtest.WatchContainerEvents
				n.Inject(c.fault)
				n.start()
				time.Sleep(8 * time.Second)
				if got := n.g.HealthReport().Stream; got.State != pleg.StreamConnecting {
					t.Errorf("the stream is %+v", got)
				}
				time.Sleep(4 * time.Second)
				if got := n.g.HealthReport().Stream; got.State != pleg.StreamConnected {
					t.Errorf("the stream is %+v", got)
				}
				time.Sleep(24 * time.Hour)
				if got := n.Calls(plegtest.WatchContainerEvents); got != c.calls || n.Streams() != 1 {
					t.Errorf("%d calls, %d streams", got, n.Streams())
				}
			})
		})
	}
}

// Rule 17: a source that ignores the deadline of its stream costs one goroutine. The report shows
// the stream as broken.
func TestRule17DeadlineIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		heal := n.BlockIgnoringCancel(plegtest.WatchContainerEvents, plegtest.AnyPod)
		n.start()
		time.Sleep(10500 * time.Millisecond)
		got := n.g.HealthReport().Stream
		const late = "the stream was not accepted within 10s: context deadline exceeded"
		if got.State != pleg.StreamBroken || got.Error != late {
			t.Errorf("the stream is %+v", got)
		}
		wantMetric(t, reg, "kubelet_evented_pleg_connection_error_count", 1)
		time.Sleep(time.Hour)
		got = n.g.HealthReport().Stream
		if got.State != pleg.StreamBroken || got.Error != "the previous stream has not ended yet" {
			t.Errorf("the stream is %+v", got)
		}
		if got := n.MaxInFlight(plegtest.WatchContainerEvents); got != 1 {
			t.Errorf("%d streams at once", got)
		}
		heal()
		time.Sleep(time.Minute)
		if got := n.g.HealthReport().Stream.State; got != pleg.StreamConnected {
			t.Errorf("the stream is %s", got)
		}
	})
}

// Rule 17: the stream breaks 20 times while pods change. In the end, the subscriber has learned the
// present state, and hints work again.
func TestRule17BrokenTwentyTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.EmitOnChange(true)
		n.SetPods(pods(20)...)
		sub := n.g.Subscribe(t.Context(), pleg.WithCapacity(3))
		r := newReplay(t)
		n.start()
		for i := range 400 {
			uid := types.UID(fmt.Sprintf("pod-%05d", i%20))
			n.ExitContainer(uid, n.Pod(uid).Containers[0].ID.ID, 1, "Error")
			time.Sleep(3 * time.Millisecond)
			n.SetPod(bare(uid, plegtest.Running(fmt.Sprintf("%s-%d", uid, i))))
			time.Sleep(30 * time.Millisecond)
			switch {
			case i%20 != 0:
			case i%40 == 0:
				n.BreakEventStreams(errors.New("reset"))
			default:
				n.BreakEventStreams(nil)
			}
			for len(sub) > 0 {
				r.take(<-sub)
			}
		}
		time.Sleep(5 * time.Minute)
		for range 1000 {
			synctest.Wait()
			if len(sub) == 0 {
				break
			}
			r.take(<-sub)
		}
		r.equals(n.present())
		time.Sleep(500 * time.Millisecond)
		n.ExitContainer("pod-00001", n.Pod("pod-00001").Containers[0].ID.ID, 1, "Error")
		synctest.Wait()
		if e := <-sub; e.Cause != pleg.CauseHint {
			t.Errorf("%s because of %s", line(e), e.Cause)
		}
	})
}
