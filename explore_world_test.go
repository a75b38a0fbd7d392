package pleg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/core/schedule"
)

// level is a state in the life of a container ID: absent, running, exited, removed. A level only
// grows. So the level that a call reads lies between the levels at the beginning and at the end of
// the call. In a list, absent and removed look the same.
type level uint8

const (
	levelAbsent level = iota
	levelRunning
	levelExited
	levelRemoved
)

func (l level) shown() level { return l % levelRemoved }

const exploredPods, exploredContainers = 2, 2

// The type levels contains the levels of one pod's containers. The type truth contains the levels
// of all pods.
type (
	levels [exploredContainers]level
	truth  [exploredPods]levels
)

func (l levels) shown() levels {
	for c := range l {
		l[c] = l[c].shown()
	}
	return l
}

// could reports whether a list may show the levels v: for each container, a list must show some
// level between from and to in the same way as the level in v.
func could(v, from, to levels) bool {
	for c := range v {
		l := from[c]
		for l <= to[c] && l.shown() != v[c].shown() {
			l++
		}
		if l > to[c] {
			return false
		}
	}
	return true
}

const (
	explorePeriod  = 20 * time.Second
	exploreTimeout = 3 * explorePeriod
)

var exploreStart = time.Unix(1_000_000, 0)

// scope is the setting of one exploration.
type scope struct {
	name             string
	pods, containers int
	getter           bool // the runtime is a PodGetter
	workers          int
	// listedOnly is true if an inspection reads only the containers of the pod that it was called
	// with; otherwise, it reads all containers.
	listedOnly bool
	// unknown is true if the runtime has seen no end: each status of an exit then has EndUnknown.
	unknown bool
	// flows is true if the clock moves a little with every action; otherwise, it stands still.
	flows bool
	// cold is true if the exploration begins with Start. Otherwise, it begins shortly before the
	// second full list, after the pods of the first full list were inspected.
	cold   bool
	start  truth
	budget budget
}

// budget limits how often each kind of action may occur. Successful calls are not limited.
type budget struct {
	changes, hints, lists, requests, readers, laters, reinspects, relists, faults, ticks int8
	stops, subscribers, batches, connects, exits                                         int8
}

// flight is a call in flight.
type flight struct {
	call      *schedule.Call
	pod       *Pod // the pod to inspect
	began     truth
	cancelled bool
	stopped   bool
}

// exploredCaller is a caller of Relist.
type exploredCaller struct {
	*relistCaller
	at       truth
	called   uint64 // the newest stamp at the time of the call
	list     uint64 // the first successful full list after the call
	returned bool
	// inspected is true for each pod with an inspection that has returned since the call.
	inspected [exploredPods]bool
}

// exploredReader is a reader that is blocked on the cache.
type exploredReader struct {
	*blockedReader      // nil if no reader is blocked
	later          bool // the reader waits for a time in the future
}

// follower is a subscriber with the levels that it was sent.
type follower struct {
	events chan *PodLifecycleEvent
	sent   truth
}

// world is the reconciler with its surroundings: the runtime, the callers and readers, and what
// each of them has seen.
type world struct {
	*scope
	things *things
	r      *reconciler
	pods   *PodCache
	clock  time.Time
	wake   time.Time
	in     inputs

	truth   truth
	left    budget
	running bool // true between Start and Stop
	flights []*flight
	callers []*exploredCaller
	readers [exploredPods]exploredReader
	follow  []*follower

	// The checks use the fields below.
	stamped  map[uint64]truth                       // the truth when each list began
	reached  []reached                              // the true levels at each new time of the clock, as first shown
	seen     truth                                  // the true levels that the record's list has read
	gone     truth                                  // the levels when the record last became absent
	ended    [exploredPods][exploredContainers]bool // true if the cache has shown the container exited
	knownEnd [exploredPods][exploredContainers]bool // true if the record has known how the container ended
	hinted   [exploredPods]bool
	syncs    [exploredPods]bool // true if a PodSync is due
	settled  [exploredPods]bool // true if this step sent a PodSync or removed a container
	fullOK   uint64             // the newest full list that succeeded
	fullBad  uint64
	periods  int // the number of full lists begun
	begun    []string
	broken   string
	quiet    bool // true if the next step must do nothing
	tracing  bool
	trace    func(action) // called with each action that brings the world to rest
	answered []answered   // the results of calls in this step
}

