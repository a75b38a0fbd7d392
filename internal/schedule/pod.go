package schedule

import (
	"container/heap"
	"container/list"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Pod is what the schedule keeps of one pod. The user embeds it in what it knows of the pod,
// and reads the exported fields.
type Pod struct {
	UID types.UID
	// List and Inspection are the calls in flight; nil for none.
	List, Inspection *Call
	// HungSince is when the oldest inspection began that was slow and that the runtime has not
	// answered since; zero if none hangs.
	HungSince time.Time

	wants             Wants
	toList, toInspect *list.Element // its places in the queues; nil for none
	wake              time.Time     // of the alarm; zero for none
	index             int           // among the alarms, from 1; 0 for none
}

// Wants is what is wanted of a pod.
type Wants struct {
	// List is the number of the list that answers all requests for the pod; 0 if a list is not
	// wanted now. Cause is why.
	List  uint64
	Cause string
	// Inspect is true if an inspection is to begin.
	Inspect bool
	// Wake is when the pod is to be looked at again; zero for never.
	Wake time.Time
}

// Plan puts a pod where it belongs: into the queues, and among the alarms. One call of a kind
// runs at a time. A request that the full list in flight answers is left to it, until it is
// slow.
func (s *Scheduler) Plan(p *Pod, w Wants) {
	p.wants = w
	left := s.FullList != nil && !s.FullList.Slow && w.List <= s.FullList.Stamp.Number
	s.toList.set(p, s.cfg.ListsPods && w.List > 0 && p.List == nil && !left)
	s.toInspect.set(p, w.Inspect && p.Inspection == nil)
	if w.Inspect && p.Inspection != nil && p.Inspection.Slow {
		s.setHung(p, p.Inspection.Began) // another pod came under the UID, and waits for the same call
	}
	s.setAlarm(p)
}

// Gone notes that nobody waits for an inspection of the pod any more.
func (s *Scheduler) Gone(p *Pod) { s.setHung(p, time.Time{}) }

// Moving reports whether what is wanted of the pod goes on by itself: its inspection, or else its
// single-pod list, is under way or can begin, and is not slow.
func (s *Scheduler) Moving(p *Pod) bool {
	switch {
	case p.Inspection != nil:
		return !p.Inspection.Slow
	case p.wants.Inspect:
		return s.freeWorkers() > 0 || s.inspections > s.slow
	default:
		return s.cfg.ListsPods && p.wants.List > 0 && (p.List == nil || !p.List.Slow)
	}
}

// queue is pods in the order in which they came.
type queue struct {
	list.List
	inspecting bool // it is that of the inspections
}

func (q *queue) place(p *Pod) **list.Element {
	if q.inspecting {
		return &p.toInspect
	}
	return &p.toList
}

// set puts a pod into the queue, or takes it out.
func (q *queue) set(p *Pod, in bool) {
	switch e := q.place(p); {
	case in && *e == nil:
		*e = q.PushBack(p)
	case !in && *e != nil:
		q.Remove(*e)
		*e = nil
	}
}

// first returns the pod that came first.
func (q *queue) first() *Pod { return q.Front().Value.(*Pod) }

// pop takes out the pod that came first; nil for none.
func (q *queue) pop() *Pod {
	if q.Len() == 0 {
		return nil
	}
	p := q.first()
	q.set(p, false)
	return p
}

// alarms is a heap of pods, by their next time.
type alarms []*Pod

// setAlarm puts the pod where its next time says.
func (s *Scheduler) setAlarm(p *Pod) {
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

func (a *alarms) remove(p *Pod) {
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
	*a = append(*a, p.(*Pod))
	p.(*Pod).index = len(*a)
}

// Pop implements heap.Interface.
func (a *alarms) Pop() any {
	last := (*a)[len(*a)-1]
	(*a)[len(*a)-1] = nil
	*a = (*a)[:len(*a)-1]
	last.index = 0
	return last
}
