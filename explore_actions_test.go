package pleg

import (
	"fmt"
	"time"

	"github.com/kubepleg/pleg/internal/core/schedule"
)

type actionKind uint8

const (
	actChange actionKind = iota
	actHint
	actHintAll
	actRequest
	actReader
	actReaderLater
	actReinspect
	actExit
	actRelist
	actSubscribe
	actStart
	actStop
	actConnect
	actTickLittle
	actTickWake
	actTickSlow
	actTickDead
	actFull
	actList
	actInspect
)

var actionNames = [...]string{
	"truth", "hint", "hint of nobody knows", "RequestRelist", "reader blocks",
	"reader blocks for half a period", "RequestReinspect", "exit event", "Relist()",
	"Subscribe()", "Start()", "Stop()", "stream connects", "clock +1ns", "clock to the wake-up",
	"clock past slow", "clock past the deadline", "full", "list", "inspect",
}

func (k actionKind) call() schedule.Kind { return schedule.Kind(k - actFull) }

// action is one step of the exploration. If a call returns in this step, the field read contains
// the levels that the call read.
type action struct {
	kind    actionKind
	pod     int
	c       int // the container of an exit event
	read    truth
	fails   bool
	free    bool // the failure is not taken from the budget, because the call was cancelled
	stopped bool
	lies    bool // an inspection omits an existing container
	batched bool // the reconciler takes the action together with the next action
}

var levelNames = [...]string{"-", "running", "exited", "removed"}

func (l levels) String() string { return "{" + levelNames[l[0]] + " " + levelNames[l[1]] + "}" }

func (a action) String() string {
	s := actionNames[a.kind]
	switch a.kind {
	case actFull:
		s += fmt.Sprintf(" = %v %v", a.read[0], a.read[1])
	case actList, actInspect:
		s += fmt.Sprintf(" %s = %v", podUID(a.pod), a.read[a.pod])
	case actChange:
		s += fmt.Sprintf(" %s %v", podUID(a.pod), a.read[a.pod])
	case actHint, actRequest, actReader, actReaderLater, actReinspect:
		s += " " + string(podUID(a.pod))
	case actExit:
		s += " " + containerOf(a.pod, a.c).ID
	}
	switch {
	case a.stopped:
		s += " STOPPED"
	case a.fails:
		s += " FAILS"
	case a.lies:
		s += " LIES"
	}
	if a.batched {
		s += " (with the next)"
	}
	return s
}

func callName(c *schedule.Call) string {
	switch c.Kind {
	case schedule.ListAll:
		return fmt.Sprintf("F%d", c.Stamp.Number)
	case schedule.ListPod:
		return fmt.Sprintf("G%d[%s]", c.Stamp.Number, c.UID)
	}
	return fmt.Sprintf("I[%s]", c.UID)
}

// things makes the pods that a runtime shows. Equal levels give the same pointer, because the
// reconciler compares pointers.
type things struct {
	metrics *metrics
	pods    map[int]*Pod
}

func newThings() *things {
	return &things{
		metrics: newMetrics(),
		pods:    make(map[int]*Pod),
	}
}

var stateOf = map[level]State{levelRunning: ContainerStateRunning, levelExited: ContainerStateExited}

func containerOf(p, c int) ContainerID {
	return ContainerID{Type: "x", ID: string(podUID(p)) + string(rune('0'+c))}
}

// pod returns a pod as a list shows it; nil for an absent pod.
func (th *things) pod(p int, l levels) *Pod {
	if l.shown() == (levels{}) {
		return nil
	}
	key := l.key(p)
	if pod := th.pods[key]; pod != nil {
		return pod
	}
	pod := &Pod{ID: podUID(p), Name: string(podUID(p)), Source: l}
	for c, v := range l {
		if state, ok := stateOf[v]; ok {
			pod.Containers = append(pod.Containers, &Container{ID: containerOf(p, c), State: state})
		}
	}
	th.pods[key] = pod
	return pod
}

// key returns a number that identifies a pod with its levels.
func (l levels) key(p int) int {
	for _, v := range l {
		p = p*4 + int(v)
	}
	return p
}

// levelsOf returns the levels of a pod: the listed levels, with exits that became known after the
// list.
func levelsOf(pod *Pod) levels {
	if pod == nil {
		return levels{}
	}
	l := pod.Source.(levels)
	for _, c := range pod.Containers {
		if n := c.ID.ID[1] - '0'; c.State == ContainerStateExited && l[n] < levelExited {
			l[n] = levelExited
		}
	}
	return l
}

func (th *things) status(p int, l levels) *PodStatus {
	status := &PodStatus{ID: podUID(p)}
	for c, v := range l {
		if state, ok := stateOf[v]; ok {
			status.ContainerStatuses = append(status.ContainerStatuses,
				&Status{ID: containerOf(p, c), State: state, Reason: exitCompleted})
		}
	}
	return status
}

