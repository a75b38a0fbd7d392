package kubelet

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/kubepleg/pleg"
)

// benchCache contains the methods that a benchmark calls on either cache.
type benchCache struct {
	name         string
	get          func(types.UID)
	getNewerThan func(types.UID, time.Time)
	set          func(types.UID, time.Time)
	updateTime   func(time.Time)
}

func benchCaches() []benchCache {
	k, p := kubecontainer.NewCache(), pleg.NewCache()
	return []benchCache{
		{
			name:         "kubelet",
			get:          func(uid types.UID) { _, _ = k.Get(uid) },
			getNewerThan: func(uid types.UID, minTime time.Time) { _, _ = k.GetNewerThan(uid, minTime) },
			set:          func(uid types.UID, at time.Time) { k.Set(uid, &kubecontainer.PodStatus{ID: uid}, nil, at) },
			updateTime:   k.UpdateTime,
		},
		{
			name:         "pleg",
			get:          func(uid types.UID) { _, _ = p.Get(uid) },
			getNewerThan: func(uid types.UID, minTime time.Time) { _, _ = p.GetNewerThan(uid, minTime) },
			set:          func(uid types.UID, at time.Time) { p.Set(uid, &pleg.PodStatus{ID: uid}, nil, at) },
			updateTime:   p.UpdateTime,
		},
	}
}

func (c benchCache) fill(n int) []types.UID {
	uids := make([]types.UID, n)
	now := time.Now()
	for i, p := range benchPods(n, running, 0, "") {
		uids[i] = p.uid
		c.set(p.uid, now)
	}
	c.updateTime(now)
	return uids
}

// BenchmarkGetNewerThan measures how long a relist takes to answer 1000 blocked readers.
func BenchmarkGetNewerThan(b *testing.B) {
	for _, c := range benchCaches() {
		b.Run("readers=1000/impl="+c.name, func(b *testing.B) {
			b.ReportAllocs()
			uids := c.fill(1000)
			for b.Loop() {
				b.StopTimer()
				now := time.Now()
				var readers sync.WaitGroup
				for _, uid := range uids {
					readers.Go(func() { c.getNewerThan(uid, now) })
				}
				time.Sleep(3 * time.Millisecond) // until all readers are blocked
				b.StartTimer()
				c.updateTime(now.Add(1))
				readers.Wait()
			}
		})
	}
}

// BenchmarkBlockedReader measures one reader that blocks until the cache is updated.
func BenchmarkBlockedReader(b *testing.B) {
	for _, c := range benchCaches() {
		b.Run("impl="+c.name, func(b *testing.B) {
			b.ReportAllocs()
			uids := c.fill(1)
			answered := make(chan struct{})
			minTimes := make(chan time.Time)
			go func() {
				for minTime := range minTimes {
					c.getNewerThan(uids[0], minTime)
					answered <- struct{}{}
				}
			}()
			at := time.Now()
			for b.Loop() {
				at = at.Add(2)
				minTimes <- at
				c.updateTime(at.Add(1))
				<-answered
			}
			close(minTimes)
		})
	}
}

// BenchmarkCacheUnderReaders reads a cache of 10,000 pods from every processor. At the same time, a
// writer stores a status every 100 µs and the time of a relist every 100 ms.
func BenchmarkCacheUnderReaders(b *testing.B) {
	for _, c := range benchCaches() {
		b.Run("pods=10000/impl="+c.name, func(b *testing.B) {
			b.ReportAllocs()
			uids := c.fill(10000)
			stop := make(chan struct{})
			var writer sync.WaitGroup
			writer.Go(func() {
				every := time.NewTicker(100 * time.Microsecond)
				defer every.Stop()
				for i := 0; ; i++ {
					select {
					case now := <-every.C:
						c.set(uids[i%len(uids)], now)
						if i%1000 == 0 {
							c.updateTime(now)
						}
					case <-stop:
						return
					}
				}
			})
			b.RunParallel(func(pb *testing.PB) {
				random := rand.New(rand.NewPCG(1, 2))
				for pb.Next() {
					c.get(uids[random.IntN(len(uids))])
				}
			})
			close(stop)
			writer.Wait()
		})
	}
}
