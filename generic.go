package pleg

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/internal/core/calls"
	"github.com/kubepleg/pleg/internal/core/inbox"
	"github.com/kubepleg/pleg/internal/core/schedule"
)

// stopGrace is how long Stop waits for the calls that it has cancelled. It is measured in real
// time: with a fake clock, Stop would block for ever on a runtime that ignores cancellation.
const stopGrace = 5 * time.Second

// GenericPLEG relists a Runtime and generates lifecycle events. It is safe for concurrent use.
//
// One goroutine at a time runs its loop: the goroutine of Start or, without Start, a caller of Relist. The
// loop passes its inputs to the reconciler, makes the calls that the reconciler returns, and sleeps until
// the next step is due. The loop never waits for the runtime or for a reader.
type GenericPLEG struct {
	// New sets the fields of this group. They never change, so no lock is needed to read them.

	runtime Runtime
	getter  PodGetter // nil if the runtime does not implement it, or WithPollingOnly is set
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
	streams []*eventClient // those of events and exits that are not nil

	// watching returns the channel of Watch. Its first call subscribes.
	watching func() chan *PodLifecycleEvent
	// synced is closed when the generator has synced.
	synced chan struct{}

	// mu is held while the reconciler takes a step and while its state is read. A step does not block
	// and calls no code of the user or the runtime.
	mu         sync.Mutex
	reconciler *reconciler // guarded by mu

	// token is held by the goroutine that runs the loop.
	token chan struct{}
	timer clock.Timer // for the next step; owned by the goroutine that holds token

	// lifecycle is a lock that Start and Stop hold. A mutex would not do: in a synctest bubble, a
	// goroutine that waits for a mutex stops the time, and Stop would never return.
	lifecycle chan struct{}

	// running is nil while the generator is stopped; set under lifecycle.
	running atomic.Pointer[running]
	joined  sync.WaitGroup // guarded by lifecycle
}

// running contains what Stop needs to end a run.
type running struct {
	ended  func() error // ctx.Err of the context passed to Start
	end    context.CancelFunc
	forget func() bool // cancels the AfterFunc that calls stop when the context of Start ends
}

// New returns a generator for runtime; Cache returns its cache. Nothing runs until Start or Relist.
//
// New empties the cache. Stop an earlier generator of the same cache first. Like the kubelet's constructor, New returns
// no error. It panics if runtime is nil, or if an option sets a nil cache or clock.
func New(runtime Runtime, opts ...Option) *GenericPLEG {
	return NewGenericPLEG(runtime, 0, 0, NewCache(), clock.RealClock{}, opts...)
}

// NewGenericPLEG is New with the arguments of the kubelet's older constructor. The arguments
// replace the options WithWatchCapacity, WithRelistPeriod, WithCache and WithClock.
func NewGenericPLEG(runtime Runtime, channelCapacity int, relistPeriod time.Duration,
	cache *PodCache, clock clock.Clock, opts ...Option) *GenericPLEG {
	g := &GenericPLEG{
		runtime: runtime, inbox: inbox.New[inputs](), calls: calls.NewGroup[*schedule.Call](), metrics: newMetrics(),
		synced: make(chan struct{}), token: make(chan struct{}, 1), lifecycle: make(chan struct{}, 1),
		opts: options{cache: cache, clock: clock, logger: klog.Background(),
			relistPeriod: relistPeriod, watchCapacity: channelCapacity},
	}
	for _, o := range opts {
		if o != nil {
			o(&g.opts)
		}
	}
	if runtime == nil || g.opts.cache == nil || g.opts.clock == nil {
		panic("pleg: the runtime, the cache or the clock is nil") //nolint:forbidigo // the drop-in signature has no error
	}
	g.cache, g.clock, g.logger = g.opts.cache, g.opts.clock, g.opts.logger.WithName("pleg")
	g.updates = newBroadcaster(func(n int) { g.metrics.discardEvents.Add(float64(n)) })
	g.watching = sync.OnceValue(func() chan *PodLifecycleEvent {
		options := g.subscription([]SubscribeOption{WithCapacity(g.opts.watchCapacity)})
		options.Lasting = true
		return g.updates.Subscribe(context.Background(), options) //nolint:forbidigo // it is never closed
	})
	if !g.opts.pollingOnly {
		g.findCompanions()
	}
	threshold := cmp.Or(max(0, g.opts.relistThreshold), DefaultRelistThreshold)
	g.reconciler = newReconciler(schedule.Config{
		// A period above half the threshold would make the generator unhealthy between two lists.
		Period:    min(cmp.Or(max(0, g.opts.relistPeriod), DefaultRelistPeriod), max(threshold/2, DefaultRelistPeriod)),
		Threshold: threshold,
		Timeout:   cmp.Or(max(0, g.opts.timeout), DefaultRuntimeRequestTimeout),
		Workers:   cmp.Or(max(0, g.opts.inspectionWorkers), DefaultInspectionWorkers),
		ListsPods: g.getter != nil,
	}, g.clock.Now(), g.cache, g.updates, g.metrics)
	g.register()
	g.cache.giveTo(g.onReaderBlocked)
	return g
}

