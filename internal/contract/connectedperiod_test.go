package contract_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 19: a relist period that is longer than half of the threshold would make the generator
// unhealthy between two lists.
func TestRule19LongPeriodIsHalfOfTheThreshold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPods(pods(1)...)
		g := pleg.NewGenericPLEG(
			rt.Plain(), 0, time.Hour, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		g.Start(t.Context())
		defer g.Stop()
		for range 60 {
			time.Sleep(time.Minute)
			healthy(t, g)
		}
		if got := rt.Calls(plegtest.GetPods); got < 40 || got > 41 {
			t.Errorf("%d lists in an hour", got)
		}
	})
}

// Rule 19: while the stream is connected, full lists come every connected period,
// whatever it announces or does not; without it, every ordinary one.
func TestRule19ConnectedPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, pleg.WithConnectedRelistPeriod(30*time.Second))
		n.SetPods(pods(5)...)
		listsIn := func(d time.Duration) int {
			before := n.Calls(plegtest.GetPods)
			time.Sleep(d)
			return n.Calls(plegtest.GetPods) - before
		}
		events := n.g.Watch()
		n.start()
		time.Sleep(1500 * time.Millisecond) // the connection is a hint too: one more list after a second
		if got := listsIn(10 * time.Minute); got != 20 {
			t.Errorf("%d lists in ten minutes", got)
		}
		// Announced changes keep the period.
		n.EmitOnChange(true)
		for i := range 100 {
			n.SetPod(bare("busy", plegtest.Running(fmt.Sprint(i))))
			time.Sleep(1700 * time.Millisecond)
		}
		if got := listsIn(10 * time.Minute); got != 20 {
			t.Errorf("%d lists in ten minutes after changes that were announced", got)
		}
		// One that is not announced does as well; it is found by the next list.
		read(events)
		n.EmitOnChange(false)
		n.ExitContainer("pod-00001", "pod-00001-a", 1, "Error")
		if got := listsIn(30 * time.Second); got != 1 {
			t.Errorf("%d lists in 30 s", got)
		}
		want(t, "events", read(events), "pod-00001 Died pod-00001-a")
		if got := listsIn(10 * time.Minute); got != 20 {
			t.Errorf("%d lists in ten minutes after a change that was not announced", got)
		}
		// The long period ends with the stream.
		n.SetEventMode(plegtest.EventsUnsupported)
		n.BreakStreams(errors.New("reset"))
		time.Sleep(2 * time.Second)
		if got := listsIn(time.Minute); got < 59 {
			t.Errorf("%d lists in a minute without a stream", got)
		}
	})
}

// Rule 19: the ordinary period is kept by default, and where the one that was asked
// for is shorter.
func TestRule19OrdinaryPeriod(t *testing.T) {
	for name, opts := range map[string][]pleg.Option{
		"by default": nil,
		"shorter":    {pleg.WithConnectedRelistPeriod(100 * time.Millisecond)},
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
				n := newNode(t, pleg.WithConnectedRelistPeriod(c.period))
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
				n := newNode(t, pleg.WithConnectedRelistPeriod(2*time.Minute))
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

// Rule 19: while a single-pod relist hangs, every hint about its pod has the next full
// relist within an ordinary period, not only the first one.
func TestRule19EveryHintBesideAHungPodList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, pleg.WithConnectedRelistPeriod(80*time.Second))
		n.SetPods(pods(2)...)
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(10*time.Minute + 500*time.Millisecond)
		defer n.HangIgnoringCancel(plegtest.GetPod, "pod-00000")()
		n.g.RequestRelist("pod-00000")
		time.Sleep(10 * time.Second)
		n.ExitContainer("pod-00000", "pod-00000-a", 1, "Error")
		n.Emit(pleg.ContainerEvent{PodUID: "pod-00000", ContainerID: "pod-00000-a"})
		time.Sleep(1100 * time.Millisecond)
		want(t, "events", read(events), "pod-00000 Died pod-00000-a")
	})
}

// Rule 19: what runtimes do not announce of a pod that is unsettled is found within an ordinary
// period: a start that fails (containerd), the removal of a sandbox (CRI-O).
func TestRule19UnsettledPods(t *testing.T) {
	for name, c := range map[string]struct {
		unsettle, then func(n *node)
		events         []string
	}{
		"a start fails": {
			func(n *node) { n.SetContainer("pod-00000", "new", pleg.ContainerStateCreated) },
			func(n *node) { n.ExitContainer("pod-00000", "new", 128, "StartError") },
			[]string{"pod-00000 Died new"},
		},
		"a sandbox is removed": {
			func(n *node) {
				n.ExitContainer("pod-00000", "pod-00000-a", 0, "Completed")
				n.SetSandbox("pod-00000", "pod-00000-sandbox", pleg.ContainerStateExited)
			},
			func(n *node) { n.RemovePod("pod-00000") },
			[]string{"pod-00000 Removed pod-00000-a", "pod-00000 Removed pod-00000-sandbox"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, pleg.WithConnectedRelistPeriod(80*time.Second))
				n.SetPods(pods(2)...)
				events := n.g.Watch()
				n.start()
				time.Sleep(10*time.Minute + 500*time.Millisecond)
				n.EmitOnChange(true)
				c.unsettle(n)
				time.Sleep(time.Minute + 45*time.Second)
				read(events)
				n.EmitOnChange(false)
				c.then(n)
				time.Sleep(1100 * time.Millisecond)
				want(t, "events", read(events), c.events...)
				n.ResetCalls()
				time.Sleep(80 * time.Minute)
				if got := n.Calls(plegtest.GetPods); got > 65 {
					t.Errorf("%d lists in 80 minutes after that", got)
				}
			})
		})
	}
}

// Rule 19: what stays unsettled, as the sandbox of a Job that has completed, has the ordinary
// period for five minutes.
func TestRule19UnsettledForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, pleg.WithConnectedRelistPeriod(80*time.Second))
		n.EmitOnChange(true)
		n.SetPods(pods(2)...)
		n.start()
		time.Sleep(10*time.Minute + 500*time.Millisecond)
		n.SetSandbox("pod-00000", "pod-00000-sandbox", pleg.ContainerStateExited)
		synctest.Wait()
		n.ResetCalls()
		time.Sleep(5 * time.Minute)
		if got := n.Calls(plegtest.GetPods); got < 299 {
			t.Errorf("%d lists in five minutes", got)
		}
		time.Sleep(80 * time.Second)
		for range 3 { // changes of other pods have nothing to do with it
			n.ResetCalls()
			n.SetContainer("pod-00001", "new", pleg.ContainerStateRunning)
			time.Sleep(800 * time.Second)
			n.RemoveContainer("pod-00001", "new")
			if got := n.Calls(plegtest.GetPods); got < 9 || got > 11 {
				t.Errorf("%d lists in 800 seconds", got)
			}
		}
	})
}

// Rule 19: readers that wait for times in the future have the next full list within an
// ordinary period.
func TestRule19WaitingReaders(t *testing.T) {
	for _, ahead := range []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, pleg.WithConnectedRelistPeriod(2*time.Minute))
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

// Rule 19: where no pod can be listed by itself, a blocked reader has the next full list
// within an ordinary period.
func TestRule19ReaderWithoutPodGetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listsOnly, pleg.WithConnectedRelistPeriod(80*time.Second))
		n.SetPods(pods(2)...)
		n.start()
		time.Sleep(10*time.Minute + 500*time.Millisecond)
		began := time.Now()
		if _, err := n.cache.GetNewerThan("pod-00000", began); err != nil || time.Since(began) > time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
