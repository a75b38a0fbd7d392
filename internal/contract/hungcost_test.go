//go:build darwin || linux

package contract_test

import (
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 23: the pods whose inspection hangs stay suspects while lists hang, also when a list has reached its
// deadline and is tried again.
func TestRule23SuspectsStayAcrossRetries(t *testing.T) {
	for name, ignores := range map[string]bool{"calls end at their deadline": false, "calls ignore it": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.setSingles(20)
				n.start()
				for _, fault := range []plegtest.Fault{
					{Method: plegtest.GetPods}, {Method: plegtest.GetPod}, {Method: plegtest.GetPodStatus, PodUID: "pod-00"},
				} {
					fault.Hang, fault.IgnoreCancel = true, ignores
					defer n.Inject(fault)()
				}
				time.Sleep(5 * time.Second)
				began := time.Now()
				for time.Since(began) < 3*pleg.DefaultRuntimeRequestTimeout {
					time.Sleep(100 * time.Millisecond)
					hung := n.g.HealthReport().HungRelist
					if hung == nil || len(hung.Suspects) != 1 || hung.Suspects[0].PodUID != "pod-00" {
						t.Fatalf("after %v the report has %+v", time.Since(began), hung)
					}
				}
			})
		})
	}
}

// usedCPU returns the CPU time that the process has used: unlike time, it passes in a bubble, and not
// faster on a busy machine.
func usedCPU(t *testing.T) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// roundsCost returns how long an inspection of a round beside a hung list takes on a node of some pods. It is the
// least of some attempts.
func roundsCost(t *testing.T, pods int) (least time.Duration) {
	t.Helper()
	for range 3 {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.setSingles(pods)
			n.start()
			defer n.wedged()()
			time.Sleep(3 * time.Second)
			n.ResetCalls()
			began := usedCPU(t)
			time.Sleep(4 * time.Second)
			each := (usedCPU(t) - began) / time.Duration(max(1, n.Calls(plegtest.GetPodStatus)))
			if least == 0 || each < least {
				least = each
			}
		})
	}
	return least
}

// Rule 23: while a list hangs, an inspection costs the same however many pods there are.
func TestRule23CostOfARound(t *testing.T) {
	const few, many, most = 200, 4_000, 8
	small, large := roundsCost(t, few), roundsCost(t, many)
	if large > most*small {
		t.Errorf("an inspection takes %v on a node of %d pods, and %v on one of %d", small, few, large, many)
	}
	t.Logf("%v of %d pods, %v of %d", small, few, large, many)
}

// podCost returns what happens to a pod with some containers costs, in CPU time. It is the least of some attempts.
func podCost(t *testing.T, containers []*pleg.Container, happens func(rt *plegtest.Runtime, g *pleg.GenericPLEG),
) (least time.Duration) {
	t.Helper()
	for range 3 {
		synctest.Test(t, func(t *testing.T) {
			rt := plegtest.NewRuntime()
			rt.SetPod(bare("pod", containers...))
			g := pleg.NewGenericPLEG(listing(rt), 0, time.Minute, pleg.NewCache(), clock.RealClock{},
				pleg.WithLogger(logr.Discard()))
			g.Start(t.Context())
			defer g.Stop()
			synctest.Wait()
			began := usedCPU(t)
			happens(rt, g)
			time.Sleep(4 * time.Second)
			synctest.Wait()
			if used := usedCPU(t) - began; least == 0 || used < least {
				least = used
			}
		})
	}
	return least
}

// Rule 21: the cost of exits grows with the containers of their pod, not with their square.
func TestRule21CostOfExitsInALargePod(t *testing.T) {
	const few, many, most = 500, 16_000, 300
	id := func(i int) string { return fmt.Sprintf("c-%05d", i) }
	for name, cost := range map[string]func(n int) time.Duration{
		"one exit event beside dead containers": func(n int) time.Duration {
			containers := []*pleg.Container{plegtest.Running("a")}
			for i := range n {
				containers = append(containers, plegtest.Exited(id(i)))
			}
			return podCost(t, containers, func(rt *plegtest.Runtime, _ *pleg.GenericPLEG) {
				rt.EmitExit(exitOf("a", 1))
			})
		},
		"all exits in one status": func(n int) time.Duration {
			var running, exited []*pleg.Container
			for i := range n / 4 {
				running, exited = append(running, plegtest.Running(id(i))), append(exited, plegtest.Exited(id(i)))
			}
			return podCost(t, running, func(rt *plegtest.Runtime, g *pleg.GenericPLEG) {
				rt.SetPod(bare("pod", exited...))
				g.RequestReinspect("pod")
			})
		},
	} {
		if small, large := cost(few), cost(many); large > most*small {
			t.Errorf("%s: %v in a pod of %d, %v in one of %d", name, small, few, large, many)
		} else {
			t.Log(name, small, large)
		}
	}
}