// findCompanions detects the optional interfaces of the runtime.
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
		report: StreamReport{State: StreamOff},
	}
	g.streams = append(g.streams, e)
	return e
}

// register registers the collectors. It only logs failures, because a generator without metrics is
// better than an agent that does not start.
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

// Clock returns the generator's clock. All times in events and reports come from it.
func (g *GenericPLEG) Clock() clock.PassiveClock { return g.clock }

// Start makes a full relist at once and then every period, and follows the runtime's streams of
// events and of exits, if it has them. Start does not block. The generator runs until Stop is
// called or ctx ends, which has the same effect. Starting a running generator does nothing.
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

func (g *GenericPLEG) setPeriodic(on bool) { g.inbox.Put(func(in *inputs) { in.periodic = &on }) }

// Stop ends everything that Start started, cancels the calls in flight, and returns when all of
// them have ended. If a call ignores cancellation, Stop logs the call after five seconds and
// returns. Until the call returns, the generator does not call the same method for that pod again.
//
// Stop closes the channels of Subscribe. The channel of Watch stays open and delivers again after
// another Start. Readers blocked on the cache stay blocked. If the generator is not running, Stop
// cancels the calls that Relist left behind.
func (g *GenericPLEG) Stop() { g.stop(nil) }

// stop stops the generator if r is the current run or nil, and logs the calls that are left behind.
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

// lock takes the lock lifecycle. It panics if g was not made by New.
func (g *GenericPLEG) lock() {
	if g.lifecycle == nil {
		panic("pleg: the GenericPLEG was not made by New") //nolint:forbidigo // a mistake in the caller's code
	}
	g.lifecycle <- struct{}{}
}

// stopLocked stops the generator and returns the calls that are left behind.
func (g *GenericPLEG) stopLocked() (left []calls.Info) {
	if r := g.running.Load(); r != nil {
		r.forget()
		r.end()
	}
	g.joined.Wait() // before calls.Stop below, so that the loop begins no call after it
	g.updates.Halt()
	g.running.Store(nil)
	return g.calls.Stop(errStopped, time.NewTimer(stopGrace).C)
}

// Watch returns the channel of the events. Every call returns the same channel, which is never
// closed. Its first events describe the pods that exist at the first call of Watch. If there are
// several readers, each event goes to only one of them. The signature is the kubelet's: do not send
// to the channel or close it. New programs use Subscribe or Handle.
func (g *GenericPLEG) Watch() chan *PodLifecycleEvent { return g.watching() }

// Relist makes one full relist and returns when it is complete. By then, every pod's state was
// observed after the call, due PodSyncs are delivered, and the channels contain every event that
// fits. Pods with a failed inspection are inspected again. Relist does not wait for a pod if its
// pod list failed, or for calls that have run longer than a relist period.
//
// If the full list fails, Relist returns its error and changes nothing. Errors of inspections are
// in the cache. If ctx ends first, the error wraps the cause, and the relist continues.
//
// Without Start, the relist runs in the caller's goroutine. Timeouts use the injected clock: if a
// call blocks, a fake clock must be stepped from another goroutine.
func (g *GenericPLEG) Relist(ctx context.Context) error {
	caller := &relistCaller{done: make(chan struct{})}
	if ctx.Err() == nil { // otherwise the request might stay in the inbox
		g.inbox.Put(func(in *inputs) { in.relists = append(in.relists, caller) })
		g.run(ctx, caller.done)
		g.updates.Fill()
	}
	if !isClosed(caller.done) {
		return fmt.Errorf("waiting for a relist: %w", context.Cause(ctx))
	}
	return caller.err
}

// RequestRelist requests a list of one pod; its name comes from the kubelet. It does not block. The
// next list of the pod that begins after the call answers this and all earlier requests. If the
// runtime does not implement PodGetter, a full list is requested instead. An empty UID is ignored.
func (g *GenericPLEG) RequestRelist(uid types.UID) {
	if uid != "" {
		g.inbox.Put(func(in *inputs) { put(&in.requests, uid, struct{}{}) })
	}
}

