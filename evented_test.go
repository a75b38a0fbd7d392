package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
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

// Rule 16: an event is a hint that brings a look at once; what it says is not
// believed, and the listing decides.
func TestRule16EventsAreHintsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(500 * time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "a1"})
		synctest.Wait()
		e := <-events
		if line(e) != "a Died a1" || e.Cause != pleg.CauseHint {
			t.Errorf("got %s because of %s", line(e), e.Cause)
		}
		// Old, repeated, reordered and made-up events end in the same state.
		for range 3 {
			n.Emit(pleg.ContainerEvent{PodUID: "b", ContainerID: "b1", CreatedAt: time.Now().Add(-time.Hour)})
			n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "a1", CreatedAt: time.Now().Add(time.Hour)})
			n.Emit(pleg.ContainerEvent{PodUID: "nobody", ContainerID: "x"})
			n.Emit(pleg.ContainerEvent{})
			synctest.Wait()
		}
		want(t, "events", read(events))
	})
}

// A hint that is ahead of the list is not lost: what the first look does not show
// the second one does, long before the next relist; and there is no third.
func TestHintAheadOfTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(plegtest.NewPod("a", plegtest.Exited("a1")), bare("b"))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(500 * time.Millisecond)
		n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "a-sandbox"})
		n.Emit(pleg.ContainerEvent{PodUID: "b"})
		synctest.Wait()
		n.RemovePod("a")
		time.Sleep(60 * time.Millisecond)
		want(t, "events", read(events), "a Removed a1", "a Died a-sandbox", "a Removed a-sandbox")
		time.Sleep(time.Second)
		if got := n.PodCalls(plegtest.GetPod, "b"); got != 2 {
			t.Errorf("%d looks for one hint", got)
		}
	})
}

// Rule 16: the stream is read without ever holding the sender back, whatever
// hangs.
func TestRule16SenderIsNeverHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return &flood{Runtime: rt, events: 50000} })
		n.SetPods(pods(10)...)
		healList := n.HangDeaf(plegtest.GetPods, plegtest.AnyPod)
		healPod := n.HangDeaf(plegtest.GetPod, plegtest.AnyPod)
		n.g.Subscribe(t.Context(), 0)
		before := time.Now()
		n.start()
		if got := n.g.HealthReport().Stream; got.State != pleg.StreamConnected || !got.LastEvent.Equal(before) {
			t.Errorf("the stream is %v", got)
		}
		healList()
		healPod()
		time.Sleep(2 * time.Second)
		if got := len(n.cache.GetAll()); got != 10 {
			t.Errorf("%d pods", got)
		}
	})
}

// flood is a runtime that sends garbage as fast as it is read, and then stays.
type flood struct {
	*plegtest.Runtime
	events int
}

func (f *flood) WatchContainerEvents(ctx context.Context, connected func(), observe func(pleg.ContainerEvent)) error {
	connected()
	for i := range f.events {
		observe(pleg.ContainerEvent{PodUID: types.UID(fmt.Sprint(i)), ContainerID: fmt.Sprint(i)})
	}
	<-ctx.Done()
	return ctx.Err()
}

// Rule 17: every connection is followed by a full relist, for there is no resume.
func TestRule17ConnectionIsFollowedByFullRelist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPods(bare("pod-00000", plegtest.Running("pod-00000-a")))
		g := pleg.NewGenericPLEG(rt, 0, time.Hour, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		g.Start()
		defer g.Stop()
		events := g.Watch()
		time.Sleep(time.Second)
		read(events)
		for range 20 {
			rt.BreakStreams(errors.New("reset"))
			synctest.Wait()
			c := rt.Pod("pod-00000").Containers[0].ID.ID
			rt.SetPod(bare("pod-00000", plegtest.Running(c+"'"))) // while nobody listens
			time.Sleep(2 * time.Minute)
			if rt.Streams() != 1 {
				t.Fatal("not connected again")
			}
			want(t, "events", read(events), "pod-00000 Died "+c, "pod-00000 Removed "+c, "pod-00000 Started "+c+"'")
		}
	})
}

