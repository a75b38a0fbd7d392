package contract_test

import (
	"context"
	"errors"
	"fmt"
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

// Rules 8 and 12: if the inspections of a pod were stuck until their deadlines, the pod is
// inspected again within ten seconds of the runtime's recovery.
func TestRule8StuckPodIsInspectedAgainSoon(t *testing.T) {
	const look = 100 * time.Millisecond // between two checks
	const within = 10 * time.Second
	for _, count := range []int{1, 2} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(pods(count)...)
				heal := n.Block(plegtest.GetPodStatus, "pod-00000")
				n.start()
				time.Sleep(30 * time.Minute)
				for n.InFlight(plegtest.GetPodStatus) == 0 {
					time.Sleep(look)
				}
				for n.InFlight(plegtest.GetPodStatus) > 0 {
					time.Sleep(look)
				}
				heal() // while the pod waits for another inspection
				healed := time.Now()
				for _, err := n.cache.Get("pod-00000"); err != nil; _, err = n.cache.Get("pod-00000") {
					time.Sleep(look)
				}
				if took := time.Since(healed); took > within+look {
					t.Errorf("of %d pods: inspected again after %v", count, took)
				}
			})
		})
	}
}

// Rules 7 and 8: a program requests lists faster than they complete. After an inspection that
// failed or contradicted its list, the pod is still inspected again.
func TestRule8RetriesBesideRequests(t *testing.T) {
	wrong := bare("a", plegtest.Running("a1"), plegtest.Running("a2"))
	for name, first := range map[string]func() (*pleg.PodStatus, error){
		"fails":       func() (*pleg.PodStatus, error) { return nil, errors.New("broken") },
		"contradicts": func() (*pleg.PodStatus, error) { return statusOf(wrong), nil },
	} {
		for _, listsPods := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				const listing = 5 * time.Millisecond
				pod := bare("a", plegtest.Running("a1"))
				inspections := 0
				rt := &scripted{
					pods: func() ([]*pleg.Pod, error) { time.Sleep(listing); return []*pleg.Pod{pod}, nil },
					pod:  func(types.UID) (*pleg.Pod, error) { time.Sleep(listing); return pod, nil },
					status: func(p *pleg.Pod) (*pleg.PodStatus, error) {
						if inspections++; inspections == 1 {
							return first()
						}
						return statusOf(p), nil
					},
				}
				n := newNodeOf(t, func(*plegtest.Runtime) pleg.Runtime {
					if listsPods {
						return rt
					}
					return struct{ pleg.Runtime }{rt}
				})
				n.start()
				time.Sleep(500 * time.Millisecond)
				for began := time.Now(); time.Since(began) < 3*time.Second; time.Sleep(time.Millisecond) {
					n.g.RequestRelist("a")
				}
				if s, err := n.cache.Get("a"); err != nil || len(s.ContainerStatuses) != 1 {
					t.Errorf("%s, listing one pod %v: after %d inspections %v %v", name, listsPods, inspections, s, err)
				}
			})
		}
	}
}

// Rules 8 and 12: if the period is long, a pod with failing inspections is inspected once a period,
// with or without GetPod. The deadline of an inspection does not depend on the period.
func TestRule8And12LongPeriod(t *testing.T) {
	asItIs := func(rt *plegtest.Runtime) pleg.Runtime { return rt }
	for _, c := range []struct {
		wrap     func(*plegtest.Runtime) pleg.Runtime
		period   time.Duration
		expected []time.Duration // in seconds
	}{
		{asItIs, 40, []time.Duration{0, 40, 80, 120, 160}},
		{polling, 40, []time.Duration{0, 40, 80, 120, 160}},
		{asItIs, 70, []time.Duration{0, 70, 140}},
		{polling, 70, []time.Duration{0, 70, 140}},
	} {
		synctest.Test(t, func(t *testing.T) {
			rt, cache := plegtest.NewRuntime(), pleg.NewCache()
			rt.SetPods(pods(1)...)
			period := c.period * time.Second
			g := pleg.NewGenericPLEG(c.wrap(rt), 0, period, cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
			began := time.Now()
			attempts := make(chan time.Duration, 100)
			heal := rt.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Do: func(context.Context) error {
				attempts <- time.Since(began) / time.Second
				return errors.New("broken")
			}})
			g.Start(t.Context())
			time.Sleep(170 * time.Second)
			g.Stop()
			var got []time.Duration
			for len(attempts) > 0 {
				got = append(got, <-attempts)
			}
			if !slices.Equal(got, c.expected) {
				t.Errorf("a period of %v: attempts after %d s, not %d", period, got, c.expected)
			}
			heal()
		})
	}
	synctest.Test(t, func(t *testing.T) {
		rt, cache := plegtest.NewRuntime(), pleg.NewCache()
		rt.SetPods(pods(1)...)
		g := pleg.NewGenericPLEG(rt.Plain(), 0, time.Hour, cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		defer rt.Block(plegtest.GetPodStatus, plegtest.AnyPod)()
		g.Start(t.Context())
		time.Sleep(pleg.DefaultRuntimeRequestTimeout + time.Second)
		if _, err := cache.Get("pod-00000"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error is %v", err)
		}
		g.Stop()
	})
}

