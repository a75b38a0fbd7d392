package contract_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Several goroutines use a node at once, for the race detector. No call blocks for ever, no
// goroutine is left, and the final state is correct.
func TestStorm(t *testing.T) {
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, pleg.WithRuntimeRequestTimeout(5*time.Second))
			defer n.Heal()
			n.EmitOnChange(true)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			var removing sync.Mutex // prevents the removal of a pod during an exit
			for w := range uint64(8) {
				wg.Go(func() {
					rnd := rand.New(rand.NewPCG(seed, w))
					for i := range 150 {
						uid := types.UID(fmt.Sprint("p", rnd.IntN(6)))
						switch rnd.IntN(16) {
						case 0:
							n.g.Start(t.Context())
						case 1:
							if rnd.IntN(3) == 0 {
								n.g.Stop()
							}
						case 2:
							n.relist()
						case 3:
							n.g.RequestRelist(uid)
						case 4:
							n.g.RequestReinspect(uid)
						case 5:
							c, stop := context.WithTimeout(ctx, time.Second)
							wg.Go(func() {
								defer stop()
								_ = n.g.Handle(c, pleg.Handler{OnContainerDied: func(e *pleg.PodLifecycleEvent) {
									defer n.g.RequestRelist(e.ID)
									switch rnd := len(e.Data.(string)) % 3; rnd {
									case 0:
										n.g.Stop()
									case 1:
										n.relist()
									default:
										for range n.g.Subscribe(c, pleg.WithCapacity(1)) {
											break
										}
									}
								}})
							})
						case 6:
							c, stop := context.WithTimeout(ctx, time.Second)
							ch := n.g.Subscribe(c, pleg.WithCapacity(rnd.IntN(3)))
							wg.Go(func() {
								defer stop()
								for e := range ch {
									_, _, _ = e.String(), e.Pod.Labels, e.Status
								}
							})
						case 7:
							n.g.Pods()
							n.g.HealthReport()
							n.g.HasSynced()
							n.cache.ByIP("::1")
							n.cache.ByName("default", string(uid))
							n.cache.ByContainerID("x://" + string(uid))
							_, _, _ = n.cache.Lookup(uid)
						case 8:
							c, stop := context.WithTimeout(ctx, time.Second)
							_ = n.g.WaitForSync(c)
							stop()
						case 9:
							c, stop := context.WithTimeout(ctx, time.Second)
							_, _, _ = n.cache.LookupNewerThan(c, uid, time.Now())
							stop()
						case 10:
							n.Inject(plegtest.Fault{
								Method: plegtest.GetPodStatus, PodUID: uid, Times: 2, Block: true, IgnoreCancel: rnd.IntN(2) == 0,
							})
						case 11:
							n.Heal()
						case 12:
							removing.Lock()
							if n.Pod(uid) != nil {
								n.RemovePod(uid)
							}
							removing.Unlock()
						default:
							id := fmt.Sprintf("%s-%d-%d", uid, w, i)
							n.SetContainer(uid, id, pleg.ContainerStateRunning)
							time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
							removing.Lock()
							n.SetContainer(uid, id, pleg.ContainerStateRunning) // the pod may have been removed
							n.ExitContainer(uid, id, 1, "Error")
							removing.Unlock()
						}
						time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
					}
				})
			}
			time.Sleep(10 * time.Minute)
			n.Heal()
			cancel()
			wg.Wait()
			n.Heal()
			n.start()
			time.Sleep(2 * time.Minute)
			n.relist()
			synctest.Wait() // a periodic list may begin at the same time
			healthy(t, n.g)
			r := n.g.HealthReport()
			if len(r.FailingPods)+len(r.CallsInFlight) > 0 || r.Subscribers > 0 || r.BlockedReaders > 0 {
				t.Errorf("seed %d: %+v", seed, r)
			}
			for _, p := range n.present() {
				s, known, err := n.cache.Lookup(p.ID)
				if !known || err != nil || s == nil || len(s.ContainerStatuses) != len(p.Containers) {
					t.Errorf("seed %d: Lookup of %s: %v %v %v", seed, p.ID, s, known, err)
				}
			}
		})
	}
}

// Many goroutines use a generator at once, for the race detector.
func TestEverythingAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.EmitOnChange(true)
		n.SetPods(pods(10)...)
		n.start()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 4 {
			uid := types.UID(fmt.Sprintf("pod-%05d", i))
			wg.Go(func() {
				for ctx.Err() == nil {
					_, _, _ = n.cache.LookupNewerThan(ctx, uid, time.Now())
					time.Sleep(2 * time.Millisecond)
				}
			})
			wg.Go(func() {
				for ctx.Err() == nil {
					ctx, unsubscribe := context.WithCancel(ctx)
					sub := n.g.Subscribe(ctx, pleg.WithCapacity(i-1))
					for range 10 {
						<-sub
					}
					unsubscribe()
					time.Sleep(time.Millisecond)
				}
			})
			wg.Go(func() {
				for j := 0; ctx.Err() == nil; j++ {
					n.SetPod(bare(uid, plegtest.Running(fmt.Sprintf("c%d", j))))
					n.g.RequestRelist(uid)
					n.g.RequestReinspect(uid)
					n.g.HealthReport()
					time.Sleep(3 * time.Millisecond)
				}
			})
		}
		time.Sleep(3 * time.Second)
		cancel()
		wg.Wait()
	})
}
