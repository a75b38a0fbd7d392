package agent

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// inbox is what other goroutines have for the loop, coalesced: nobody waits for the loop.
type inbox struct {
	wake chan struct{} // capacity 1

	mu sync.Mutex
	// Guarded by mu.
	pods     []*v1.Pod // if changed
	changed  bool
	due      map[types.UID]time.Time
	finished bool // a worker has ended
}

func (i *inbox) signal() {
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

func (i *inbox) put(f func()) {
	i.mu.Lock()
	f()
	i.mu.Unlock()
	i.signal()
}

func (i *inbox) setPods(pods []*v1.Pod) {
	i.put(func() { i.pods, i.changed = pods, true })
}

// syncAt asks for a pod to be synced at a time, or earlier.
func (i *inbox) syncAt(uid types.UID, at time.Time) {
	i.put(func() {
		if i.due == nil {
			i.due = map[types.UID]time.Time{}
		}
		if before, ok := i.due[uid]; !ok || at.Before(before) {
			i.due[uid] = at
		}
	})
}

func (i *inbox) finish(types.UID) {
	i.put(func() { i.finished = true })
}

func (i *inbox) isEmpty() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.changed && !i.finished
}

// take empties the inbox into the three answers.
func (i *inbox) take() (pods []*v1.Pod, changed, finished bool, due map[types.UID]time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	pods, changed, finished, due = i.pods, i.changed, i.finished, i.due
	i.pods, i.changed, i.finished, i.due = nil, false, false, nil
	return pods, changed, finished, due
}
