package pleg

import (
	"context"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// stopGrace is how long Stop waits for calls that it has cancelled. It is
// measured in real time, whatever clock was injected: a fake clock that nobody
// advances must not make Stop hang on a runtime that does not heed its context.
const stopGrace = 5 * time.Second

// GenericPLEG relists a Runtime and generates the lifecycle events of its pods.
// Its methods may be called from any goroutine.
//
// One goroutine at a time runs its loop: the one that Start starts, or the caller
// of Relist while there is none. The loop owns the records, never waits for the
// runtime and never waits for a reader.
type GenericPLEG struct {
	// Set once by NewGenericPLEG, never again, so safe to read without a lock.

	runtime  Runtime
	getter   PodGetter   // nil if the runtime is none
	source   EventSource // nil if the runtime is none
	cache    Cache
	clock    clock.Clock
	period   time.Duration
	capacity int
	opts     options
	logger   klog.Logger

	box       *mailbox
	calls     *callTable
	announcer *announcer
	metrics   *metrics
	vitals    *vitals

	// watching makes the subscription of Watch at its first call.
	watching func() chan *PodLifecycleEvent

	// context is the context of calls to the runtime, streaming is true while a
	// stream of its events is open.
	context   callContext
	streaming atomic.Bool

	// barriers spares Relist the allocation of one each time. It is the
	// generator's own, because a channel must not leave its synctest bubble.
	barriers sync.Pool

	// token is held by the goroutine that runs the loop.
	token chan struct{}
	// loop is owned by the holder of token.
	loop loop

	// lifecycle serialises Start and Stop.
	lifecycle sync.Mutex

	// Guarded by lifecycle.

	stopLoop context.CancelFunc // nil while stopped
	joined   sync.WaitGroup
}

var _ PodLifecycleEventGenerator = (*GenericPLEG)(nil)

// NewGenericPLEG returns a generator that relists runtime every relistPeriod and
// stores what it finds in cache, which it takes over: a cache has one generator.
// Watch's channel holds channelCapacity events. A period of zero or less stands
// for DefaultRelistPeriod, a capacity of zero or less for DefaultChannelCapacity.
//
// It panics, saying which, when runtime, cache or clock is nil, or a nil pointer:
// like the kubelet's, it returns no error. Nothing runs until Start or Relist.
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
		runtime:  runtime,
		cache:    cache,
		clock:    clock,
		period:   relistPeriod,
		capacity: channelCapacity,
		opts:     defaultOptions(),
		box:      newMailbox(),
		calls:    newCallTable(),
		token:    make(chan struct{}, 1),
	}
	for _, o := range opts {
		if o != nil {
			o(&g.opts)
		}
	}
	g.opts.provenPeriod = min(g.opts.provenPeriod, g.opts.relistThreshold/2)
	g.logger = g.opts.logger
	if !g.opts.pollingOnly {
		g.getter, _ = runtime.(PodGetter)
		g.source, _ = runtime.(EventSource)
	}
	g.vitals = newVitals(clock.Now())
	g.metrics = newMetrics(g)
	g.announcer = newAnnouncer(g.metrics.merged)
	g.watching = sync.OnceValue(func() chan *PodLifecycleEvent {
		return g.announcer.subscribe(context.Background(), g.capacity, true).out //nolint:forbidigo // Watch's subscription lasts as long as the generator
	})
	g.barriers.New = newBarrier
	g.loop = newLoop(g)
	if !g.opts.pollingOnly {
		cache.NotifyBlocked(g.readerBlocked)
	}
	g.register()
	return g
}

// isNil tells whether an interface holds nothing, or a nil pointer, as it does when
// the error of what made it was not looked at.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	value := reflect.ValueOf(v)
	return value.Kind() == reflect.Pointer && value.IsNil()
}

// register registers the collectors. A generator without metrics is better than
// an agent that does not start, so a failure is logged.
func (g *GenericPLEG) register() {
	if g.opts.registerer == nil {
		return
	}
	collectors := []prometheus.Collector{g.metrics}
	if c, ok := g.runtime.(prometheus.Collector); ok {
		collectors = append(collectors, c)
	}
	for _, c := range collectors {
		if err := g.opts.registerer.Register(c); err != nil {
			g.logger.Error(err, "Cannot register metrics; wrap the registerer with a label if it has those of another generator")
		}
	}
}

// Start begins to relist, at once and then every period, and to follow the
// runtime's events if it has any. Starting a generator that runs does nothing.
func (g *GenericPLEG) Start() {
	g.lifecycle.Lock()
	defer g.lifecycle.Unlock()
	if g.stopLoop != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background()) //nolint:forbidigo // the drop-in signature has none; Stop ends it
	g.stopLoop = stop
	g.announcer.start()
	g.joined.Go(func() { g.runPeriodically(ctx) })
	if g.source != nil {
		g.joined.Go(func() { g.followEvents(ctx) })
	}
}

