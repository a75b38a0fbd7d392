package plegtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
)

const (
	// cancelTimeout is the time within which a call must return after its context has ended.
	cancelTimeout = 5 * time.Second
	// callTimeout is the time within which every call must return.
	callTimeout = 30 * time.Second
	// startTakes limits how far FinishedAt may lie before StartedAt. containerd sets StartedAt only
	// when the start has returned. A container that exits at once may finish earlier.
	startTakes = time.Second
	// streamLasts is the time for which a stream must stay open. The test's node must be quiet.
	streamLasts = 500 * time.Millisecond
)

// fullList is the name of a full list in problems. All full lists have the same name, so that a
// repeated problem is reported once.
const fullList = "GetPods(all=true)"

// noSuchPod is the UID of a pod that does not exist.
const noSuchPod types.UID = "plegtest-no-such-pod"

// noSuchContainer is the ID of a container that does not exist.
const noSuchContainer = "plegtest-no-such-container"

// TestRuntime tests an implementation of pleg.Runtime. It calls rt in every way that the generator
// does. It also uses contexts that have ended, and pods and containers that do not exist. It
// returns nil, or an error that lists every problem: the expected result, the actual result, and
// why the difference matters. rt must list the expected pods. Without expected pods, an empty
// runtime passes.
//
// TestRuntime also tests the optional interfaces of rt, such as [pleg.PodGetter],
// [pleg.EventSource] and [pleg.ExitSource]. A stream of events or exits must stay open. It may end
// at once only with [pleg.ErrEventsUnsupported], or with an error before it is connected.
//
// The node should run a few pods, some with exited containers. During the test, no container may
// start, end or be removed. Use the race detector, because TestRuntime makes concurrent calls. The
// test takes about a second, mostly to check that streams stay open. A call must return within 30
// s, and within 5 s after its context has ended.
func TestRuntime(rt pleg.Runtime, expected ...types.UID) error {
	if rt == nil {
		return errors.New("plegtest.TestRuntime: the runtime is nil")
	}
	t := newConformance(rt)
	if first := t.testList(expected); first != nil {
		t.testListAgain(first)
		t.testListRunning(first)
		t.testStatuses(first)
		t.testPodGetter(first)
		t.testConcurrency(first)
		t.testUnmodified()
	}
	t.testCanceled()
	t.testStreams()
	t.testReports()
	return t.err("TestRuntime")
}

// err returns an error with all problems; nil if there are none.
func (t *conformance) err(test string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.problems) == 0 {
		return nil
	}
	return fmt.Errorf("plegtest.%s found %d problem(s) with %T:\n%w", test, len(t.problems), t.rt,
		errors.Join(t.problems...))
}

// conformance is one run of TestRuntime.
type conformance struct {
	rt    pleg.Runtime
	clock clock.Clock

	mu       sync.Mutex
	problems []error         // guarded by mu
	seen     map[string]bool // the texts of all problems so far; guarded by mu
	// leftBehind is true if a call has not returned in time. It is guarded by mu.
	leftBehind bool

	// finished maps exited containers, by ID, to their FinishedAt. It is guarded by mu.
	finished map[string]time.Time

	returned []returned // values that the runtime must not modify any more; guarded by mu
}

func newConformance(rt pleg.Runtime) *conformance {
	return &conformance{
		rt: rt, clock: clock.RealClock{}, seen: make(map[string]bool), finished: make(map[string]time.Time),
	}
}

// returned is a value that the runtime returned. The function same reports whether the value still
// equals a copy that was made at the return.
type returned struct {
	what string
	same func() bool
}

// problem records a problem with a call: the expected result, the actual result, and why the
// difference matters.
func (t *conformance) problem(call, expected, seen, why string) {
	text := fmt.Sprintf("  %s: expected %s, saw %s: %s", call, expected, seen, why)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.seen[text] {
		t.seen[text] = true
		t.problems = append(t.problems, errors.New(text))
	}
}

// leave records that a call did not return in time.
func (t *conformance) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leftBehind = true
}