// Rule 17: reconnecting never ends, backs off from 1 s to 60 s with jitter, and
// begins anew after a stable minute.
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
		for i, most := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60, 60} {
			most *= time.Second
			next := <-attempts
			if wait := next.Sub(last); wait > most || wait < most*3/4 {
				t.Errorf("wait %d was %v, not up to %v", i, wait, most)
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
		broken.Store(false)
		<-attempts
		for _, c := range []struct{ lasts, least, most time.Duration }{
			{time.Minute + time.Second, 750 * time.Millisecond, time.Second},
			{10 * time.Second, 1500 * time.Millisecond, 2 * time.Second},
			{10 * time.Second, 3 * time.Second, 4 * time.Second},
			{time.Hour, 750 * time.Millisecond, time.Second},
		} {
			time.Sleep(c.lasts)
			n.BreakStreams(errors.New("reset"))
			began := time.Now()
			if wait := (<-attempts).Sub(began); wait < c.least || wait > c.most {
				t.Errorf("after a stream of %v it waited %v", c.lasts, wait)
			}
			synctest.Wait()
		}
		wantMetric(t, reg, "kubelet_evented_pleg_connection_success_count", 5)
	})
}

// Rule 17: a runtime without events is asked again slowly, however it says so.
func TestRule17Unsupported(t *testing.T) {
	for _, mode := range []plegtest.EventMode{plegtest.EventsUnsupported, plegtest.EventsEndAtOnce} {
		synctest.Test(t, func(t *testing.T) {
			n, reg := newNodeWithMetrics(t)
			n.SetEventMode(mode)
			n.SetPods(pods(1)...)
			n.start()
			time.Sleep(59 * time.Minute)
			if got := n.Calls(plegtest.WatchContainerEvents); got < 12 || got > 16 {
				t.Errorf("asked %d times in an hour", got)
			}
			if got := n.g.HealthReport().Stream; got.State != pleg.StreamUnsupported || got.NextTry.Before(time.Now()) || got.Error == "" {
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
}

// The stream broken 20 times under churn: in the end everybody knows the present,
// and hints have resumed.
func TestRule17BrokenTwentyTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.EmitOnChange(true)
		n.SetPods(pods(20)...)
		sub := n.g.Subscribe(t.Context(), 3)
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
				n.BreakStreams(errors.New("reset"))
			default:
				n.BreakStreams(nil)
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

// Rule 19: the period is longer while the stream is proven live; a change that no
// hint had announced is counted and takes that back for a while.
func TestRule19ProvenPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t, withConnectedRelistPeriod(30*time.Second))
		n.SetPods(pods(5)...)
		listsIn := func(d time.Duration) int {
			before := n.Calls(plegtest.GetPods)
			time.Sleep(d)
			return n.Calls(plegtest.GetPods) - before
		}
		n.start()
		if got := listsIn(time.Minute - time.Millisecond); got < 58 {
			t.Errorf("%d lists in the minute of proving", got)
		}
		time.Sleep(time.Minute)
		if got := listsIn(10 * time.Minute); got != 20 {
			t.Errorf("%d lists in ten minutes, proven", got)
		}
		// Announced changes take nothing back.
		n.EmitOnChange(true)
		for i := range 100 {
			n.SetPod(bare("busy", plegtest.Running(fmt.Sprint(i))))
			time.Sleep(1700 * time.Millisecond)
		}
		wantMetric(t, reg, "pleg_unannounced_changes_total", 0)
		if got := listsIn(10 * time.Minute); got != 20 {
			t.Errorf("%d lists in ten minutes, proven", got)
		}
		// One that is not does.
		n.EmitOnChange(false)
		n.ExitContainer("pod-00001", "pod-00001-a", 1, "Error")
		for changed := time.Now(); metric(t, reg, "pleg_unannounced_changes_total") != 1; time.Sleep(100 * time.Millisecond) {
			if time.Since(changed) > 32*time.Second {
				t.Fatal("not counted")
			}
		}
		if got := listsIn(50 * time.Second); got < 49 {
			t.Errorf("%d lists in 50 s, unproven", got)
		}
		time.Sleep(time.Minute)
		if got := listsIn(10 * time.Minute); got != 20 {
			t.Errorf("%d lists in ten minutes, proven anew", got)
		}
		// Nor does the long period outlive the stream.
		n.SetEventMode(plegtest.EventsUnsupported)
		n.BreakStreams(errors.New("reset"))
		time.Sleep(2 * time.Second)
		if got := listsIn(time.Minute); got < 59 {
			t.Errorf("%d lists in a minute without a stream", got)
		}
	})
}

