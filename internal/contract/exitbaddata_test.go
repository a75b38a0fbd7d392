package contract_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/randtest"
	"github.com/kubepleg/pleg/plegtest"
)

// Lists, statuses and exit events of garbage, in any order, do nothing worse than to be counted.
func TestExitHistoriesWithBadData(t *testing.T) {
	randtest.Check(t, 300, func(t *testing.T, r *rand.Rand) {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex // calls overlap
			intn := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return r.IntN(n)
			}
			id := func() string {
				return []string{"", "x", "y", "z", "s", "w"}[intn(6)]
			}
			container := func() *pleg.Container {
				if intn(8) == 0 {
					return nil
				}
				states := []pleg.State{"running", "running", "exited", "created", "garbage", "unknown"}
				return &pleg.Container{ID: pleg.ContainerID{Type: "t", ID: id()}, State: states[intn(6)]}
			}
			mk := func() *pleg.Pod {
				if intn(15) == 0 {
					return nil
				}
				p := bare(types.UID([]string{"", "a", "b", "a", "b", "c"}[intn(6)]))
				for range intn(4) {
					p.Containers = append(p.Containers, container())
				}
				for range intn(2) {
					p.Sandboxes = append(p.Sandboxes, container())
				}
				return p
			}
			var newest atomic.Pointer[[]*pleg.Pod]
			newest.Store(new([]*pleg.Pod))
			fail := func() error {
				if intn(20) == 0 {
					return fmt.Errorf("x")
				}
				return nil
			}
			s := &scripted{
				pods: func() ([]*pleg.Pod, error) {
					if intn(2) == 0 {
						var list []*pleg.Pod
						for range intn(5) {
							list = append(list, mk())
						}
						newest.Store(&list)
					}
					return *newest.Load(), fail()
				},
				pod: func(uid types.UID) (*pleg.Pod, error) {
					for _, p := range *newest.Load() {
						if p != nil && p.ID == uid && intn(2) == 0 {
							return p, fail()
						}
					}
					if intn(3) == 0 {
						return nil, pleg.ErrPodNotFound
					}
					p := mk()
					if p != nil && intn(2) == 0 {
						p.ID = uid
					}
					return p, fail()
				},
				status: func(p *pleg.Pod) (*pleg.PodStatus, error) {
					if intn(10) == 0 {
						return nil, nil
					}
					st := &pleg.PodStatus{}
					src := p
					if intn(2) == 0 {
						if q := mk(); q != nil {
							src = q
						}
					}
					for _, c := range src.Containers {
						if c == nil || intn(6) == 0 {
							st.ContainerStatuses = append(st.ContainerStatuses, nil)
							continue
						}
						x := &pleg.Status{ID: c.ID, State: c.State}
						if intn(3) == 0 {
							x.State = "exited"
						}
						if intn(3) == 0 {
							x.StartedAt = time.Now()
						}
						if intn(3) == 0 {
							x.FinishedAt = time.Now()
						}
						st.ContainerStatuses = append(st.ContainerStatuses, x)
					}
					if intn(3) == 0 {
						st.SandboxStatuses = append(st.SandboxStatuses, nil, &runtimeapi.PodSandboxStatus{Id: id()})
					}
					return st, fail()
				},
			}
			source := plegtest.NewRuntime()
			n := newNodeOf(t, func(*plegtest.Runtime) pleg.Runtime {
				if intn(2) == 0 {
					return struct {
						pleg.Runtime
						pleg.ExitSource
					}{s, source}
				}
				return struct {
					*scripted
					pleg.ExitSource
				}{s, source}
			})
			events := n.g.Watch()
			n.g.Start(t.Context())
			for range 40 {
				switch intn(4) {
				case 0:
					uid := types.UID([]string{"", "a", "b", "q"}[intn(4)])
					source.EmitExit(pleg.ContainerExit{PodUID: uid, ContainerID: id(), ExitCode: intn(3)})
				case 1:
					n.g.RequestRelist(types.UID([]string{"a", "b", "q"}[intn(3)]))
				case 2:
					n.g.RequestReinspect(types.UID([]string{"a", "b", "q"}[intn(3)]))
				}
				time.Sleep(time.Duration(intn(1200)) * time.Millisecond)
				for len(events) > 0 {
					<-events
				}
				n.g.HealthReport()
				n.g.Pods()
			}
			n.g.Stop()
		})
	})
}
