package pleg

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/internal/calls"
	"github.com/kubepleg/pleg/internal/inbox"
	"github.com/kubepleg/pleg/internal/schedule"
)

// stopGrace is how long Stop waits for calls that it has cancelled. It is measured in
// real time, whatever clock is injected: with a fake clock that nobody steps, Stop must
// not hang on a runtime that ignores cancellation.
const stopGrace = 5 * time.Second

// GenericPLEG relists a Runtime and generates the lifecycle events of its pods. Its
// methods are safe for concurrent use.
//
// One goroutine at a time runs its loop: the one that Start starts, or the caller of
// Relist while there is none. The loop never waits for the runtime or for a reader.
type GenericPLEG struct {
	// Set once by NewGenericPLEG, never again, so safe to read without a lock.

	runtime   Runtime
	getter    PodGetter // nil if the runtime does not implement it
	cache     Cache
	clock     clock.Clock
	capacity  int
	threshold time.Duration
	opts      options
	logger    klog.Logger

	inbox   *inbox.Inbox[inputs]
	calls   *calls.Group[*schedule.Call]
	updates *broadcaster
	metrics *metrics
	events  *eventClient // nil if the runtime has no event stream
	counter BlockedCounter

	// watching makes the subscription of Watch at its first call.
	watching func() chan *PodLifecycleEvent
	// callers saves Relist an allocation per call. The pool is not global, because a
	// channel must not leave its synctest bubble.
	callers sync.Pool
	// started is true between Start and Stop.
	started atomic.Bool

	// synced is closed when the generator has synced.
	synced chan struct{}

	// stepping is held while the inputs are taken and the reconciler takes a step, for who
	// reads the records meanwhile. A step waits for nothing.
	stepping sync.Mutex
	// state is the reconciler's, as of its last step; guarded by stateMu.
	stateMu sync.Mutex
	state   healthState

	// token is held by the goroutine that runs the loop. That goroutine owns the fields
	// below.
	token      chan struct{}
	reconciler *reconciler
	inputs     inputs // of the current step; reused
	timer      clock.Timer
	armed      time.Time // what the timer is set for; zero for nothing
	// listAll, listAllDone and fullList belong to the full list in flight. They are made
	// once, so that a relist allocates nothing.
	listAll     func(context.Context) error
	listAllDone func(*schedule.Call, error, bool)
	fullList    result
	// free are calls about one pod that have returned, to be used again.
	free []*podCall

	// lifecycle is held by Start and Stop. It is no mutex: in a synctest bubble, who waited
	// for one would keep the time from passing for which Stop waits.
	lifecycle chan struct{}

	// Guarded by lifecycle.

	stopLoop context.CancelFunc // nil while stopped
	joined   sync.WaitGroup
}

var _ PodLifecycleEventGenerator = (*GenericPLEG)(nil)