// Idle, the stream costs no calls.
func TestIdleStreamCostsNoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lists [2]int
		for i, opt := range []pleg.Option{pleg.WithPollingOnly(), pleg.WithRelistThreshold(0)} {
			n := newNode(t, opt)
			n.SetPods(pods(50)...)
			n.g.Start()
			time.Sleep(10500 * time.Millisecond)
			n.ResetCalls()
			time.Sleep(10 * time.Minute)
			lists[i] = n.Calls(plegtest.GetPods)
			if got := n.Calls(plegtest.GetPod) + n.Calls(plegtest.GetPodStatus); got != 0 {
				t.Errorf("%d other calls", got)
			}
			n.g.Stop()
		}
		if lists[0] != lists[1] {
			t.Errorf("%d lists without the stream, %d with it", lists[0], lists[1])
		}
	})
}

// A container that came and went between two looks is known only from its events:
// the pod gets a PodSync, once, and a counter counts it.
func TestUnseenContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(500 * time.Millisecond)
		for range 4 { // created, started, stopped, deleted
			n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "shortlived"})
		}
		n.Emit(pleg.ContainerEvent{PodUID: "gone", ContainerID: "shortlived too"})
		synctest.Wait()
		want(t, "events", read(events), "a PodSync")
		wantMetric(t, reg, "pleg_unseen_containers_total", 2)
		n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "shortlived"})
		// What was listed and is removed is not unseen, however late its events.
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		time.Sleep(time.Second)
		n.RemoveContainer("a", "a2")
		time.Sleep(time.Second)
		n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "a2"})
		synctest.Wait()
		want(t, "events", read(events), "a Started a2", "a Died a2", "a Removed a2")
		wantMetric(t, reg, "pleg_unseen_containers_total", 2)
		if s, err := n.cache.Get("a"); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("a status was made up: %v %v", s, err)
		}
	})
}

// Stop ends the stream in every state that it can be in.
func TestStopInEveryStateOfTheStream(t *testing.T) {
	for name, prepare := range map[string]func(n *node){
		"connected":   func(*node) {},
		"connecting":  func(n *node) { n.Hang(plegtest.WatchContainerEvents, plegtest.AnyPod) },
		"broken":      func(n *node) { n.Fail(plegtest.WatchContainerEvents, plegtest.AnyPod, errors.New("refused")) },
		"unsupported": func(n *node) { n.SetEventMode(plegtest.EventsUnsupported) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				prepare(n)
				n.g.Start()
				synctest.Wait()
				if got := n.g.HealthReport().Stream.State; string(got) != name {
					t.Errorf("the stream is %s", got)
				}
				before := time.Now()
				n.g.Stop()
				if time.Since(before) > 0 {
					t.Errorf("Stop took %v", time.Since(before))
				}
				if got := n.g.HealthReport().Stream.State; got != pleg.StreamOff {
					t.Errorf("the stream is %s", got)
				}
				if got := n.Streams(); got != 0 {
					t.Errorf("%d streams left", got)
				}
			})
		})
	}
}

// A stream that does not heed its context is left behind by Stop, and no second
// one is opened beside it.
func TestDeafStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		heal := n.HangDeaf(plegtest.WatchContainerEvents, plegtest.AnyPod)
		n.g.Start()
		synctest.Wait()
		n.g.Stop()
		n.g.Start()
		time.Sleep(10 * time.Minute)
		if got := n.MaxInFlight(plegtest.WatchContainerEvents); got != 1 {
			t.Errorf("%d streams at once", got)
		}
		heal()
		time.Sleep(2 * time.Minute)
		if got := n.g.HealthReport().Stream.State; got != pleg.StreamConnected {
			t.Errorf("the stream is %s", got)
		}
		n.g.Stop()
	})
}

