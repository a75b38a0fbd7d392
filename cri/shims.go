package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri/internal/wire"
	"github.com/kubepleg/pleg/internal/core/backoff"
)

// This file asks containerd's shims for exits while containerd is away. Each pod has a shim, a
// process that outlives containerd. The shim keeps the exit of each container until containerd has
// deleted the container. It serves containerd's task API on a socket. Wait returns the code and the
// time when the container ends, or at once if it has already ended:
//
//	WaitRequest  { string id = 1; string exec_id = 2; }
//	WaitResponse { uint32 exit_status = 1; Timestamp exited_at = 2; }
//
// The shims are asked only while containerd's own stream of events is down, or containerd does not
// answer a full list. So a healthy node makes no calls. There is another reason to ask rarely: a
// shim of containerd 1.6 or 1.7 keeps a goroutine for each abandoned Wait until the container ends.
//
// No exit is lost when the calls begin or end. If a container ended before its shim was asked, the
// shim still keeps the exit, because only containerd deletes the exit. The calls end after the
// stream is back and a full list that began later has succeeded. Exits after that are in the
// stream. Exits before that are in the answers of the shims or in the list. (If no list succeeds,
// the calls end a minute later.)

const (
	// bundlesDir contains the bundles of CRI's containers, below containerd's state directory.
	bundlesDir = "io.containerd.runtime.v2.task/" + exitNamespace

	// maxBundleFileBytes is the size limit of a file in a bundle. An address takes some 90 bytes.
	maxBundleFileBytes = 4 << 10

	// awayAfter is how long containerd may take to accept the stream of exits, or to answer a full
	// list, before the shims are asked.
	awayAfter = 2 * time.Second
	// shimPeriod is the longest interval between two steps while the shims are asked. Each step
	// reads the bundles and repeats failed calls.
	shimPeriod = time.Second
	// maxExitCode is the highest exit code of a process on Linux.
	maxExitCode = 255
)

// shimHold is how long after an outage a full list must begin, so that its success ends the calls
// to the shims. Without this delay, an exit is lost if containerd sends its event before the stream
// is back, and the shim answers Wait later. containerd waits ten seconds for a slow shim, and then
// says that the exit is unknown. The delay doubles with each outage, so that shims do not keep many
// goroutines on a node that is often slow.
var shimHold = backoff.Policy{First: 10 * time.Second, Longest: time.Hour}

// shimRetry is the delay before a shim that failed is asked again.
var shimRetry = backoff.Policy{First: shimPeriod, Longest: 5 * time.Second}

// The errors of shims. Their connections return errors of their own.
var (
	errSilentShim   = errors.New("the shim does not answer")
	errTooManyShims = errors.New("connections to shims already take half of the open files that this process may have")
	errUnasked      = errors.New("the shim has answered a call that was not made")
)

// shimWatch asks the shims for exits on behalf of one WatchContainerExits call.
type shimWatch struct {
	runtime *Runtime
	connect func()                            // called when the shims are asked
	report  func(witness, pleg.ContainerExit) // called from several goroutines

	wake    chan struct{}  // contains a token if step should be called
	readers sync.WaitGroup // the goroutines that read answers

	// The fields away, wasAway, held and scanned are used only in the goroutine of run.
	away    time.Time // time of the last step in an outage, or of the first step after the outage
	wasAway bool      // true if containerd was away in the last step
	held    int       // the number of outages whose calls to the shims have ended
	scanned time.Time // time of the last scan; each scan asks again the shims that refused

	mu     sync.Mutex
	stream streamState // the state of containerd's own stream; guarded by mu, as all fields below
	opened time.Time   // when this watch began
	asking bool        // true while the shims are asked
	shims  map[string]*shim
	tasks  map[string]*task
}

// streamState is the state of containerd's own stream of events.
type streamState int

const (
	streamOpening streamState = iota
	streamUp
	streamDown
)

// shim is a shim that is asked for exits.
type shim struct {
	address string
	conn    *ttrpcConn       // nil if there is no connection
	since   time.Time        // when the connection was opened
	heard   bool             // true once the shim has answered on this connection
	silent  bool             // true if the shim has not answered within awayAfter
	calls   map[uint32]*task // the calls in flight, by number; the task is nil for a call of State
	failed  int              // number of failures in a row
	retry   time.Time        // when the shim may be asked again
	err     error            // the last failure
}

