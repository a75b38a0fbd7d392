package cri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/core/backoff"
)

// crioName is the runtime name that CRI-O reports.
const crioName = "cri-o"

// exitStream describes the stream of exits in CallsInFlight.
var exitStream = target{kind: "the exit events"}

// The errors of a Runtime that cannot watch exits.
var (
	errNoExitEvents = fmt.Errorf("cri: WithoutExitEvents turns exit events off: %w", pleg.ErrEventsUnsupported)
	errNoConnection = fmt.Errorf("cri: exit events need a Runtime of Connect or Dial: %w", pleg.ErrEventsUnsupported)
)

// witness is a source of exits. Its name in witnessNames is the value of the metric label witness.
type witness int

const (
	taskEvents witness = iota // containerd's own stream of events
	exitFiles                 // CRI-O's exit files
	shims                     // containerd's shims
	witnesses
)

var witnessNames = [witnesses]string{taskEvents: "events", exitFiles: "exit_files", shims: "shim"}

// exitRetry sets the delays before run opens the runtime's own stream of exits again. Meanwhile,
// run asks the shims. A delay ends early if a full list succeeds after a failed full list.
var exitRetry = backoff.Policy{First: time.Second, Longest: 10 * time.Second}

// exitRetryUnsupported is the delay if the runtime has no stream of exits. Another runtime may
// replace this runtime in the meantime.
const exitRetryUnsupported = 5 * time.Minute

// WatchContainerExits reports exits from every available witness: containerd's stream of events or
// CRI-O's exit files and, while containerd is away, its shims. See the package documentation. The
// first witness that sees an exit reports it, before the runtime's lists, statuses and container
// events show it. The other witnesses do not repeat it. A sandbox's exit is the exit of its first
// process. PodUID is empty. Exits of containers that belong to no pod are reported too, but not
// exits of commands in a container. observe must not block.
//
// containerd's stream counts as accepted under the same conditions as in WatchContainerEvents.
// CRI-O's folder is watched from the call of connected; earlier files are not reported. If
// containerd is away, connected is called when the shims are asked, and earlier exits are reported
// too. If the stream or the watch of the folder fails, WatchContainerExits tries again as long as
// it finds the bundles of containerd's shims. Without bundles, it returns.
//
// If there is no witness, the error wraps pleg.ErrEventsUnsupported. This is the case with
// WithoutExitEvents, and for a Runtime that NewRuntime made without WithExitsDir. It is also the
// case if the runtime has neither a stream nor shims.
func (r *Runtime) WatchContainerExits(ctx context.Context, connected func(), observe func(pleg.ContainerExit)) error {
	if r.opts.noExitEvents {
		return errNoExitEvents
	}
	if r.conn == nil && !r.opts.exitsDirGiven {
		return errNoConnection
	}
	w := &exitWatch{runtime: r, connected: connected, observe: observe, reported: map[string]witness{}}
	w.shims = newShimWatch(r, w.connect, w.report)
	r.exits.add(w.shims)
	defer r.exits.remove(w.shims)
	return w.run(ctx)
}

// exitWatch is the state of one WatchContainerExits call.
type exitWatch struct {
	runtime *Runtime
	shims   *shimWatch
	observe func(pleg.ContainerExit)

	mu        sync.Mutex
	connected func()             // nil once it was called; guarded by mu
	waiting   []func()           // reports that wait for the call of connected; guarded by mu
	reported  map[string]witness // the witness that reported each container's exit; guarded by mu
}

// maxReported bounds how many reported exits are remembered. Beyond this number, an exit may be
// reported twice, which does no harm.
const maxReported = 10_000

// run watches containerd's stream or CRI-O's exit files. If the watch fails, run tries again as
// long as the bundles of containerd's shims exist.
func (w *exitWatch) run(ctx context.Context) error {
	asking, cancel := context.WithCancel(ctx)
	var joined sync.WaitGroup
	joined.Go(func() { w.shims.run(asking) })
	defer joined.Wait()
	defer cancel()
	for tries := 1; ; tries++ {
		var accepted atomic.Bool
		err := w.runtime.watchOwnExits(ctx, func() {
			accepted.Store(true)
			w.shims.setStream(streamUp)
			w.connect()
		}, w.report)
		if dir, _ := w.runtime.bundles(); ctx.Err() != nil || dir == "" {
			return err
		}
		w.shims.setStream(streamDown)
		if accepted.Load() {
			tries = 1
		}
		delay := exitRetry.Wait(tries)
		if errors.Is(err, pleg.ErrEventsUnsupported) {
			delay = exitRetryUnsupported
		}
		w.runtime.exits.pause(ctx, delay)
	}
}

// connect calls the function connected once, and then makes the waiting reports. Later calls do
// nothing.
func (w *exitWatch) connect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.connected == nil {
		return
	}
	connected, waiting := w.connected, w.waiting
	w.connected, w.waiting = nil, nil
	connected()
	for _, report := range waiting {
		report()
	}
}

