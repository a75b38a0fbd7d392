package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 12: of 50 changed pods some hang for ever and do not heed their context.
// The others are delivered and readable within one period, the node stays
// healthy, and the report names those that hang.
func TestRule12HungPodsDelayNobody(t *testing.T) {
	for _, hung := range []int{1, 3, 20} {
		t.Run(fmt.Sprint(hung), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNodeOf(t, polling)
				n.SetPods(pods(50)...)
				events := n.g.Watch()
				n.start()
				read(events)
				for i := range hung {
					defer n.HangDeaf(plegtest.GetPodStatus, types.UID(fmt.Sprintf("pod-%05d", i*2)))()
				}
				// Those that hang take the workers for a period each, eight at a time.
				patience := pleg.DefaultRelistPeriod * time.Duration(1+hung/pleg.DefaultInspectionWorkers)
				for i := range 50 {
					uid := types.UID(fmt.Sprintf("pod-%05d", i))
					n.ExitContainer(uid, string(uid)+"-a", 7, "Error")
				}
				changed := time.Now()
				listed := changed.Add(pleg.DefaultRelistPeriod)
				readers := make(chan time.Time, 50)
				for i := range 50 {
					uid := types.UID(fmt.Sprintf("pod-%05d", i))
					if i%2 == 0 && i/2 < hung {
						continue
					}
					go func() {
						s, err := n.cache.GetNewerThan(uid, changed)
						if err != nil || s.ContainerStatuses[0].ExitCode != 7 {
							t.Errorf("%s: %v %v", uid, s, err)
						}
						readers <- time.Now()
					}()
				}
				for range 50 - hung {
					if got := <-readers; got.After(listed.Add(patience)) {
						t.Errorf("a reader waited until %v after the listing", got.Sub(listed))
					}
				}
				// Subscribers hear of them within the same time and the patience.
				time.Sleep(pleg.DefaultRelistPeriod / 20)
				synctest.Wait()
				if got := len(read(events)); got != 50-hung {
					t.Errorf("%d pods delivered", got)
				}
				for range 60 {
					time.Sleep(10 * time.Second)
					if ok, err := n.g.Healthy(); !ok {
						t.Fatal(err)
					}
				}
				report := n.g.HealthReport()
				if len(report.Troubled) != hung || report.Troubled[0].PodUID != "pod-00000" || report.Troubled[0].HangingSince.IsZero() {
					t.Errorf("the report has %v", report.Troubled)
				}
				// Past its deadline a pod that hangs is told of all the same, with
				// the error in the cache.
				if got := len(read(events)); got != hung {
					t.Errorf("%d of the hung pods delivered", got)
				}
				if _, err := n.cache.Get("pod-00000"); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the error is %v", err)
				}
				if got := n.InFlight(plegtest.GetPodStatus); got != hung {
					t.Errorf("%d calls in flight for %d pods", got, hung)
				}
			})
		})
	}
}

// Rule 12: there are never more inspections at once than workers, nor more than
// one of a pod, but for those that have been set aside.
func TestRule12Bounds(t *testing.T) {
	for _, workers := range []int{1, 3, 8} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, pleg.WithInspectionWorkers(workers))
			n.SetPods(pods(60)...)
			n.Delay(plegtest.GetPodStatus, plegtest.AnyPod, 100*time.Millisecond)
			n.start()
			for i := range 100 {
				uid := types.UID(fmt.Sprintf("pod-%05d", i%7))
				n.SetPod(bare(uid, plegtest.Running(fmt.Sprint(i))))
				n.g.RequestRelist(uid)
				n.g.RequestReinspect(uid)
				time.Sleep(30 * time.Millisecond)
			}
			time.Sleep(time.Minute)
			if got := n.MaxInFlight(plegtest.GetPodStatus); got != workers {
				t.Errorf("%d inspections at once, %d workers", got, workers)
			}
			for i := range 60 {
				uid := types.UID(fmt.Sprintf("pod-%05d", i))
				if got := n.MaxPodInFlight(plegtest.GetPodStatus, uid); got != 1 {
					t.Errorf("%d inspections of %s at once", got, uid)
				}
			}
		})
	}
}

// Rule 12: a runtime that heeds its context is let go at the deadline, and the
// pod is inspected again.
func TestRule12Deadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling, pleg.WithInspectionTimeout(10*time.Second))
		n.SetPods(pods(2)...)
		heal := n.Hang(plegtest.GetPodStatus, "pod-00000")
		n.start()
		time.Sleep(10*time.Second + time.Millisecond)
		if _, err := n.cache.Get("pod-00000"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error is %v", err)
		}
		if got := n.InFlight(plegtest.GetPodStatus); got != 0 {
			t.Errorf("%d calls in flight", got)
		}
		heal()
		time.Sleep(time.Second)
		if s, err := n.cache.Get("pod-00000"); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("not inspected again: %v %v", s, err)
		}
	})
}