// A status with this pod name omits an existing container.
const lies = "lies"

// shownBy returns the levels that a status shows.
func shownBy(status *PodStatus) (l levels) {
	for _, s := range status.ContainerStatuses {
		l[s.ID.ID[1]-'0'] = levelRunning
		if s.State == ContainerStateExited {
			l[s.ID.ID[1]-'0'] = levelExited
		}
	}
	return l
}

// apply performs an action. The reconciler then takes its inputs at once or, if the action is
// batched, together with the next action.
func (w *world) apply(a action) {
	if w.flows {
		w.clock = w.clock.Add(1)
		w.noteClock()
	}
	switch a.kind {
	case actChange:
		w.change(a)
		return
	case actSubscribe:
		w.left.subscribers--
		w.subscribe()
		w.drain()
		return
	case actStart, actStop:
		w.startOrStop(a.kind == actStart)
	case actTickLittle, actTickWake, actTickSlow, actTickDead:
		w.tick(a.kind)
	case actFull, actList, actInspect:
		if a.fails && !a.free && !a.stopped || a.lies {
			w.left.faults--
		}
		w.land(a)
	default:
		w.ask(a)
	}
	if a.batched {
		w.left.batches--
		return
	}
	rec := w.r.records.byUID[podUID(a.pod)]
	publishes := a.kind == actExit && w.active() && w.published(a.pod)[a.c] == levelRunning &&
		rec != nil && find(rec.pod.containers(), containerOf(a.pod, a.c).ID) != nil
	w.run()
	if publishes && w.follow[0].sent[a.pod][a.c] < levelExited {
		w.breaks("rule 20: the exit event of %s is not published", containerOf(a.pod, a.c).ID)
	}
}

func (w *world) change(a action) {
	p := a.pod
	w.left.changes--
	w.truth[p] = a.read[p]
	if w.hinted[p] {
		w.hinted[p] = w.hintOpen(p)
	}
}

func (w *world) startOrStop(start bool) {
	w.running = start
	w.in.periodic = &start
	if start {
		return
	}
	w.left.stops--
	for _, f := range w.flights {
		f.stopped = true
	}
}

func (w *world) tick(kind actionKind) {
	w.left.ticks--
	switch kind {
	case actTickWake:
		w.clock = w.wake
	case actTickSlow:
		w.clock = w.clock.Add(explorePeriod)
	case actTickDead:
		w.clock = w.clock.Add(exploreTimeout)
	default:
		w.clock = w.clock.Add(1)
	}
	w.noteClock()
}

// ask performs an action: a caller's or a reader's request, or an event that the runtime sends.
func (w *world) ask(a action) {
	uid := podUID(a.pod)
	switch a.kind {
	case actHint:
		w.left.hints--
		w.in.addHint(uid)
		w.hinted[a.pod] = true
	case actHintAll:
		w.left.lists--
		w.in.addHint("")
	case actRequest:
		w.left.requests--
		put(&w.in.requests, uid, struct{}{})
	case actReader:
		w.left.readers--
		w.block(a.pod, w.clock.Add(-1))
	case actReaderLater:
		w.left.laters--
		w.block(a.pod, w.clock.Add(explorePeriod/2))
	case actReinspect:
		w.left.reinspects--
		put(&w.in.reinspects, uid, struct{}{})
	case actExit:
		w.left.exits--
		w.in.addExit(ContainerExit{ContainerID: containerOf(a.pod, a.c).ID, ExitCode: 1})
	case actRelist:
		w.left.relists--
		c := &exploredCaller{
			relistCaller: &relistCaller{done: make(chan struct{})}, at: w.truth, called: w.r.sched.Last.Number,
		}
		w.callers = append(w.callers, c)
		w.in.relists = append(w.in.relists, c.relistCaller)
	case actConnect:
		w.left.connects--
		w.in.addHint("")
	}
}

// block blocks a reader that waits for state newer than minTime.
func (w *world) block(p int, minTime time.Time) {
	uid := podUID(p)
	if w.pods.freshLocked(uid, minTime) {
		return
	}
	w.readers[p] = exploredReader{w.pods.blockLocked(uid, minTime), minTime.After(w.clock)}
	if w.r.cfg.ListsPods {
		put(&w.in.requests, uid, struct{}{})
	}
}

