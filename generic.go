package pleg

import (
	"context"
	"slices"
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
	cache     *PodCache
	clock     clock.Clock
	threshold time.Duration
	period    time.Duration
	opts      options
	logger    klog.Logger

	inbox   *inbox.Inbox[inputs]
	calls   *calls.Group[*schedule.Call]
	loop    *loop
	updates *broadcaster
	metrics *metrics
	events  *eventClient // nil if the runtime has no event stream
	exits   *eventClient // nil if the runtime reports no exits

	// watching makes the subscription of Watch at its first call.
	watching func() chan *PodLifecycleEvent
	// started is true between Start and Stop.
	started atomic.Bool
	// run is what goes on between them; nil while stopped. Who holds lifecycle sets it.
	run atomic.Pointer[run]

	// lifecycle is held by Start and Stop. It is no mutex: in a synctest bubble, who waited
	// for one would keep the time from passing for which Stop waits.
	lifecycle chan struct{}

	joined sync.WaitGroup // guarded by lifecycle
}

// run is what goes on between a Start and a Stop.
type run struct {
	ended  func() error // of the context of Start
	end    context.CancelFunc
	forget func() bool // takes back that the end of that context stops it
}

// hasEnded reports whether the context of Start has ended.
func (r *run) hasEnded() bool { return r != nil && r.ended() != nil }

// NewGenericPLEG returns a generator that relists runtime every relistPeriod and writes
// cache; a cache has one generator at a time. The channel of Watch has the capacity
// channelCapacity; see WithCapacity. A zero or negative period selects DefaultRelistPeriod. A
// period of more than a second is at most half of the threshold (WithRelistThreshold): a longer
// one is shortened to that. Nothing runs until Start or Relist.
//
// Like the kubelet's, it returns no error. It panics if runtime, cache or clock is nil, and if
// the cache has another generator that is not stopped.
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
	if relistPeriod <= 0 {
		relistPeriod = DefaultRelistPeriod
	}
	g := &GenericPLEG{
		runtime: runtime, cache: cache, clock: clock, opts: defaultOptions(),
		inbox: inbox.New[inputs](), calls: calls.NewGroup[*schedule.Call](),
		lifecycle: make(chan struct{}, 1),
	}
	for _, o := range opts {
		if o != nil {
			o(&g.opts)
		}
	}
	g.claimCache(true)
	g.logger, g.threshold = g.opts.logger, g.opts.relistThreshold
	g.metrics = newMetrics(g.gauges)
	g.updates = newBroadcaster(g.metrics.countDiscarded)
	g.watching = sync.OnceValue(func() chan *PodLifecycleEvent {
		options := g.subscription([]SubscribeOption{WithCapacity(channelCapacity)})
		options.Lasting = true
		return g.updates.Subscribe(context.Background(), options) //nolint:forbidigo // it is never closed
	})
	// A longer one would make it unhealthy between two lists.
	g.period = min(relistPeriod, max(g.threshold/2, DefaultRelistPeriod))
	g.makeLoop()
	g.register()
	return g
}

// makeLoop makes the loop, and what it needs of the runtime's companions.
func (g *GenericPLEG) makeLoop() {
	var getter PodGetter
	if !g.opts.pollingOnly {
		getter, _ = g.runtime.(PodGetter)
		if source, ok := g.runtime.(EventSource); ok {
			g.events = g.newEventClient(methodWatchEvents, func(ctx context.Context, s *stream) error {
				return source.WatchContainerEvents(ctx, s.connected, s.observe)
			})
			g.events.hints = true
		}
		if source, ok := g.runtime.(ExitSource); ok {
			g.exits = g.newEventClient(methodWatchExits, func(ctx context.Context, s *stream) error {
				return source.WatchContainerExits(ctx, s.connected, s.observeExit)
			})
		}
	}
	cfg := schedule.Config{
		Period: g.period, Timeout: g.opts.requestTimeout, Threshold: g.threshold,
		Workers: g.opts.inspectionWorkers, ListsPods: getter != nil,
	}
	g.loop = &loop{
		clock: g.clock, logger: g.logger, runtime: g.runtime, getter: getter, inbox: g.inbox, calls: g.calls,
		token: make(chan struct{}, 1), synced: make(chan struct{}),
		reconciler: newReconciler(cfg, g.clock.Now(), g.cache, g, g.updates, g.metrics),
	}
	for _, e := range g.streams() {
		g.loop.recovered = append(g.loop.recovered, e.recovered)
	}
}

