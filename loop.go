package pleg

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/internal/calls"
	"github.com/kubepleg/pleg/internal/inbox"
	"github.com/kubepleg/pleg/internal/schedule"
)

// loop runs the reconciler: it takes the inputs in, has a step made of them, makes the calls
// that the step wants, and sleeps until the next is due. One goroutine at a time runs it. It
// never waits for the runtime or for a reader.
type loop struct {
	// Set once.

	clock   clock.Clock
	logger  klog.Logger
	runtime Runtime
	getter  PodGetter // nil if the runtime does not implement it
	inbox   *inbox.Inbox[inputs]
	calls   *calls.Group[*schedule.Call]
	// recovered take a token when full lists succeed again.
	recovered []chan<- struct{}
	// token is held by the goroutine that runs the loop.
	token chan struct{}
	// synced is closed when the generator has synced.
	synced chan struct{}

	// mu is held while the reconciler takes a step, and by those who read its state meanwhile. A
	// step calls nobody's code and waits for nothing.
	mu         sync.Mutex
	reconciler *reconciler // guarded by mu

	timer clock.Timer // owned by the goroutine that holds the token; nil if none is set
}

// runPeriodically has full lists begin every period until ctx ends, and runs the loop unless
// a caller of Relist does.
func (l *loop) runPeriodically(ctx context.Context) {
	l.setPeriodic(true)
	defer l.setPeriodic(false)
	select {
	case l.token <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-l.token }()
	l.run(ctx.Done(), nil)
}

func (l *loop) setPeriodic(on bool) {
	l.inbox.Put(func(in *inputs) { in.periodic = &on })
}

// runFor runs the loop until a caller of Relist has its answer or ctx ends, unless another
// goroutine does.
func (l *loop) runFor(ctx context.Context, caller *relistCaller) error {
	select {
	case <-caller.done:
	case <-ctx.Done():
	case l.token <- struct{}{}:
		defer func() { <-l.token }() // whatever a cache or a logger does
		l.run(ctx.Done(), caller.done)
	}
	select {
	case <-caller.done:
		return caller.err
	default:
		return relistEnded(ctx)
	}
}

// relistEnded is the error of a Relist whose context has ended.
func relistEnded(ctx context.Context) error {
	return fmt.Errorf("waiting for a relist: %w", context.Cause(ctx))
}

// run runs the loop until ended or done is closed; nil for never.
func (l *loop) run(ended, done <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-done:
			return
		default:
		}
		timeout := l.step()
		select {
		case <-ended:
			return
		case <-done:
			return
		case <-l.inbox.Wake():
			runtime.Gosched()
		case <-timeout:
		}
	}
}

// step has the reconciler take one step and carries its outputs out. The channel that it
// returns fires when the next step is due by the clock; it is nil if only an input can
// bring one.
func (l *loop) step() <-chan time.Time {
	out := l.reconcile()
	for _, c := range out.cancel {
		l.calls.Cancel(c.Call, c.cause)
	}
	for _, c := range out.begin {
		l.begin(c)
	}
	for _, log := range out.log {
		log(l.logger)
	}
	for _, caller := range out.relisted {
		close(caller.done)
	}
	if out.listsRecovered {
		for _, recovered := range l.recovered {
			select {
			case recovered <- struct{}{}:
			default:
			}
		}
	}
	return l.sleep(out.wake)
}

// reconcile takes the inputs in and has the reconciler take one step.
func (l *loop) reconcile() outputs {
	l.mu.Lock()
	defer l.mu.Unlock()
	in := l.inbox.Take()
	out := l.reconciler.step(l.clock.Now(), &in)
	if l.reconciler.synced && !l.hasSynced() {
		close(l.synced)
		l.reconciler.updates.Publish(&update{uid: syncedUID})
	}
	return out
}

// hasSynced reports whether the generator has synced.
func (l *loop) hasSynced() bool {
	select {
	case <-l.synced:
		return true
	default:
		return false
	}
}

// methods are the names of the runtime's methods for each kind of call.
var methods = [...]string{
	schedule.ListAll: methodGetPods, schedule.ListPod: methodGetPod, schedule.Inspect: methodGetPodStatus,
}