// NewGenericPLEG returns a generator that relists runtime every relistPeriod and writes
// cache; a cache has one generator for all its life. The channel of Watch has the
// capacity channelCapacity. A zero or negative period selects DefaultRelistPeriod, a zero
// or negative capacity DefaultChannelCapacity. Nothing runs until Start or Relist.
//
// Like the kubelet's, it returns no error. It panics if runtime, cache or clock is nil or
// a nil pointer, and if cache is a PodCache that has another generator.
func NewGenericPLEG(runtime Runtime, channelCapacity int, relistPeriod time.Duration,
	cache Cache, clock clock.Clock, opts ...Option) *GenericPLEG {
	switch {
	case isNil(runtime):
		panic("pleg.NewGenericPLEG: the runtime is nil") //nolint:forbidigo // the drop-in signature has no error
	case isNil(cache):
		panic("pleg.NewGenericPLEG: the cache is nil") //nolint:forbidigo // the drop-in signature has no error
	case isNil(clock):
		panic("pleg.NewGenericPLEG: the clock is nil") //nolint:forbidigo // the drop-in signature has no error
	}
	if relistPeriod <= 0 {
		relistPeriod = DefaultRelistPeriod
	}
	if channelCapacity <= 0 {
		channelCapacity = DefaultChannelCapacity
	}
	g := &GenericPLEG{
		runtime: runtime, cache: cache, clock: clock, capacity: channelCapacity, opts: defaultOptions(),
		inbox: inbox.New(newInputs), calls: calls.NewGroup[*schedule.Call](ErrPodNotFound, ErrEventsUnsupported),
		token: make(chan struct{}, 1), lifecycle: make(chan struct{}, 1), inputs: newInputs(), synced: make(chan struct{}),
	}
	for _, o := range opts {
		if o != nil {
			o(&g.opts)
		}
	}
	if owned, ok := cache.(ownedCache); ok && !owned.own(g) {
		panic("pleg.NewGenericPLEG: the cache has another generator") //nolint:forbidigo // the same
	}
	g.logger, g.threshold = g.opts.logger, g.opts.relistThreshold
	g.counter, _ = cache.(BlockedCounter)
	g.metrics = newMetrics(g.logger, g.opts.registerer != nil, g.gauges)
	g.metrics.nodeName = g.opts.nodeName
	g.updates = newBroadcaster(g.metrics.discarded)
	g.watching = sync.OnceValue(func() chan *PodLifecycleEvent {
		options := subscriptionOptions{Begins: g.clock.Now(), Lasting: true}
		return g.updates.Subscribe(context.Background(), g.capacity, options) //nolint:forbidigo // it is never closed
	})
	g.callers.New = newRelistCaller
	notifier, _ := cache.(BlockedNotifier)
	if !g.opts.pollingOnly {
		g.getter, _ = runtime.(PodGetter)
		if source, ok := runtime.(EventSource); ok {
			g.events = &eventClient{
				source: source, clock: clock, calls: g.calls, inbox: g.inbox, metrics: g.metrics, logger: g.logger,
				report: StreamReport{State: StreamOff},
			}
		}
	}
	g.makeReconciler(relistPeriod, notifier)
	if notifier != nil && !g.opts.pollingOnly {
		notifier.NotifyBlocked(g.readerBlocked)
	}
	g.register()
	return g
}

// ownedCache is a PodCache, which has one generator.
type ownedCache interface{ own(owner any) bool }

// makeReconciler makes the reconciler. The connected period applies only with a cache
// that reports its blocked readers and counts them.
func (g *GenericPLEG) makeReconciler(period time.Duration, notifier BlockedNotifier) {
	cfg := reconcilerConfig{
		Config: schedule.Config{
			Period: period, Timeout: g.opts.inspectionTimeout, Threshold: g.threshold,
			Workers: g.opts.inspectionWorkers, ListsPods: g.getter != nil,
		},
		logger: g.logger,
	}
	if notifier != nil && g.counter != nil && g.opts.connectedPeriod > period {
		cfg.ConnectedPeriod = min(g.opts.connectedPeriod, g.threshold/2)
		cfg.blocked = g.counter.BlockedReaders
	}
	g.reconciler = newReconciler(cfg, g.clock.Now(), g.cache, g.updates, g.metrics)
	g.state = g.reconciler.health
	g.listAll = func(ctx context.Context) (err error) {
		g.fullList.pods, err = g.runtime.GetPods(ctx, true)
		return err
	}
	g.listAllDone = func(c *schedule.Call, err error, stopped bool) {
		g.fullList.call, g.fullList.err, g.fullList.stopped = c, err, stopped
		g.inbox.Put(func(in *inputs) { in.results = append(in.results, &g.fullList) })
	}
}

// isNil reports whether an interface is nil or holds a nil pointer, as it does when the
// error of a constructor was ignored.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	value := reflect.ValueOf(v)
	return value.Kind() == reflect.Pointer && value.IsNil()
}

// register registers the collectors. A failure is only logged: a generator without
// metrics is better than an agent that does not start.
func (g *GenericPLEG) register() {
	if g.opts.registerer == nil {
		return
	}
	collectors := []prometheus.Collector{g.metrics}
	if c, ok := g.runtime.(prometheus.Collector); ok {
		collectors = append(collectors, c)
	}
	for _, c := range collectors {
		if g.opts.noKubeletMetrics {
			c = withoutKubelet{c}
		}
		if err := g.opts.registerer.Register(c); err != nil {
			g.logger.Error(err, "Cannot register metrics; wrap the registerer with a label if it has those of another generator")
		}
	}
}

