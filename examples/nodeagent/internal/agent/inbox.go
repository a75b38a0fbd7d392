package agent

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// inbox is what the loop is told by other goroutines, coalesced: nobody waits for the loop.
type inbox struct {
	wake chan struct{} // capacity 1

	mu       sync.Mutex
	pods     []*v1.Pod          // if changed; guarded by mu
	changed  bool               // the wanted pods; guarded by mu
	finished bool               // a worker has ended; guarded by mu
	due      map[task]time.Time // guarded by mu
}

// task is to sync a pod or, before that, to have the library inspect it again.
type task struct {
	uid     types.UID
	inspect bool
}

func newInbox() *inbox {
	return &inbox{wake: make(chan struct{}, 1), due: map[task]time.Time{}}
}

// signal has the loop look.
func (i *inbox) signal() {
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

func (i *inbox) put(change func()) {
	i.mu.Lock()
	change()
	i.mu.Unlock()
	i.signal()
}

func (i *inbox) setPods(pods []*v1.Pod) {
	i.put(func() { i.pods, i.changed = pods, true })
}

func (i *inbox) finish() {
	i.put(func() { i.finished = true })
}

// at asks for a task at a time, or earlier.
func (i *inbox) at(t task, at time.Time) {
	i.put(func() {
		if before, ok := i.due[t]; !ok || at.Before(before) {
			i.due[t] = at
		}
	})
}

func (i *inbox) isEmpty() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.changed && !i.finished
}

// takeDue takes out the tasks whose time has come, and returns when the next one's does.
func (i *inbox) takeDue() (due []task, next time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	next = time.Now().Add(time.Hour)
	for t, at := range i.due {
		switch {
		case !at.After(time.Now()):
			due = append(due, t)
			delete(i.due, t)
		case at.Before(next):
			next = at
		}
	}
	return due, next
}

// takeNews takes out the rest.
func (i *inbox) takeNews() (pods []*v1.Pod, changed, finished bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	pods, changed, finished = i.pods, i.changed, i.finished
	i.pods, i.changed, i.finished = nil, false, false
	return pods, changed, finished
}