// begin makes a call. Its result becomes an input.
func (l *loop) begin(c beginCall) {
	info := calls.Info{Method: methods[c.Kind], PodUID: c.UID, Since: c.Began}
	if c.pod != nil {
		info.Object = podObject{c.pod}
	}
	res := &result{call: c.Call}
	l.calls.Go(c.Call, info, func(ctx context.Context) (err error) {
		switch c.Kind {
		case schedule.ListAll:
			res.pods, err = l.runtime.GetPods(ctx, true)
		case schedule.ListPod:
			res.pod, err = l.getter.GetPod(ctx, c.UID)
		case schedule.Inspect:
			res.status, err = l.runtime.GetPodStatus(ctx, c.pod)
		}
		return err
	}, func(err error, stopped bool) {
		res.err, res.stopped = err, stopped
		l.inbox.Put(func(in *inputs) { in.results = append(in.results, res) })
	})
}

// podObject is the pod that a call is for. Its name is formatted only when it is printed.
type podObject struct{ *Pod }

func (p podObject) String() string { return podName(p.Pod) }

// health returns what the reconciler knows for health and metrics.
func (l *loop) health() health {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reconciler.health()
}

// pods returns the pods as they were listed last.
func (l *loop) pods() Pods {
	l.mu.Lock()
	defer l.mu.Unlock()
	recs := l.reconciler.records.present()
	pods := make(Pods, len(recs))
	for i, rec := range recs {
		pods[i] = rec.pod
	}
	return pods
}

// maxHints bounds the memory of hints about unknown pods, in case a runtime sends garbage faster
// than it answers.
const maxHints = 10000

// inputs are the inputs of one step of the reconciler. They are bounded: results by the
// calls in flight, hints by maxHints, and the requests of callers by being sets of pods.
type inputs struct {
	// periodic switches the relists of every period on or off.
	periodic *bool
	results  []*result
	relists  []*relistCaller
	// requests are the pods of RequestRelist, reinspects those of RequestReinspect.
	requests   map[types.UID]struct{}
	reinspects map[types.UID]struct{}
	// readers are the pods with a reader that has begun to block.
	readers map[types.UID]struct{}
	// hints are the pods that events name. hintAll says that one named none, lostHints that
	// there were more than could be kept.
	hints              map[types.UID]struct{}
	hintAll, lostHints bool
	// exits are the containers that have exited. For those beyond maxHints, their pods or all pods
	// are listed.
	exits []ContainerExit
	// connected has the beginnings (true) and ends of connections to the event stream.
	connected []bool
}

// result is a call that has returned.
type result struct {
	call   *schedule.Call
	pods   []*Pod
	pod    *Pod
	status *PodStatus
	err    error
	// stopped: it failed because Stop cancelled it.
	stopped bool
}

// addHint adds an event of the runtime.
func (in *inputs) addHint(e ContainerEvent) {
	switch {
	case e.PodUID == "":
		in.hintAll = true
	case len(in.hints) >= maxHints:
		in.lostHints = true
	default:
		put(&in.hints, e.PodUID, struct{}{})
	}
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

// sortedKeys has what a map holds worked off in an order that can be repeated.
func sortedKeys[V any](m map[types.UID]V) []types.UID {
	if len(m) == 0 { // as in most steps, which then allocate nothing for it
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}

// outputs is what the reconciler wants done after a step, in the order of the fields. A call
// to cancel may have returned.
type outputs struct {
	cancel   []cancelCall
	begin    []beginCall
	log      []func(klog.Logger)
	relisted []*relistCaller // their relist is complete
	// listsRecovered: a full list has succeeded after one that failed.
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

// info has a line logged after the step, when no lock is held: a logger is a user's code, and may hang.
func (o *outputs) info(level int, message string, keysAndValues ...any) {
	o.log = append(o.log, func(logger klog.Logger) { logger.V(level).Info(message, keysAndValues...) })
}

// error has an error logged after the step.
func (o *outputs) error(err error, message string, keysAndValues ...any) {
	o.log = append(o.log, func(logger klog.Logger) { logger.Error(err, message, keysAndValues...) })
}

// sleep returns a channel that fires at a time; nil for the zero time. The clock is read again once
// the timer is set: a fake clock may have been stepped in between.
func (l *loop) sleep(wake time.Time) <-chan time.Time {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if wake.IsZero() {
		return nil
	}
	l.timer = l.clock.NewTimer(wake.Sub(l.clock.Now()))
	if !l.clock.Now().Before(wake) {
		return alreadyPassed
	}
	return l.timer.C()
}

// alreadyPassed is a channel that is always ready.
var alreadyPassed = func() <-chan time.Time {
	ch := make(chan time.Time)
	close(ch)
	return ch
}()