// Start begins to relist, at once and then every period, and to follow the runtime's
// event stream if there is one. Starting a running generator does nothing.
func (g *GenericPLEG) Start() {
	g.lifecycle <- struct{}{}
	defer func() { <-g.lifecycle }()
	if g.stopLoop != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background()) //nolint:forbidigo // Stop ends it; the drop-in form has none
	g.stopLoop = stop
	g.started.Store(true)
	g.updates.Start()
	g.joined.Go(func() { g.runPeriodically(ctx) })
	if g.events != nil {
		g.joined.Go(func() { g.events.follow(ctx) })
	}
}

// Stop ends everything that Start started and returns when it has ended. It cancels the
// calls in flight. A call that ignores cancellation for five seconds is logged and left
// behind, and no second one is made for its pod until it returns. The channels of
// Subscribe are closed; the channel of Watch stays open and delivers again after another
// Start. Readers blocked on the cache stay blocked. Stopping a generator that does not
// run cancels the calls that Relist left behind.
func (g *GenericPLEG) Stop() {
	g.lifecycle <- struct{}{}
	defer func() { <-g.lifecycle }()
	if g.stopLoop != nil {
		g.stopLoop()
		g.stopLoop = nil
	}
	g.joined.Wait() // first, so that no call begins that is not cancelled
	g.started.Store(false)
	g.calls.CancelAll(errStopped)
	g.updates.Halt()
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	for _, left := range g.calls.Wait(grace.C) {
		g.logger.Error(errStopped, "The runtime ignores cancellation; a call is left behind",
			"call", describeCall(runtimeCall(left)))
	}
	g.calls.Rest()
}

// Watch returns the channel of the events: always the same one, never closed. Its first
// events describe the pods that exist when Watch is first called.
func (g *GenericPLEG) Watch() chan *PodLifecycleEvent { return g.watching() }

// Relist makes one full relist and returns when it is complete: the state of every pod
// was observed after Relist was called, the PodSyncs that are due are delivered, and
// every event that fits is in the channels. Pods whose inspection failed before are
// inspected again. Relist does not wait for a pod with a slow call, which has run for
// longer than a relist period, or with a failed single-pod list; for an inspection that
// fails, the cache has the error. If the full list itself fails, Relist returns and
// nothing has changed; HealthReport has the error.
//
// It works with Start, and without it in the caller's goroutine. Timeouts use the
// injected clock; with a fake clock, step it from another goroutine if a call hangs.
func (g *GenericPLEG) Relist() {
	caller := g.callers.Get().(*relistCaller)
	g.inbox.Put(func(in *inputs) { in.relists = append(in.relists, caller) })
	select {
	case <-caller.done:
	case g.token <- struct{}{}:
		g.run(nil, caller.done)
		g.calls.Rest()
		<-g.token
	}
	g.callers.Put(caller)
	g.updates.Fill()
}

// RequestRelist asks for a single-pod relist as soon as possible, and returns at once.
// The request is answered by a list that begins after it; requests made before that list
// begins are coalesced. If the runtime does not implement PodGetter, a full relist
// answers it.
func (g *GenericPLEG) RequestRelist(uid types.UID) {
	if uid != "" {
		g.inbox.Put(func(in *inputs) { in.requests[uid] = struct{}{} })
	}
}

// RequestReinspect asks for an inspection of a pod whose list may not have changed, and
// returns at once. The inspection begins after the request. Subscribers get a PodSync
// once the cache holds its status or error. A pod that is not known is not inspected.
func (g *GenericPLEG) RequestReinspect(uid types.UID) {
	g.inbox.Put(func(in *inputs) { in.reinspects[uid] = struct{}{} })
}

