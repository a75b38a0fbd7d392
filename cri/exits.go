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
	"github.com/kubepleg/pleg/internal/backoff"
)

// crioName is what CRI-O calls itself.
const crioName = "cri-o"

// exitStream is the target of the calls for the exit events.
var exitStream = target{kind: "the exit events"}

// The errors of a Runtime that cannot watch exits.
var (
	errNoExitEvents = fmt.Errorf("cri: WithoutExitEvents turns exit events off: %w", pleg.ErrEventsUnsupported)
	errNoConnection = fmt.Errorf("cri: exit events need a Runtime of Connect or Dial: %w", pleg.ErrEventsUnsupported)
)

// witness is a source of exits, and, by witnessNames, a value of the label witness.
type witness int

const (
	taskEvents witness = iota // containerd's own stream of events
	exitFiles                 // CRI-O's exit files
	exitJSON                  // exit.json in the bundles of containerd's shims
	processes                 // pidfds
	witnesses
)

var witnessNames = [witnesses]string{
	taskEvents: "events", exitFiles: "exit_files", exitJSON: "exit_json", processes: "pidfd",
}

// ofNode reports whether the witness needs no runtime.
func (w witness) ofNode() bool { return w == exitJSON || w == processes }

// The delay before the runtime's own stream of exits is opened again while containers are watched
// without it. A full list that succeeds after one that failed ends the delay.
var exitRetry = backoff.Policy{First: time.Second, Longest: 10 * time.Second}

// exitRetryUnsupported is the delay if the runtime has no such stream: it may be replaced by another.
const exitRetryUnsupported = 5 * time.Minute

// exitsAlone is how long a WatchContainerExits waits for the runtime's stream before it is connected
// without it, and for a container that can be watched if the runtime has no stream.
const exitsAlone = 2 * time.Second

// WatchContainerExits reports exits from every available witness: containerd's stream of events or
// CRI-O's exit files, exit.json in the bundles of containerd's shims, and pidfds. See the package
// documentation. The first witness reports an exit, before the runtime's lists, statuses and
// container events show it; the others do not repeat it. A sandbox's exit is that of its first
// process. PodUID is empty. Exits of containers that belong to no pod are reported too, but not
// those of commands in a container. observe must not block.
//
// containerd's stream is accepted as that of WatchContainerEvents is. CRI-O's folder is watched
// when connected is called, and its earlier files are not reported. If the runtime's own witness
// fails, WatchContainerExits opens it again as long as other witnesses watch a container; else it
// returns.
//
// The error wraps pleg.ErrEventsUnsupported if there is no witness. That is so with
// WithoutExitEvents, for a Runtime of NewRuntime without WithExitsDir, and if neither the runtime
// nor the node has a witness.
func (r *Runtime) WatchContainerExits(ctx context.Context, connected func(), observe func(pleg.ContainerExit)) error {
	if r.opts.noExitEvents {
		return errNoExitEvents
	}
	if r.conn == nil && !r.opts.exitsDirGiven {
		return errNoConnection
	}
	w := &exitWatch{runtime: r, connected: connected, observe: observe, reported: map[string]witness{}}
	if r.conn != nil {
		w.node = r.openNode(w.report)
		defer r.closeNode(w.node)
	}
	return w.run(ctx)
}

// exitWatch is one WatchContainerExits.
type exitWatch struct {
	runtime *Runtime
	node    *nodeWatch // nil if there is none
	observe func(pleg.ContainerExit)

	mu        sync.Mutex
	connected func()             // nil once it was called; guarded by mu
	waiting   []func()           // reports from before that; guarded by mu
	reported  map[string]witness // who reported the exit of a container; guarded by mu
}

// maxReported bounds the memory of what was reported. Beyond it, an exit may be reported twice, which does
// no harm.
const maxReported = 10_000