// Rule 16: a hint makes nothing fresh; the look that it brings does. And a pod that
// is not there has one second look, no more.
func TestRule16HintMakesNothingFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(500 * time.Millisecond)
		minTime := time.Now()
		time.Sleep(time.Millisecond)
		n.Delay(plegtest.GetPod, "a", 100*time.Millisecond)
		n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "a1", CreatedAt: time.Now().Add(time.Hour)})
		n.Emit(pleg.ContainerEvent{PodUID: "nobody", ContainerID: "x"})
		synctest.Wait()
		if fresh(n.cache, "a", minTime) {
			t.Error("the hint made it fresh")
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if !fresh(n.cache, "a", minTime) {
			t.Error("the look did not make it fresh")
		}
		time.Sleep(300 * time.Millisecond)
		if got := n.PodCalls(plegtest.GetPod, "nobody"); got != 2 {
			t.Errorf("%d looks at a pod that is not there", got)
		}
	})
}

// Rules 16 and 17: a hint that is ahead of the list, of a pod that no listing has
// shown yet, is not lost: the pod is looked at once more. Full relists are far
// apart meanwhile.
func TestRule16HintAheadOfANewPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, withConnectedRelistPeriod(80*time.Second))
		n.SetPods(pods(2)...)
		n.start()
		time.Sleep(10*time.Minute + 500*time.Millisecond)
		events := n.g.Watch()
		read(events)
		lists := n.Calls(plegtest.GetPods)
		hinted := time.Now()
		n.Emit(pleg.ContainerEvent{PodUID: "new", ContainerID: "c"})
		time.Sleep(10 * time.Millisecond)
		n.SetPod(bare("new", plegtest.Running("c")))
		if e := <-events; line(e) != "new Started c" || time.Since(hinted) > 60*time.Millisecond {
			t.Errorf("%s after %v", line(e), time.Since(hinted))
		}
		if got := n.Calls(plegtest.GetPods) - lists; got != 0 {
			t.Errorf("%d lists of the whole node", got)
		}
	})
}

// Rules 16 and 19: a hint that is ahead of the list loses nothing, whatever becomes
// of the look that it brings, although full relists are far apart.
func TestRule16HintAheadWhilePeriodIsLong(t *testing.T) {
	asItIs := func(rt *plegtest.Runtime) pleg.Runtime { return rt }
	sandboxGoes := func(n *node, count int) {
		for i := range count {
			uid := fmt.Sprintf("pod-%05d", i)
			n.Emit(pleg.ContainerEvent{PodUID: types.UID(uid), ContainerID: uid + "-sandbox"})
		}
	}
	for name, c := range map[string]struct {
		wrap func(*plegtest.Runtime) pleg.Runtime
		pods int
		hint func(n *node)
	}{
		"some":                            {asItIs, 8, func(n *node) { sandboxGoes(n, 8) }},
		"so many that the node is listed": {asItIs, 9, func(n *node) { sandboxGoes(n, 9) }},
		"where the node is always listed": {listsOnly, 1, func(n *node) { sandboxGoes(n, 1) }},
		"together with a change": {asItIs, 1, func(n *node) {
			n.ExitContainer("pod-00000", "pod-00000-a", 0, "")
			n.Emit(pleg.ContainerEvent{PodUID: "pod-00000", ContainerID: "pod-00000-a"})
			sandboxGoes(n, 1)
		}},
		"outrun by a list": {asItIs, 1, func(n *node) {
			n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 1, Delay: 5 * time.Millisecond, Stale: true})
			sandboxGoes(n, 1)
			time.Sleep(time.Millisecond)
			n.g.Relist()
		}},
		"whose list is taken by a Relist": {listsOnly, 1, func(n *node) {
			n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Delay: 20 * time.Millisecond})
			go n.g.Relist()
			time.Sleep(5 * time.Millisecond)
			sandboxGoes(n, 1)
			n.g.Relist()
			time.Sleep(20 * time.Millisecond)
		}},
		"whose list was asked for before": {listsOnly, 1, func(n *node) {
			n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Delay: 20 * time.Millisecond})
			n.g.RequestRelist("pod-00001")
			time.Sleep(5 * time.Millisecond)
			n.g.RequestRelist("pod-00001")
			time.Sleep(time.Millisecond)
			sandboxGoes(n, 1)
			time.Sleep(60 * time.Millisecond)
		}},
		"whose look is asked for once more": {asItIs, 1, func(n *node) {
			n.Inject(plegtest.Fault{Method: plegtest.GetPod, Times: 1, Delay: 20 * time.Millisecond, Stale: true})
			n.g.RequestRelist("pod-00000")
			time.Sleep(5 * time.Millisecond)
			sandboxGoes(n, 1)
			time.Sleep(5 * time.Millisecond)
			n.g.RequestRelist("pod-00000")
			time.Sleep(15 * time.Millisecond)
		}},
		"and a second one that is ahead too": {asItIs, 1, func(n *node) {
			sandboxGoes(n, 1)
			time.Sleep(30 * time.Millisecond)
			sandboxGoes(n, 1)
			time.Sleep(25 * time.Millisecond)
		}},
		"with a reader of a time to come": {asItIs, 1, func(n *node) {
			go func() { _, _ = n.cache.GetNewerThan("pod-00000", time.Now().Add(20*time.Millisecond)) }()
			time.Sleep(time.Millisecond)
			sandboxGoes(n, 1)
			time.Sleep(29 * time.Millisecond)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNodeOf(t, c.wrap, withConnectedRelistPeriod(80*time.Second))
				n.SetPods(pods(20)...)
				n.start()
				time.Sleep(10*time.Minute + 500*time.Millisecond)
				c.hint(n)
				time.Sleep(10 * time.Millisecond)
				for _, p := range pods(c.pods) {
					n.RemovePod(p.ID)
				}
				time.Sleep(1100 * time.Millisecond)
				if got := n.g.HealthReport().Pods; got != 20-c.pods {
					t.Errorf("%d pods are known", got)
				}
			})
		})
	}
}

