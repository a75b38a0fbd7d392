package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

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

// RequestReinspect looks at a pod that did not change, tells with a PodSync when
// the cache has it, and forgets a pod that is not known.
func TestRequestReinspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(plegtest.NewPod("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.start()
		read(events)
		n.SetIPs("a", "10.0.0.7")
		n.g.RequestReinspect("a")
		n.g.RequestReinspect("nobody")
		e := <-events
		if s, err := n.cache.Get("a"); err != nil || !slices.Equal(s.IPs, []string{"10.0.0.7"}) {
			t.Errorf("the cache has %v %v", s, err)
		}
		if e.Type != pleg.PodSync || e.ID != "a" || e.Data != nil || e.Pod == nil || e.Cause != pleg.CauseDemand || e.IsSandbox() {
			t.Errorf("got %+v", e)
		}
		synctest.Wait()
		want(t, "more", read(events))
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