// Rule 8: a failing inspection is told of, retried with a back-off that doubles
// to a minute, and forgiven.
func TestRule8RetriesWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		var mu sync.Mutex
		var attempts []time.Duration // guarded by mu
		attempted := func() []time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(attempts)
		}
		failing := time.Now().Add(time.Second)
		heal := n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Do: func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			attempts = append(attempts, time.Since(failing))
			return errors.New("broken")
		}})
		n.ExitContainer("a", "a1", 3, "Error")
		time.Sleep(1500 * time.Millisecond)
		want(t, "events come from the list", read(events), "a Died a1")
		if s, err := n.cache.Get("a"); err == nil || s.ContainerStatuses[0].State != pleg.ContainerStateRunning {
			t.Errorf("not the last good status beside the error: %v %v", s, err)
		}
		time.Sleep(5 * time.Minute)
		s := time.Second
		if got := attempted(); !slices.Equal(got[:9], []time.Duration{0, s, 3 * s, 7 * s, 15 * s, 31 * s, 63 * s, 123 * s, 183 * s}) {
			t.Errorf("attempts after %v", got)
		}
		// A change is looked at at once, whatever the back-off.
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		before := len(attempted())
		time.Sleep(1100 * time.Millisecond)
		if len(attempted()) == before {
			t.Error("a change waited for the back-off")
		}
		heal()
		time.Sleep(time.Minute)
		if s, err := n.cache.Get("a"); err != nil || s.ContainerStatuses[0].ExitCode != 3 {
			t.Errorf("not forgiven: %v %v", s, err)
		}
		want(t, "the change, and the recovery", read(events), "a Started a2", "a PodSync")
		if got := n.g.HealthReport().Troubled; len(got) != 0 {
			t.Errorf("still troubled: %v", got)
		}
	})
}

// Rule 9: what the runtime no longer lists is gone: from the cache, for
// subscribers, for readers, and its inspection is given up.
func TestRule9GonePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1")))
		events := n.g.Watch()
		n.start()
		read(events)
		heal := n.HangDeaf(plegtest.GetPodStatus, "b")
		n.ExitContainer("b", "b1", 0, "Completed")
		time.Sleep(1500 * time.Millisecond)
		n.SetPods()
		before := time.Now()
		time.Sleep(time.Second)
		synctest.Wait()
		want(t, "events", read(events), "a Died a1", "a Removed a1", "b Died b1", "b Removed b1")
		for _, uid := range []types.UID{"a", "b"} {
			if s, err := n.cache.GetNewerThan(uid, before); err != nil || s.Name != "" || s.ID != uid {
				t.Errorf("%s: %v %v", uid, s, err)
			}
		}
		heal()
		synctest.Wait()
		if got := n.cache.GetAll(); len(got) != 0 {
			t.Errorf("a late inspection brought it back: %v", got)
		}
		want(t, "events", read(events))
	})
}

// A pod that comes back under its UID while the inspection of its former life
// hangs is told of as it is now.
func TestPodComesBackWhileItsInspectionHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		heal := n.HangDeaf(plegtest.GetPodStatus, "a")
		n.start()
		time.Sleep(1500 * time.Millisecond)
		n.SetPods()
		time.Sleep(time.Second)
		n.SetPods(bare("a", plegtest.Running("a2")))
		time.Sleep(time.Second)
		want(t, "while it hangs", read(events))
		heal()
		synctest.Wait()
		want(t, "then", read(events), "a Started a2")
	})
}

// Rule 11: the addresses of a pod whose network is torn down stay; those of a new
// sandbox are its own.
func TestRule11LastIPsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		sandbox := func(state runtimeapi.PodSandboxState) *runtimeapi.PodSandboxStatus {
			return &runtimeapi.PodSandboxStatus{Id: "s", State: state}
		}
		ready, down := sandbox(runtimeapi.PodSandboxState_SANDBOX_READY), sandbox(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
		for i, step := range []struct {
			ips       []string
			sandboxes []*runtimeapi.PodSandboxStatus
			want      []string
		}{
			{nil, []*runtimeapi.PodSandboxStatus{ready}, nil},
			{[]string{"10.0.0.1", "fd00::1"}, []*runtimeapi.PodSandboxStatus{ready}, []string{"10.0.0.1", "fd00::1"}},
			{nil, []*runtimeapi.PodSandboxStatus{down}, []string{"10.0.0.1", "fd00::1"}},
			{nil, nil, []string{"10.0.0.1", "fd00::1"}},
			{nil, []*runtimeapi.PodSandboxStatus{ready, down}, nil},
			{[]string{"10.0.0.2"}, []*runtimeapi.PodSandboxStatus{ready, down}, []string{"10.0.0.2"}},
			{nil, []*runtimeapi.PodSandboxStatus{down, down}, []string{"10.0.0.2"}},
			{[]string{"10.0.0.3"}, []*runtimeapi.PodSandboxStatus{down}, []string{"10.0.0.3"}},
		} {
			given := &pleg.PodStatus{ID: "a", IPs: step.ips, SandboxStatuses: step.sandboxes}
			n.SetStatus("a", given)
			n.g.RequestReinspect("a")
			n.g.Relist()
			if s, err := n.cache.Get("a"); err != nil || !slices.Equal(s.IPs, step.want) {
				t.Errorf("step %d: %v %v, not %v", i, s.IPs, err, step.want)
			}
			if !slices.Equal(given.IPs, step.ips) || !given.TimeStamp.IsZero() {
				t.Errorf("step %d: the status that was handed over was modified", i)
			}
		}
	})
}

