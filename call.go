package pleg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// errStopped is the cause with which Stop cancels the calls in flight.
var errStopped = errors.New("the generator was stopped")

// callKind is a method of the runtime.
type callKind string

const (
	callGetPods      callKind = "GetPods"
	callGetPod       callKind = "GetPod"
	callGetPodStatus callKind = "GetPodStatus"
	callWatchEvents  callKind = "WatchContainerEvents"
)

// call is one call to the runtime. It runs in a goroutine of its own and comes
// back to the loop as a landing.
type call struct {
	// Set once, before the call is made.

	kind    callKind
	uid     types.UID // empty for GetPods
	pod     *Pod      // the pod to inspect
	stamp   stamp     // of the listing that this is, or is for
	started time.Time
	ctx     context.Context
	cancel  context.CancelCauseFunc

	// Owned by the loop.

	cause    Cause
	hinted   bool  // a hint is among the causes
	listed   stamp // of the listing that showed the change
	sync     bool  // a PodSync is to follow
	echo     bool  // a second look because of one hint
	turn     *turn // the pod's place among those of its relist
	setAside bool  // it no longer holds a worker
	expired  bool  // its deadline has passed, and was dealt with
	stale    bool  // the pod it was for is gone
}

// stopped tells whether err came of Stop rather than of the runtime.
func (c *call) stopped(err error) bool {
	return err != nil && errors.Is(context.Cause(c.ctx), errStopped)
}

// landing is what a call came back with.
type landing struct {
	call   *call
	pods   []*Pod
	pod    *Pod
	status *PodStatus
	err    error
}

// make runs a method of the runtime so that it comes back in every case: a panic
// is an error, and so is a goroutine that the runtime ends. What the runtime is to
// be asked about its error it is asked here, where it keeps nobody waiting and a
// panic is caught: the loop has a text.
func (l *landing) make(method func()) {
	returned := false
	defer func() {
		if p := recover(); p != nil {
			l.err = &panicError{fmt.Sprintf("%s panicked: %s", l.call.kind, panicText(p))}
		} else if !returned {
			l.err = &panicError{fmt.Sprintf("%s panicked: the runtime ended the goroutine", l.call.kind)}
		}
	}()
	method()
	if l.err != nil {
		l.err = readError(l.err)
	}
	returned = true
}

// panicText says what a runtime panicked with, as far as that can be said without
// another panic.
func panicText(value any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("a %T that cannot be printed", value)
		}
	}()
	return fmt.Sprint(value)
}

// panicError is a runtime that panicked.
type panicError struct{ text string }

func (e *panicError) Error() string { return e.text }

// textError is an error of the runtime that has been read: nothing of the runtime
// is asked when it is printed, and it is one of the errors that the loop knows.
type textError struct {
	text  string
	cause error // of the runtime, for whoever gets it from the cache
	known error // ErrPodNotFound, ErrEventsUnsupported or nil
}

func (e *textError) Error() string { return e.text }
func (e *textError) Unwrap() error { return e.cause }

func readError(err error) error {
	read := &textError{text: err.Error(), cause: err}
	for _, known := range []error{ErrPodNotFound, ErrEventsUnsupported} {
		if errors.Is(err, known) {
			read.known = known
		}
	}
	return read
}

// is tells whether an error of the runtime is one that the loop knows.
func is(err, known error) bool {
	if read, ok := err.(*textError); ok { //nolint:errorlint // made by landing.make, never wrapped
		return read.known == known //nolint:errorlint // it is one of two
	}
	return err == known //nolint:errorlint // the same
}

// callTable knows the calls that have not come back, for the health report and
// for Stop.
type callTable struct {
	mu sync.Mutex

	// Guarded by mu.

	inFlight map[*call]struct{}
	// awaited are the calls that Stop waits for, returned is closed when there is
	// none left of them.
	awaited  map[*call]struct{}
	returned chan struct{}
}

func newCallTable() *callTable {
	return &callTable{inFlight: make(map[*call]struct{})}
}

func (t *callTable) add(c *call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inFlight[c] = struct{}{}
}

func (t *callTable) remove(c *call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.inFlight, c)
	if _, ok := t.awaited[c]; ok {
		delete(t.awaited, c)
		if len(t.awaited) == 0 {
			close(t.returned)
		}
	}
}

// awaitCancelled returns a channel that is closed when every call has come back
// that is in flight now and was cancelled; one that a Relist beside Stop begins
// afterwards is not waited for.
func (t *callTable) awaitCancelled() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.awaited, t.returned = make(map[*call]struct{}), make(chan struct{})
	for c := range t.inFlight {
		if c.ctx.Err() != nil {
			t.awaited[c] = struct{}{}
		}
	}
	if len(t.awaited) == 0 {
		close(t.returned)
	}
	return t.returned
}

// giveUp ends the waiting and returns the calls that have not come back, oldest
// first.
func (t *callTable) giveUp() []RuntimeCall {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := asRuntimeCalls(t.awaited, func(*call) bool { return true })
	t.awaited = nil
	return left
}

// runtimeCalls returns the calls of some kinds that are in flight, oldest first.
func (t *callTable) runtimeCalls(kinds ...callKind) []RuntimeCall {
	t.mu.Lock()
	defer t.mu.Unlock()
	return asRuntimeCalls(t.inFlight, func(c *call) bool { return slices.Contains(kinds, c.kind) })
}

// asRuntimeCalls returns those of some calls that are wanted, oldest first.
func asRuntimeCalls(calls map[*call]struct{}, wanted func(*call) bool) []RuntimeCall {
	var list []RuntimeCall
	for c := range calls {
		if wanted(c) {
			list = append(list, c.asRuntimeCall())
		}
	}
	slices.SortFunc(list, compareCalls)
	return list
}

func (c *call) asRuntimeCall() RuntimeCall {
	rc := RuntimeCall{Method: string(c.kind), PodUID: c.uid, Since: c.started}
	if c.pod != nil {
		rc.Object = podName(c.pod)
	}
	return rc
}

func compareCalls(a, b RuntimeCall) int {
	return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.Method, b.Method))
}

// podName is how errors and logs name a pod.
func podName(pod *Pod) string {
	return fmt.Sprintf("pod %s/%s (%s)", pod.Namespace, pod.Name, pod.ID)
}