// reached is the truth when the clock first showed this time or a later time.
type reached struct {
	at    time.Time
	truth truth
}

// answered is the result of a call. The next step handles it.
type answered struct {
	kind schedule.Kind
	pod  int
	read truth
	of   *Pod
	ok   bool
	dead bool
	lies bool
}

var errExplored = errors.New("explored")

func podUID(p int) types.UID { return types.UID("ab"[p : p+1]) }

func podIndex(uid types.UID) int { return int(uid[0] - 'a') }

func newWorld(sc *scope, th *things) *world {
	w := &world{
		scope: sc, things: th, pods: NewCache(), clock: exploreStart, truth: sc.start,
		left: sc.budget, stamped: make(map[uint64]truth),
	}
	w.noteClock()
	cfg := schedule.Config{
		Period: explorePeriod, Timeout: exploreTimeout, Threshold: 9 * explorePeriod,
		Workers: sc.workers, ListsPods: sc.getter,
	}
	w.r = newReconciler(cfg, w.clock, w.pods, newBroadcaster(func(int) {}), th.metrics)
	w.subscribe()
	if !sc.cold {
		w.apply(action{kind: actStart})
		for len(w.flights) > 0 && w.broken == "" {
			w.apply(w.completion(w.flights[0], true))
		}
		w.clock = w.wake.Add(-time.Millisecond)
		w.noteClock()
		w.in = inputs{}
	}
	return w
}

func (w *world) subscribe() {
	events := w.r.updates.Subscribe(context.Background(),
		subscriptionOptions{Events: inSteps(stepEvents), Capacity: 64, Lasting: true})
	w.follow = append(w.follow, &follower{events: events})
}

// noteClock records the truth for each new time of the clock.
func (w *world) noteClock() {
	if n := len(w.reached); n == 0 || w.clock.After(w.reached[n-1].at) {
		w.reached = append(w.reached, reached{w.clock, w.truth})
	}
}

// trueAt returns the truth when the clock first showed this time or a later time.
func (w *world) trueAt(t time.Time) (truth, bool) {
	for _, r := range w.reached {
		if !r.at.Before(t) {
			return r.truth, true
		}
	}
	return truth{}, false
}

// active reports whether a goroutine runs the loop.
func (w *world) active() bool {
	return w.running || slices.ContainsFunc(w.callers, func(c *exploredCaller) bool { return !c.returned })
}

func (w *world) breaks(format string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, args...)
	}
}

// run makes steps until the reconciler waits for the clock or for inputs.
func (w *world) run() {
	for n := 0; w.broken == "" && w.active(); n++ {
		w.step()
		if w.wake.IsZero() || w.wake.After(w.clock) {
			return
		}
		if n == 8 {
			w.breaks("the loop is busy: wake is %v and the clock %v", w.wake, w.clock)
		}
	}
}

// step makes one step of the reconciler and carries out its outputs.
func (w *world) step() {
	defer func() {
		if p := recover(); p != nil {
			w.breaks("panic: %v", p)
		}
	}()
	before := w.look()
	out := w.r.step(w.clock, &w.in)
	for _, c := range out.cancel {
		if slices.ContainsFunc(w.in.results, func(res *result) bool { return res.call == c.Call }) {
			continue // the call has returned in this step, so there is nothing to cancel
		}
		i := slices.IndexFunc(w.flights, func(f *flight) bool { return f.call == c.Call })
		if i < 0 {
			w.breaks("a call is cancelled that is not in flight")
			return
		}
		w.flights[i].cancelled = true
	}
	w.begun = w.begun[:0]
	for _, b := range out.begin {
		w.begin(b)
	}
	w.wake = out.wake
	returned := w.markReturned(out.relisted)
	w.drain()
	for p := range w.scope.pods {
		if _, ok := w.in.reinspects[podUID(p)]; ok {
			w.syncs[p] = true // w.check clears it if the pod is absent
		}
	}
	w.in = inputs{}
	w.check(before, returned)
	w.answered = w.answered[:0]
}

