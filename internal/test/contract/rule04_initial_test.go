package contract_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Events of the first full list are Initial for earlier subscribers. Events of existing pods are
// Initial for later subscribers. All other events and every PodSync are not Initial.
func TestInitial(t *testing.T) {
	for _, started := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := newOrderlyNode(t)
			n.SetPods(plegtest.NewPod("a", plegtest.Running("a1"), plegtest.Exited("a2")), bare("b", plegtest.Created("b1")))
			watch, early := n.g.Watch(), n.g.Subscribe(t.Context(), pleg.WithCapacity(100))
			if started {
				n.start()
			}
			n.relist()
			existed := []string{"=a Started a1", "=a Died a2", "=a Started a-sandbox"}
			want(t, "Watch before Start", readNews(watch), existed...)
			want(t, "Subscribe before Start", readNews(early), existed...)
			n.ExitContainer("a", "a1", 1, "Error")
			n.SetContainer("b", "b1", pleg.ContainerStateRunning)
			n.SetPod(bare("c", plegtest.Exited("c1")))
			n.relist()
			news := []string{"a Died a1", "b Started b1", "c Died c1"}
			want(t, "changes", readNews(watch), news...)
			want(t, "changes", readNews(early), news...)
			late := n.g.Subscribe(t.Context(), pleg.WithCapacity(100))
			want(t, "Subscribe", readNews(late),
				"=a Died a1", "=a Died a2", "=a Started a-sandbox", "=b Started b1", "=c Died c1")
			n.RemovePod("c")
			n.SetPod(bare("d", plegtest.Running("d1")))
			n.relist()
			n.SetPod(bare("c", plegtest.Running("c1")))
			n.relist()
			n.g.RequestReinspect("d")
			n.relist()
			want(t, "later", readNews(late), "c Removed c1", "d Started d1", "c Started c1", "d PodSync")
			n.g.Stop()
		})
	}
}

// A subscriber that reads late is first sent the state at the beginning of its subscription, as
// Initial events, and then the later changes.
func TestInitialForSlowSubscribers(t *testing.T) {
	for name, c := range map[string]struct {
		changes []func(n *node)
		events  []string
	}{
		"nothing happens": {nil, []string{"=a Started a1", "=a Died a2", "=a Started s"}},
		"one dies, one starts, one is removed": {[]func(*node){
			func(n *node) { n.ExitContainer("a", "a1", 1, "Error") },
			func(n *node) { n.SetContainer("a", "a3", pleg.ContainerStateRunning) },
			func(n *node) { n.RemoveContainer("a", "a2") },
		}, []string{"=a Started a1", "=a Died a2", "=a Started s", "a Died a1", "a Removed a2", "a Started a3"}},
		"a sandbox is replaced": {[]func(*node){
			func(n *node) { n.SetSandbox("a", "s", pleg.ContainerStateExited) },
			func(n *node) { n.SetSandbox("a", "s2", pleg.ContainerStateRunning) },
		}, []string{"=a Started a1", "=a Died a2", "=a Started s", "a Died s", "a Started s2"}},
		"a PodSync": {[]func(*node){
			func(n *node) { n.g.RequestReinspect("a") },
			func(n *node) { n.RemoveContainer("a", "a2") },
		}, []string{"=a Started a1", "=a Died a2", "=a Started s", "a Removed a2", "a PodSync"}},
		"all is replaced": {[]func(*node){
			func(n *node) {
				n.SetPod(bare("a", plegtest.Running("a4")))
			},
		}, []string{"=a Started a1", "=a Died a2", "=a Started s",
			"a Died a1", "a Removed a1", "a Removed a2", "a Died s", "a Removed s", "a Started a4"}},
		"the pod comes back": {[]func(*node){
			func(n *node) { n.RemovePod("a") },
			func(n *node) { n.SetPod(bare("a", plegtest.Running("a1"))) },
		}, []string{"=a Started a1", "=a Died a2", "=a Started s", "a Removed a2", "a Died s", "a Removed s"}},
		"the pod goes": {[]func(*node){
			func(n *node) { n.ExitContainer("a", "a1", 1, "Error") },
			func(n *node) { n.RemovePod("a") },
		}, []string{"=a Started a1", "=a Died a2", "=a Started s",
			"a Died a1", "a Removed a1", "a Removed a2", "a Died s", "a Removed s"}},
		"another pod comes and goes": {[]func(*node){
			func(n *node) { n.SetPod(bare("b", plegtest.Running("b1"))) },
			func(n *node) { n.RemovePod("b") },
		}, []string{"=a Started a1", "=a Died a2", "=a Started s"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newOrderlyNode(t)
				pod := bare("a", plegtest.Running("a1"), plegtest.Exited("a2"))
				pod.Sandboxes = []*pleg.Container{plegtest.NewSandbox("s", pleg.ContainerStateRunning)}
				n.SetPods(bare("0", plegtest.Running("01"), plegtest.Running("02")), pod)
				early := n.g.Subscribe(t.Context(), pleg.WithCapacity(1))
				n.relist()
				late := n.g.Subscribe(t.Context(), pleg.WithCapacity(1))
				for _, change := range c.changes {
					change(n)
					n.relist()
				}
				n.start()
				for what, ch := range map[string]<-chan *pleg.PodLifecycleEvent{"early": early, "late": late} {
					var got []string
					for range 20 {
						got = append(got, readNews(ch)...)
						synctest.Wait()
					}
					want(t, what, got, append([]string{"=0 Started 01", "=0 Started 02"}, c.events...)...)
				}
			})
		})
	}
}