// report reports an exit, unless another witness has already reported it.
func (w *exitWatch) report(by witness, e pleg.ContainerExit) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if other, already := w.reported[e.ContainerID]; already && other != by {
		return
	}
	if len(w.reported) >= maxReported {
		clear(w.reported)
	}
	w.reported[e.ContainerID] = by
	w.runtime.metrics.exits[by].Inc()
	if w.connected != nil {
		w.waiting = append(w.waiting, func() { w.observe(e) })
		return
	}
	w.observe(e)
}

// watchOwnExits watches the runtime's own witness: containerd's stream or CRI-O's exit files.
func (r *Runtime) watchOwnExits(ctx context.Context, connected func(), report func(witness, pleg.ContainerExit)) error {
	// Another runtime may have replaced the runtime since the last connection.
	v, err := r.askVersion(ctx, exitStream)
	by, watch := taskEvents, r.watchTaskExits
	switch {
	case err != nil:
	case v.name == crioName && r.opts.exitsDir != "":
		by, watch = exitFiles, r.watchExitFiles
	case v.name == crioName:
		by, err = exitFiles, fmt.Errorf("cri: %s reports exits in files, and WithExitsDir is empty: %w", v.name,
			pleg.ErrEventsUnsupported)
	case r.conn == nil:
		err = errNoConnection
	default:
		r.findStateDir(ctx)
	}
	if err == nil {
		err = watch(ctx, func() {
			r.exits.note(by, true, nil)
			connected()
		}, func(e pleg.ContainerExit) { report(by, e) })
	}
	if ctx.Err() == nil {
		r.exits.note(by, false, err)
	} else {
		r.exits.note(by, false, nil)
	}
	return err
}

// exitWatches contains the running WatchContainerExits calls of a Runtime.
type exitWatches struct {
	// recovered receives a token when a full list has succeeded after a failed full list.
	recovered chan struct{}
	failed    atomic.Bool // true if the last full list failed

	mu        sync.Mutex
	watches   map[*shimWatch]bool     // guarded by mu, as all fields below
	states    [witnesses]witnessState // the states of all witnesses except the shims
	list      time.Time               // when the running full list began; zero if none runs
	succeeded time.Time               // when the last successful full list began
	slow      *time.Timer             // fires when a full list is slow; nil before the first list
}

// witnessState is the state of a witness. why is the reason if the witness misses all or some
// exits.
type witnessState struct {
	active bool
	why    error
	asked  int // number of containers that the shims are asked about
}

func (e *exitWatches) note(by witness, active bool, why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.states[by] = witnessState{active: active, why: why}
}

// pause returns after a delay. It returns early when the runtime has recovered or ctx ends.
func (e *exitWatches) pause(ctx context.Context, delay time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, delay)
	defer cancel()
	select {
	case <-ctx.Done():
	case <-e.recovered:
	}
}

func (e *exitWatches) add(s *shimWatch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watches[s] = true
}

func (e *exitWatches) remove(s *shimWatch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.watches, s)
}

// listing records that a full list begins, and returns the present time. Full lists run one at a
// time.
func (e *exitWatches) listing() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = wallClock.Now()
	if e.slow == nil {
		e.slow = time.AfterFunc(awayAfter, func() { e.each((*shimWatch).notify) })
	} else {
		e.slow.Reset(awayAfter)
	}
	return e.list
}

// listed records that the full list that began at begun has ended, and whether it succeeded.
func (e *exitWatches) listed(begun time.Time, err error) {
	e.mu.Lock()
	e.slow.Stop()
	e.list = time.Time{}
	if err == nil {
		e.succeeded = begun
	}
	e.mu.Unlock()
	e.each((*shimWatch).listed)
	if err != nil {
		e.failed.Store(true)
	} else if e.failed.Swap(false) {
		select {
		case e.recovered <- struct{}{}:
		default:
		}
	}
}

// lists returns the time begun, when the running full list began; zero if none runs. It also
// returns the time succeeded, when the last successful full list began.
func (e *exitWatches) lists() (begun, succeeded time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.list, e.succeeded
}

// each calls f with every watch.
func (e *exitWatches) each(f func(*shimWatch)) {
	e.mu.Lock()
	watches := slices.Collect(maps.Keys(e.watches))
	e.mu.Unlock()
	for _, s := range watches {
		f(s)
	}
}

// state returns the state of a witness.
func (e *exitWatches) state(by witness) witnessState {
	if by != shims {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.states[by]
	}
	var state witnessState
	e.each(func(s *shimWatch) { state = s.state() })
	return state
}

// describe describes the active witnesses. If a witness is not active, or misses containers, it
// adds the reason.
func (e *exitWatches) describe() string {
	var active, refused []string
	for by := range witnesses {
		state := e.state(by)
		if state.active {
			active = append(active, witnessNames[by])
		}
		if state.asked > 0 {
			active[len(active)-1] += fmt.Sprintf(" (for %d containers)", state.asked)
		}
		if state.why != nil {
			refused = append(refused, fmt.Sprintf("no %s: %s", witnessNames[by], cutText(state.why.Error())))
		}
	}
	text := ""
	if len(active) > 0 {
		text = ", exits by " + strings.Join(active, ", ")
	}
	if len(refused) > 0 {
		text += " (" + strings.Join(refused, "; ") + ")"
	}
	return text
}
