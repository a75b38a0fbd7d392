package pleg

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// announcement is the news that the cache is ready for what a listing showed of a
// pod.
type announcement struct {
	uid types.UID
	// pod is the pod as it was listed; nil when it is gone.
	pod *Pod
	// sync asks for a PodSync besides the transitions.
	sync     bool
	listedAt time.Time
	cause    Cause
}

// announcer holds the present state of the node as it has been announced, and the
// subscriptions that are told of it.
type announcer struct {
	mu sync.Mutex

	// Guarded by mu. A subscription's own lock is taken inside this one, never
	// the other way round.

	present map[types.UID]announcement
	subs    map[*subscription]struct{}
	// stop ends the pumps; nil while the generator does not run.
	stop chan struct{}
	// pumps counts the running pumps, for Stop to join.
	pumps sync.WaitGroup

	// merged counts the transitions that some subscriber was never told of.
	merged func(n int)
}

func newAnnouncer(merged func(n int)) *announcer {
	return &announcer{
		present: make(map[types.UID]announcement),
		subs:    make(map[*subscription]struct{}),
		merged:  merged,
	}
}

// publish makes news part of the present and tells every subscription, without
// ever waiting for a reader. It returns the pod as it was announced before.
func (a *announcer) publish(news announcement) (old *Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old = a.present[news.uid].pod
	if news.pod == nil {
		delete(a.present, news.uid)
	} else if news.pod != old {
		told := news
		told.sync = false
		a.present[news.uid] = told
	}
	for s := range a.subs {
		if n := s.offer(news); n > 0 {
			a.merged(n)
		}
	}
	return old
}

// fill puts into the channels what has come to fit since.
func (a *announcer) fill() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for s := range a.subs {
		s.fill()
	}
}

// subscribe adds a subscription whose first news is the present. It ends with
// ctx, or with the next stop unless it is lasting.
func (a *announcer) subscribe(ctx context.Context, capacity int, lasting bool) *subscription {
	s := &subscription{
		out:     make(chan *PodLifecycleEvent, max(capacity, 0)),
		lasting: lasting,
		ended:   make(chan struct{}),
		work:    make(chan struct{}, 1),
		told:    make(map[types.UID]*Pod),
		pending: make(map[types.UID]announcement),
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, uid := range sortedKeys(a.present) {
		s.offer(a.present[uid])
	}
	a.subs[s] = struct{}{}
	if a.stop != nil {
		a.startPumpLocked(s)
	}
	s.forget = context.AfterFunc(ctx, func() { a.unsubscribe(s) })
	return s
}

func (a *announcer) unsubscribe(s *subscription) {
	a.mu.Lock()
	delete(a.subs, s)
	a.mu.Unlock()
	s.end()
}

// start lets subscriptions wait for their readers.
func (a *announcer) start() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stop = make(chan struct{})
	for s := range a.subs {
		a.startPumpLocked(s)
	}
}

func (a *announcer) startPumpLocked(s *subscription) {
	stop := a.stop
	s.mu.Lock()
	s.pumping = true
	s.mu.Unlock()
	a.pumps.Go(func() { s.pump(stop) })
}

// halt ends and joins the pumps, and ends every subscription that is not lasting.
func (a *announcer) halt() {
	a.mu.Lock()
	if a.stop != nil {
		close(a.stop)
		a.stop = nil
	}
	a.mu.Unlock()
	a.pumps.Wait()

	a.mu.Lock()
	var ending []*subscription
	for s := range a.subs {
		if !s.lasting {
			delete(a.subs, s)
			ending = append(ending, s)
		}
	}
	a.mu.Unlock()
	for _, s := range ending {
		s.forget()
		s.end()
	}
}

// backlog counts the subscriptions, and the pods of which they have news that is
// still to be delivered.
func (a *announcer) backlog() (subscribers, pods int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for s := range a.subs {
		pods += s.backlog()
	}
	return len(a.subs), pods
}

// subscription delivers the difference between what one subscriber has been told
// and what there is to tell. What it holds is bounded by the pods that exist and
// those that the subscriber was told of: news of a pod replaces older news of it.
//
// Events go into the channel as far as they fit, by whoever brings the news. What
// does not fit is left to the pump, which waits for the reader.
type subscription struct {
	// Set once by subscribe.

	out     chan *PodLifecycleEvent
	lasting bool
	ended   chan struct{} // closed by end
	work    chan struct{} // wakes the pump
	forget  func() bool   // releases ctx

	mu sync.Mutex

	// Guarded by mu.

	// told is each pod as the events delivered and committed tell it.
	told map[types.UID]*Pod
	// pending is the newest news of each pod that has some; order has their UIDs
	// in the order in which they came, and those of pods whose news came to
	// nothing.
	pending map[types.UID]announcement
	order   []types.UID
	// committed are the remaining events of the pod whose turn it is.
	committed []*PodLifecycleEvent
	// pumping is true while there is a pump; holding while it waits for the
	// reader with an event in its hand, which nothing may overtake.
	pumping, holding bool
	over             bool
}