// Rule 3: an inspection that the next change has outrun still brings its status
// before its events.
func TestRule3OutrunStatusIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(500 * time.Millisecond)
		n.Delay(plegtest.GetPodStatus, "a", 100*time.Millisecond)
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		time.Sleep(50 * time.Millisecond)
		n.SetContainer("a", "a3", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		for _, id := range []string{"a2", "a3"} {
			e := <-events
			status, err := n.cache.Get("a")
			if line(e) != "a Started "+id || err != nil || status.TimeStamp.Before(e.ListedAt) {
				t.Errorf("%s, listed at %v, with a status of %v and %v", line(e), e.ListedAt, status.TimeStamp, err)
			}
		}
	})
}

// Rules 3 and 6: where the clock stands still, so that both listings have the same
// time, the outrun status would pass for one of the later listing. It is told with
// the next.
func TestRule3OutrunStatusWhereTheClockStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, cache, clk := plegtest.NewRuntime(), pleg.NewCache(), clocktesting.NewFakeClock(time.Now())
		g := pleg.NewGenericPLEG(rt, 0, time.Second, cache, clk, pleg.WithLogger(logr.Discard()))
		events := g.Watch()
		rt.SetPods(bare("a", plegtest.Running("a1")))
		g.Relist()
		read(events)
		release := make(chan struct{})
		rt.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Times: 1, Do: func(context.Context) error { <-release; return nil }})
		rt.ExitContainer("a", "a1", 7, "Error")
		go g.Relist()
		synctest.Wait()
		rt.SetContainer("a", "a2", pleg.ContainerStateRunning)
		heal := rt.Hang(plegtest.GetPodStatus, "a") // the inspection after this one
		go g.Relist()
		synctest.Wait()
		minTime := clk.Now()
		clk.Step(500 * time.Millisecond)
		go g.Relist() // which finds no change
		synctest.Wait()
		close(release)
		synctest.Wait()
		if fresh(cache, "a", minTime) {
			t.Error("what is known is from before the second listing, and passes for fresh")
		}
		want(t, "events while the next inspection hangs", read(events))
		heal()
		synctest.Wait()
		want(t, "events", read(events), "a Died a1", "a Started a2")
		if s, err := cache.Get("a"); err != nil || len(s.ContainerStatuses) != 2 || s.ContainerStatuses[0].ExitCode != 7 {
			t.Errorf("got %v %v", s, err)
		}
		g.Stop()
	})
}

// A reinspection that a change outran at one instant of the clock has its PodSync
// with the inspection that follows.
func TestReinspectionWhereTheClockStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		g := pleg.NewGenericPLEG(rt, 0, time.Second, pleg.NewCache(), clocktesting.NewFakeClock(time.Now()), pleg.WithLogger(logr.Discard()))
		events := g.Watch()
		rt.SetPods(bare("a", plegtest.Running("a1")))
		g.Relist()
		read(events)
		release := make(chan struct{})
		rt.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Times: 1, Do: func(context.Context) error { <-release; return nil }})
		g.RequestReinspect("a")
		go g.Relist()
		synctest.Wait()
		rt.ExitContainer("a", "a1", 7, "Error")
		go g.Relist()
		synctest.Wait()
		close(release)
		synctest.Wait()
		want(t, "events", read(events), "a Died a1", "a PodSync")
		g.Stop()
	})
}

// Rule 7: a pod whose every inspection is ahead of its listing, because it goes on
// changing, is inspected again at the next one, however often that was so.
func TestRule7PodThatGoesOnChanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a0")))
		last := ""
		i := 0
		heal := n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Do: func(context.Context) error {
			i++
			last = fmt.Sprintf("a%d", i)
			n.SetContainer("a", last, pleg.ContainerStateRunning)
			return nil
		}})
		n.start()
		time.Sleep(6500 * time.Millisecond)
		heal()
		n.RemoveContainer("a", last) // before any list shows it
		before := time.Now()
		s, err := n.cache.GetNewerThan("a", before)
		if got := s.ContainerStatuses[len(s.ContainerStatuses)-1].ID.ID; err != nil || got == last {
			t.Errorf("%s, which is gone, is there after %v: %v", got, time.Since(before), err)
		}
	})
}