// task is the first process of a container or of a sandbox. It has a bundle.
type task struct {
	id      string
	shim    *shim // nil if no Wait is in flight
	ended   bool  // true once the shim has answered Wait
	err     error // why no Wait is in flight, or why the exit is not known
	present bool  // true if the current scan has found the bundle; owned by scan
}

func newShimWatch(r *Runtime, connect func(), report func(witness, pleg.ContainerExit)) *shimWatch {
	return &shimWatch{runtime: r, connect: connect, report: report, wake: make(chan struct{}, 1), opened: wallClock.Now(),
		shims: map[string]*shim{}, tasks: map[string]*task{}}
}

// notify wakes the goroutine of run, which then calls step.
func (s *shimWatch) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// setStream records the state of containerd's own stream.
func (s *shimWatch) setStream(state streamState) {
	s.mu.Lock()
	s.stream = state
	s.mu.Unlock()
	s.notify()
}

// listed is called when a full list has ended. If the shims are asked, it calls notify.
func (s *shimWatch) listed() {
	s.mu.Lock()
	asking := s.asking
	s.mu.Unlock()
	if asking {
		s.notify()
	}
}

// run asks the shims when needed, until ctx ends. It reports no exit after it has returned.
func (s *shimWatch) run(ctx context.Context) {
	defer s.readers.Wait()
	defer s.hangUp()
	timer := time.NewTimer(awayAfter)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		if next := s.step(wallClock.Now()); next > 0 {
			timer.Reset(next)
		}
	}
}

// step asks the shims, or ends the calls to them. It returns the delay until the next step, or 0 if
// the next step waits for notify.
func (s *shimWatch) step(now time.Time) (next time.Duration) {
	begun, succeeded := s.runtime.exits.lists()
	s.mu.Lock()
	asking := s.asking
	away := s.stream == streamDown || s.stream == streamOpening && now.Sub(s.opened) >= awayAfter ||
		!begun.IsZero() && now.Sub(begun) >= awayAfter
	s.mu.Unlock()
	hold := shimHold.Wait(s.held + 1)
	if away || s.wasAway {
		s.away, s.wasAway = now, away
	}
	switch {
	case away:
	case !asking:
		return 0
	// The second condition ends the calls if no list succeeds.
	case succeeded.Sub(s.away) >= hold, now.Sub(s.away) >= hold+time.Minute:
		s.held++
		s.hangUp()
		return 0
	}
	if early := shimPeriod - now.Sub(s.scanned); early > 0 {
		return early
	}
	dir, _ := s.runtime.bundles()
	if dir == "" {
		return shimPeriod
	}
	s.scanned = now
	s.connect()
	s.scan(dir, now)
	return shimPeriod
}

// scan asks for the exit of each container that has a bundle.
func (s *shimWatch) scan(dir string, now time.Time) {
	bundles, err := os.ReadDir(dir)
	if err != nil && len(bundles) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asking = true
	for _, bundle := range bundles {
		t := s.tasks[bundle.Name()]
		if t == nil && len(s.tasks) < maxReported {
			t = &task{id: bundle.Name()}
			s.tasks[t.id] = t
		}
		if t == nil {
			continue
		}
		t.present = true
		if t.shim == nil && !t.ended {
			s.noteLocked(t, s.askLocked(t, filepath.Join(dir, t.id), now))
		}
	}
	for id, t := range s.tasks {
		if !t.present {
			delete(s.tasks, id)
		}
		t.present = false
	}
	for _, shim := range s.shims {
		if shim.conn != nil && !shim.heard && !shim.silent && now.Sub(shim.since) >= awayAfter {
			shim.silent = true
			s.runtime.metrics.refusals[shims].Inc()
		}
	}
}

// noteLocked records why no Wait call for a container is in flight.
func (s *shimWatch) noteLocked(t *task, err error) {
	if err != nil && t.err == nil {
		s.runtime.metrics.refusals[shims].Inc()
	}
	t.err = err
}

// askLocked asks for the exit of a container.
func (s *shimWatch) askLocked(t *task, bundle string, now time.Time) error {
	at, err := readBootstrap(bundle)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the container is being created or removed
	}
	if err != nil {
		return err
	}
	of := s.shims[at.Address]
	if of == nil {
		of = &shim{address: at.Address, calls: map[uint32]*task{}}
		s.shims[at.Address] = of
	}
	if of.conn == nil {
		if now.Before(of.retry) {
			return of.err
		}
		if err := s.openLocked(of, now); err != nil {
			s.failLocked(of, err)
			return err
		}
	}
	wait, state := "containerd.task.v2.Task/Wait", "containerd.task.v2.Task/State"
	if at.Version >= 3 {
		wait, state = "containerd.task.v3.Task/Wait", "containerd.task.v3.Task/State"
	}
	request := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), t.id)
	call, err := of.conn.send(wait, request)
	if err == nil {
		of.calls[call], t.shim = t, of
		if len(of.calls) == 1 && !of.heard { // Wait may take long. The answer to State shows that the shim lives.
			if call, err = of.conn.send(state, request); err == nil {
				of.calls[call] = nil
			}
		}
	}
	if err != nil {
		s.failLocked(of, err)
	}
	return err
}

