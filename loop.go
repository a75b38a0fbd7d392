package pleg

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/internal/inbox"
)

// loop runs the reconciler: it takes the inputs in, has a step made of them, makes the calls
// that the step wants, and sleeps until the next is due. One goroutine at a time runs it. It
// never waits for the runtime or for a reader.
type loop struct {
	// Set once.

	clock  clock.Clock
	logger klog.Logger
	inbox  *inbox.Inbox[inputs]
	calls  *runtimeCalls
	// recovered takes a token when full lists succeed again; nil if nobody wants to know.
	recovered chan<- struct{}
	// token is held by the goroutine that runs the loop.
	token chan struct{}
	// synced is closed when the generator has synced.
	synced chan struct{}

	// stepping is held while the inputs are taken and the reconciler takes a step, for who
	// reads the records meanwhile. A step waits for nothing.
	stepping   sync.Mutex
	reconciler *reconciler // guarded by stepping

	stateMu sync.Mutex
	state   healthState // the reconciler's, as of its last step; guarded by stateMu

	// Owned by who holds the token.

	inputs inputs // of the current step; reused
	timer  wakeTimer
}

func newLoop(
	clk clock.Clock, logger klog.Logger, box *inbox.Inbox[inputs], c *runtimeCalls, r *reconciler,
) *loop {
	return &loop{
		clock: clk, logger: logger, inbox: box, calls: c, reconciler: r, state: r.health,
		token: make(chan struct{}, 1), synced: make(chan struct{}), inputs: newInputs(), timer: wakeTimer{clock: clk},
	}
}

// runPeriodically runs the loop, with full lists every period, until ctx ends.
func (l *loop) runPeriodically(ctx context.Context) {
	select {
	case l.token <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-l.token }()
	l.setPeriodic(true)
	defer l.setPeriodic(false)
	l.run(ctx.Done(), nil)
}

func (l *loop) setPeriodic(on bool) {
	l.inbox.Put(func(in *inputs) { in.periodic = &on })
}

// runFor runs the loop until a caller of Relist has its answer, unless another goroutine
// does.
func (l *loop) runFor(caller *relistCaller) {
	select {
	case <-caller.done:
	case l.token <- struct{}{}:
		defer func() { <-l.token }() // whatever a cache or a logger does
		l.run(nil, caller.done)
		l.calls.group.Rest()
	}
}

// run runs the loop until done is closed or complete has a token.
func (l *loop) run(done, complete <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		default:
		}
		timeout := l.step()
		select {
		case <-done:
			return
		case <-complete:
			return
		case <-l.inbox.Wake():
		case <-timeout:
			l.timer.fired()
		}
	}
}

// step has the reconciler take one step and carries its outputs out. The channel that it
// returns fires when the next step is due by the clock; it is nil if only an input can
// bring one.
func (l *loop) step() <-chan time.Time {
	out := l.reconcile()
	for _, c := range out.cancel {
		l.calls.group.Cancel(c.Call, c.cause)
	}
	for _, c := range out.begin {
		l.calls.begin(c)
	}
	out.log.write(l.logger)
	for _, caller := range out.relisted {
		caller.done <- struct{}{}
	}
	if out.listsRecovered {
		select {
		case l.recovered <- struct{}{}:
		default:
		}
	}
	return l.timer.set(out.wake)
}

// reconcile takes the inputs in and has the reconciler take one step.
func (l *loop) reconcile() *outputs {
	l.inputs.reset()
	l.inputs.verbosity = verbosityOf(l.logger)
	l.stepping.Lock()
	defer l.stepping.Unlock()
	l.inbox.Take(&l.inputs)
	defer l.publishState()
	return l.reconciler.step(l.clock.Now(), &l.inputs)
}

// publishState has the reconciler's state be seen by other goroutines.
func (l *loop) publishState() {
	l.stateMu.Lock()
	defer l.stateMu.Unlock()
	if !l.state.synced && l.reconciler.health.synced {
		close(l.synced)
	}
	l.state = l.reconciler.health
}

// lastState returns the reconciler's state as of its last step.
func (l *loop) lastState() healthState {
	l.stateMu.Lock()
	defer l.stateMu.Unlock()
	return l.state
}

// pods returns the pods as they were listed last.
func (l *loop) pods() Pods {
	l.stepping.Lock()
	defer l.stepping.Unlock()
	return l.reconciler.records.pods()
}