// A pod changes between the first full list and the pod's first inspection, and that inspection
// fails or is late. The events of the first full list are Initial, even for a subscription that
// begins after that list.
func TestInitialIsWhatTheFirstListShowed(t *testing.T) {
	for name, c := range map[string]struct {
		fault  plegtest.Fault
		opts   []pleg.Option
		events []string
	}{
		"the inspection is superseded": {
			plegtest.Fault{PodUID: "b", Delay: 300 * time.Millisecond, Stale: true}, nil,
			[]string{"=b Started b1", "=b Started b2", "b Died b1", "b Started b3"},
		},
		"it fails": {
			plegtest.Fault{PodUID: "b", Delay: 300 * time.Millisecond, Err: errors.New("broken")}, nil,
			[]string{"=b Started b1", "=b Started b2", "b Died b1", "b Started b3"},
		},
		"it hangs": {
			plegtest.Fault{PodUID: "b", Block: true}, []pleg.Option{pleg.WithRuntimeRequestTimeout(5 * time.Second)},
			[]string{"=b Started b1", "=b Started b2", "b Died b1", "b Started b3"},
		},
		"it waits for another pod's": {
			plegtest.Fault{PodUID: "a", Delay: 300 * time.Millisecond}, []pleg.Option{pleg.WithInspectionWorkers(1)},
			[]string{"=b Started b1", "=b Started b2", "b Died b1", "b Started b3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, c.opts...)
				n.SetPods(bare("a"), bare("b", plegtest.Running("b1"), plegtest.Running("b2")))
				c.fault.Method = plegtest.GetPodStatus
				defer n.Inject(c.fault)()
				before := n.g.Subscribe(t.Context(), pleg.WithCapacity(100))
				n.start()
				between := n.g.Subscribe(t.Context(), pleg.WithCapacity(100))
				time.Sleep(100 * time.Millisecond)
				n.SetContainer("b", "b1", pleg.ContainerStateExited)
				n.SetContainer("b", "b3", pleg.ContainerStateRunning)
				n.g.RequestRelist("b")
				time.Sleep(10 * time.Second)
				synctest.Wait()
				for what, ch := range map[string]<-chan *pleg.PodLifecycleEvent{"before": before, "between": between} {
					got := readNews(ch)
					for i, l := range got {
						if strings.HasSuffix(l, "PodSync") {
							got = got[:i] // the successful inspection sends a PodSync
							break
						}
					}
					want(t, what, got, c.events...)
				}
			})
		})
	}
}

