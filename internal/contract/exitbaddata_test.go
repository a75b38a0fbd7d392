package contract_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Lists, statuses and exit events of garbage, in any order, do nothing worse than to be counted.
func TestExitHistoriesWithBadData(t *testing.T) {
	for seed := range 300 {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(uint64(seed), 2))
				exits := make(chan pleg.ContainerExit, 100)
				id := func() string {
					return []string{"", "x", "y", "z", "s", "w"}[r.IntN(6)]
				}
				container := func() *pleg.Container {
					if r.IntN(8) == 0 {
						return nil
					}
					states := []pleg.State{"running", "running", "exited", "created", "garbage", "unknown"}
					return &pleg.Container{ID: pleg.ContainerID{Type: "t", ID: id()}, State: states[r.IntN(6)]}
				}
				mk := func() *pleg.Pod {
					if r.IntN(15) == 0 {
						return nil
					}
					p := bare(types.UID([]string{"", "a", "b", "a", "b", "c"}[r.IntN(6)]))
					for range r.IntN(4) {
						p.Containers = append(p.Containers, container())
					}
					for range r.IntN(2) {
						p.Sandboxes = append(p.Sandboxes, container())
					}
					return p
				}
				var list []*pleg.Pod
				fail := func() error {
					if r.IntN(20) == 0 {
						return fmt.Errorf("x")
					}
					return nil
				}
				s := &scripted{
					pods: func() ([]*pleg.Pod, error) {
						if r.IntN(2) == 0 {
							list = nil
							for range r.IntN(5) {
								list = append(list, mk())
							}
						}
						return list, fail()
					},
					pod: func(uid types.UID) (*pleg.Pod, error) {
						for _, p := range list {
							if p != nil && p.ID == uid && r.IntN(2) == 0 {
								return p, fail()
							}
						}
						if r.IntN(3) == 0 {
							return nil, pleg.ErrPodNotFound
						}
						p := mk()
						if p != nil && r.IntN(2) == 0 {
							p.ID = uid
						}
						return p, fail()
					},
					status: func(p *pleg.Pod) (*pleg.PodStatus, error) {
						if r.IntN(10) == 0 {
							return nil, nil
						}
						st := &pleg.PodStatus{}
						src := p
						if r.IntN(2) == 0 {
							if q := mk(); q != nil {
								src = q
							}
						}
						for _, c := range src.Containers {
							if c == nil || r.IntN(6) == 0 {
								st.ContainerStatuses = append(st.ContainerStatuses, nil)
								continue
							}
							x := &pleg.Status{ID: c.ID, State: c.State}
							if r.IntN(3) == 0 {
								x.State = "exited"
							}
							if r.IntN(3) == 0 {
								x.StartedAt = time.Now()
							}
							if r.IntN(3) == 0 {
								x.FinishedAt = time.Now()
							}
							st.ContainerStatuses = append(st.ContainerStatuses, x)
						}
						if r.IntN(3) == 0 {
							st.SandboxStatuses = append(st.SandboxStatuses, nil, &runtimeapi.PodSandboxStatus{Id: id()})
						}
						return st, fail()
					},
				}
				source := exiting{plegtest.NewRuntime(), exits}
				n := newNodeOf(t, func(*plegtest.Runtime) pleg.Runtime {
					if seed%2 == 0 {
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
				n.g.Start()
				for range 40 {
					switch r.IntN(4) {
					case 0:
						uid := types.UID([]string{"", "a", "b", "q"}[r.IntN(4)])
						exits <- pleg.ContainerExit{PodUID: uid, ContainerID: id(), ExitCode: r.IntN(3)}
					case 1:
						n.g.RequestRelist(types.UID([]string{"a", "b", "q"}[r.IntN(3)]))
					case 2:
						n.g.RequestReinspect(types.UID([]string{"a", "b", "q"}[r.IntN(3)]))
					}
					time.Sleep(time.Duration(r.IntN(1200)) * time.Millisecond)
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
}
