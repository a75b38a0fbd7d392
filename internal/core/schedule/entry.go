package schedule

import (
	"cmp"
	"container/heap"
	"container/list"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Entry is the schedule's state of a pod. The reconciler's record embeds it and reads the exported fields.
type Entry struct {
	UID types.UID
	// List and Inspection are the calls in flight; nil for none.
	List, Inspection *Call
	// StuckSince is when the oldest slow inspection of the pod began. It becomes zero when the runtime
	// answers an inspection. The pod is stuck while StuckSince is set.
	StuckSince time.Time

	wants             Wants
	toList, toInspect *list.Element // the pod's elements in the queues; nil for none
	wake              time.Time     // the time of the pod's alarm; zero for none
	index             int           // the pod's place in alarms, counted from 1; 0 for none
}

// Wants is what the schedule should do for a pod.
type Wants struct {
	// List is the lowest number of a list that answers all requests; 0 if no list is wanted now.
	List  uint64
	Cause string // why the list is wanted
	// Inspect is true if the pod needs an inspection.
	Inspect bool
	// Wake is when Expire must return the pod; zero for never.
	Wake time.Time
}

// Plan updates the queues and the alarm of a pod. For each pod, at most one call of each kind runs at
// a time. Requests that the full list in flight will answer wait for that list, unless it is slow.
func (s *Scheduler) Plan(p *Entry, w Wants) {
	left := s.FullList != nil && !s.FullList.Slow && w.List <= s.FullList.Stamp.Number
	s.toList.set(p, s.cfg.ListsPods && w.List > 0 && p.List == nil && !left)
	if w.Inspect != p.wants.Inspect {
		s.toInspect.set(p, false) // the pod leaves the queue, or moves before the pods of the round
	}
	if w.Inspect && p.Inspection == nil {
		s.toInspect.set(p, true)
	}
	p.wants = w
	if w.Inspect && p.Inspection != nil && p.Inspection.Slow {
		s.setStuck(p, p.Inspection.Began) // a removed pod with the same UID may have begun this call
	}
	s.setAlarm(p)
}

// Gone records that no inspection of the pod is needed any more.
func (s *Scheduler) Gone(p *Entry) {
	s.setStuck(p, time.Time{})
	s.toInspect.set(p, false)
}

// Moving reports whether the pod's inspection, or else its list, runs or will run, and is not slow.
func (s *Scheduler) Moving(p *Entry) bool {
	switch {
	case p.Inspection != nil:
		return !p.Inspection.Slow
	case p.wants.Inspect:
		return s.freeWorkers() > 0 || s.inspections > s.slow
	default:
		return s.cfg.ListsPods && p.wants.List > 0 && (p.List == nil || !p.List.Slow)
	}
}

// queue is a queue of pods, first in, first out. Pods from set come before pods from addLater.
type queue struct {
	list.List
	// place returns the field in which a pod keeps its element of this queue.
	place func(p *Entry) **list.Element
	// later is the first element from addLater; nil for none.
	later *list.Element
}

// set adds the pod to the queue, or removes it.
func (q *queue) set(p *Entry, in bool) {
	switch e := q.place(p); {
	case in && *e == nil && q.later != nil:
		*e = q.InsertBefore(p, q.later)
	case in && *e == nil:
		*e = q.PushBack(p)
	case !in && *e != nil:
		if *e == q.later {
			q.later = q.later.Next()
		}
		q.Remove(*e)
		*e = nil
	}
}

// addLater adds a pod to the end. Later calls of set put their pods before this pod.
func (q *queue) addLater(p *Entry) {
	e := q.PushBack(p)
	*q.place(p), q.later = e, cmp.Or(q.later, e)
}

func (q *queue) first() *Entry { return q.Front().Value.(*Entry) }

// pop removes and returns the first pod.
func (q *queue) pop() *Entry {
	p := q.first()
	q.set(p, false)
	return p
}

// alarms is a heap of pods, ordered by wake.
type alarms []*Entry

// setAlarm updates the pod's place among the alarms.
func (s *Scheduler) setAlarm(p *Entry) {
	wake := earlier(p.wants.Wake, earlier(s.nextLate(p.List), s.nextLate(p.Inspection)))
	if wake.Equal(p.wake) {
		return
	}
	p.wake = wake
	switch {
	case wake.IsZero():
		s.alarms.remove(p)
	case p.index == 0:
		heap.Push(&s.alarms, p)
	default:
		heap.Fix(&s.alarms, p.index-1)
	}
}

func (a *alarms) remove(p *Entry) {
	if p.index > 0 {
		heap.Remove(a, p.index-1)
	}
}

func (a alarms) Len() int           { return len(a) }
func (a alarms) Less(i, j int) bool { return a[i].wake.Before(a[j].wake) }

func (a alarms) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].index, a[j].index = i+1, j+1
}

// Push implements heap.Interface.
func (a *alarms) Push(p any) {
	*a = append(*a, p.(*Entry))
	p.(*Entry).index = len(*a)
}

// Pop implements heap.Interface.
func (a *alarms) Pop() any {
	last := (*a)[len(*a)-1]
	(*a)[len(*a)-1] = nil
	*a = (*a)[:len(*a)-1]
	last.index = 0
	return last
}
