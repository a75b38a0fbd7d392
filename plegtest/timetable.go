package plegtest

import (
	"container/heap"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// timetable does things at their times, one after another, in one goroutine of
// its own that lives from the first thing to do until stop.
type timetable struct {
	clock clock.Clock   // set once by newTimetable
	wake  chan struct{} // holds one
	quit  chan struct{} // closed by stop
	done  chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	entries entries         // guarded by mu
	seq     uint64          // guarded by mu
	waiting []chan struct{} // closed when nothing is due; guarded by mu
	running bool            // the goroutine has been started; guarded by mu
	stopped bool            // guarded by mu
}

type entry struct {
	at  time.Time
	seq uint64 // of the same time, what was entered first comes first
	do  func(at time.Time)
}

func newTimetable(c clock.Clock) *timetable {
	return &timetable{clock: c, wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
}

// at has something done at a time, at once if that is past. do is told the time it
// was entered for, so that what follows it does not drift.
func (t *timetable) at(when time.Time, do func(at time.Time)) {
	t.enter(entry{at: when, do: do})
}

// enter has several things done, none before all are entered: so their order does
// not depend on how fast the goroutine is.
func (t *timetable) enter(es ...entry) {
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
	t.nudge()
}

// settle returns when nothing is due.
func (t *timetable) settle() {
	t.mu.Lock()
	if t.stopped || !t.running {
		t.mu.Unlock()
		return
	}
	settled := make(chan struct{})
	t.waiting = append(t.waiting, settled)
	t.nudge()
	t.mu.Unlock()
	select {
	case <-settled:
	case <-t.done:
	}
}

func (t *timetable) startLocked() {
	if !t.running {
		t.running = true
		go t.run()
	}
}

func (t *timetable) nudge() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// stop ends the timetable and waits for its goroutine. What is not done by then
// is never done.
func (t *timetable) stop() {
	t.mu.Lock()
	first := !t.stopped
	t.stopped = true
	running := t.running
	t.mu.Unlock()
	if first {
		close(t.quit)
	}
	if running {
		<-t.done
	}
}

func (t *timetable) run() {
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

// next returns what is due, or how long to wait for the next thing, 0 for ever.
func (t *timetable) next() (e entry, due bool, wait time.Duration) {
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

// entries is a heap, the earliest first.
type entries []entry

func (e entries) Len() int { return len(e) }
func (e entries) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].seq < e[j].seq
}
func (e entries) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push is of heap.Interface.
func (e *entries) Push(x any) {
	if entry, ok := x.(entry); ok {
		*e = append(*e, entry)
	}
}

// Pop is of heap.Interface.
func (e *entries) Pop() any {
	old := *e
	last := old[len(old)-1]
	old[len(old)-1] = entry{}
	*e = old[:len(old)-1]
	return last
}