// Rule 19: while a look at a pod hangs, whatever else is told of the pod has the next
// full relist soon, not only the first time.
func TestRule19EveryHintBesideAHungLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, withConnectedRelistPeriod(80*time.Second))
		n.SetPods(pods(2)...)
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(10*time.Minute + 500*time.Millisecond)
		defer n.HangDeaf(plegtest.GetPod, "pod-00000")()
		n.g.RequestRelist("pod-00000")
		time.Sleep(10 * time.Second)
		n.ExitContainer("pod-00000", "pod-00000-a", 1, "Error")
		n.Emit(pleg.ContainerEvent{PodUID: "pod-00000", ContainerID: "pod-00000-a"})
		time.Sleep(1100 * time.Millisecond)
		want(t, "events", read(events), "pod-00000 Died pod-00000-a")
	})
}

// Rule 16: while no list lands, what is kept of hints is bounded.
func TestRule16HintsWhileListsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(1)...)
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(2500 * time.Millisecond)
		heal := n.HangDeaf(plegtest.GetPods, plegtest.AnyPod)
		defer n.HangDeaf(plegtest.GetPod, plegtest.AnyPod)()
		time.Sleep(time.Second)
		before := heapInUse()
		for i := range 100_000 {
			n.Emit(pleg.ContainerEvent{PodUID: types.UID(fmt.Sprintf("made-up-%d", i)), ContainerID: "x"})
			if i%1000 == 0 {
				synctest.Wait()
			}
		}
		if grown := heapInUse() - before; grown > 16<<20 {
			t.Errorf("the heap has grown by %d MiB", grown>>20)
		}
		n.ExitContainer("pod-00000", "pod-00000-a", 1, "Error")
		heal()
		time.Sleep(2 * time.Second)
		want(t, "events", read(events), "pod-00000 Died pod-00000-a")
	})
}

func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // a heap is not that large
}

// Rule 19: where no pod can be listed by itself, a reader has the ordinary period
// back.
func TestRule19ReaderWithoutPodGetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listsOnly, withConnectedRelistPeriod(80*time.Second))
		n.SetPods(pods(2)...)
		n.start()
		time.Sleep(10*time.Minute + 500*time.Millisecond)
		began := time.Now()
		if _, err := n.cache.GetNewerThan("pod-00000", began); err != nil || time.Since(began) > time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// Rule 2: the PodSyncs that one relist brings come by UID.