// next returns all actions that are possible now.
func (w *world) next() []action {
	var as []action
	add := func(left int8, a action) {
		if left > 0 {
			as = append(as, a)
		}
	}
	for p := range w.scope.pods {
		as = w.nextOfPod(p, as)
	}
	add(w.left.lists, action{kind: actHintAll})
	add(w.left.relists, action{kind: actRelist})
	add(w.left.subscribers, action{kind: actSubscribe})
	add(w.left.connects, action{kind: actConnect})
	if !w.running {
		as = append(as, action{kind: actStart})
	} else {
		add(w.left.stops, action{kind: actStop})
	}
	if w.left.ticks > 0 {
		if !w.flows {
			as = append(as, action{kind: actTickLittle})
		}
		if w.wake.After(w.clock) && w.active() {
			as = append(as, action{kind: actTickWake})
		}
		slow, dead := false, false
		for _, f := range w.flights {
			slow, dead = slow || !f.call.Slow, dead || !f.call.TimedOut
		}
		if slow {
			as = append(as, action{kind: actTickSlow})
		}
		if dead {
			as = append(as, action{kind: actTickDead})
		}
	}
	for _, f := range w.flights {
		as = w.nextOfCall(f, as)
	}
	return as
}

func (w *world) nextOfPod(p int, as []action) []action {
	for c := range w.containers {
		l := w.truth[p][c]
		if w.left.changes > 0 && l < levelRemoved && (c == 0 || w.truth[p][0] > levelAbsent) {
			a := action{kind: actChange, pod: p}
			a.read[p] = w.truth[p]
			a.read[p][c]++
			as = append(as, a)
		}
		if w.left.exits > 0 && l >= levelExited {
			as = append(as, action{kind: actExit, pod: p, c: c})
		}
	}
	for _, o := range [...]struct {
		left int8
		kind actionKind
	}{
		{w.left.hints, actHint}, {w.left.requests, actRequest}, {w.left.readers, actReader},
		{w.left.laters, actReaderLater}, {w.left.reinspects, actReinspect},
	} {
		blocked := (o.kind == actReader || o.kind == actReaderLater) && w.readers[p].blockedReader != nil
		if o.left > 0 && !blocked {
			as = append(as, action{kind: o.kind, pod: p})
		}
	}
	return as
}

// nextOfCall appends the possible results of a call.
func (w *world) nextOfCall(f *flight, as []action) []action {
	kind := actFull + actionKind(f.call.Kind)
	a := action{kind: kind, pod: 0}
	if f.call.Kind != schedule.ListAll {
		a.pod = podIndex(f.call.UID)
	}
	add := func(a action) {
		as = append(as, a)
		if w.left.batches > 0 {
			a.batched = true
			as = append(as, a)
		}
	}
	switch {
	case f.stopped:
		b := a
		b.stopped = true
		add(b)
	case w.left.faults > 0 || f.cancelled:
		b := a
		b.fails, b.free = true, f.cancelled
		add(b)
	}
	if f.call.Kind != schedule.ListAll {
		w.reads(f, a.pod, func(l levels) {
			b := a
			b.read[a.pod] = l
			add(b)
			if f.call.Kind == schedule.Inspect && w.left.faults > 0 && l[0].shown() != levelAbsent {
				b.lies = true
				add(b)
			}
		})
		return as
	}
	w.reads(f, 0, func(l levels) {
		b := a
		b.read[0] = l
		if w.scope.pods == 1 {
			add(b)
			return
		}
		w.reads(f, 1, func(l levels) {
			b.read[1] = l
			add(b)
		})
	})
	return as
}

// reads passes to yield all levels of a pod that the call can have read by now.
func (w *world) reads(f *flight, p int, yield func(levels)) {
	from, to := f.began[p], w.truth[p]
	var of levels
	if f.call.Kind == schedule.Inspect && w.listedOnly {
		of = levelsOf(f.pod).shown()
	}
	for a := from[0]; a <= to[0]; a++ {
		for b := from[1]; b <= to[1]; b++ {
			l := levels{a, b}
			if f.call.Kind == schedule.Inspect && w.listedOnly {
				if of[0] == levelAbsent && a != from[0] || of[1] == levelAbsent && b != from[1] {
					continue // another iteration reads the same visible levels
				}
				for c := range l {
					if of[c] == levelAbsent {
						l[c] = levelAbsent
					}
				}
			}
			yield(l)
		}
	}
}

// completion returns the result of a call that succeeds. If stale is true, the call read the state
// as early as possible, else as late as possible.
func (w *world) completion(f *flight, stale bool) action {
	a := action{kind: actFull + actionKind(f.call.Kind), read: w.truth}
	if stale {
		a.read = f.began
	}
	if f.call.Kind != schedule.ListAll {
		a.pod = podIndex(f.call.UID)
	}
	if f.call.Kind == schedule.Inspect && w.listedOnly {
		for c, v := range levelsOf(f.pod).shown() {
			if v == levelAbsent {
				a.read[a.pod][c] = levelAbsent
			}
		}
	}
	a.stopped = f.stopped && stale
	a.fails = a.stopped || f.cancelled && stale
	a.free = a.fails
	return a
}
