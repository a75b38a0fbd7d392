package schedule

import "container/heap"

// A pod is in none, one or both of the queues, and at most once in each.
const (
	listing = iota
	inspecting
	queues
)

// queue is pods in the order in which they came. A pod that is dropped leaves its position
// behind, which is skipped: it is not that of the pod any more, should it come again or
// its memory be another's.
type queue struct {
	which int
	pods  []*pod
	head  int
	len   int
	left  int // how many positions are no longer among pods
}

// position returns the number of the position at an index of pods; never 0.
func (q *queue) position(i int) int { return q.left + i + 1 }

// maxLeft bounds the positions that dropped pods and those before them leave behind, besides
// as many as there are pods.
const maxLeft = 64

// compact gives the pods new positions, without those that are left behind.
func (q *queue) compact() {
	kept := q.pods[:0]
	for i, p := range q.pods[q.head:] {
		if p.queued[q.which] == q.position(q.head+i) {
			kept = append(kept, p)
		}
	}
	q.left += len(q.pods)
	clear(q.pods[len(kept):])
	q.pods, q.head = kept, 0
	for i, p := range kept {
		p.queued[q.which] = q.position(i)
	}
}

func (q *queue) push(p *pod) {
	if p.queued[q.which] > 0 {
		return
	}
	if len(q.pods) > 2*q.len+maxLeft {
		q.compact()
	}
	p.queued[q.which] = q.position(len(q.pods))
	q.pods = append(q.pods, p)
	q.len++
}

func (q *queue) drop(p *pod) {
	if p.queued[q.which] > 0 {
		p.queued[q.which] = 0
		q.len--
	}
}

// first returns the pod whose turn it is, or nil.
func (q *queue) first() *pod {
	for q.len > 0 {
		if p := q.pods[q.head]; p.queued[q.which] == q.position(q.head) {
			return p
		}
		q.pods[q.head] = nil
		q.head++
	}
	clear(q.pods)
	q.left += len(q.pods)
	q.pods, q.head = q.pods[:0], 0
	return nil
}

func (q *queue) pop() *pod {
	p := q.first()
	if p != nil {
		q.drop(p)
		q.pods[q.head] = nil
		q.head++
	}
	return p
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