// Rule 7: nor do inspections between two listings put that off.
func TestRule7InspectionsBetweenListings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a0")))
		n.start()
		time.Sleep(1500 * time.Millisecond)
		n.SetContainer("a", "a1", pleg.ContainerStateRunning)
		for range 7 {
			n.g.RequestReinspect("a")
			synctest.Wait()
		}
		n.RemoveContainer("a", "a1") // before any list shows it
		n.g.Relist()
		if s, err := n.cache.Get("a"); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("%d containers, %v", len(s.ContainerStatuses), err)
		}
	})
}

// Rule 7: a status that never agrees with its listing is asked for ever more rarely,
// of a pod with bad data too.
func TestRule7StatusThatNeverAgrees(t *testing.T) {
	for _, bad := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var inspections atomic.Int64
			list := func() *pleg.Pod {
				p := bare("a", plegtest.Running("a1"))
				if bad {
					p.Containers = append(p.Containers, nil)
				}
				return p
			}
			rt := &scripted{
				pods: func() ([]*pleg.Pod, error) { return []*pleg.Pod{list()}, nil },
				pod:  func(types.UID) (*pleg.Pod, error) { return list(), nil },
				status: func(*pleg.Pod) (*pleg.PodStatus, error) {
					inspections.Add(1)
					return &pleg.PodStatus{ID: "a", ContainerStatuses: []*pleg.Status{{ID: pleg.ContainerID{ID: "other"}}}}, nil
				},
			}
			n := newNodeOf(t, rt.instead)
			n.start()
			time.Sleep(1000 * time.Second)
			if got := inspections.Load(); got < 10 || got > 20 {
				t.Errorf("bad data %v: %d inspections in 1000 listings", bad, got)
			}
		})
	}
}

// Rule 13: an inspection that Stop has cancelled has not hung until Start.
func TestRule13StopEndsAHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(5)...)
		n.start()
		time.Sleep(2500 * time.Millisecond)
		n.Delay(plegtest.GetPodStatus, plegtest.AnyPod, 1500*time.Millisecond)
		n.g.RequestReinspect("pod-00000")
		n.g.RequestReinspect("pod-00001")
		time.Sleep(1100 * time.Millisecond)
		if got := len(n.g.HealthReport().Troubled); got != 2 {
			t.Errorf("%d pods are in trouble", got)
		}
		n.g.Stop()
		time.Sleep(time.Hour)
		n.g.Start()
		time.Sleep(1200 * time.Millisecond)
		if ok, err := n.g.Healthy(); !ok {
			t.Error(err)
		}
	})
}

// Rule 12: a reinspection that hangs past its deadline is told of with the change
// that came meanwhile, once.
func TestRule12ReinspectionPastItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		time.Sleep(500 * time.Millisecond)
		defer n.HangDeaf(plegtest.GetPodStatus, "a")()
		n.g.RequestReinspect("a")
		time.Sleep(10 * time.Second)
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		time.Sleep(10 * time.Minute)
		want(t, "past the deadline", read(events), "a Started a2", "a PodSync")
		n.SetContainer("a", "a3", pleg.ContainerStateRunning)
		time.Sleep(10 * time.Minute)
		want(t, "the next change", read(events), "a Started a3")
	})
}

// A reinspection asked for while the pod is being inspected follows it.
func TestRequestReinspectDuringInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.Delay(plegtest.GetPodStatus, "a", 100*time.Millisecond)
		events := n.g.Watch()
		n.start()
		for range 150 {
			n.g.RequestReinspect("a")
		}
		time.Sleep(time.Second / 2)
		want(t, "events", read(events), "a Started a1", "a PodSync")
		if got := n.PodCalls(plegtest.GetPodStatus, "a"); got != 2 {
			t.Errorf("%d inspections", got)
		}
	})
}

func TestInspectionErrorsAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logLines{}
		n := newNode(t, pleg.WithLogger(log.logger(0)))
		n.SetPods(pods(1)...)
		n.Fail(plegtest.GetPodStatus, "pod-00000", errors.New("broken"))
		n.start()
		time.Sleep(10 * time.Minute)
		if got := log.matching("Cannot inspect pod"); len(got) != 1 || !strings.Contains(got[0], "default/pod-00000") {
			t.Errorf("logged %q", got)
		}
	})
}