// run watches the runtime's own witness again and again, as long as the node's are at work.
func (w *exitWatch) run(ctx context.Context) error {
	soon, cancel := context.WithTimeout(ctx, exitsAlone)
	defer cancel()
	done := make(chan struct{})
	stop := context.AfterFunc(soon, func() {
		defer close(done)
		if ctx.Err() == nil && w.node.watches() {
			w.connect()
		}
	})
	defer func() {
		if !stop() {
			<-done
		}
	}()
	for tries := 1; ; tries++ {
		var accepted atomic.Bool
		err := w.runtime.watchOwnExits(ctx, func() {
			accepted.Store(true)
			w.connect()
		}, w.report)
		alone := w.node.watches()
		if errors.Is(err, pleg.ErrEventsUnsupported) {
			alone = w.node.await(soon) // the first list may not have come yet
		}
		if ctx.Err() != nil || !alone {
			return err
		}
		w.connect()
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

// connect calls connected, once.
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

// report reports an exit, unless another witness has reported it before.
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

// watchOwnExits watches the runtime's own witness.
func (r *Runtime) watchOwnExits(ctx context.Context, connected func(), report func(witness, pleg.ContainerExit)) error {
	// The runtime may have been replaced since the last connection.
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

// exitWatches are the WatchContainerExits of a Runtime.
type exitWatches struct {
	wantPIDs atomic.Bool // true once exits have been watched

	// recovered has a token when a full list has succeeded after one that failed.
	recovered chan struct{}
	failed    atomic.Bool // true if the last full list failed

	mu     sync.Mutex
	nodes  map[*nodeWatch]bool     // guarded by mu
	states [witnesses]witnessState // guarded by mu
}

// witnessState says whether a witness is at work, and why not if that is known.
type witnessState struct {
	active bool
	why    error
}

func (e *exitWatches) note(by witness, active bool, why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.states[by] = witnessState{active, why}
}

// pause returns after a delay, when the runtime has recovered or when ctx ends.
func (e *exitWatches) pause(ctx context.Context, delay time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, delay)
	defer cancel()
	select {
	case <-ctx.Done():
	case <-e.recovered:
	}
}

// listed notes whether a full list has succeeded.
func (e *exitWatches) listed(err error) {
	if err != nil {
		e.failed.Store(true)
	} else if e.failed.Swap(false) {
		select {
		case e.recovered <- struct{}{}:
		default:
		}
	}
}

// each calls f with every nodeWatch.
func (e *exitWatches) each(f func(*nodeWatch)) {
	e.mu.Lock()
	nodes := slices.Collect(maps.Keys(e.nodes))
	e.mu.Unlock()
	for _, n := range nodes {
		f(n)
	}
}

// follow has the containers watched that the last full list shows running.
func (e *exitWatches) follow(h *held) {
	e.each(func(n *nodeWatch) { n.follow(h.running()) })
}

// processStarted notes the PID of a container's first process, and has it watched.
func (r *Runtime) processStarted(id string, pid int) {
	r.held.keep(id, func(k *kept) { k.pid = pid })
	begun := r.held.begun()
	r.exits.each(func(n *nodeWatch) { n.started(id, pid, begun) })
}

// openNode begins to watch the running containers without the runtime.
func (r *Runtime) openNode(report func(witness, pleg.ContainerExit)) *nodeWatch {
	n := newNodeWatch(r, report)
	r.exits.wantPIDs.Store(true)
	r.exits.mu.Lock()
	r.exits.nodes[n] = true
	r.exits.mu.Unlock()
	n.follow(r.held.running())
	return n
}

func (r *Runtime) closeNode(n *nodeWatch) {
	r.exits.mu.Lock()
	delete(r.exits.nodes, n)
	r.exits.mu.Unlock()
	n.close()
}

// state returns the state of a witness.
func (e *exitWatches) state(by witness) witnessState {
	if !by.ofNode() {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.states[by]
	}
	var state witnessState
	e.each(func(n *nodeWatch) {
		watched, why := n.state(by)
		state.active, state.why = state.active || watched > 0, why
	})
	return state
}

// describe says which witnesses are at work, and which are not and why.
func (e *exitWatches) describe() string {
	var active, refused []string
	for by := range witnesses {
		switch state := e.state(by); {
		case state.active:
			active = append(active, witnessNames[by])
		case state.why != nil:
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