// try runs a call in its own goroutine. It reports whether the call returned in time and without a
// panic.
func (t *conformance) try(call string, limit time.Duration, f func()) bool {
	panicked := make(chan any, 1)
	go func() {
		returned := false
		defer func() {
			p := recover()
			if p == nil && !returned {
				p = "the goroutine was ended (runtime.Goexit)"
			}
			panicked <- p
		}()
		f()
		returned = true
	}()
	timer := t.clock.NewTimer(limit)
	defer timer.Stop()
	select {
	case p := <-panicked:
		if p != nil {
			t.problem(call, "no panic", fmt.Sprintf("panic: %v", p), "one bad pod would crash the agent")
		}
		return p == nil
	case <-timer.C():
		t.leave()
		t.problem(call, fmt.Sprintf("an answer within %v", limit), "none",
			"a call that ignores cancellation costs a goroutine, and until it returns"+
				" the generator makes no other call of its kind for the pod")
		return false
	}
}

// answer is the result of a call.
type answer[T any] struct {
	value T
	err   error
	ok    bool // true if the call returned in time and without a panic
}

// ask makes a call, which must return within callTimeout.
func ask[T any](t *conformance, call string, f func(ctx context.Context) (T, error)) answer[T] {
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // TestRuntime takes no context
	defer cancel()
	return askWithin(ctx, t, call, callTimeout, f)
}

func askWithin[T any](ctx context.Context, t *conformance, call string, limit time.Duration,
	f func(ctx context.Context) (T, error)) answer[T] {
	result := make(chan answer[T], 1) // buffered, so that a late answer does not block
	if !t.try(call, limit, func() {
		v, err := f(ctx)
		result <- answer[T]{v, err, true}
	}) {
		return answer[T]{}
	}
	return <-result
}

func (t *conformance) list(call string, all bool) answer[[]*pleg.Pod] {
	a := ask(t, call, func(ctx context.Context) ([]*pleg.Pod, error) { return t.rt.GetPods(ctx, all) })
	if a.ok && a.err != nil {
		t.problem(call, "no error", quoted(a.err), "without a list the generator is unhealthy")
	}
	if a.ok && a.err == nil {
		for _, pod := range a.value {
			t.keepPod(call, pod)
		}
	}
	return a
}

// testList checks one full list and returns its valid pods. It returns nil if the list fails.
func (t *conformance) testList(expected []types.UID) []*pleg.Pod {
	const call = fullList
	a := t.list(call, true)
	if !a.ok || a.err != nil {
		return nil
	}
	good := t.checkPods(call, a.value)
	for _, pod := range good {
		t.checkOrder(fmt.Sprintf("%s: pod %q", call, pod.ID), pod)
	}
	for _, uid := range expected {
		if !slices.ContainsFunc(good, func(p *pleg.Pod) bool { return p.ID == uid }) {
			t.problem(call, fmt.Sprintf("pod %q in the list", uid), fmt.Sprintf("%d other pods", len(good)),
				"the generator treats a pod that is missing as removed, and its containers as dead")
		}
	}
	return good
}

// testListAgain checks that a second full list equals the first.
func (t *conformance) testListAgain(first []*pleg.Pod) {
	const call = "GetPods(all=true), called again"
	a := t.list(fullList, true)
	if !a.ok || a.err != nil {
		return
	}
	again := t.checkPods(fullList, a.value)
	if got, want := uids(again), uids(first); !slices.Equal(got, want) {
		slices.Sort(got)
		slices.Sort(want)
		if slices.Equal(got, want) {
			t.problem(call, "the pods in the same order", "another order",
				"a run is not reproducible, and recognising an unchanged list costs more")
		} else {
			t.problem(call, fmt.Sprintf("the same %d pods", len(want)),
				fmt.Sprintf("%d, not all the same", len(got)),
				"pods that come and go cause events; if the node was not quiet, test on one that is")
		}
		return
	}
	for i, pod := range again {
		if diff := podDifference(first[i], pod); diff != "" {
			t.problem(fmt.Sprintf("%s: pod %q", call, pod.ID), "the same pod as before", diff,
				"a difference causes an inspection; if the node was not quiet, test on one that is")
		}
	}
}

// testListRunning compares the list of running containers with the full list.
func (t *conformance) testListRunning(full []*pleg.Pod) {
	const call = "GetPods(all=false)"
	a := t.list(call, false)
	if !a.ok || a.err != nil {
		return
	}
	for _, pod := range t.checkPods(call, a.value) {
		where := fmt.Sprintf("%s: pod %q", call, pod.ID)
		if !slices.ContainsFunc(full, func(p *pleg.Pod) bool { return p.ID == pod.ID }) {
			t.problem(where, "a pod that GetPods(all=true) lists too", "one that it does not",
				"all=true lists every pod that the runtime knows")
		}
		for _, c := range slices.Concat(pod.Containers, pod.Sandboxes) {
			if c != nil && c.State == pleg.ContainerStateExited {
				t.problem(where, "no exited containers and sandboxes", c.ID.ID+", exited",
					"only all=true includes them")
			}
		}
	}
	for _, pod := range full {
		runs := slices.ContainsFunc(pod.Containers,
			func(c *pleg.Container) bool { return c != nil && c.State == pleg.ContainerStateRunning })
		if runs && !slices.ContainsFunc(a.value, func(p *pleg.Pod) bool { return p != nil && p.ID == pod.ID }) {
			t.problem(call, fmt.Sprintf("pod %q, which has a running container", pod.ID), "none",
				"all=false omits only what is not running")
		}
	}
}