// offer takes in news of a pod, delivers what fits, and returns how many
// transitions the subscriber will never be told of because later ones undid or
// outran them.
func (s *subscription) offer(news announcement) (merged int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	earlier, waiting := s.pending[news.uid]
	if waiting {
		merged = s.countMergedLocked(earlier.pod, news)
		news.sync = news.sync || earlier.sync
	} else {
		s.order = append(s.order, news.uid)
	}
	s.pending[news.uid] = news
	if news.pod == nil && s.told[news.uid] == nil {
		s.withdrawLocked(news.uid)
	}
	if !s.holding {
		s.fillLocked()
	}
	if s.backlogLocked() > 0 {
		s.wake()
	}
	return merged
}

// withdrawLocked takes back the news of a pod that came and went without the
// subscriber having been told of it.
func (s *subscription) withdrawLocked(uid types.UID) {
	delete(s.pending, uid)
	if len(s.order) < 2*len(s.pending)+withdrawnAtMost {
		return
	}
	order := make([]types.UID, 0, len(s.pending))
	listed := make(map[types.UID]bool, len(s.pending))
	for _, uid := range s.order {
		if _, waiting := s.pending[uid]; waiting && !listed[uid] {
			listed[uid] = true
			order = append(order, uid)
		}
	}
	s.order = order
}

// withdrawnAtMost bounds the UIDs in order that stand for nothing, besides as
// many as there are pods with news.
const withdrawnAtMost = 64

// countMergedLocked compares the steps told → earlier → news with the one step
// told → news that the subscriber will see.
func (s *subscription) countMergedLocked(earlier *Pod, news announcement) int {
	told := s.told[news.uid]
	steps := deliverable(appendTransitions(nil, told, earlier)) +
		deliverable(appendTransitions(nil, earlier, news.pod))
	return max(0, steps-deliverable(appendTransitions(nil, told, news.pod)))
}

func (s *subscription) fill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.holding {
		s.fillLocked()
	}
}

// fillLocked delivers what fits into the channel. Nobody else sends while the
// lock is held and the pump holds nothing, so that where there is room it stays.
func (s *subscription) fillLocked() {
	for len(s.out) < cap(s.out) {
		event := s.nextLocked()
		if event == nil {
			return
		}
		s.out <- event
		s.committed = s.committed[1:]
	}
}

// nextLocked returns the next event without taking it out of committed, or nil
// if there is nothing to tell.
func (s *subscription) nextLocked() *PodLifecycleEvent {
	for len(s.committed) == 0 {
		if len(s.order) == 0 {
			s.order, s.committed = nil, nil
			return nil
		}
		uid := s.order[0]
		s.order = s.order[1:]
		news, waiting := s.pending[uid]
		if !waiting {
			continue
		}
		delete(s.pending, uid)
		s.committed = eventsBetween(s.told[uid], news)
		if news.pod == nil {
			delete(s.told, uid)
		} else {
			s.told[uid] = news.pod
		}
	}
	return s.committed[0]
}

// eventsBetween returns the events that lead a subscriber from a pod as it was
// told to the news of it.
func eventsBetween(told *Pod, news announcement) []*PodLifecycleEvent {
	transitions := appendTransitions(nil, told, news.pod)
	pod := news.pod
	if pod == nil {
		pod = told
	}
	var events []*PodLifecycleEvent
	for _, t := range transitions {
		if t.kind == ContainerChanged {
			continue
		}
		events = append(events, &PodLifecycleEvent{
			ID: news.uid, Type: t.kind, Data: t.container.ID.ID,
			Pod: pod, Container: t.container, sandbox: t.sandbox,
			ListedAt: news.listedAt, Cause: news.cause,
		})
	}
	if news.sync && news.pod != nil {
		events = append(events, &PodLifecycleEvent{
			ID: news.uid, Type: PodSync, Pod: pod, ListedAt: news.listedAt, Cause: news.cause,
		})
	}
	return events
}

// pump waits for the reader with one event at a time until the subscription ends
// or stop is closed.
func (s *subscription) pump(stop <-chan struct{}) {
	defer s.pumpEnded()
	for {
		event := s.take()
		if event == nil {
			select {
			case <-s.work:
				continue
			case <-s.ended:
				return
			case <-stop:
				return
			}
		}
		select {
		case s.out <- event:
			s.delivered()
		case <-s.ended:
			return
		case <-stop:
			return
		}
	}
}

// take returns the event that the pump is to hold, or nil.
func (s *subscription) take() *PodLifecycleEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fillLocked()
	event := s.nextLocked()
	s.holding = event != nil
	return event
}

// delivered notes that the event that the pump held is in the channel.
func (s *subscription) delivered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holding = false
	s.committed = s.committed[1:]
}

// pumpEnded leaves an event that could not be delivered where it was.
func (s *subscription) pumpEnded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pumping, s.holding = false, false
	if s.over {
		close(s.out)
	}
}

// end closes the channel, or leaves that to the pump, which may be sending. The
// announcer has let go of the subscription before, so that nobody else sends.
func (s *subscription) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	s.over = true
	close(s.ended)
	if !s.pumping {
		close(s.out)
	}
}

func (s *subscription) wake() {
	select {
	case s.work <- struct{}{}:
	default:
	}
}

func (s *subscription) backlog() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.backlogLocked()
}

func (s *subscription) backlogLocked() int {
	n := len(s.pending)
	if len(s.committed) > 0 {
		if _, again := s.pending[s.committed[0].ID]; !again {
			n++
		}
	}
	return n
}