func TestRule2PodSyncsAreSorted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listsOnly)
		n.SetPods(pods(12)...)
		n.start()
		time.Sleep(2500 * time.Millisecond)
		events := n.g.Watch()
		read(events)
		n.Delay(plegtest.GetPods, plegtest.AnyPod, 100*time.Millisecond)
		time.Sleep(550 * time.Millisecond) // a list is under way, and the next one is for all of them
		for i := range 12 {
			n.Emit(pleg.ContainerEvent{PodUID: types.UID(fmt.Sprintf("pod-%05d", i)), ContainerID: fmt.Sprintf("short-%d", i)})
		}
		time.Sleep(400 * time.Millisecond)
		if got := read(events); len(got) != 12 || !slices.IsSorted(got) {
			t.Errorf("got %q", got)
		}
	})
}

// Rule 16: past what can be kept of hints, one full relist stands for all.
func TestRule16TooManyHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		gate := make(chan struct{})
		var busy atomic.Bool
		cache := &slowCache{pleg.NewCache(), func() {
			if busy.Load() {
				<-gate
			}
		}}
		g := pleg.NewGenericPLEG(rt, 0, time.Hour, cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		events := g.Watch()
		g.Start()
		defer g.Stop()
		time.Sleep(time.Minute)
		read(events)
		lists := rt.Calls(plegtest.GetPods)
		busy.Store(true)
		rt.Emit(pleg.ContainerEvent{ContainerID: "unknown"}) // a list, which keeps the loop busy
		synctest.Wait()
		for i := range 10000 {
			rt.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: fmt.Sprint(i)})
		}
		synctest.Wait()
		rt.ExitContainer("b", "b1", 1, "Error")
		rt.Emit(pleg.ContainerEvent{PodUID: "b", ContainerID: "b1"})
		synctest.Wait()
		close(gate)
		time.Sleep(time.Minute)
		if got := read(events); !slices.Contains(got, "b Died b1") {
			t.Errorf("got %v", got)
		}
		if got := rt.Calls(plegtest.GetPods) - lists; got != 2 {
			t.Errorf("%d lists", got)
		}
	})
}

// Rule 19: a hint announces what follows it closely, not what comes much later.
func TestRule19OldHintAnnouncesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(3100 * time.Millisecond)
		n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "a1"})
		time.Sleep(2400 * time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		time.Sleep(5 * time.Second)
		wantMetric(t, reg, "pleg_unannounced_changes_total", 1)
	})
}

// odd is an event source that says too much, at the wrong time.
type odd struct {
	*plegtest.Runtime
	late    bool // nothing before it was stopped
	stopped chan struct{}
}

func (o odd) WatchContainerEvents(_ context.Context, connected func(), observe func(pleg.ContainerEvent)) error {
	if !o.late {
		connected()
		connected()
		observe(pleg.ContainerEvent{PodUID: "a", CreatedAt: time.Now().Add(time.Hour)})
	}
	<-o.stopped
	connected()
	observe(pleg.ContainerEvent{PodUID: "a"})
	return nil
}

// Rule 16: what a stream says after it was given up is not heard, and a connection
// that is announced twice is one.
func TestRule16OddSource(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			stopped := make(chan struct{})
			n, reg := newNodeWithMetricsOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return odd{rt, late, stopped} })
			n.g.Start()
			synctest.Wait()
			if !late {
				wantMetric(t, reg, "kubelet_evented_pleg_connection_success_count", 1)
			}
			heard := n.g.HealthReport().Stream.LastEvent
			n.g.Stop()
			time.Sleep(time.Second)
			close(stopped)
			synctest.Wait()
			if got := n.g.HealthReport().Stream; got.State != pleg.StreamOff || !got.LastEvent.Equal(heard) {
				t.Errorf("the stream is %+v", got)
			}
		})
	}
}

// Rule 17: a runtime that had no events, and has them now, is not made to wait for
// what was before.
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