// What an inspection saw for a moment, and no listing ever showed, does not stay
// in the cache: the pod is inspected again at the next listing. A runtime whose
// statuses never agree with its lists is not inspected for ever at every one.
func TestRule7StatusThatDisagreesWithItsListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		phantom := &pleg.PodStatus{ID: "a", ContainerStatuses: []*pleg.Status{
			{ID: pleg.ContainerID{ID: "a1"}, State: pleg.ContainerStateRunning},
			{ID: pleg.ContainerID{ID: "for a moment"}, State: pleg.ContainerStateRunning},
		}}
		n.SetStatus("a", phantom)
		events := n.g.Watch()
		n.start()
		n.SetStatus("a", nil)
		time.Sleep(500 * time.Millisecond)
		minTime := time.Now()
		if s, err := n.cache.GetNewerThan("a", minTime); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("got %v %v", s, err)
		}
		synctest.Wait()
		want(t, "events", read(events), "a Started a1")
		n.ResetCalls()
		time.Sleep(time.Minute)
		if got := n.Calls(plegtest.GetPodStatus); got != 0 {
			t.Errorf("%d inspections of a pod that agrees", got)
		}
		n.SetStatus("a", phantom)
		n.g.RequestReinspect("a")
		time.Sleep(10 * time.Minute)
		if got := n.Calls(plegtest.GetPodStatus); got < 8 || got > 15 {
			t.Errorf("%d inspections in ten minutes of a pod that never agrees", got)
		}
	})
}

// Rule 12: an inspection is set aside when it has taken a period, not at the next
// relist.
func TestRule12SetAsideInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(1)...)
		n.start()
		time.Sleep(500 * time.Millisecond)
		defer n.HangDeaf(plegtest.GetPodStatus, "pod-00000")()
		n.g.RequestReinspect("pod-00000")
		time.Sleep(999 * time.Millisecond)
		before := len(n.g.HealthReport().Troubled)
		time.Sleep(2 * time.Millisecond)
		if after := len(n.g.HealthReport().Troubled); before != 0 || after != 1 {
			t.Errorf("troubled: %d before, %d after", before, after)
		}
	})
}

// Rules 8 and 12 with a period that is long: the back-off and the deadline keep
// their own time.
func TestRule8And12LongPeriod(t *testing.T) {
	for period, expected := range map[time.Duration][]time.Duration{
		40 * time.Second: {0, 40 * time.Second, 100 * time.Second, 160 * time.Second},
		70 * time.Second: {0, 70 * time.Second, 140 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			rt, cache := plegtest.NewRuntime(), pleg.NewCache()
			rt.SetPods(pods(1)...)
			g := pleg.NewGenericPLEG(rt.Plain(), 0, period, cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
			began := time.Now()
			attempts := make(chan time.Duration, 100)
			heal := rt.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Do: func(context.Context) error {
				attempts <- time.Since(began)
				return errors.New("broken")
			}})
			g.Start()
			time.Sleep(170 * time.Second)
			g.Stop()
			var got []time.Duration
			for len(attempts) > 0 {
				got = append(got, <-attempts)
			}
			if !slices.Equal(got, expected) {
				t.Errorf("a period of %v: attempts after %v", period, got)
			}
			heal()
		})
	}
	synctest.Test(t, func(t *testing.T) {
		rt, cache := plegtest.NewRuntime(), pleg.NewCache()
		rt.SetPods(pods(1)...)
		g := pleg.NewGenericPLEG(rt.Plain(), 0, time.Hour, cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		defer rt.Hang(plegtest.GetPodStatus, plegtest.AnyPod)()
		g.Start()
		time.Sleep(pleg.DefaultInspectionTimeout + time.Second)
		if _, err := cache.Get("pod-00000"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error is %v", err)
		}
		g.Stop()
	})
}

// Rule 7: an inspection is as fresh as the newest listing that found no change
// since, also when that was a look which landed before it.
func TestRule7InspectionIsAsFreshAsTheLastLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(500 * time.Millisecond)
		n.Delay(plegtest.GetPodStatus, "a", 300*time.Millisecond)
		n.ExitContainer("a", "a1", 1, "Error")
		time.Sleep(600 * time.Millisecond) // the list of 1 s has shown it
		minTime := time.Now()
		s, err := n.cache.GetNewerThan("a", minTime)
		if err != nil || s.ContainerStatuses[0].ExitCode != 1 || time.Since(minTime) != 200*time.Millisecond {
			t.Errorf("%v %v after %v", s, err, time.Since(minTime))
		}
	})
}