// Suspend holds a pod back while its caller acts on it. From its return on nothing of the
// pod is stored in the cache or published, whatever lists show; events that were published
// before and not read yet are still to be read. A pod that is not known, because it is
// about to be created, can be suspended too; the empty UID stands for none. What is
// requested of the pod waits and is coalesced, readers that want something newer wait, and
// neither Relist nor HasSynced waits for the pod: an error from before may stay for a
// caller whose list fell into the suspension.
//
// The function that it returns resumes the pod: it is listed once, by a list that begins
// after that, and what has changed is delivered as usual, as news. What a list or an
// inspection that began before had read says nothing. Suspensions nest: the pod is resumed
// by the last. A second call of a resume function does nothing. A suspension survives Stop.
// One that is not resumed within the inspection timeout lapses, which is logged, and its
// resume function then does nothing. While the generator does not run, a pod that is
// resumed waits for the next Start or Relist.
//
// Suspend and the resume function wait at most for the end of the loop's present step,
// never for the runtime. What is stored of the pod and not published yet is published by
// Suspend, which may ask filters about it (see WithFilter). The cache's own methods must
// not call them.
func (g *GenericPLEG) Suspend(uid types.UID) (resume func()) {
	if uid == "" {
		return func() {}
	}
	s := &suspension{uid: uid}
	g.betweenSteps(func() { g.reconciler.suspend(g.clock.Now(), s) })
	return func() { g.betweenSteps(func() { g.reconciler.resume(s) }) }
}

// betweenSteps changes the reconciler; a step is due then.
func (g *GenericPLEG) betweenSteps(change func()) {
	g.stepping.Lock()
	defer g.stepping.Unlock()
	change()
	g.inbox.Put(func(*inputs) {})
}

// readerBlocked is the function of NotifyBlocked.
func (g *GenericPLEG) readerBlocked(uid types.UID, minTime time.Time) {
	if uid != "" {
		g.inbox.Put(func(in *inputs) { in.addReader(uid, minTime) })
	}
}

// runPeriodically runs the loop with full relists every period.
func (g *GenericPLEG) runPeriodically(ctx context.Context) {
	select {
	case g.token <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-g.token }()
	g.setPeriodic(true)
	defer g.setPeriodic(false)
	g.run(ctx.Done(), nil)
}

func (g *GenericPLEG) setPeriodic(on bool) {
	g.inbox.Put(func(in *inputs) { in.periodic = &on })
}

// run runs the loop until done is closed or complete has a token.
func (g *GenericPLEG) run(done, complete <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		default:
		}
		timeout := g.step()
		select {
		case <-done:
			return
		case <-complete:
			return
		case <-g.inbox.Wake():
		case <-timeout:
			g.armed = time.Time{}
		}
	}
}

// step runs one step of the reconciler and carries its outputs out. The channel that it
// returns fires when the next step is due by the clock; it is nil if only an input can
// bring one.
func (g *GenericPLEG) step() <-chan time.Time {
	out := g.reconcile()
	for _, c := range out.cancel {
		g.calls.Cancel(c.Call, c.cause)
	}
	for _, c := range out.begin {
		g.call(c)
	}
	for _, caller := range out.relisted {
		caller.done <- struct{}{}
	}
	return g.sleepUntil(out.wake)
}

// reconcile takes the inputs in and runs one step of the reconciler.
func (g *GenericPLEG) reconcile() *outputs {
	g.inputs.reset()
	g.stepping.Lock()
	defer g.stepping.Unlock()
	g.inbox.Take(&g.inputs)
	defer g.publishState()
	return g.reconciler.step(g.clock.Now(), &g.inputs)
}

// publishState makes the state of the reconciler that of the generator.
func (g *GenericPLEG) publishState() {
	g.stateMu.Lock()
	defer g.stateMu.Unlock()
	if !g.state.synced && g.reconciler.health.synced {
		close(g.synced)
	}
	g.state = g.reconciler.health
}

// call makes a call to the runtime.
func (g *GenericPLEG) call(c beginCall) {
	info := calls.Info{PodUID: c.UID, Since: c.Began}
	if c.pod != nil {
		info.Object = podObject{c.pod}
	}
	if c.Kind == schedule.ListAll {
		info.Method = methodGetPods
		g.fullList = result{}
		g.calls.Go(c.Call, info, g.listAll, g.listAllDone)
		return
	}
	call := g.podCall()
	call.call, call.inspected = c.Call, c.pod
	method := call.listPod
	info.Method = methodGetPod
	if c.Kind == schedule.Inspect {
		method, info.Method = call.inspect, methodGetPodStatus
	}
	g.calls.Go(c.Call, info, method, call.done)
}