// Rule 8: each success resets the number of failures and StuckSince, even if the next inspection
// begins at once. Each RequestReinspect gets its own PodSync.
func TestRule8SuccessBeginsAnew(t *testing.T) {
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
		got := n.g.HealthReport().FailingPods
		if len(got) != 1 || !got[0].StuckSince.Equal(began.Add(1100*time.Millisecond)) || got[0].Failures != 0 {
			t.Errorf("reported: %+v", got)
		}
		n.g.RequestReinspect("a")
		cancel()
		synctest.Wait()
		want(t, "events: the recovery, and two of their own", read(events), "a PodSync", "a PodSync", "a PodSync")
	})
}

// Rule 8: after a failed inspection, a read returns the error and the last good status.
func TestRule8ErrorBesideLastGoodStatus(t *testing.T) {
	broken := errors.New("broken")
	c := pleg.NewCache()
	c.Set("a", status("a", "good"), nil, at(1))
	c.Set("a", nil, broken, at(2))
	c.Set("b", nil, broken, at(2))
	if s, err := c.GetNewerThan("a", at(1)); s.Name != "good" || !errors.Is(err, broken) {
		t.Errorf("got %v, %v", s, err)
	}
	if s, err := c.GetNewerThan("b", at(1)); s == nil || s.ID != "b" || !errors.Is(err, broken) {
		t.Errorf("got %v, %v", s, err)
	}
	c.Set("a", status("a", "good again"), nil, at(3))
	if s, err := c.Get("a"); s.Name != "good again" || err != nil {
		t.Errorf("got %v, %v", s, err)
	}
}

// partly is a runtime that cannot inspect one container of a pod. Its GetPodStatus then returns the
// statuses of the other containers, and an error.
type partly struct {
	*plegtest.Runtime
	broken atomic.Value // the ID of that container; empty for none
}

func (p *partly) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	status, err := p.Runtime.GetPodStatus(ctx, pod)
	broken, _ := p.broken.Load().(string)
	if err != nil || broken == "" {
		return status, err
	}
	status.ContainerStatuses = slices.DeleteFunc(slices.Clone(status.ContainerStatuses), func(s *pleg.Status) bool {
		return s.ID.ID == broken
	})
	return status, errors.New("cannot inspect " + broken)
}

// Rule 8: one container of a pod cannot be inspected. The exit of the other container is delivered
// with its code. The generator uses no other part of the partial status.
func TestRule08ExitsOfAPartialStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &partly{Runtime: plegtest.NewRuntime()}
		n := newNodeOf(t, func(*plegtest.Runtime) pleg.Runtime { return rt })
		rt.SetPods(plegtest.NewPod("a", plegtest.Running("a1"), plegtest.Running("a2")))
		events := n.g.Watch()
		n.start()
		time.Sleep(300 * time.Millisecond)
		read(events)
		rt.broken.Store("a2")
		rt.SetIPs("a", "10.0.0.1")
		rt.ExitContainer("a", "a1", 3, "Error")
		time.Sleep(1500 * time.Millisecond)
		want(t, "events", readStatuses(events), "a Died a1 exited 3 Error")
		status, err := n.cache.Get("a")
		if s := status.FindContainerStatusByID("a1"); err == nil || s == nil || s.ExitCode != 3 || len(status.IPs) > 0 {
			t.Errorf("the cache has %+v, %v, %v", s, err, status.IPs)
		}
		if len(status.ContainerStatuses) != 2 {
			t.Errorf("the cache has %d containers", len(status.ContainerStatuses))
		}
		rt.broken.Store("")
		time.Sleep(time.Minute)
		want(t, "once it can be inspected", readStatuses(events), "a PodSync without status")
	})
}