// Rule 5: a status carries the stamp of the newest listing that its inspection is
// for.
func TestRule5StatusCarriesTheNewestStamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		began := time.Now()
		stamp := func() time.Duration {
			n.g.RequestReinspect("a")
			synctest.Wait()
			s, _ := n.cache.Get("a")
			return s.TimeStamp.Sub(began)
		}
		time.Sleep(5500 * time.Millisecond)
		if got := stamp(); got != 5*time.Second {
			t.Errorf("the stamp is %v", got)
		}
		// A list that is under way does not count yet.
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Delay: 100 * time.Millisecond, Times: 1})
		time.Sleep(550 * time.Millisecond)
		if got := stamp(); got != 5*time.Second {
			t.Errorf("the stamp is %v", got)
		}
		time.Sleep(100 * time.Millisecond)
		for _, pod := range []*pleg.Pod{n.Pod("a"), bare("a", plegtest.Running("a1"))} { // the same, and another object with the same content
			time.Sleep(100 * time.Millisecond)
			n.SetPod(pod)
			n.g.RequestRelist("a")
			synctest.Wait()
			if got, want := stamp(), time.Since(began); got != want {
				t.Errorf("the stamp is %v at %v", got, want)
			}
		}
	})
}

// While something hangs, the healthy pods are inspected in turn; as soon as
// nothing does any more, or others are inspected anyway, they are not.
func TestRule13Probes(t *testing.T) {
	probes := func(n *node, uid types.UID, d time.Duration) int {
		before := n.PodCalls(plegtest.GetPodStatus, uid)
		time.Sleep(d)
		return n.PodCalls(plegtest.GetPodStatus, uid) - before
	}
	t.Run("in turn", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNodeOf(t, polling)
			n.SetPods(pods(4)...)
			heal := n.HangDeaf(plegtest.GetPodStatus, "pod-00001")
			n.start()
			probes(n, "pod-00000", time.Hour)
			for _, uid := range []types.UID{"pod-00000", "pod-00002", "pod-00003"} {
				if got := n.PodCalls(plegtest.GetPodStatus, uid) - 1; got < 39 || got > 41 {
					t.Errorf("%d probes of %s in an hour", got, uid)
				}
			}
			heal()
			time.Sleep(2 * time.Minute)
			if got := probes(n, "pod-00000", time.Hour); got != 0 {
				t.Errorf("%d probes while nothing hangs", got)
			}
		})
	})
	t.Run("not when the pod that hung is gone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNodeOf(t, polling)
			n.SetPods(pods(2)...)
			defer n.HangDeaf(plegtest.GetPodStatus, "pod-00000")()
			n.start()
			time.Sleep(10 * time.Minute)
			n.RemovePod("pod-00000")
			time.Sleep(2 * time.Second)
			if got := probes(n, "pod-00001", time.Hour); got != 0 {
				t.Errorf("%d probes while nothing hangs", got)
			}
		})
	})
	t.Run("not when the pod that hung fails", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNodeOf(t, polling)
			n.SetPods(pods(2)...)
			n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, PodUID: "pod-00000", Times: 1, Delay: 5 * time.Second})
			n.Fail(plegtest.GetPodStatus, "pod-00000", errors.New("broken"))
			n.start()
			time.Sleep(time.Minute)
			if got := probes(n, "pod-00001", time.Hour); got != 0 {
				t.Errorf("%d probes while nothing hangs", got)
			}
		})
	})
	t.Run("not when others are inspected anyway", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNodeOf(t, polling)
			n.SetPods(pods(3)...)
			defer n.HangDeaf(plegtest.GetPodStatus, "pod-00000")()
			n.start()
			for i := range 100 {
				n.SetPod(bare("pod-00001", plegtest.Running(fmt.Sprint(i))))
				time.Sleep(10 * time.Second)
			}
			if got := n.PodCalls(plegtest.GetPodStatus, "pod-00002") - 1; got != 0 {
				t.Errorf("%d probes", got)
			}
		})
	})
	t.Run("no more than one a period", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNodeOf(t, polling, pleg.WithRelistThreshold(3*time.Second))
			n.SetPods(pods(2)...)
			defer n.HangDeaf(plegtest.GetPodStatus, "pod-00000")()
			n.start()
			if got := probes(n, "pod-00001", time.Minute); got < 50 || got > 60 {
				t.Errorf("%d probes in a minute", got)
			}
		})
	})
}

// Rule 13: a node on which one pod can be inspected is healthy, however many
// others hang, and however they come to.
func TestRule13OneGoodPodIsEnough(t *testing.T) {
	t.Run("all but one", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNodeOf(t, polling)
			n.SetPods(pods(20)...)
			n.start()
			for i := range 19 {
				uid := types.UID(fmt.Sprintf("pod-%05d", i))
				defer n.HangDeaf(plegtest.GetPodStatus, uid)()
				n.ExitContainer(uid, string(uid)+"-a", 1, "")
			}
			for range 360 {
				time.Sleep(10 * time.Second)
				healthy(t, n.g)
			}
		})
	})
	t.Run("one more every 20 s", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNodeOf(t, polling)
			n.SetPods(pods(40)...)
			n.start()
			for i := range 30 {
				uid := types.UID(fmt.Sprintf("pod-%05d", i))
				defer n.HangDeaf(plegtest.GetPodStatus, uid)()
				n.ExitContainer(uid, string(uid)+"-a", 1, "")
				time.Sleep(20 * time.Second)
				healthy(t, n.g)
			}
		})
	})
}