// Rule 17: a stream that ends without a word of why is switched off only if it
// was short and brought nothing.
func TestRule17EndWithoutAnError(t *testing.T) {
	for _, c := range []struct {
		lasts time.Duration
		event bool
		state pleg.StreamState
	}{
		{0, false, pleg.StreamUnsupported},
		{0, true, pleg.StreamBroken},
		{10 * time.Second, false, pleg.StreamUnsupported},
		{10 * time.Second, true, pleg.StreamBroken},
		{time.Hour, false, pleg.StreamBroken},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.start()
			if c.event {
				n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "a1"})
			}
			time.Sleep(c.lasts)
			synctest.Wait()
			n.BreakStreams(nil)
			synctest.Wait()
			if got := n.g.HealthReport().Stream; got.State != c.state || got.NextTry.IsZero() {
				t.Errorf("after %v, with an event: %v: the stream is %+v", c.lasts, c.event, got)
			}
			defer n.Hang(plegtest.WatchContainerEvents, plegtest.AnyPod)()
			time.Sleep(10 * time.Minute)
			if got := n.g.HealthReport().Stream; got.State != pleg.StreamConnecting || !got.NextTry.IsZero() {
				t.Errorf("then the stream is %+v", got)
			}
		})
	}
}

// Rule 19: which hints announce a change that a full relist finds.
func TestRule19WhatAnnouncesAChange(t *testing.T) {
	for name, c := range map[string]struct {
		wrap        func(*plegtest.Runtime) pleg.Runtime
		happens     func(n *node) // from 3.5 s on
		unannounced float64
	}{
		"nothing": {nil, func(n *node) {
			n.ExitContainer("a", "a1", 1, "")
		}, 1},
		"a hint a little later": {nil, func(n *node) {
			n.ExitContainer("a", "a1", 1, "")
			time.Sleep(600 * time.Millisecond) // the list of 4 s has shown it
			n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "a1"})
		}, 0},
		"a hint a little before": {nil, func(n *node) {
			time.Sleep(400 * time.Millisecond)
			n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "a1"})
			time.Sleep(600 * time.Millisecond) // the list of 4 s has not shown it
			n.ExitContainer("a", "a1", 1, "")
		}, 0},
		"a hint that brings the list": {listsOnly, func(n *node) {
			n.EmitOnChange(true)
			n.ExitContainer("a", "a1", 1, "")
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wrap := c.wrap
				if wrap == nil {
					wrap = func(rt *plegtest.Runtime) pleg.Runtime { return rt }
				}
				n, reg := newNodeWithMetricsOf(t, wrap)
				n.SetPods(bare("a", plegtest.Running("a1")))
				n.start()
				time.Sleep(3500 * time.Millisecond)
				c.happens(n)
				time.Sleep(10 * time.Second)
				wantMetric(t, reg, "pleg_unannounced_changes_total", c.unannounced)
			})
		})
	}
}

// A container that a listing shows is not unseen, also when the listing before the
// hint's own did not show it yet; without GetPod the full listing tells.
func TestSeenAndUnseenContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(100 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPod, Stale: true, Delay: 100 * time.Millisecond, Times: 1})
		n.g.RequestRelist("a")
		synctest.Wait()
		n.EmitOnChange(true)
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		time.Sleep(3 * time.Second)
		want(t, "events", read(events), "a Started a2")
		wantMetric(t, reg, "pleg_unseen_containers_total", 0)
	})
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listsOnly)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(100 * time.Millisecond)
		n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "shortlived"})
		time.Sleep(3 * time.Second)
		want(t, "events", read(events), "a PodSync")
	})
}

// Rule 3: the PodSync for an unseen container waits for the inspection that its
// pod is waiting for.
func TestRule3PodSyncWaitsForTheInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(100 * time.Millisecond)
		n.Delay(plegtest.GetPodStatus, "a", 100*time.Millisecond)
		n.ExitContainer("a", "a1", 1, "")
		n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "shortlived"}) // with the change
		synctest.Wait()
		want(t, "before", read(events))
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		want(t, "after", read(events), "a Died a1", "a PodSync")
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		time.Sleep(50 * time.Millisecond)
		n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "shortlived too"}) // during the inspection
		synctest.Wait()
		want(t, "before", read(events))
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		want(t, "after", read(events), "a Started a2", "a PodSync")
		n.SetContainer("a", "a2", pleg.ContainerStateExited)
		n.g.RequestRelist("a")
		time.Sleep(50 * time.Millisecond)
		n.SetContainer("a", "a3", pleg.ContainerStateRunning)
		n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: "shortlived again"}) // with the next change
		time.Sleep(60 * time.Millisecond)
		want(t, "with the first inspection", read(events), "a Died a2")
		time.Sleep(100 * time.Millisecond)
		want(t, "with the second", read(events), "a Started a3", "a PodSync")
	})
}