// testCanceled makes calls with a context that has ended.
func (t *conformance) testCanceled() {
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // TestRuntime takes no context
	cancel()
	full := ask(t, fullList, func(ctx context.Context) ([]*pleg.Pod, error) { return t.rt.GetPods(ctx, true) })
	if !full.ok || full.err != nil {
		full.value = nil
	}
	const call = "GetPods with a canceled context"
	a := askWithin(ctx, t, call, cancelTimeout,
		func(ctx context.Context) ([]*pleg.Pod, error) { return t.rt.GetPods(ctx, true) })
	if a.ok && a.err == nil && len(a.value) < len(full.value) {
		t.problem(call, "an error, or the whole list", fmt.Sprintf("%d of %d pods and no error", len(a.value),
			len(full.value)),
			"an incomplete list must be an error: the generator treats the missing pods as removed")
	}
	good := slices.IndexFunc(full.value, func(p *pleg.Pod) bool { return p != nil && p.ID != "" })
	if good < 0 {
		return
	}
	pod := full.value[good]
	const statusCall = "GetPodStatus with a canceled context"
	s := askWithin(ctx, t, statusCall, cancelTimeout,
		func(ctx context.Context) (*pleg.PodStatus, error) { return t.rt.GetPodStatus(ctx, pod) })
	if s.ok && s.err == nil && s.value != nil && len(s.value.ContainerStatuses) < len(pod.Containers) {
		t.problem(statusCall, "an error, or the whole status", fmt.Sprintf("%d of %d containers and no error",
			len(s.value.ContainerStatuses), len(pod.Containers)),
			"the generator treats a container that is missing from a status as removed")
	}
	getter, ok := t.rt.(pleg.PodGetter)
	if !ok {
		return
	}
	const getCall = "GetPod with a canceled context"
	g := askWithin(ctx, t, getCall, cancelTimeout,
		func(ctx context.Context) (*pleg.Pod, error) { return getter.GetPod(ctx, pod.ID) })
	if g.ok && errors.Is(g.err, pleg.ErrPodNotFound) {
		t.problem(getCall, "the pod, or an error that is not ErrPodNotFound", quoted(g.err),
			"ErrPodNotFound is an answer that removes the pod; a failure must be a different error")
	}
}

// testConcurrency makes calls of every kind at the same time.
func (t *conformance) testConcurrency(pods []*pleg.Pod) {
	const call, rounds = "concurrent calls", 4
	t.try(call, callTimeout, func() {
		var wg sync.WaitGroup
		for range rounds {
			wg.Go(func() {
				a := t.list(fullList, true)
				if a.ok && a.err == nil && len(t.checkPods(fullList, a.value)) != len(pods) {
					t.problem(fullList+", concurrently", fmt.Sprintf("%d pods", len(pods)),
						fmt.Sprint(len(a.value)),
						"calls are concurrent, and each must get the whole list")
				}
			})
			wg.Go(func() {
				for _, pod := range pods[:min(len(pods), 16)] {
					t.testStatus(pod)
					if getter, ok := t.rt.(pleg.PodGetter); ok {
						t.testGetPod(getter, pod)
					}
				}
			})
		}
		wg.Wait()
	})
}

// testUnmodified checks that the runtime has not modified the values that it returned.
func (t *conformance) testUnmodified() {
	t.mu.Lock()
	all := t.returned
	t.mu.Unlock()
	for _, r := range all {
		if !r.same() {
			t.problem(r.what, "a returned value to stay unmodified", "that it was modified afterwards",
				"it is read without a lock, and the same *Pod means an unchanged pod; make a new one")
		}
	}
}

func uids(pods []*pleg.Pod) []types.UID {
	ids := make([]types.UID, len(pods))
	for i, pod := range pods {
		ids[i] = pod.ID
	}
	return ids
}

func quoted(err error) string {
	return fmt.Sprintf("error %q", err)
}