func (g *GenericPLEG) newEventClient(method string, watch func(ctx context.Context, s *stream) error) *eventClient {
	return &eventClient{
		method: method, watch: watch,
		clock: g.clock, calls: g.calls, inbox: g.inbox, metrics: g.metrics, logger: g.logger,
		report: StreamReport{State: StreamOff}, recovered: make(chan struct{}, 1),
	}
}

// streams returns the streams of the runtime.
func (g *GenericPLEG) streams() []*eventClient {
	return slices.DeleteFunc([]*eventClient{g.events, g.exits}, func(e *eventClient) bool { return e == nil })
}

// claimCache panics when the cache has another generator, which would take the pods of this
// one for gone. A generator whose context has ended is stopped, although it may not be released
// yet.
func (g *GenericPLEG) claimCache(isNew bool) {
	g.cache.mu.RLock()
	other, _ := g.cache.owner.(*GenericPLEG)
	g.cache.mu.RUnlock()
	if other != nil && other.run.Load().hasEnded() {
		g.cache.release(other)
	}
	if !g.cache.claim(g, isNew) {
		panic("pleg: the cache has another generator") //nolint:forbidigo // the drop-in signatures have no error
	}
}

// register registers the collectors. A failure is only logged: a generator without
// metrics is better than an agent that does not start.
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

// Collectors returns the collectors of the generator's metrics, those with a kubelet's name first,
// and the runtime if it is a prometheus.Collector. WithRegisterer registers them.
func (g *GenericPLEG) Collectors() []prometheus.Collector {
	collectors := []prometheus.Collector{kubeletMetrics{g.metrics}, ownMetrics{g.metrics}}
	if c, ok := g.runtime.(prometheus.Collector); ok {
		collectors = append(collectors, c)
	}
	return collectors
}

// Cache returns the cache that the generator writes.
func (g *GenericPLEG) Cache() *PodCache { return g.cache }

// Clock returns the clock of the times in events and reports.
func (g *GenericPLEG) Clock() clock.PassiveClock { return g.clock }

// Start begins to relist, at once and then every period, and to follow the runtime's
// streams of events and of exits, where there are such. It returns at once. The generator runs
// until Stop, or until ctx ends, which does what Stop does. Starting a running generator does
// nothing.
func (g *GenericPLEG) Start(ctx context.Context) {
	g.lock()
	defer func() { <-g.lifecycle }()
	if before := g.run.Load(); before.hasEnded() {
		g.stopLocked()
	} else if before != nil {
		return
	}
	g.claimCache(false)
	r := &run{ended: ctx.Err}
	g.run.Store(r)
	g.started.Store(true)
	r.forget = context.AfterFunc(ctx, func() { g.stop(r) })
	ctx, r.end = context.WithCancel(ctx)
	g.updates.Start()
	g.joined.Go(func() { g.loop.runPeriodically(ctx) })
	for _, e := range g.streams() {
		g.joined.Go(func() { e.follow(ctx) })
	}
}

// Stop ends everything that Start started and returns when it has ended. It cancels the
// calls in flight. A call that ignores cancellation for five seconds is logged and left
// behind, and no second one is made for its pod until it returns. The channels of
// Subscribe are closed; the channel of Watch stays open and delivers again after another
// Start. Readers blocked on the cache stay blocked. Stopping a generator that does not
// run cancels the calls that Relist left behind.
func (g *GenericPLEG) Stop() { g.stop(nil) }

