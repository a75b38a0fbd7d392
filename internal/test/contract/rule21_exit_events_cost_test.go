//go:build darwin || linux

package contract_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// podCost returns the CPU time of the changes that the function happens makes in a pod with the
// given containers. The result is the lowest of several attempts.
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

// Rule 21: the cost of exits grows linearly with the number of containers in the pod.
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