// Late events about containers that are known to be gone are no news, however many
// went with them.
func TestManyRemovedContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		list := make([]*pleg.Container, 4100)
		for i := range list {
			list[i] = plegtest.Running(fmt.Sprint(i))
		}
		n.SetPods(bare("a", list...))
		n.start()
		n.SetPods(bare("a"))
		time.Sleep(1500 * time.Millisecond)
		for i := range list {
			n.Emit(pleg.ContainerEvent{PodUID: "a", ContainerID: fmt.Sprint(i)})
		}
		time.Sleep(time.Second)
		wantMetric(t, reg, "pleg_unseen_containers_total", 0)
	})
}

// Rule 19: and for readers that wait for a time to come.
func TestRule19WaitingReaders(t *testing.T) {
	for _, ahead := range []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, withConnectedRelistPeriod(2*time.Minute))
			n.SetPods(pods(2)...)
			n.start()
			time.Sleep(10*time.Minute + time.Second)
			at := time.Now()
			done := make(chan struct{}, 2)
			go func() { _, _ = n.cache.GetNewerThan("pod-00000", at.Add(10*time.Millisecond)); done <- struct{}{} }()
			synctest.Wait()
			go func() { _, _ = n.cache.GetNewerThan("pod-00000", at.Add(ahead)); done <- struct{}{} }()
			<-done
			<-done
			if d := time.Since(at); d > 4*time.Second {
				t.Errorf("%v ahead: answered after %v", ahead, d)
			}
		})
	}
}

// Rule 19: the ordinary period is kept by default, and where the one that was asked
// for is shorter.
func TestRule19OrdinaryPeriod(t *testing.T) {
	for name, opts := range map[string][]pleg.Option{
		"by default": nil,
		"shorter":    {withConnectedRelistPeriod(100 * time.Millisecond)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, opts...)
				n.SetPods(pods(5)...)
				n.start()
				time.Sleep(time.Hour)
				if got := n.Calls(plegtest.GetPods); got < 3600 || got > 3602 {
					t.Errorf("%d lists in an hour", got)
				}
			})
		})
	}
}

// Rule 19: the node stays healthy at any period that is asked for. A list that fails
// is made again after an ordinary period.
func TestRule19LongPeriodKeepsTheNodeHealthy(t *testing.T) {
	for name, c := range map[string]struct {
		period time.Duration
		fails  bool // one list, after ten minutes
	}{
		"a list fails":                       {2 * time.Minute, true},
		"a period longer than the threshold": {5 * time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, withConnectedRelistPeriod(c.period))
				n.SetPods(pods(2)...)
				n.start()
				for second := range 1200 {
					if c.fails && second == 600 {
						n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Err: errors.New("once")})
					}
					time.Sleep(time.Second)
					healthy(t, n.g)
				}
			})
		})
	}
}

// Rule 19: where a single-pod relist fails or hangs, a full relist follows within an
// ordinary period.
func TestRule19PodListFails(t *testing.T) {
	for name, fault := range map[string]plegtest.Fault{
		"with an error": {Method: plegtest.GetPod, Times: 1, Err: errors.New("once")},
		"by hanging":    {Method: plegtest.GetPod, Times: 1, Hang: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, withConnectedRelistPeriod(2*time.Minute))
				n.SetPods(pods(2)...)
				n.EmitOnChange(true)
				n.start()
				time.Sleep(10 * time.Minute)
				events := n.g.Watch()
				synctest.Wait()
				read(events)
				n.Inject(fault)
				changed := time.Now()
				n.ExitContainer("pod-00000", "pod-00000-a", 1, "Error")
				<-events
				if d := time.Since(changed); d > 2*time.Second {
					t.Errorf("delivered after %v", d)
				}
			})
		})
	}
}