// podCall is a call about one pod. Its memory is used again, for a relist in which every
// pod has changed makes as many (BenchmarkEverythingChanged).
type podCall struct {
	result
	inspected *Pod
	// Made once.
	listPod, inspect func(context.Context) error
	done             func(*schedule.Call, error, bool)
}

func (g *GenericPLEG) podCall() *podCall {
	if n := len(g.free); n > 0 {
		call := g.free[n-1]
		g.free = g.free[:n-1]
		return call
	}
	call := &podCall{}
	call.listPod = func(ctx context.Context) (err error) {
		call.pod, err = g.getter.GetPod(ctx, call.call.UID)
		return err
	}
	call.inspect = func(ctx context.Context) (err error) {
		call.status, err = g.runtime.GetPodStatus(ctx, call.inspected)
		return err
	}
	put := func(in *inputs) { in.results = append(in.results, &call.result) }
	call.done = func(_ *schedule.Call, err error, stopped bool) {
		call.err, call.stopped = err, stopped
		g.inbox.Put(put)
	}
	call.release = func() {
		call.result, call.inspected = result{release: call.release}, nil
		if len(g.free) < maxFreeCalls {
			g.free = append(g.free, call)
		}
	}
	return call
}

// maxFreeCalls bounds the memory that is kept for calls.
const maxFreeCalls = 64

// sleepUntil sets the timer, unless it is set for an earlier time: to wake once too often
// costs less than to set it in each step. It reads the clock again once the timer is set: a
// fake clock may have been stepped in between.
func (g *GenericPLEG) sleepUntil(wake time.Time) <-chan time.Time {
	if wake.IsZero() {
		g.disarm()
		return nil
	}
	if g.armed.IsZero() || wake.Before(g.armed) {
		g.disarm()
		wait := wake.Sub(g.clock.Now())
		if wait <= 0 {
			return alreadyPassed
		}
		if g.timer == nil {
			g.timer = g.clock.NewTimer(wait)
		} else {
			g.timer.Reset(wait)
		}
		g.armed = wake
		if !g.clock.Now().Before(wake) {
			g.disarm()
			return alreadyPassed
		}
	}
	return g.timer.C()
}

// disarm stops the timer.
func (g *GenericPLEG) disarm() {
	if g.armed.IsZero() {
		return
	}
	g.armed = time.Time{}
	if !g.timer.Stop() {
		select {
		case <-g.timer.C():
		default:
		}
	}
}

// alreadyPassed is a channel that is always ready.
var alreadyPassed = func() <-chan time.Time {
	ch := make(chan time.Time)
	close(ch)
	return ch
}()

// Healthy reports whether the generator works, and if not, why not. It reports false
// before the first successful relist; when the last one began longer ago than the
// threshold; and when the inspections of two pods or more have hung for longer than the
// threshold and no inspection of any pod has succeeded in that time. One pod that hangs
// never makes a node unhealthy: while pods hang, a healthy pod is inspected as a canary
// six times within the threshold.
//
// The error names the call that hangs, the pod or container that it is for, and for how
// long it has hung, or the last error. Healthy has no side effects and never blocks.
func (g *GenericPLEG) Healthy() (bool, error) {
	err := g.health().unhealthy()
	return err == nil, err
}

// HasSynced reports whether the first full list is complete: each pod in it was inspected,
// has failed to be, or is slow. HealthReport names those that fail or are slow. Once true
// it stays so. It never blocks.
func (g *GenericPLEG) HasSynced() bool {
	select {
	case <-g.synced:
		return true
	default:
		return false
	}
}

// WaitForSync returns nil as soon as HasSynced is true. If ctx ends before, the error wraps
// its cause and says what is awaited, as Healthy does. It does not start the generator.
func (g *GenericPLEG) WaitForSync(ctx context.Context) error {
	if g.HasSynced() {
		return nil
	}
	select {
	case <-g.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("pleg has not synced: %w: %w", g.health().unsynced(), context.Cause(ctx))
	}
}