// RequestReinspect requests an inspection of a pod, whether a list shows a change or not, and does
// not block. The inspection begins after the request. When the cache holds the status or the error,
// subscribers are sent a PodSync, unless the pod is gone. A request for an unknown pod is ignored.
func (g *GenericPLEG) RequestReinspect(uid types.UID) {
	g.inbox.Put(func(in *inputs) { put(&in.reinspects, uid, struct{}{}) })
}

// onReaderBlocked requests a list for a reader of the cache; see PodCache.giveTo.
func (g *GenericPLEG) onReaderBlocked(uid types.UID) {
	if g.getter != nil { // otherwise the reader waits for the next full list
		g.RequestRelist(uid)
	}
}

// Defaults of the options.
const (
	// DefaultInspectionWorkers is how many inspections run at once.
	DefaultInspectionWorkers = 8
	// DefaultRuntimeRequestTimeout is the deadline of a list or an inspection: the default of the
	// kubelet's --runtime-request-timeout.
	DefaultRuntimeRequestTimeout = 2 * time.Minute
)

// Option is an option of New. A nil Option is ignored.
type Option func(*options)

type options struct {
	cache                                  *PodCache
	clock                                  clock.Clock
	logger                                 klog.Logger
	registerer                             prometheus.Registerer
	relistPeriod, relistThreshold, timeout time.Duration
	inspectionWorkers, watchCapacity       int
	pollingOnly, noKubeletMetrics          bool
}

// WithCache sets the cache that the generator writes. By default, New makes a cache; see GenericPLEG.Cache.
func WithCache(cache *PodCache) Option { return func(o *options) { o.cache = cache } }

// WithClock sets the clock for all timing. The default is the real clock. A test may pass a fake clock.
func WithClock(clock clock.Clock) Option { return func(o *options) { o.clock = clock } }

// WithRelistPeriod sets the time from the start of one full list to the next; a full list also follows each
// connection of the event stream. Zero or less selects DefaultRelistPeriod, the default. A period may not exceed
// half the threshold of WithRelistThreshold, or one second if that is longer. A longer period is shortened.
func WithRelistPeriod(d time.Duration) Option { return func(o *options) { o.relistPeriod = d } }

// WithWatchCapacity sets the capacity of Watch's channel; see WithCapacity.
func WithWatchCapacity(n int) Option { return func(o *options) { o.watchCapacity = n } }

// WithLogger sets the logger, and adds the name "pleg" to it. The default is klog's background
// logger. Verbosity follows the kubelet: 2 logs finished containers, slow inspections and lost
// event streams; 4 logs every transition and status; 5 logs every relist.
//
// The logger must not call the generator. A logger that blocks also blocks the generator.
func WithLogger(logger klog.Logger) Option { return func(o *options) { o.logger = logger } }

// WithRegisterer registers the generator's metrics, and those of a Runtime that implements
// prometheus.Collector. The default registers nothing. A failed registration is logged. To use one
// registry for two generators, give each a label with prometheus.WrapRegistererWith.
func WithRegisterer(r prometheus.Registerer) Option { return func(o *options) { o.registerer = r } }

// WithoutKubeletMetrics does not register the generator's metrics with names that begin with kubelet_.
// Use it in a program that registers the same names itself, such as a kubelet: a registry accepts each
// name once. It does not affect the metrics of the Runtime: package cri has an option of the same name.
func WithoutKubeletMetrics() Option { return func(o *options) { o.noKubeletMetrics = true } }

// WithRelistThreshold sets the age of the last successful relist, or of unanswered inspections,
// above which Healthy reports false. Zero or less selects DefaultRelistThreshold, the default.
func WithRelistThreshold(d time.Duration) Option { return func(o *options) { o.relistThreshold = d } }

// WithInspectionWorkers sets how many inspections run at once. Up to 64 slow inspections, which have run for
// longer than a relist period, are not counted. Zero or less selects DefaultInspectionWorkers, the default.
func WithInspectionWorkers(n int) Option { return func(o *options) { o.inspectionWorkers = n } }

// WithRuntimeRequestTimeout sets the deadline of a list or an inspection. At the deadline, the call counts as failed
// and is cancelled. A later answer is discarded. Zero or less selects DefaultRuntimeRequestTimeout, the default.
func WithRuntimeRequestTimeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

// WithPollingOnly limits the generator to full relists: every period, on Relist and on RequestRelist.
// It opens no stream and lists no single pods. Blocked readers wait for the next full relist.
func WithPollingOnly() Option { return func(o *options) { o.pollingOnly = true } }