// Stop ends everything that Start started and returns when it has ended. Calls
// in flight are cancelled; one that does not heed its context is given five
// seconds, then logged and left behind, and no second one is made for its pod
// until it comes back. Channels made by Subscribe are closed; Watch's stays open
// and has more to tell after another Start. Readers blocked on the cache stay
// blocked. Stopping a generator that does not run cancels what Relist left
// behind.
func (g *GenericPLEG) Stop() {
	g.lifecycle.Lock()
	defer g.lifecycle.Unlock()
	if g.stopLoop != nil {
		g.stopLoop()
		g.stopLoop = nil
	}
	g.joined.Wait() // first, so that no call begins that is not cancelled
	g.context.cancel()
	g.announcer.halt()
	g.awaitCalls()
}

// awaitCalls waits until every cancelled call has come back, but no longer than
// stopGrace.
func (g *GenericPLEG) awaitCalls() {
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-g.calls.awaitCancelled():
	case <-grace.C:
		for _, c := range g.calls.giveUp() {
			g.logger.Error(errStopped, "The runtime does not heed its context; a call is left behind", "call", describeCall(c))
		}
	}
}

// Watch returns the channel of the events: always the same one, never closed.
// What it delivers begins with what exists when Watch is called first.
func (g *GenericPLEG) Watch() chan *PodLifecycleEvent { return g.watching() }

// Subscribe returns a channel of its own of the events, which begin with what
// exists now. It holds capacity events, none if that is zero or less; what does
// not fit waits, merged, for the reader. It is closed when ctx ends or at the next
// Stop. While the generator does not run, as much comes as fits: at once, and with
// every Relist.
func (g *GenericPLEG) Subscribe(ctx context.Context, capacity int) <-chan *PodLifecycleEvent {
	return g.announcer.subscribe(ctx, capacity, false).out
}

// Relist makes one full relist and returns when it is complete: the cache is up
// to date, and every event that fits is in the channels. Where a look at one pod
// overlapped with the list and the two differ, it makes one list more; a pod that
// goes on changing may be unsettled even then. A pod whose inspection
// takes longer than a relist period is not waited for, and a pod whose
// inspection failed before is inspected again. A list that fails leaves
// everything as it was; HealthReport has the error.
//
// It works without Start, in the caller's goroutine, and beside it. Its patience is
// the injected clock's: where a list or an inspection hangs, and the clock is a
// fake one, somebody else has to step that.
func (g *GenericPLEG) Relist() {
	b := g.barriers.Get().(*barrier)
	g.box.put(func(m *mail) { m.relists = append(m.relists, b) })
	select {
	case <-b.done:
	case g.token <- struct{}{}:
		g.run(nil, b)
		<-g.token
	}
	g.barriers.Put(b)
	g.announcer.fill()
}

// RequestRelist asks for a look at one pod as soon as possible, and returns at
// once. Asking again before the look has begun changes nothing. If the runtime is
// no PodGetter, the whole node is listed.
func (g *GenericPLEG) RequestRelist(uid types.UID) {
	g.box.put(func(m *mail) { m.requestLook(uid, CauseDemand, time.Time{}) })
}

// RequestReinspect asks for an inspection of a pod although its listing may not
// have changed, and returns at once. When it has landed in the cache, subscribers
// get a PodSync. A pod that is not known by then is not inspected.
func (g *GenericPLEG) RequestReinspect(uid types.UID) {
	g.box.put(func(m *mail) { m.reinspect[uid] = struct{}{} })
}

// readerBlocked is told by the cache of a reader that begins to block. A reader
// that waits for a time too far ahead is served by a full relist in its time, and
// so is every reader where no pod can be listed by itself.
func (g *GenericPLEG) readerBlocked(uid types.UID, minTime time.Time) {
	switch now := g.clock.Now(); {
	case g.getter == nil || minTime.After(now.Add(g.period)):
		g.box.put(func(m *mail) { m.waiting = true })
	case minTime.After(now):
		g.box.put(func(m *mail) { m.requestLater(uid, minTime) })
	default:
		g.box.put(func(m *mail) { m.requestLook(uid, CauseDemand, minTime) })
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
	g.loop.periodic = true
	defer func() { g.loop.periodic = false }()
	g.loop.nextFull = g.clock.Now()
	g.run(ctx.Done(), nil)
}

// run runs the loop until done is closed or until is complete.
func (g *GenericPLEG) run(done <-chan struct{}, until *barrier) {
	var complete chan struct{}
	if until != nil {
		complete = until.done
	}
	for {
		select {
		case <-done:
			return
		default:
		}
		timeout := g.loop.step()
		select {
		case <-complete:
			return
		default:
		}
		select {
		case <-done:
			return
		case <-complete:
			return
		case <-g.box.wake:
		case <-timeout:
		}
	}
}

// callContext is the context of the calls to the runtime from one Stop to the
// next.
type callContext struct {
	mu  sync.Mutex
	ctx context.Context // guarded by mu; nil until the first call
	end context.CancelCauseFunc
}

func (c *callContext) get() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx == nil {
		c.ctx, c.end = context.WithCancelCause(context.Background()) //nolint:forbidigo // the root of every call; Stop ends it
	}
	return c.ctx
}

func (c *callContext) cancel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx != nil {
		c.end(errStopped)
		c.ctx, c.end = nil, nil
	}
}