// Pods returns the pods as they were listed last, by UID, inspected or not. It never waits
// for the runtime. The cache's own methods must not call it.
func (g *GenericPLEG) Pods() Pods {
	g.stepping.Lock()
	defer g.stepping.Unlock()
	return g.reconciler.records.pods()
}

// HealthReport returns the health and the state that it is decided by. It has no side
// effects and never blocks.
func (g *GenericPLEG) HealthReport() HealthReport {
	h := g.health()
	r := h.report(g.streamStatus())
	r.BlockedReaders = g.blockedReaders()
	r.Runtime = g.described()
	r.CallsInFlight = g.reportedCalls()
	if _, ok := g.runtime.(CallReporter); !ok {
		r.CallsInFlight = h.inFlight(methodGetPods, methodGetPod, methodGetPodStatus)
	}
	backlogs := g.updates.Backlogs()
	r.Subscribers = len(backlogs)
	r.Backlog, r.NamedSubscribers = subscriberReports(backlogs)
	return r
}

// health returns the input of the health check. The runtime is asked for its calls
// without a lock held.
func (g *GenericPLEG) health() *health {
	g.stateMu.Lock()
	state := g.state
	g.stateMu.Unlock()
	return &health{
		healthState: state, now: g.clock.Now(), threshold: g.threshold, started: g.started.Load(),
		inFlight: func(methods ...string) (list []RuntimeCall) {
			for _, info := range g.calls.InFlight(methods...) {
				info.Since = info.Since.Add(-state.back)
				list = append(list, runtimeCall(info))
			}
			return list
		},
		reported: g.reportedCalls,
	}
}

func (g *GenericPLEG) streamStatus() StreamReport {
	if g.events == nil {
		return StreamReport{State: StreamOff}
	}
	return g.events.status()
}

// gauges returns the present values of the metrics.
func (g *GenericPLEG) gauges() gauges {
	h := g.health()
	now := gauges{
		lastList: h.lastList, tally: h.tally, streamConnected: g.streamStatus().State == StreamConnected,
		inspectionsInFlight: len(h.inFlight(methodGetPodStatus)), blockedReaders: g.blockedReaders(),
	}
	now.hung, now.failing = h.counts()
	backlogs := g.updates.Backlogs()
	total, named := subscriberReports(backlogs)
	now.subscribers, now.backlog = len(backlogs), total
	for _, s := range named {
		now.named = append(now.named, namedBacklog{s.Name, s.Backlog, s.behind(h.now)})
	}
	if listing := h.inFlight(methodGetPods); len(listing) > 0 {
		now.relistRunning = max(0, h.now.Sub(listing[0].Since))
	}
	return now
}

// blockedReaders counts the readers that wait on the cache; -1 if the cache does not
// implement BlockedCounter.
func (g *GenericPLEG) blockedReaders() int {
	if g.counter == nil {
		return -1
	}
	return g.counter.BlockedReaders()
}

// reportedCalls returns the calls that the runtime reports, if it is a CallReporter.
func (g *GenericPLEG) reportedCalls() (calls []RuntimeCall) {
	if reporter, ok := g.runtime.(CallReporter); ok {
		g.guarded("CallsInFlight", func() { calls = reporter.CallsInFlight() })
	}
	return calls
}

// described returns how the runtime describes itself, if it is a Describer.
func (g *GenericPLEG) described() (description string) {
	if d, ok := g.runtime.(Describer); ok {
		g.guarded("DescribeRuntime", func() { description = d.DescribeRuntime() })
	}
	return description
}

// guarded runs a method of the runtime that may panic.
func (g *GenericPLEG) guarded(name string, method func()) {
	defer func() {
		if p := recover(); p != nil {
			g.metrics.badData(badRuntimePanic, name+": "+calls.PanicText(p))
		}
	}()
	method()
}

// runtimeCall converts a call to its form in a report.
func runtimeCall(info calls.Info) RuntimeCall {
	call := RuntimeCall{Method: info.Method, PodUID: info.PodUID, Since: info.Since}
	if info.Object != nil {
		call.Object = info.Object.String()
	}
	return call
}

// podObject is the pod that a call is for. Its name is formatted only when it is printed.
type podObject struct{ *Pod }

func (p podObject) String() string { return podName(p.Pod) }
