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

// Rule 21: more exit events wait than a step takes. The pods of the rest are listed, or all pods if an event
// names none: their deaths do not wait for the period.
func TestRule21ManyExitsInOneStep(t *testing.T) {
	const pods, taken = 20, 10_000
	for name, named := range map[string]bool{"with their pods": true, "without pods": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := plegtest.NewRuntime()
				exit := func(pod int) pleg.ContainerExit {
					exit := exitOf(fmt.Sprintf("pod-%02d-1", pod), 1)
					if named {
						exit.PodUID = types.UID(fmt.Sprintf("pod-%02d", pod))
					}
					return exit
				}
				for i := range pods {
					uid := fmt.Sprintf("pod-%02d", i)
					rt.SetPod(bare(types.UID(uid), plegtest.Running(uid+"-1")))
				}
				busy, release := false, make(chan struct{})
				logger := slowLogger("Relisting", func() {
					if busy {
						<-release
					}
				})
				g := pleg.NewGenericPLEG(listing(rt), 0, time.Minute, pleg.NewCache(), clock.RealClock{},
					pleg.WithLogger(logger))
				events := g.Watch()
				g.Start(t.Context())
				t.Cleanup(g.Stop)
				synctest.Wait()
				read(events)
				time.Sleep(time.Second)
				busy = true
				g.RequestRelist("pod-00") // has the loop wait for the logger
				synctest.Wait()
				for range taken {
					rt.EmitExit(exit(0))
				}
				for i := range pods {
					rt.EmitExit(exit(i))
					rt.ExitContainer(types.UID(fmt.Sprintf("pod-%02d", i)), exit(i).ContainerID, 1, "Completed")
				}
				synctest.Wait()
				busy = false
				close(release)
				time.Sleep(10 * time.Second)
				died := 0
				for len(events) > 0 {
					if e := <-events; e.Type == pleg.ContainerDied {
						died++
					}
				}
				if died != pods {
					t.Errorf("%d of %d deaths are delivered", died, pods)
				}
			})
		})
	}
}

// storming is a runtime whose exits come as fast as they are taken.
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

// exitsCost returns how long exit events take beside some pods: many of containers that nobody knows, and one in
// the first pod. It is the least of some attempts, without the garbage collector.
func exitsCost(t *testing.T, pods int) (least time.Duration) {
	t.Helper()
	const unknown = 1000
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
		began := time.Now()
		s.exits <- append(exits, exitOf(known, 1))
		for e := <-events; e.Data != known; {
			e = <-events
		}
		if took := time.Since(began); least == 0 || took < least {
			least = took
		}
	}
	return least
}

// Rule 21: what an exit event costs does not depend on the number of pods.
func TestRule21CostOfAnExit(t *testing.T) {
	const few, many, most = 250, 4_000, 10
	small, large := exitsCost(t, few), exitsCost(t, many)
	if large > most*small {
		t.Errorf("1,001 exit events take %v beside %d pods, and %v beside %d", small, few, large, many)
	}
	t.Logf("%v beside %d pods, %v beside %d", small, few, large, many)
}
