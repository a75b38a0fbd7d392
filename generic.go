package pleg

import (
	"context"
	"fmt"
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

// stopGrace is how long Stop waits for calls that it has cancelled. It is measured in real time,
// whatever clock is injected: with a fake clock that nobody steps, Stop must not hang on a runtime
// that ignores cancellation.
const stopGrace = 5 * time.Second

// GenericPLEG relists a Runtime and generates the lifecycle events of its pods. Its methods are safe
// for concurrent use.
//
// One goroutine at a time runs its loop: the one that Start starts, or the caller of Relist while
// there is none. The loop takes the inputs in, has the reconciler make a step of them, makes the
// calls that the step wants, and sleeps until the next step is due. It never waits for the runtime
// or for a reader.
type GenericPLEG struct {
	// Set once by NewGenericPLEG, never again, so safe to read without a lock.

	runtime Runtime
	getter  PodGetter // nil if the runtime does not implement it, or must not be used
	cache   *PodCache
	clock   clock.Clock
	opts    options
	logger  klog.Logger

	inbox   *inbox.Inbox[inputs]
	calls   *calls.Group[*schedule.Call]
	updates *broadcaster
	metrics *metrics
	events  *eventClient   // nil if the runtime has no event stream
	exits   *eventClient   // nil if the runtime reports no exits
	streams []*eventClient // those of both that there are

	// watching makes the subscription of Watch at its first call.
	watching func() chan *PodLifecycleEvent
	// synced is closed when the generator has synced.
	synced chan struct{}

	// mu is held while the reconciler takes a step, and by those who read its state. A step calls
	// nobody's code and waits for nothing.
	mu         sync.Mutex
	reconciler *reconciler // guarded by mu

	// token is held by the goroutine that runs the loop.
	token chan struct{}
	timer clock.Timer // of the next step; owned by the goroutine that holds the token

	// lifecycle is held by Start and Stop. It is no mutex: in a synctest bubble, a goroutine that
	// waits for a mutex would keep the time from passing for which Stop waits.
	lifecycle chan struct{}

	// running is what goes on between Start and Stop; nil while stopped. The holder of lifecycle
	// sets it.
	running atomic.Pointer[running]
	joined  sync.WaitGroup // guarded by lifecycle
}

// running is what Stop needs of a Start.
type running struct {
	ended  func() error // of the context of Start
	end    context.CancelFunc
	forget func() bool // the end of that context no longer calls stop
}

// NewGenericPLEG returns a generator that relists runtime every relistPeriod and writes cache. The
// channel of Watch has the capacity channelCapacity; see WithCapacity. A zero or negative period
// selects DefaultRelistPeriod; one of more than a second is shortened to half of the threshold
// (WithRelistThreshold) if it is longer. Nothing runs until Start or Relist.
//
// The cache is the generator's from now on: it is empty, and a generator that had it before writes
// nothing into it any more. Like the kubelet's, NewGenericPLEG returns no error. It panics if
// runtime, cache or clock is nil.
func NewGenericPLEG(runtime Runtime, channelCapacity int, relistPeriod time.Duration,
	cache *PodCache, clock clock.Clock, opts ...Option) *GenericPLEG {
	switch {
	case runtime == nil:
		panic("pleg.NewGenericPLEG: the runtime is nil") //nolint:forbidigo // the drop-in signature has no error
	case cache == nil:
		panic("pleg.NewGenericPLEG: the cache is nil") //nolint:forbidigo // the drop-in signature has no error
	case clock == nil:
		panic("pleg.NewGenericPLEG: the clock is nil") //nolint:forbidigo // the drop-in signature has no error
	}
	g := &GenericPLEG{
		runtime: runtime, cache: cache, clock: clock, opts: options{logger: klog.Background()},
		inbox: inbox.New[inputs](), calls: calls.NewGroup[*schedule.Call](), metrics: newMetrics(),
		synced: make(chan struct{}), token: make(chan struct{}, 1), lifecycle: make(chan struct{}, 1),
	}
	for _, o := range opts {
		if o != nil {
			o(&g.opts)
		}
	}
	g.logger, g.updates = g.opts.logger.WithName("pleg"), newBroadcaster(g.metrics.countDiscarded)
	g.watching = sync.OnceValue(func() chan *PodLifecycleEvent {
		options := g.subscription([]SubscribeOption{WithCapacity(channelCapacity)})
		options.Lasting = true
		return g.updates.Subscribe(context.Background(), options) //nolint:forbidigo // it is never closed
	})
	if !g.opts.pollingOnly {
		g.findCompanions()
	}
	threshold := orDefault(g.opts.relistThreshold, DefaultRelistThreshold)
	g.reconciler = newReconciler(schedule.Config{
		// A longer period would make the generator unhealthy between two lists.
		Period:    min(orDefault(relistPeriod, DefaultRelistPeriod), max(threshold/2, DefaultRelistPeriod)),
		Threshold: threshold,
		Timeout:   orDefault(g.opts.requestTimeout, DefaultRuntimeRequestTimeout),
		Workers:   orDefault(g.opts.inspectionWorkers, DefaultInspectionWorkers),
		ListsPods: g.getter != nil,
	}, clock.Now(), cache, g, g.updates, g.metrics)
	g.register()
	cache.giveTo(g)
	return g
}

// orDefault returns the value, or the default if the value is zero or negative.
func orDefault[T int | time.Duration](value, byDefault T) T {
	if value > 0 {
		return value
	}
	return byDefault
}

// findCompanions finds out which optional interfaces the runtime implements.
func (g *GenericPLEG) findCompanions() {
	g.getter, _ = g.runtime.(PodGetter)
	if source, ok := g.runtime.(EventSource); ok {
		g.events = g.newEventClient(methodWatchEvents, func(ctx context.Context, s *stream) error {
			return source.WatchContainerEvents(ctx, s.connected, s.observe)
		})
	}
	if source, ok := g.runtime.(ExitSource); ok {
		g.exits = g.newEventClient(methodWatchExits, func(ctx context.Context, s *stream) error {
			return source.WatchContainerExits(ctx, s.connected, s.observeExit)
		})
	}
}

func (g *GenericPLEG) newEventClient(method string, watch func(ctx context.Context, s *stream) error) *eventClient {
	e := &eventClient{
		method: method, watch: watch, hints: method == methodWatchEvents,
		clock: g.clock, calls: g.calls, inbox: g.inbox, metrics: g.metrics, logger: g.logger,
		report: StreamReport{State: StreamOff}, recovered: make(chan struct{}, 1),
	}
	g.streams = append(g.streams, e)
	return e
}

// register registers the collectors. A failure is only logged: a generator without metrics is better
// than an agent that does not start.
func (g *GenericPLEG) register() {
	if g.opts.registerer == nil {
		return
	}
	collectors := g.Collectors()
	if g.opts.noKubeletMetrics {
		collectors = collectors[1:]
	}
	for _, c := range collectors {
		if err := g.opts.registerer.Register(c); err != nil {
			g.logger.Error(err, "Cannot register metrics; wrap the registerer with a label if it has those of another generator")
		}
	}
}

// Cache returns the cache that the generator writes.
func (g *GenericPLEG) Cache() *PodCache { return g.cache }

// Clock returns the clock of the times in events and reports.
func (g *GenericPLEG) Clock() clock.PassiveClock { return g.clock }

// Start begins to relist, at once and then every period, and to follow the runtime's streams of
// events and of exits, where there are such. It returns at once. The generator runs until Stop, or
// until ctx ends, which does what Stop does. Starting a running generator does nothing.
func (g *GenericPLEG) Start(ctx context.Context) {
	g.lock()
	defer func() { <-g.lifecycle }()
	if before := g.running.Load(); before != nil {
		if before.ended() == nil {
			return
		}
		g.stopLocked()
	}
	r := &running{ended: ctx.Err}
	g.running.Store(r)
	r.forget = context.AfterFunc(ctx, func() { g.stop(r) })
	ctx, r.end = context.WithCancel(ctx)
	g.updates.Start()
	g.joined.Go(func() {
		g.setPeriodic(true)
		defer g.setPeriodic(false)
		g.run(ctx, nil)
	})
	for _, e := range g.streams {
		g.joined.Go(func() { e.follow(ctx) })
	}
}

// setPeriodic starts or ends the full lists of every period.
func (g *GenericPLEG) setPeriodic(on bool) { g.inbox.Put(func(in *inputs) { in.periodic = &on }) }

// Stop ends everything that Start started and returns when it has ended. It cancels the calls in
// flight. A call that ignores cancellation for five seconds is logged and left behind, and no second
// one is made for its pod until it returns. The channels of Subscribe are closed; the channel of
// Watch stays open and delivers again after another Start. Readers blocked on the cache stay
// blocked. Stopping a generator that does not run cancels the calls that Relist left behind.
func (g *GenericPLEG) Stop() { g.stop(nil) }

// stop stops the generator if r is what runs, or nil, and logs the calls that are left behind.
func (g *GenericPLEG) stop(r *running) {
	g.lock()
	var left []calls.Info
	if r == nil || r == g.running.Load() {
		left = g.stopLocked()
	}
	<-g.lifecycle
	for _, c := range left {
		g.logger.Error(errStopped, "The runtime ignores cancellation; a call is left behind",
			"call", describeCall(runtimeCall(c)))
	}
}

// lock takes lifecycle. It panics if NewGenericPLEG has not made it.
func (g *GenericPLEG) lock() {
	if g.lifecycle == nil {
		panic("pleg: the GenericPLEG was not made by NewGenericPLEG") //nolint:forbidigo // a mistake in the caller's code
	}
	g.lifecycle <- struct{}{}
}

// stopLocked returns the calls that are left behind.
func (g *GenericPLEG) stopLocked() (left []calls.Info) {
	if r := g.running.Load(); r != nil {
		r.forget()
		r.end()
	}
	g.joined.Wait() // first, so that no call begins that is not cancelled
	g.updates.Halt()
	g.running.Store(nil)
	return g.calls.Stop(errStopped, time.NewTimer(stopGrace).C)
}

// Watch returns the channel of the events: always the same one, never closed. Its first events
// describe the pods that exist when Watch is first called.
func (g *GenericPLEG) Watch() chan *PodLifecycleEvent { return g.watching() }

// Relist makes one full relist and returns when it is complete: the state of every pod was observed
// after Relist was called, the PodSyncs that are due are delivered, and every event that fits is in
// the channels. It inspects pods again whose inspection failed. It does not wait for a pod with a
// failed single-pod list, or with a slow call, which has run for longer than a relist period. If the
// full list fails, Relist returns its error, and nothing has changed; the error of an inspection is
// in the cache. If ctx ends first, the error wraps its cause, and the relist goes on.
//
// Without Start, it runs in the caller's goroutine. Timeouts use the injected clock; with a fake
// clock, step it from another goroutine if a call hangs.
func (g *GenericPLEG) Relist(ctx context.Context) error {
	caller := newRelistCaller()
	if ctx.Err() == nil { // else nobody might take the request in
		g.inbox.Put(func(in *inputs) { in.relists = append(in.relists, caller) })
		g.run(ctx, caller.done)
		g.updates.Fill()
	}
	if !isClosed(caller.done) {
		return fmt.Errorf("waiting for a relist: %w", context.Cause(ctx))
	}
	return caller.err
}

// RequestRelist asks for a single-pod relist as soon as possible, and returns at once. The request
// is answered by a list that begins after it; requests made before that list begins are coalesced.
// If the runtime does not implement PodGetter, a full relist answers it.
func (g *GenericPLEG) RequestRelist(uid types.UID) {
	if uid != "" {
		g.inbox.Put(func(in *inputs) { put(&in.requests, uid, struct{}{}) })
	}
}

// RequestReinspect asks for an inspection of a pod, even if no list shows it changed, and returns at
// once. The inspection begins after the request. Subscribers get a PodSync once the cache holds its
// status or error. A pod that is not known is not inspected.
func (g *GenericPLEG) RequestReinspect(uid types.UID) {
	g.inbox.Put(func(in *inputs) { put(&in.reinspects, uid, struct{}{}) })
}

// onReaderBlocked implements cacheOwner.
func (g *GenericPLEG) onReaderBlocked(uid types.UID) {
	if g.getter != nil { // else the next full list answers
		g.RequestRelist(uid)
	}
}

// Defaults of the options.
const (
	// DefaultInspectionWorkers is the number of inspections that run at once.
	DefaultInspectionWorkers = 8
	// DefaultRuntimeRequestTimeout is the deadline of a call of the runtime, a list or an
	// inspection: the default of the kubelet's --runtime-request-timeout.
	DefaultRuntimeRequestTimeout = 2 * time.Minute
)

// Option is an option of NewGenericPLEG. A nil Option is ignored.
type Option func(*options)

type options struct {
	logger            klog.Logger
	registerer        prometheus.Registerer
	relistThreshold   time.Duration
	inspectionWorkers int
	requestTimeout    time.Duration
	pollingOnly       bool
	noKubeletMetrics  bool
}

// WithLogger sets the logger, which gets the name "pleg". The default is klog's background logger.
// Verbosity follows the kubelet: 2 logs containers that finished, slow inspections and the event
// stream's breaks, 4 every transition and status, 5 every relist.
//
// A logger must not call the generator. A logger that blocks stops the generator.
func WithLogger(logger klog.Logger) Option { return func(o *options) { o.logger = logger } }

// WithRegisterer registers the generator's metrics, and those of a Runtime that implements
// prometheus.Collector. By default nothing is registered. A registration that fails is logged. Two
// generators on one registry need prometheus.WrapRegistererWith, so that a label tells them apart.
func WithRegisterer(registerer prometheus.Registerer) Option {
	return func(o *options) { o.registerer = registerer }
}

// WithoutKubeletMetrics registers none of the generator's metrics whose name begins with kubelet_.
// It is for a host that has its own, such as a kubelet, because a registry takes no name twice. The
// option does not change the metrics of a Runtime that is a prometheus.Collector: package cri has an
// option of the same name. By default all metrics are registered.
func WithoutKubeletMetrics() Option { return func(o *options) { o.noKubeletMetrics = true } }

// WithRelistThreshold sets how old the last successful relist, or an inspection that hangs, may be
// before Healthy reports false. Zero or less selects DefaultRelistThreshold, the default.
func WithRelistThreshold(threshold time.Duration) Option {
	return func(o *options) { o.relistThreshold = threshold }
}

// WithInspectionWorkers sets how many inspections run at once. It does not count up to 64 slow ones,
// those older than a relist period. Zero or less selects DefaultInspectionWorkers, the default.
func WithInspectionWorkers(workers int) Option {
	return func(o *options) { o.inspectionWorkers = workers }
}

// WithRuntimeRequestTimeout sets the deadline of a call of the runtime, a list or an inspection.
// After it the call has failed: it is cancelled, and its late answer is discarded. Zero or less
// selects DefaultRuntimeRequestTimeout, the default.
func WithRuntimeRequestTimeout(timeout time.Duration) Option {
	return func(o *options) { o.requestTimeout = timeout }
}

// WithPollingOnly limits the generator to full relists: every period, on Relist and on
// RequestRelist. It opens no stream of events or of exits and makes no single-pod relist. Blocked
// readers wait for the next full relist.
func WithPollingOnly() Option { return func(o *options) { o.pollingOnly = true } }
