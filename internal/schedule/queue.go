package schedule

import (
	"container/heap"
	"container/list"
)

// A pod is in any of these, and at most once in each.
const (
	listing = iota
	inspecting
	requesting
	hanging
	queues
)

// queue is pods in the order in which they came.
type queue struct {
	list.List
	which int
}

// set puts a pod into the queue, or takes it out.
func (q *queue) set(p *pod, in bool) {
	switch e := p.queued[q.which]; {
	case in && e == nil:
		p.queued[q.which] = q.PushBack(p)
	case !in && e != nil:
		q.Remove(e)
		p.queued[q.which] = nil
	}
}

// first returns the pod whose turn it is, or nil.
func (q *queue) first() *pod {
	if e := q.Front(); e != nil {
		return e.Value.(*pod)
	}
	return nil
}

func (q *queue) pop() *pod {
	p := q.first()
	if p != nil {
		q.set(p, false)
	}
	return p
}

// all yields the pods.
func (q *queue) all(yield func(*pod) bool) {
	for e := q.Front(); e != nil; e = e.Next() {
		if !yield(e.Value.(*pod)) {
			return
		}
	}
}

// alarms is the one heap of deadlines: of each pod the earliest.
type alarms []*pod

func (a alarms) Len() int           { return len(a) }
func (a alarms) Less(i, j int) bool { return a[i].alarm.Before(a[j].alarm) }

func (a alarms) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].index, a[j].index = i+1, j+1
}

// Push implements heap.Interface.
func (a *alarms) Push(p any) {
	*a = append(*a, p.(*pod))
	p.(*pod).index = len(*a)
}

// Pop implements heap.Interface.
func (a *alarms) Pop() any {
	last := (*a)[len(*a)-1]
	(*a)[len(*a)-1] = nil
	*a = (*a)[:len(*a)-1]
	last.index = 0
	return last
}

// update puts a pod where its alarm says.
func (a *alarms) update(p *pod) {
	switch {
	case p.alarm.IsZero():
		a.remove(p)
	case p.index == 0:
		heap.Push(a, p)
	default:
		heap.Fix(a, p.index-1)
	}
}

func (a *alarms) remove(p *pod) {
	if p.index > 0 {
		heap.Remove(a, p.index-1)
	}
}