// Rule 12: a worker is given back once, though the inspection that was set aside
// comes back.
func TestRule12WorkersStayAsMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling, pleg.WithInspectionWorkers(2))
		n.SetPods(pods(10)...)
		n.start()
		heal := n.Hang(plegtest.GetPodStatus, plegtest.AnyPod)
		for i := range 3 {
			n.g.RequestReinspect(types.UID(fmt.Sprintf("pod-%05d", i)))
		}
		time.Sleep(5 * time.Second)
		heal()
		time.Sleep(time.Second)
		n.ResetCalls()
		n.Delay(plegtest.GetPodStatus, plegtest.AnyPod, 100*time.Millisecond)
		for i := range 10 {
			n.g.RequestReinspect(types.UID(fmt.Sprintf("pod-%05d", i)))
		}
		time.Sleep(time.Second)
		if got := n.MaxInFlight(plegtest.GetPodStatus); got != 2 {
			t.Errorf("%d inspections at once", got)
		}
	})
}

// Rule 12: an answer past the deadline that is still the newest is taken, and
// nothing is asked or told twice.
func TestRule12AnswerPastTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		n := newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return late{rt.Plain(), nil, answer} })
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		time.Sleep(pleg.DefaultInspectionTimeout - 500*time.Millisecond)
		want(t, "before the deadline", read(events))
		time.Sleep(time.Second)
		want(t, "past it", read(events), "a Started a1")
		close(answer)
		time.Sleep(5 * time.Minute)
		if s, err := n.cache.Get("a"); err != nil || len(s.ContainerStatuses) != 1 {
			t.Errorf("the cache has %v %v", s, err)
		}
		if got := n.Calls(plegtest.GetPodStatus); got != 1 {
			t.Errorf("%d inspections", got)
		}
		want(t, "then", read(events), "a PodSync")
	})
}

// The count of failures and the clock of a hang begin anew with each success, also
// when the next inspection follows at once; and each PodSync is one.
func TestSuccessBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		var calls atomic.Int32
		ctx, cancel := context.WithCancel(t.Context())
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Do: func(context.Context) error {
			switch calls.Add(1) {
			case 1:
				return errors.New("broken")
			case 2:
				time.Sleep(100 * time.Millisecond)
			case 3:
				<-ctx.Done()
			}
			return nil
		}})
		n.start()
		began := time.Now()
		time.Sleep(1050 * time.Millisecond)
		read(events)
		n.g.RequestReinspect("a")
		time.Sleep(1500 * time.Millisecond)
		got := n.g.HealthReport().Troubled
		if len(got) != 1 || !got[0].HangingSince.Equal(began.Add(1100*time.Millisecond)) || got[0].Failures != 0 {
			t.Errorf("troubled: %+v", got)
		}
		n.g.RequestReinspect("a")
		cancel()
		synctest.Wait()
		want(t, "events: the recovery, and two of their own", read(events), "a PodSync", "a PodSync", "a PodSync")
	})
}

// A PodSync has its cause and its listing, also when it follows the inspection of
// a change; and the change after it has no PodSync.
func TestPodSyncIsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.Delay(plegtest.GetPodStatus, "a", 100*time.Millisecond)
		events := n.g.Watch()
		n.start()
		began := time.Now()
		n.g.RequestReinspect("a")
		time.Sleep(150 * time.Millisecond)
		want(t, "the change", read(events), "a Started a1")
		n.ExitContainer("a", "a1", 1, "")
		n.g.RequestRelist("a")
		time.Sleep(60 * time.Millisecond)
		e := <-events
		if line(e) != "a PodSync" || e.Cause != pleg.CauseDemand || !e.ListedAt.Equal(began) {
			t.Errorf("got %s because of %s, listed at %v", line(e), e.Cause, e.ListedAt)
		}
		if e.Data != nil || e.Pod == nil || e.IsSandbox() {
			t.Errorf("got %+v", e)
		}
		time.Sleep(200 * time.Millisecond)
		want(t, "the next change", read(events), "a Died a1")
		time.Sleep(5 * time.Second)
		n.g.RequestReinspect("a")
		if e := <-events; line(e) != "a PodSync" || !e.ListedAt.Equal(began.Add(5*time.Second)) {
			t.Errorf("got %s, listed at %v", line(e), e.ListedAt.Sub(began))
		}
	})
}