func (w *world) begin(b beginCall) {
	if w.quiet {
		w.breaks("a call begins in a step that has nothing to do")
	}
	for _, f := range w.flights {
		if f.call == b.Call || f.call.Kind == b.Kind && f.call.UID == b.UID {
			w.breaks("a second call of its kind begins")
		}
	}
	if w.tracing {
		w.begun = append(w.begun, callName(b.Call))
	}
	switch {
	case b.Kind != schedule.Inspect:
		w.stamped[b.Stamp.Number] = w.truth
		if b.Kind == schedule.ListAll {
			w.periods++
		} else if !w.getter {
			w.breaks("one pod is listed without a PodGetter")
		}
	case b.pod == nil:
		w.breaks("an absent pod is inspected")
	}
	w.flights = append(w.flights, &flight{call: b.Call, pod: b.pod, began: w.truth})
	places := 0
	for _, f := range w.flights {
		if f.call.Kind == schedule.Inspect && !f.call.Slow {
			places++
		}
	}
	if places > w.workers {
		w.breaks("more inspections at once than workers")
	}
}

// markReturned marks the callers whose Relist returns in this step, and returns these callers.
func (w *world) markReturned(relisted []*relistCaller) (returned []*exploredCaller) {
	if w.quiet && len(relisted) > 0 {
		w.breaks("Relist returns in a step that has nothing to do")
	}
	for _, done := range relisted {
		for _, c := range w.callers {
			if c.relistCaller == done {
				if c.returned {
					w.breaks("Relist returns twice")
				}
				c.returned = true
				returned = append(returned, c)
			}
		}
	}
	return returned
}

func (w *world) find(kind schedule.Kind, p int) *flight {
	for _, f := range w.flights {
		if f.call.Kind == kind && (kind == schedule.ListAll || f.call.UID == podUID(p)) {
			return f
		}
	}
	return nil
}

// land removes a call from the calls in flight and adds its result to the inputs.
func (w *world) land(a action) {
	kind := a.kind.call()
	f := w.find(kind, a.pod)
	w.flights = slices.DeleteFunc(w.flights, func(other *flight) bool { return other == f })
	res := &result{call: f.call}
	done := answered{
		kind: kind, pod: a.pod, of: f.pod, read: a.read, dead: f.call.TimedOut, lies: a.lies,
	}
	switch {
	case a.stopped:
		res.stopped, res.err = true, errStopped
	case a.fails:
		res.err = errExplored
	case kind == schedule.ListAll:
		for p := range w.scope.pods {
			if pod := w.things.pod(p, a.read[p]); pod != nil {
				res.pods = append(res.pods, pod)
			}
		}
		done.ok = true
	case kind == schedule.ListPod:
		if res.pod = w.things.pod(a.pod, a.read[a.pod]); res.pod == nil {
			res.err = ErrPodNotFound
		}
		done.ok = true
	default:
		res.status = w.things.status(a.pod, a.read[a.pod])
		for _, s := range res.status.ContainerStatuses {
			s.EndUnknown = w.unknown && s.State == ContainerStateExited
		}
		if a.lies {
			res.status.Name, res.status.ContainerStatuses = lies, res.status.ContainerStatuses[1:]
		}
		done.ok = true
	}
	if kind == schedule.ListAll && !f.call.TimedOut && !a.stopped {
		if done.ok {
			w.fullOK = f.call.Stamp.Number
			for _, c := range w.callers {
				if c.list == 0 && w.fullOK > c.called {
					c.list = w.fullOK
				}
			}
		} else {
			w.fullBad = f.call.Stamp.Number
		}
	}
	if kind == schedule.Inspect {
		for _, c := range w.callers {
			c.inspected[a.pod] = true
		}
	}
	w.in.results = append(w.in.results, res)
	w.answered = append(w.answered, done)
}