// The events of a pod list before the first full list are Initial too. Later changes are not
// Initial.
func TestInitialBesideBlockedReader(t *testing.T) {
	for name, c := range map[string]struct {
		list       plegtest.Fault
		inspection time.Duration
	}{
		"inspected while the full list takes time":   {plegtest.Fault{Delay: 500 * time.Millisecond}, 0},
		"inspected when the full list has completed": {plegtest.Fault{Delay: 100 * time.Millisecond}, 400 * time.Millisecond},
		"inspected before the full list":             {plegtest.Fault{Err: errors.New("starting")}, 0},
		"inspected after the full list":              {plegtest.Fault{Err: errors.New("starting")}, 1500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(bare("a", plegtest.Running("a1")))
				c.list.Method, c.list.Times = plegtest.GetPods, 1
				defer n.Inject(c.list)()
				defer n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Delay: c.inspection, Times: 1, Stale: true})()
				events := n.g.Watch()
				n.start()
				n.g.RequestRelist("a")
				time.Sleep(50 * time.Millisecond)
				n.ExitContainer("a", "a1", 1, "Error") // the full list shows the exit
				time.Sleep(5 * time.Second)
				synctest.Wait()
				want(t, "events", readNews(events), "=a Started a1", "a Died a1")
			})
		})
	}
}

// A pod appears after the first full list, and a subscription begins while the pod is inspected.
// The pod's events are not Initial, because they were not published before the subscription began.
func TestInitialIsOnlyWhatWasPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		n.Delay(plegtest.GetPodStatus, "a", 300*time.Millisecond)
		n.SetPods(bare("a", plegtest.Running("a1")))
		time.Sleep(1100 * time.Millisecond)
		sub := n.g.Subscribe(t.Context(), pleg.WithCapacity(10))
		want(t, "at once", readNews(sub))
		time.Sleep(time.Second)
		want(t, "when it is inspected", readNews(sub), "a Started a1")
	})
}

// Many containers come and go. For a slow subscriber, the generator stores only the state when the
// subscription began and the present state.
func TestInitialIsBounded(t *testing.T) {
	if raceEnabled {
		t.Skip("counts the heap")
	}
	const size, rounds = 100_000, 50
	clk := clocktesting.NewFakeClock(epoch)
	rt := &passing{}
	g := pleg.NewGenericPLEG(rt, 100, time.Second, pleg.NewCache(), clk, pleg.WithLogger(logr.Discard()))
	replace := func(id string) {
		pod := bare("a", plegtest.Running(id))
		pod.Containers[0].Image = strings.Repeat("x", size)
		rt.pods = []*pleg.Pod{pod}
		_ = g.Relist(t.Context())
		clk.Step(2 * time.Minute) // after this, look-ups no longer find removed containers
	}
	before := heapInUse()
	for i := range rounds {
		replace(fmt.Sprint("life-", i))
		if i%(rounds/2) == 0 {
			g.Subscribe(t.Context(), pleg.WithCapacity(-1))
		}
	}
	if grown := heapInUse() - before; grown > 10*size {
		t.Errorf("%d bytes are held of %d that are gone", grown, rounds*size)
	}
	g.Stop()
}

