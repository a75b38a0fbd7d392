package pleg

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg/internal/calls"
	"github.com/kubepleg/pleg/internal/schedule"
)

// run runs the loop, once no other goroutine does, until ctx ends or done is closed; nil for never.
func (g *GenericPLEG) run(ctx context.Context, done <-chan struct{}) {
	select {
	case g.token <- struct{}{}:
		defer func() { <-g.token }()
	case <-ctx.Done():
		return
	case <-done:
		return
	}
	for ctx.Err() == nil && !isClosed(done) {
		timeout := g.step()
		select {
		case <-ctx.Done():
		case <-done:
		case <-g.inbox.Wake():
			runtime.Gosched()
		case <-timeout:
		}
	}
}

// isClosed reports whether a channel to which nobody sends is closed.
func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// step has the reconciler take one step with the present inputs, and carries its outputs out. The
// channel that it returns fires when the next step is due; it is nil if that takes an input.
func (g *GenericPLEG) step() <-chan time.Time {
	g.mu.Lock()
	in := g.inbox.Take()
	out := g.reconciler.step(g.clock.Now(), &in)
	if g.reconciler.synced && !g.HasSynced() {
		close(g.synced)
		g.updates.Publish(&update{uid: syncedUID})
	}
	g.mu.Unlock()
	for _, c := range out.cancel {
		g.calls.Cancel(c.Call, c.cause)
	}
	for _, c := range out.begin {
		g.begin(c)
	}
	for _, log := range out.log {
		log(g.logger)
	}
	for _, caller := range out.relisted {
		close(caller.done)
	}
	if out.listsRecovered {
		for _, e := range g.streams {
			select {
			case e.recovered <- struct{}{}:
			default:
			}
		}
	}
	return g.sleep(out.wake)
}

// methods are the names of the runtime's methods for each kind of call.
var methods = [...]string{
	schedule.ListAll: methodGetPods, schedule.ListPod: methodGetPod, schedule.Inspect: methodGetPodStatus,
}

// begin makes a call. Its result becomes an input.
func (g *GenericPLEG) begin(c beginCall) {
	info := calls.Info{Method: methods[c.Kind], PodUID: c.UID, Since: c.Began}
	if c.pod != nil {
		info.Object = podObject{c.pod}
	}
	res := &result{call: c.Call}
	g.calls.Go(c.Call, info, func(ctx context.Context) (err error) {
		switch c.Kind {
		case schedule.ListAll:
			res.pods, err = g.runtime.GetPods(ctx, true)
		case schedule.ListPod:
			res.pod, err = g.getter.GetPod(ctx, c.UID)
		case schedule.Inspect:
			res.status, err = g.runtime.GetPodStatus(ctx, c.pod)
		}
		return err
	}, func(err error, stopped bool) {
		res.err, res.stopped = err, stopped
		g.inbox.Put(func(in *inputs) { in.results = append(in.results, res) })
	})
}

// podObject is the pod that a call is for. Its name is formatted only when it is printed.
type podObject struct{ *Pod }

func (p podObject) String() string { return podName(p.Pod) }

// maxHints bounds the memory of hints about unknown pods, in case a runtime sends garbage faster
// than it answers.
const maxHints = 10000

// inputs are the inputs of one step of the reconciler. They are bounded: results by the calls in
// flight, hints by maxHints, and requests because they are sets of pods.
type inputs struct {
	// periodic switches the relists of every period on or off.
	periodic *bool
	results  []*result
	relists  []*relistCaller
	// requests are the pods of RequestRelist and those with a reader that has begun to block,
	// reinspects those of RequestReinspect.
	requests   map[types.UID]struct{}
	reinspects map[types.UID]struct{}
	// hints are the pods that events name.
	hints map[types.UID]struct{}
	// hintAll is true if an event named no pod, if the event stream was connected, and if there were
	// more than maxHints.
	hintAll bool
	// exits are the exit events; those beyond maxHints become hints.
	exits []ContainerExit
}

// result is a call that has returned.
type result struct {
	call   *schedule.Call
	pods   []*Pod
	pod    *Pod
	status *PodStatus
	err    error
	// stopped is true if the call failed because Stop cancelled it.
	stopped bool
}

// addHint adds an event of the runtime.
func (in *inputs) addHint(e ContainerEvent) {
	if e.PodUID == "" || len(in.hints) >= maxHints {
		in.hintAll = true
		return
	}
	put(&in.hints, e.PodUID, struct{}{})
}

// addExit adds an exit event.
func (in *inputs) addExit(e ContainerExit) {
	switch {
	case e.ContainerID == "":
	case len(in.exits) < maxHints:
		in.exits = append(in.exits, e)
	default:
		in.addHint(ContainerEvent{PodUID: e.PodUID})
	}
}

// relistCaller is a caller of Relist.
type relistCaller struct {
	// done is closed when the relist is complete; err is why its list has failed.
	done chan struct{}
	err  error
}

func newRelistCaller() *relistCaller { return &relistCaller{done: make(chan struct{})} }

// sortedKeys returns the keys of a map in an order that can be repeated.
func sortedKeys[V any](m map[types.UID]V) []types.UID {
	if len(m) == 0 { // as in most steps, which then allocate nothing for it
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}

// outputs is what a step wants done, in the order of the fields. A call to cancel may have returned.
type outputs struct {
	cancel   []cancelCall
	begin    []beginCall
	log      []func(klog.Logger)
	relisted []*relistCaller // their relist is complete
	// listsRecovered is true if a full list has succeeded after one that failed.
	listsRecovered bool
	// wake is when the next step is due; zero for never.
	wake time.Time
}

// beginCall is a call to make.
type beginCall struct {
	*schedule.Call
	pod *Pod // to inspect, or as it is known; nil if it is not
}

// cancelCall is a call to cancel.
type cancelCall struct {
	*schedule.Call
	cause error
}

// info has a line logged after the step, when no lock is held: a logger may block.
func (o *outputs) info(level int, message string, keysAndValues ...any) {
	o.log = append(o.log, func(logger klog.Logger) { logger.V(level).Info(message, keysAndValues...) })
}

// error has an error logged after the step.
func (o *outputs) error(err error, message string, keysAndValues ...any) {
	o.log = append(o.log, func(logger klog.Logger) { logger.Error(err, message, keysAndValues...) })
}

// sleep returns a channel that fires at a time; nil for the zero time. The clock is read again once
// the timer is set: a fake clock may have been stepped in between.
func (g *GenericPLEG) sleep(wake time.Time) <-chan time.Time {
	if g.timer != nil {
		g.timer.Stop()
	}
	if wake.IsZero() {
		return nil
	}
	g.timer = g.clock.NewTimer(wake.Sub(g.clock.Now()))
	if g.clock.Now().Before(wake) {
		return g.timer.C()
	}
	passed := make(chan time.Time)
	close(passed)
	return passed
}