// stop stops the generator if r is its run, or nil, and logs the calls that are left behind.
func (g *GenericPLEG) stop(r *run) {
	g.lock()
	var left []calls.Info
	if r == nil || r == g.run.Load() {
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
	if r := g.run.Load(); r != nil {
		r.forget()
		r.end()
	}
	g.joined.Wait() // first, so that no call begins that is not cancelled
	g.started.Store(false)
	g.updates.Halt()
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	g.cache.release(g)
	g.run.Store(nil)
	return g.calls.Stop(errStopped, grace.C)
}

// Watch returns the channel of the events: always the same one, never closed. Its first
// events describe the pods that exist when Watch is first called.
func (g *GenericPLEG) Watch() chan *PodLifecycleEvent { return g.watching() }

// Relist makes one full relist and returns when it is complete: the state of every pod
// was observed after Relist was called, the PodSyncs that are due are delivered, and
// every event that fits is in the channels. Pods whose inspection failed before are
// inspected again. Relist does not wait for a pod with a slow call, which has run for
// longer than a relist period, or with a failed single-pod list. For an inspection that
// fails, the cache has the error. If the full list itself fails, Relist returns its error, and
// nothing has changed. If ctx ends before that, the error wraps its cause; what has begun goes
// on.
//
// It works with Start, and without it in the caller's goroutine. Timeouts use the
// injected clock; with a fake clock, step it from another goroutine if a call hangs.
func (g *GenericPLEG) Relist(ctx context.Context) error {
	g.claimCache(false)
	if ctx.Err() != nil { // where nothing runs, nobody would take the request in
		return relistEnded(ctx)
	}
	caller := newRelistCaller()
	g.inbox.Put(func(in *inputs) { in.relists = append(in.relists, caller) })
	err := g.loop.runFor(ctx, caller)
	g.updates.Fill()
	return err
}

// RequestRelist asks for a single-pod relist as soon as possible, and returns at once.
// The request is answered by a list that begins after it; requests made before that list
// begins are coalesced. If the runtime does not implement PodGetter, a full relist
// answers it.
func (g *GenericPLEG) RequestRelist(uid types.UID) {
	if uid != "" {
		g.inbox.Put(func(in *inputs) { put(&in.requests, uid, struct{}{}) })
	}
}

// RequestReinspect asks for an inspection of a pod, even if no list shows it changed, and
// returns at once. The inspection begins after the request. Subscribers get a PodSync
// once the cache holds its status or error. A pod that is not known is not inspected.
func (g *GenericPLEG) RequestReinspect(uid types.UID) {
	g.inbox.Put(func(in *inputs) { put(&in.reinspects, uid, struct{}{}) })
}

// onReaderBlocked implements cacheOwner.
func (g *GenericPLEG) onReaderBlocked(uid types.UID) {
	if uid != "" && !g.opts.pollingOnly {
		g.inbox.Put(func(in *inputs) { put(&in.readers, uid, struct{}{}) })
	}
}

// now implements cacheOwner.
func (g *GenericPLEG) now() time.Time { return g.clock.Now() }

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

func defaultOptions() options {
	return options{
		logger:            klog.Background().WithName("pleg"),
		relistThreshold:   DefaultRelistThreshold,
		inspectionWorkers: DefaultInspectionWorkers,
		requestTimeout:    DefaultRuntimeRequestTimeout,
	}
}

// WithLogger sets the logger. The default is klog's background logger with the name
// "pleg". Verbosity follows the kubelet: 2 logs containers that finished, slow inspections
// and the event stream's breaks, 4 every transition and status, 5 every relist.
//
// A logger must not call the generator. A logger that blocks stops the generator.
func WithLogger(logger klog.Logger) Option {
	return func(o *options) { o.logger = logger }
}

// WithRegisterer registers the generator's metrics, and those of a Runtime that
// implements prometheus.Collector. By default nothing is registered. A registration
// that fails is logged. Two generators on one registry need prometheus.WrapRegistererWith,
// so that a label tells them apart.
func WithRegisterer(registerer prometheus.Registerer) Option {
	return func(o *options) { o.registerer = registerer }
}

// WithoutKubeletMetrics registers none of the generator's metrics whose name begins with
// kubelet_. It is for a host that has its own, such as a kubelet, because a registry takes no name
// twice. The option does not change the metrics of a Runtime that is a prometheus.Collector:
// package cri has an option of the same name. By default all metrics are registered.
func WithoutKubeletMetrics() Option {
	return func(o *options) { o.noKubeletMetrics = true }
}

// WithRelistThreshold sets the age of the last successful relist, and of inspections
// that hang, above which Healthy reports false. A zero or negative value selects
// DefaultRelistThreshold, the default.
func WithRelistThreshold(threshold time.Duration) Option {
	return func(o *options) {
		if threshold > 0 {
			o.relistThreshold = threshold
		}
	}
}

// WithInspectionWorkers sets how many inspections run at once. Up to 64 slow ones, which
// have run for longer than a relist period, are not counted. A zero or negative value selects
// DefaultInspectionWorkers, the default.
func WithInspectionWorkers(workers int) Option {
	return func(o *options) {
		if workers > 0 {
			o.inspectionWorkers = workers
		}
	}
}

// WithRuntimeRequestTimeout sets the deadline of a call of the runtime, a list or an inspection.
// After it the call has failed: it is cancelled, and its late answer is discarded. A zero or
// negative value selects DefaultRuntimeRequestTimeout, the default.
func WithRuntimeRequestTimeout(timeout time.Duration) Option {
	return func(o *options) {
		if timeout > 0 {
			o.requestTimeout = timeout
		}
	}
}

// WithPollingOnly limits the generator to full relists: every period, on Relist and on
// RequestRelist. It opens no stream of events or of exits and makes no single-pod relist.
// Blocked readers wait for the next full relist.
func WithPollingOnly() Option {
	return func(o *options) { o.pollingOnly = true }
}