// Rule 4: pods that come and go before the first successful full list leave nothing in a backlog.
// The events of a pod that still exists are Initial.
func TestRule4PodsThatGoBeforeTheFirstFullList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		heal := n.Inject(plegtest.Fault{Method: plegtest.GetPods, Err: errors.New("too many pods")})
		slow, fast := n.g.Subscribe(t.Context(), pleg.WithCapacity(-1)), n.g.Watch()
		n.start()
		for i := range 100 {
			uid := types.UID(fmt.Sprint("pod-", i))
			n.SetPod(bare(uid, plegtest.Running(string(uid)+"-a")))
			n.Emit(pleg.ContainerEvent{PodUID: uid})
			time.Sleep(10 * time.Millisecond)
			n.RemovePod(uid)
			n.Emit(pleg.ContainerEvent{PodUID: uid})
			time.Sleep(10 * time.Millisecond)
		}
		if events, backlog := len(readNews(fast)), n.g.HealthReport().Backlog; events != 300 || backlog > 1 {
			t.Errorf("of %d events, %d pods are in the backlog", events, backlog)
		}
		n.SetPod(bare("last", plegtest.Running("last-a")))
		n.Emit(pleg.ContainerEvent{PodUID: "last"})
		time.Sleep(time.Second)
		heal()
		time.Sleep(5 * time.Second)
		var got []string
		for range 10 {
			synctest.Wait()
			select {
			case e := <-slow:
				got = append(got, fmt.Sprint(line(e), " ", e.Initial))
			default:
			}
		}
		want(t, "events", got, "pod-0 Started pod-0-a true", "pod-0 Died pod-0-a false", "pod-0 Removed pod-0-a false",
			"last Started last-a true")
	})
}

// Rule 4: the first full list shows a container running, and an exit event reports its death before
// the pod's first inspection. The death is not Initial, even if a list confirms the exit before the
// inspection.
func TestRule4ConfirmedExitIsNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listing, pleg.WithInspectionWorkers(1))
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		events := n.g.Watch()
		defer n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, PodUID: "a", Delay: 500 * time.Millisecond, Times: 1})()
		n.start() // the first full list shows b1 running; b waits for the worker
		n.EmitExit(exitOf("b1", 3))
		n.ExitContainer("b", "b1", 3, "Error")
		time.Sleep(10 * time.Second)
		want(t, "events", readNews(events), "=a Started a1", "=b Started b1", "b Died b1")
	})
}

// Rule 4: exit events report two deaths in a pod within the first period. A slow subscriber
// subscribed before the first list. For this subscriber too, both deaths are not Initial.
func TestRule4TwoExitsAreNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listing)
		defer n.Delay(plegtest.GetPod, "a", 100*time.Millisecond)()
		// With this delay, the events of pod 0 come first, and the slow subscriber has not read
		// them yet.
		defer n.Delay(plegtest.GetPodStatus, "a", time.Millisecond)()
		n.SetPods(bare("0", plegtest.Running("01")), bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		events := n.g.Subscribe(t.Context(), pleg.WithCapacity(-1))
		n.start()
		time.Sleep(10 * time.Millisecond)
		n.EmitExit(exitOf("a1", 1))
		n.EmitExit(exitOf("a2", 2))
		synctest.Wait()
		var got []string
		for range 5 {
			e := <-events
			got = append(got, fmt.Sprintf("%s initial=%v", line(e), e.Initial))
		}
		want(t, "events", got, "0 Started 01 initial=true", "a Started a1 initial=true", "a Started a2 initial=true",
			"a Died a1 initial=false", "a Died a2 initial=false")
	})
}

// Rule 4: an exit event arrives during the first full list, which shows the container running. The
// death is not Initial, and is counted.
func TestRule4ExitBesideTheFirstList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		events := n.g.Watch()
		defer n.Inject(plegtest.Fault{Method: plegtest.GetPods, Delay: 300 * time.Millisecond, Times: 1, Stale: true})()
		n.start()
		time.Sleep(100 * time.Millisecond)
		n.EmitExit(exitOf("a1", 3))
		n.ExitContainer("a", "a1", 3, "Error")
		time.Sleep(10 * time.Second)
		want(t, "events", readNews(events), "=a Started a1", "=a Started a2", "a Died a1")
		wantExits(t, reg, "counted", map[string]float64{"Error": 1})
	})
}
