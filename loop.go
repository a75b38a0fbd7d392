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

	// stepping is held while the inputs are taken and the reconciler takes a step, for who
	// reads the records meanwhile. A step waits for nothing.
	stepping   sync.Mutex
	reconciler *reconciler // guarded by stepping

	stateMu sync.Mutex

	// Guarded by stateMu.

	state   healthState              // the reconciler's, as of its last step, but for failing
	failing map[types.UID]FailingPod // kept up, for a list of them in each step costs too much

	timer wakeTimer // owned by who holds the token
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
			l.timer.stop()
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
	for _, log := range out.log.lines {
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
	return l.timer.set(out.wake)
}

// reconcile takes the inputs in and has the reconciler take one step.
func (l *loop) reconcile() outputs {
	verbosity := verbosityOf(l.logger)
	l.stepping.Lock()
	defer l.stepping.Unlock()
	in := l.inbox.Take()
	in.verbosity = verbosity
	defer l.publishState()
	return l.reconciler.step(l.clock.Now(), &in)
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

// publishState has the reconciler's state be seen by other goroutines.
func (l *loop) publishState() {
	l.stateMu.Lock()
	defer l.stateMu.Unlock()
	if !l.state.synced && l.reconciler.health.synced {
		close(l.synced)
	}
	l.state = l.reconciler.health
	l.reconciler.failing.report(l.failing)
}

// lastState returns the reconciler's state as of its last step.
func (l *loop) lastState() healthState {
	l.stateMu.Lock()
	defer l.stateMu.Unlock()
	state := l.state
	for _, uid := range sortedKeys(l.failing) {
		state.failing = append(state.failing, l.failing[uid])
	}
	return state
}

// pods returns the pods as they were listed last.
func (l *loop) pods() Pods {
	l.stepping.Lock()
	defer l.stepping.Unlock()
	return l.reconciler.records.pods()
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
	// exits are the containers that have exited. What is beyond maxHints the lists show.
	exits []ContainerExit
	// verbosity is the logger's.
	verbosity int
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

// addExit adds an exit that the runtime tells.
func (in *inputs) addExit(e ContainerExit) {
	if e.ContainerID != "" && len(in.exits) < maxHints {
		in.exits = append(in.exits, e)
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
	log      stepLog
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

// stepLog is what a step has to log. It is written after the step, when no lock is held: a
// logger is code of a user, which may call the generator, or hang.
type stepLog struct {
	verbosity int // the logger's
	lines     []func(klog.Logger)
}

// verbosityOf returns the highest level of those in use at which a logger is enabled.
func verbosityOf(logger klog.Logger) int {
	for _, level := range [...]int{5, 4, 2} {
		if logger.V(level).Enabled() {
			return level
		}
	}
	return 0
}

func (l *stepLog) enabled(level int) bool { return level <= l.verbosity }

// info logs a line if its level is enabled. Where it is not, the arguments cost memory: who logs
// often asks before.
func (l *stepLog) info(level int, message string, keysAndValues ...any) {
	if l.enabled(level) {
		l.lines = append(l.lines, func(logger klog.Logger) { logger.V(level).Info(message, keysAndValues...) })
	}
}

func (l *stepLog) error(err error, message string, keysAndValues ...any) {
	l.lines = append(l.lines, func(logger klog.Logger) { logger.Error(err, message, keysAndValues...) })
}

// wakeTimer wakes the loop at a time by the clock.
type wakeTimer struct {
	clock clock.Clock
	timer clock.Timer // nil when it is not set
	at    time.Time   // what it is set for
}

// set returns a channel that fires at a time, or before; nil for the zero time. The timer is
// set anew only for an earlier time: to wake once too often costs less than to set it in each
// step. The clock is read again once it is set: a fake clock may have been stepped in between.
func (t *wakeTimer) set(wake time.Time) <-chan time.Time {
	if wake.IsZero() || t.timer != nil && wake.Before(t.at) {
		t.stop()
	}
	switch {
	case wake.IsZero():
		return nil
	case t.timer == nil:
		t.timer, t.at = t.clock.NewTimer(wake.Sub(t.clock.Now())), wake
	}
	if !t.clock.Now().Before(wake) {
		t.stop()
		return alreadyPassed
	}
	return t.timer.C()
}

// stop stops the timer, also when it has fired.
func (t *wakeTimer) stop() {
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}

// alreadyPassed is a channel that is always ready.
var alreadyPassed = func() <-chan time.Time {
	ch := make(chan time.Time)
	close(ch)
	return ch
}()
