// Package timetable runs the pods of a CRI server according to plans. plegwatch's simulated node
// and measurements use it.
package timetable

import (
	"container/heap"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/plegtest/criserver"
)

// Timetable runs the steps of plans at their times, one after another. One goroutine runs from the
// first step until Stop. With a fake clock, step the clock and call Settle.
type Timetable struct {
	server *criserver.Server // set once by New
	clock  clock.Clock       // set once by New

	wake chan struct{} // has room for one token
	quit chan struct{} // closed by Stop
	done chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	entries entries         // guarded by mu
	seq     uint64          // guarded by mu
	waiting []chan struct{} // one for each waiting Settle; guarded by mu
	running bool            // true once the goroutine has started; guarded by mu
	stopped bool            // guarded by mu
}

type entry struct {
	at  time.Time
	seq uint64 // orders entries with the same time
	do  func(at time.Time)
}

// New returns a timetable without plans. The clock must be that of the server.
func New(s *criserver.Server, c clock.Clock) *Timetable {
	return &Timetable{
		server: s, clock: c, wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
}

// at adds an entry: the function do is called at the given time, or at once if that time is past.
// The argument of do is the given time, even if the call is late. So the times of later entries do
// not drift.
func (t *Timetable) at(when time.Time, do func(at time.Time)) {
	t.enter(entry{at: when, do: do})
}

// enter adds several entries, and runs none before all are added. So the order in which they run
// does not depend on the speed of the goroutine.
func (t *Timetable) enter(es ...entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return
	}
	for _, e := range es {
		t.seq++
		e.seq = t.seq
		heap.Push(&t.entries, e)
	}
	t.startLocked()
	t.wakeUp()
}

// Settle returns when every step that is due by the clock has run. It blocks while a step blocks in
// an operation of the server.
func (t *Timetable) Settle() {
	t.mu.Lock()
	if t.stopped || !t.running {
		t.mu.Unlock()
		return
	}
	settled := make(chan struct{})
	t.waiting = append(t.waiting, settled)
	t.wakeUp()
	t.mu.Unlock()
	select {
	case <-settled:
	case <-t.done:
	}
}

func (t *Timetable) startLocked() {
	if !t.running {
		t.running = true
		go t.run()
	}
}

func (t *Timetable) wakeUp() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Stop ends the timetable and the server, because a step may block on a reader of the server's
// events until the server stops. The remaining steps never run. Stop may be called twice.
func (t *Timetable) Stop() {
	t.mu.Lock()
	first := !t.stopped
	t.stopped = true
	running := t.running
	t.mu.Unlock()
	if first {
		close(t.quit)
	}
	t.server.Stop()
	if running {
		<-t.done
	}
}

func (t *Timetable) run() {
	defer close(t.done)
	for {
		e, due, wait := t.next()
		if due {
			e.do(e.at)
			continue
		}
		var timeout <-chan time.Time
		var timer clock.Timer
		if wait > 0 {
			timer = t.clock.NewTimer(wait)
			timeout = timer.C()
		}
		select {
		case <-timeout:
		case <-t.wake:
		case <-t.quit:
		}
		if timer != nil {
			timer.Stop()
		}
		select {
		case <-t.quit:
			return
		default:
		}
	}
}

// next returns the next entry if it is due. Otherwise, wait is the time until the next entry is
// due; 0 if there is no entry.
func (t *Timetable) next() (e entry, due bool, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return entry{}, false, 0
	}
	if len(t.entries) > 0 {
		wait = t.entries[0].at.Sub(t.clock.Now())
		if wait <= 0 {
			e, _ = heap.Pop(&t.entries).(entry)
			return e, true, 0
		}
	}
	for _, settled := range t.waiting {
		close(settled)
	}
	t.waiting = nil
	return entry{}, false, wait
}

// entries is a heap with the earliest entry first.
type entries []entry

func (e entries) Len() int { return len(e) }
func (e entries) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].seq < e[j].seq
}
func (e entries) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push implements heap.Interface.
func (e *entries) Push(x any) {
	if entry, ok := x.(entry); ok {
		*e = append(*e, entry)
	}
}

// Pop implements heap.Interface.
func (e *entries) Pop() any {
	old := *e
	last := old[len(old)-1]
	old[len(old)-1] = entry{}
	*e = old[:len(old)-1]
	return last
}
