package kubelet

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// BenchmarkIdleRelist measures a relist without changes. With list=same, the runtime returns the
// same objects in every list, as package cri does for unchanged pods. With list=fresh, every list
// contains new objects, as the lists of the kubelet's CRI runtime do.
func BenchmarkIdleRelist(b *testing.B) {
	for _, n := range []int{110, 1000, 10000} {
		for _, list := range []string{"same", "fresh"} {
			b.Run(fmt.Sprintf("pods=%d/list=%s", n, list), func(b *testing.B) {
				onBothSides(b, func(b *testing.B, side impl) {
					w := &workload{lists: [][]*modelPod{benchPods(n, running, 0, "")}}
					if list == "fresh" {
						w.lists = append(w.lists, benchPods(n, running, 0, ""))
					}
					g := side.make(w, 4*n)
					g.Relist()
					g.take(nil)
					for b.Loop() {
						g.Relist()
					}
					if sent := g.take(nil); sent > 0 {
						b.Fatalf("%d events of idle relists", sent)
					}
				})
			})
		}
	}
}

// BenchmarkEverythingChanged measures a relist in which both containers of every pod have changed.
// The time to read the events is included.
func BenchmarkEverythingChanged(b *testing.B) {
	for _, n := range []int{110, 1000, 10000} {
		b.Run(fmt.Sprintf("pods=%d", n), func(b *testing.B) {
			onBothSides(b, func(b *testing.B, side impl) {
				w := &workload{lists: [][]*modelPod{benchPods(n, running, 0, ""), benchPods(n, exited, 0, "")}}
				benchChanges(b, side.make(w, 4*n), 2*n)
			})
		})
	}
}

// BenchmarkChangedPods measures a relist in which 100 of 1000 pods have changed. An inspection
// takes 5 ms.
func BenchmarkChangedPods(b *testing.B) {
	onBothSides(b, func(b *testing.B, side impl) {
		const n, changed = 1000, 100
		w := &workload{lists: [][]*modelPod{benchPods(n, running, 0, ""), benchPods(n, running, n/changed, exited)}}
		g := side.make(w, 4*n)
		g.Relist()
		g.take(nil)
		w.inspectionTakes = 5 * time.Millisecond
		benchChanges(b, g, 2*changed)
	})
}

// benchChanges measures relists. The parameter events is the number of events of each relist.
func benchChanges(b *testing.B, g generator, events int) {
	g.Relist()
	g.take(nil)
	for b.Loop() {
		g.Relist()
		if sent := g.take(nil); sent != events {
			b.Fatalf("%d events, want %d", sent, events)
		}
	}
}

// BenchmarkFirstRelist measures the start on a node of 500 pods. Each call of the runtime takes 1
// ms.
func BenchmarkFirstRelist(b *testing.B) {
	onBothSides(b, func(b *testing.B, side impl) {
		const n = 500
		w := &workload{lists: [][]*modelPod{benchPods(n, running, 0, "")}, listTakes: time.Millisecond,
			inspectionTakes: time.Millisecond}
		for b.Loop() {
			g := side.make(w, 4*n)
			g.Relist()
			if sent := g.take(nil); sent != 3*n {
				b.Fatalf("%d events, want %d", sent, 3*n)
			}
		}
	})
}

// BenchmarkStuckPod changes 50 pods at once. The inspection of one pod is stuck. The other 49 pods
// change again after 2.5 s. After 5 s, the benchmark reports two counts: "delivered" is how many
// pods had events, and "current" is how many pods had the events of both changes. The measured time
// is always 5 s.
func BenchmarkStuckPod(b *testing.B) {
	onBothSides(b, func(b *testing.B, side impl) {
		const n = 50
		before, after, again := benchPods(n, running, 0, ""), benchPods(n, exited, 0, ""), benchPods(n, running, 0, "")
		again[0] = after[0]
		w := &workload{lists: [][]*modelPod{before, after, again}, stuck: before[0].uid, held: true}
		delivered, current := 0, 0
		for b.Loop() {
			w.turn.Store(0)
			g := side.make(w, 8*n)
			g.Start()
			time.Sleep(500 * time.Millisecond)
			g.take(nil)
			w.hangs = make(chan struct{})
			seen := make(map[types.UID]int)
			see := func(uid types.UID) { seen[uid]++ }
			w.turn.Store(1)
			time.Sleep(2500 * time.Millisecond)
			w.turn.Store(2)
			time.Sleep(2500 * time.Millisecond)
			g.take(see)
			delete(seen, w.stuck)
			delivered, current = len(seen), 0
			for _, events := range seen {
				if events == 4 { // two containers, two changes
					current++
				}
			}
			close(w.hangs)
			g.Stop()
		}
		b.ReportMetric(float64(delivered), "delivered")
		b.ReportMetric(float64(current), "current")
	})
}