// openLocked connects to a shim.
func (s *shimWatch) openLocked(of *shim, now time.Time) error {
	connected := 0
	for _, other := range s.shims {
		if other.conn != nil {
			connected++
		}
	}
	if connected >= maxOpenFiles()/2 {
		return errTooManyShims
	}
	path, is := strings.CutPrefix(of.address, "unix://")
	if !is || !filepath.IsAbs(path) {
		return fmt.Errorf("the shim's address is %q, and not a unix socket", of.address)
	}
	conn, err := dialTTRPC(s.runtime.opts.onHost(path))
	if err != nil {
		return err
	}
	of.conn, of.since, of.heard, of.silent = conn, now, false, false
	s.readers.Go(func() { s.read(of, conn) })
	return nil
}

// failLocked ends the connection to a shim after a failure, and sets the time of the next attempt.
func (s *shimWatch) failLocked(of *shim, err error) {
	if of.conn != nil {
		_ = of.conn.Close()
		of.conn = nil
	}
	for call, t := range of.calls {
		if t != nil {
			t.shim = nil
			s.noteLocked(t, err)
		}
		delete(of.calls, call)
	}
	of.failed, of.err = of.failed+1, err
	of.retry = wallClock.Now().Add(shimRetry.Wait(of.failed))
}

// read handles the answers of a shim until its connection ends.
func (s *shimWatch) read(of *shim, conn *ttrpcConn) {
	err := guarded(func() error {
		for {
			answer, err := conn.receive()
			if err != nil {
				return err
			}
			if err := s.take(of, conn, answer); err != nil {
				return err
			}
		}
	})
	if broken := (*net.OpError)(nil); errors.Is(err, io.EOF) || errors.As(err, &broken) {
		err = fmt.Errorf("the shim at %s has ended the connection: %w", cutText(of.address), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if of.conn == conn {
		s.failLocked(of, err)
	}
}

// take handles one answer.
func (s *shimWatch) take(of *shim, conn *ttrpcConn, answer ttrpcAnswer) error {
	s.mu.Lock()
	t, asked := of.calls[answer.call]
	if !asked || of.conn != conn {
		s.mu.Unlock()
		return errUnasked
	}
	delete(of.calls, answer.call)
	of.heard, of.silent, of.failed = true, false, 0
	exit, err := pleg.ContainerExit{}, answer.err
	if t != nil {
		t.shim = nil
		if err == nil {
			exit, err = decodeWait(t.id, answer.payload)
			t.ended = true // even after a malformed answer, so that Wait is not called again
		}
		if status.Code(err) == codes.NotFound { // containerd has deleted the container, or is creating it
			err = nil
		}
		s.noteLocked(t, err)
	}
	s.mu.Unlock()
	if exit.ContainerID != "" {
		s.report(shims, exit)
	}
	return nil
}

// decodeWait decodes the answer to Wait. If the answer is malformed, decodeWait returns an error.
func decodeWait(id string, payload []byte) (pleg.ContainerExit, error) {
	var code uint64
	var at time.Time
	whole := wire.Each(payload, func(number int, field []byte, n uint64) {
		switch number {
		case 1:
			code = n
		case 2:
			at = decodeTime(field)
		}
	})
	if !whole || code > maxExitCode || at.IsZero() {
		return pleg.ContainerExit{}, fmt.Errorf("the shim says that %s has ended with %d at %d", shortID(id),
			code, at.Unix())
	}
	return pleg.ContainerExit{ContainerID: id, ExitCode: int(code), FinishedAt: at}, nil
}

// hangUp closes the connections to all shims, and so ends all calls.
func (s *shimWatch) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.shims {
		if of.conn != nil {
			_ = of.conn.Close()
			of.conn = nil
		}
	}
	clear(s.shims)
	for id, t := range s.tasks {
		if t.shim, t.err = nil, nil; !t.ended {
			delete(s.tasks, id)
		}
	}
	s.asking = false
}

// state returns whether the shims can be asked, and otherwise the reason. If only the calls for
// some containers fail, the reason contains the number of these containers and one error.
func (s *shimWatch) state() witnessState {
	if dir, why := s.runtime.bundles(); dir == "" {
		return witnessState{why: why}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	state, failing := witnessState{active: true}, 0
	for _, t := range s.tasks {
		err := t.err
		if t.shim != nil {
			state.asked++
			if t.shim.silent {
				err = errSilentShim
			}
		}
		if err != nil {
			failing, state.why = failing+1, err
		}
	}
	if failing > 0 {
		state.why = fmt.Errorf("%d of %d containers: %w", failing, len(s.tasks), state.why)
	}
	return state
}

// bootstrap contains the address and protocol of a shim, as in bootstrap.json.
type bootstrap struct {
	Version           int
	Address, Protocol string
}

// readBootstrap reads the address of the shim of a bundle. containerd 2 writes bootstrap.json, also
// when it takes over a shim of an earlier version. Earlier versions write the file "address".
func readBootstrap(bundle string) (bootstrap, error) {
	content, _, err := readSmallFile(filepath.Join(bundle, "bootstrap.json"), maxBundleFileBytes)
	var of bootstrap
	switch {
	case errors.Is(err, fs.ErrNotExist):
		content, _, err = readSmallFile(filepath.Join(bundle, "address"), maxBundleFileBytes)
		of = bootstrap{2, strings.TrimSpace(string(content)), "ttrpc"}
	case err == nil:
		if err = json.Unmarshal(content, &of); err != nil {
			err = fmt.Errorf("reading bootstrap.json of %s: %w", shortID(filepath.Base(bundle)), err)
		}
	}
	if err == nil && of.Protocol != "ttrpc" {
		err = fmt.Errorf("the shim speaks %q, and not ttrpc", of.Protocol)
	}
	return of, err
}

// bundles returns the directory of the bundles of containerd's containers, or why it cannot be
// opened. Both results are empty for another runtime, or without a state directory.
func (r *Runtime) bundles() (path string, why error) {
	if v := r.version.Load(); v != nil && v.name != "containerd" {
		return "", nil
	}
	var states []string
	if r.opts.stateDir != "" {
		states = []string{r.opts.stateDir}
	} else if socket := r.dialer.path.Load(); socket != nil && !r.opts.stateDirGiven {
		at := r.opts.followed(*socket)
		// k0s and MicroK8s use the second directory.
		states = []string{filepath.Dir(at), strings.TrimSuffix(at, ".sock")}
		if found := r.stateDir.Load(); found != nil {
			states = append(states, *found)
		}
	}
	for _, state := range states {
		path := filepath.Join(state, bundlesDir)
		dir, err := os.Open(path)
		switch {
		case err == nil:
			return path, dir.Close()
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE): // the directory may exist
			return path, nil
		}
		if why == nil || errors.Is(why, fs.ErrNotExist) && !errors.Is(err, fs.ErrNotExist) {
			why = err
		}
	}
	return "", why
}

// followed returns the target of a link, or path if it is not a link. The target need not exist:
// containerd removes its socket when it stops.
func (o *options) followed(path string) string {
	for range 10 {
		target, err := os.Readlink(path)
		switch {
		case err != nil:
			return path
		case filepath.IsAbs(target):
			path = o.onHost(target)
		default:
			path = filepath.Join(filepath.Dir(path), target)
		}
	}
	return path
}

// onHost takes a path on the node, and returns the path of the same file for this process.
func (o *options) onHost(path string) string {
	if o.hostRoot == "" {
		return path
	}
	below := filepath.Join(o.hostRoot, path)
	if _, err := os.Lstat(below); err != nil {
		if _, err := os.Lstat(filepath.Dir(below)); err != nil {
			return path
		}
	}
	return below
}

// findStateDir asks containerd for its state directory, unless the bundles are already found.
func (r *Runtime) findStateDir(ctx context.Context) {
	if dir, _ := r.bundles(); dir != "" || r.opts.stateDirGiven {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, awayAfter)
	defer cancel()
	var dir string
	if err := r.do(ctx, rpcStatus, target{}, func() (err error) {
		dir, err = r.fetchStateDir(ctx)
		return err
	}); err != nil || !filepath.IsAbs(dir) {
		return
	}
	// The answer is the state directory of containerd's CRI plugin, below containerd's own
	// directory.
	dir = r.opts.onHost(filepath.Dir(dir))
	r.stateDir.Store(&dir)
}