// Rule 8: a change that comes while an inspection is under way that fails is
// inspected at once; and a reader of a pod that fails gets its answer at once.
func TestRule8FailureHoldsBackNoChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(200 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Delay: 100 * time.Millisecond, Err: errors.New("broken"), Times: 1})
		n.g.RequestReinspect("a")
		time.Sleep(50 * time.Millisecond)
		n.ExitContainer("a", "a1", 3, "Error")
		n.g.RequestRelist("a")
		time.Sleep(60 * time.Millisecond)
		if s, err := n.cache.Get("a"); err != nil || s.ContainerStatuses[0].ExitCode != 3 {
			t.Errorf("the cache has %v %v", s, err)
		}
		n.Fail(plegtest.GetPodStatus, "a", errors.New("broken"))
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		synctest.Wait()
		before := time.Now()
		if _, err := n.cache.GetNewerThan("a", before); err == nil || time.Since(before) > time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(before))
		}
	})
}

// Rule 7: the inspection of a former listing makes nothing fresh that a later one
// showed changed.
func TestRule7FormerInspectionMakesNothingFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(200 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Stale: true, Delay: 100 * time.Millisecond})
		n.ExitContainer("a", "a1", 1, "")
		n.g.RequestRelist("a")
		time.Sleep(50 * time.Millisecond)
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		minTime := time.Now()
		s, err := n.cache.GetNewerThan("a", minTime)
		if err != nil || len(s.ContainerStatuses) != 2 {
			t.Errorf("got %v %v after %v", s, err, time.Since(minTime))
		}
	})
}

// The same for everything that a status can show otherwise; and that is no change
// that an event should have announced.
func TestRule7WhatDisagrees(t *testing.T) {
	container := func(id string, state pleg.State) *pleg.Status {
		return &pleg.Status{ID: pleg.ContainerID{ID: id}, State: state}
	}
	sandbox := func(id string, state runtimeapi.PodSandboxState) *runtimeapi.PodSandboxStatus {
		return &runtimeapi.PodSandboxStatus{Id: id, State: state}
	}
	ready, down := runtimeapi.PodSandboxState_SANDBOX_READY, runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	for name, given := range map[string]*pleg.PodStatus{
		"a container that is not listed":    {ContainerStatuses: []*pleg.Status{container("a2", pleg.ContainerStateExited)}},
		"a container in another state":      {ContainerStatuses: []*pleg.Status{container("a1", pleg.ContainerStateExited)}},
		"a sandbox that is not listed":      {SandboxStatuses: []*runtimeapi.PodSandboxStatus{sandbox("other", ready)}},
		"a sandbox that is listed as ready": {SandboxStatuses: []*runtimeapi.PodSandboxStatus{sandbox("a-sandbox", down)}},
		"nothing":                           nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, reg := newNodeWithMetrics(t)
				n.SetPods(plegtest.NewPod("a", plegtest.Running("a1")))
				n.start()
				time.Sleep(5500 * time.Millisecond)
				for range 3 { // each time as the first
					n.SetStatus("a", given)
					n.g.RequestReinspect("a")
					synctest.Wait()
					n.SetStatus("a", nil)
					n.ResetCalls()
					time.Sleep(10 * time.Second)
					wanted := 1
					if given == nil {
						wanted = 0
					}
					if got := n.Calls(plegtest.GetPodStatus); got != wanted {
						t.Errorf("%d inspections", got)
					}
					if s, err := n.cache.Get("a"); err != nil || len(s.ContainerStatuses) != 1 || s.ContainerStatuses[0].State != pleg.ContainerStateRunning {
						t.Errorf("the cache has %v %v", s, err)
					}
				}
				wantMetric(t, reg, "pleg_unannounced_changes_total", 0)
			})
		})
	}
}

// Rule 7: two listings at one instant of a clock that stands still are two.
func TestRule7ListingsAtOneInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		time.Sleep(999 * time.Millisecond)
		heal1 := n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Times: 1, Stale: true, Hang: true})
		n.SetContainer("a", "a2", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		synctest.Wait() // look 1 shows a2; its inspection hangs
		heal2 := n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Hang: true})
		n.SetContainer("a", "a3", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		synctest.Wait() // look 2, at the same instant, shows a3
		at := time.Now()
		heal1() // inspection 1 lands, without a3
		synctest.Wait()
		time.Sleep(500 * time.Millisecond) // a full relist that shows no change
		done := make(chan int, 1)
		go func() {
			s, _ := n.cache.GetNewerThan("a", at)
			done <- len(s.ContainerStatuses)
		}()
		synctest.Wait()
		select {
		case got := <-done:
			t.Errorf("%d containers, observed after a listing had shown three", got)
			heal2()
		default:
			heal2()
			<-done
		}
	})
}
