//go:build darwin || linux

package contract_test

import (
	"context"
	"fmt"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
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

// storming is a runtime that reports exits as fast as they are taken.
type storming struct {
	pleg.Runtime
	exits chan []pleg.ContainerExit
}

func (s storming) WatchContainerExits(ctx context.Context, connected func(), observe func(pleg.ContainerExit)) error {
	connected()
	for {
		select {
		case exits := <-s.exits:
			for _, exit := range exits {
				observe(exit)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// exitsCost returns the CPU time of many exit events on a node with the given number of pods.
// One exit is of a known container, the others are of unknown ones. The result is the lowest of
// several attempts, without garbage collection.
func exitsCost(t *testing.T, pods int) (least time.Duration) {
	t.Helper()
	const unknown = 8000 // a thousand take too little processor time to be measured
	rt := plegtest.NewRuntime()
	for i := range pods {
		uid := fmt.Sprintf("pod-%05d", i)
		rt.SetPod(bare(types.UID(uid), plegtest.Running(uid+"-a")))
	}
	s := storming{rt.Plain(), make(chan []pleg.ContainerExit)}
	g := pleg.NewGenericPLEG(s, 2*pods, time.Minute, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(logr.Discard()))
	events := g.Watch()
	g.Start(t.Context())
	defer g.Stop()
	for range pods {
		<-events
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for attempt := range 5 {
		exits := make([]pleg.ContainerExit, unknown, unknown+1)
		for i := range exits {
			exits[i] = exitOf(fmt.Sprintf("unknown-%d-%d", attempt, i), 1)
		}
		known := fmt.Sprintf("pod-%05d-a", attempt)
		began := usedCPU(t)
		s.exits <- append(exits, exitOf(known, 1))
		for e := <-events; e.Data != known; {
			e = <-events
		}
		if used := usedCPU(t) - began; least == 0 || used < least {
			least = used
		}
	}
	return least
}

// Rule 21: the cost of an exit event does not depend on the number of pods.
func TestRule21CostOfAnExit(t *testing.T) {
	const few, many, most = 250, 4_000, 10
	small, large := exitsCost(t, few), exitsCost(t, many)
	if large > most*small {
		t.Errorf("8,001 exit events take %v beside %d pods, and %v beside %d", small, few, large, many)
	}
	t.Logf("%v beside %d pods, %v beside %d", small, few, large, many)
}
