package pleg

import (
	"context"
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
	l.run(ctx.Done())
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
		l.run(caller.done)
	}
}

// run runs the loop until done is closed.
func (l *loop) run(done <-chan struct{}) {
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
		l.calls.Cancel(c.Call, c.cause)
	}
	for _, c := range out.begin {
		l.begin(c)
	}
	out.log.write(l.logger)
	for _, caller := range out.relisted {
		close(caller.done)
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
