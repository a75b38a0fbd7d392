package calls_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg/internal/core/calls"
)

var (
	errNotFound = errors.New("not found")
	errStopped  = errors.New("the owner was stopped")
	errDeadline = errors.New("past its deadline")
)

// outcome contains the key of a call, and the arguments with which its function done was called.
type outcome struct {
	key     string
	err     error
	stopped bool
}

// owner starts calls, and records their outcomes.
type owner struct {
	*calls.Group[string]
	mu       sync.Mutex
	outcomes []outcome
}

func newOwner() *owner {
	return &owner{Group: calls.NewGroup[string]()}
}

func (o *owner) begin(key string, info calls.Info, method func(ctx context.Context) error) {
	o.Go(key, info, method, func(err error, stopped bool) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.outcomes = append(o.outcomes, outcome{key, err, stopped})
	})
}

// cancelAll stops the group without waiting for its calls.
func (o *owner) cancelAll() { o.Stop(errStopped, passed) }

// passed is a timeout that has already fired.
var passed = func() <-chan time.Time {
	ch := make(chan time.Time)
	close(ch)
	return ch
}()

func (o *owner) call(key string, method func(ctx context.Context) error) {
	o.begin(key, calls.Info{Method: "GetPods"}, method)
}

// came waits until all goroutines are blocked. It returns the outcomes since the last call of came.
func (o *owner) came() []outcome {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	came := o.outcomes
	o.outcomes = nil
	return came
}

// only returns the new outcome. It fails the test unless there is exactly one.
func (o *owner) only(t *testing.T) outcome {
	t.Helper()
	came := o.came()
	if len(came) != 1 {
		t.Fatalf("there are %d outcomes, not one: %v", len(came), came)
	}
	return came[0]
}

func returnsNil(context.Context) error { return nil }

// honours is a method that ends with its context. It returns the cause of the context.
func honours(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// goroutine returns an identifier of the current goroutine.
func goroutine() string {
	stack := make([]byte, 64)
	id, _, _ := strings.Cut(string(stack[:runtime.Stack(stack, false)]), " [")
	return id
}

// The function done is called once, in the goroutine of the call. The call is in flight until done
// returns.
func TestDoneIsCalledInTheGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := calls.NewGroup[int]()
		times, called, doneBy := 0, "", ""
		g.Go(7, calls.Info{Method: "GetPods"}, func(context.Context) error {
			called = goroutine()
			if got := len(g.InFlight()); got != 1 {
				t.Errorf("%d calls in flight during the call", got)
			}
			return nil
		}, func(err error, stopped bool) {
			times++
			doneBy = goroutine()
			if err != nil || stopped {
				t.Errorf("done was called with %v, %v", err, stopped)
			}
			if got := len(g.InFlight()); got != 1 {
				t.Errorf("%d calls in flight during done", got)
			}
		})
		synctest.Wait()
		if got := g.InFlight(); got != nil {
			t.Errorf("in flight: %v", got)
		}
		if times != 1 || called != doneBy || called == goroutine() {
			t.Errorf("done was called %d times, by %q; the call was made by %q", times, doneBy, called)
		}
	})
}

// The function done may begin the next call. Owners without a loop need this.
func TestDoneMayBeginACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := calls.NewGroup[int]()
		last := 0
		var begin func(key int)
		begin = func(key int) {
			g.Go(key, calls.Info{}, returnsNil, func(error, bool) {
				last = key
				if key < 100 {
					begin(key + 1)
				}
			})
		}
		begin(1)
		synctest.Wait()
		if last != 100 {
			t.Errorf("the last call was %d", last)
		}
	})
}

func TestCancelEndsOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		for _, key := range []string{"a", "b", "c"} {
			o.call(key, honours)
		}
		o.Cancel("b", errDeadline)
		got := o.only(t)
		if got.key != "b" || !errors.Is(got.err, errDeadline) || got.stopped {
			t.Errorf("got %v", got)
		}
		o.Cancel("b", errDeadline)
		o.Cancel("unknown", errDeadline)
		if got := o.came(); len(got) != 0 {
			t.Errorf("cancelled besides: %v", got)
		}
		o.cancelAll()
		if got := o.came(); len(got) != 2 {
			t.Errorf("at the end: %v", got)
		}
	})
}

// If a call is cancelled twice, the runtime sees the first cause.
func TestCancelTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		release := make(chan struct{})
		var cause error
		o.call("a", func(ctx context.Context) error {
			<-release
			cause = context.Cause(ctx)
			return ctx.Err()
		})
		synctest.Wait()
		o.Cancel("a", errDeadline)
		o.cancelAll()
		close(release)
		if got := o.only(t); !errors.Is(got.err, context.Canceled) || !got.stopped {
			t.Errorf("got %v", got)
		}
		if !errors.Is(cause, errDeadline) {
			t.Errorf("the cause is %v", cause)
		}
	})
}

// If a call is cancelled before its goroutine runs, the method is called with an ended context.
func TestCancelBeforeTheGoroutineRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		for range 100 {
			o.call("a", func(ctx context.Context) error { return ctx.Err() })
			o.Cancel("a", errDeadline)
			if got := o.only(t); got.err != nil && !errors.Is(got.err, context.Canceled) {
				t.Fatalf("got %v", got)
			}
		}
	})
}

// If a call fails after Stop, stopped is true. If a call succeeds after Stop, stopped is false.
func TestStopCancelsWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		release := make(chan struct{})
		o.call("before", returnsNil)
		if got := o.only(t); got.stopped {
			t.Errorf("got %v", got)
		}
		o.call("honours", honours)
		o.call("succeeds", func(context.Context) error { <-release; return nil })
		o.call("panics", func(context.Context) error { <-release; panic("late") })
		synctest.Wait()
		o.cancelAll()
		o.call("after", func(ctx context.Context) error { <-release; return ctx.Err() })
		o.call("fails after", func(context.Context) error { <-release; return errNotFound })
		synctest.Wait()
		close(release)
		stopped := make(map[string]bool)
		for _, got := range o.came() {
			stopped[got.key] = got.stopped
			if (got.err == nil) != (got.key == "succeeds" || got.key == "after") {
				t.Errorf("%s failed with %v", got.key, got.err)
			}
		}
		want := map[string]bool{
			"honours": true, "succeeds": false, "panics": true, "after": false, "fails after": false,
		}
		for key, want := range want {
			if got, ok := stopped[key]; !ok || got != want {
				t.Errorf("%s: stopped is %v", key, got)
			}
		}
	})
}

// After a stopped call has returned, the next call with its key is not stopped.
func TestStopSparesTheNextCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		fails := func(context.Context) error { return errNotFound }
		for range 3 {
			o.call("cancelled", honours)
			o.cancelAll()
			if got := o.only(t); !got.stopped {
				t.Errorf("got %v", got)
			}
			o.call("fails", fails)
			if got := o.only(t); got.stopped {
				t.Errorf("got %v", got)
			}
			if got := o.Stop(errStopped, nil); got != nil {
				t.Errorf("left: %v", got)
			}
		}
	})
}

// begun is the time at which the n-th call of a test began.
func begun(n int) time.Time { return time.Unix(int64(n), 0) }

// hang begins a call that ends only when release is closed.
func (o *owner) hang(info calls.Info, release <-chan struct{}) {
	o.begin(info.Object, info, func(context.Context) error { <-release; return nil })
}

func objects(infos []calls.Info) string {
	var names []string
	for _, info := range infos {
		names = append(names, info.Object)
	}
	return strings.Join(names, " ")
}

func TestStopReturnsWhatIgnoresItsCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		if got := o.Stop(errStopped, nil); got != nil {
			t.Errorf("without a call: %v", got)
		}
		young, old, later := make(chan struct{}), make(chan struct{}), make(chan struct{})
		o.hang(calls.Info{Object: "young", Since: begun(2)}, young)
		o.hang(calls.Info{Object: "old", Since: begun(1)}, old)
		o.call("honours", honours)
		time.AfterFunc(time.Second, func() { o.hang(calls.Info{Object: "later", Since: begun(3)}, later) })
		if got := objects(o.Stop(errStopped, time.After(5*time.Second))); got != "old young" {
			t.Errorf("at the timeout: %q", got)
		}
		close(young)
		synctest.Wait()
		if got := objects(o.InFlight()); got != "old later" {
			t.Errorf("in flight: %q", got)
		}
		for _, release := range []chan struct{}{old, later} {
			time.AfterFunc(time.Second, func() { close(release) })
		}
		began := time.Now()
		if got := o.Stop(errStopped, time.After(5*time.Second)); got != nil {
			t.Errorf("when all have returned: %v", got)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("Stop took %v", took)
		}
		if got := o.came(); len(got) != 4 {
			t.Errorf("outcomes: %v", got)
		}
	})
}

// Stop returns only after the function done has returned.
func TestStopWaitsForDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := calls.NewGroup[int]()
		release := make(chan struct{})
		g.Go(1, calls.Info{}, honours, func(error, bool) { <-release })
		began := time.Now()
		time.AfterFunc(time.Second, func() { close(release) })
		if left := g.Stop(errStopped, nil); left != nil {
			t.Errorf("left: %v", left)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("Stop took %v", took)
		}
	})
}

func TestInFlightIsOrderedAndFiltered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		release := make(chan struct{})
		infos := []calls.Info{
			{Method: "GetPods", Object: "1", Since: begun(1)},
			{Method: "GetPod", PodUID: "a", Object: "2", Since: begun(2)},
			{Method: "GetPodStatus", PodUID: "a", Object: "3", Since: begun(2)},
			{Method: "GetPod", PodUID: "b", Object: "4", Since: begun(2)},
			{Method: "GetPodStatus", PodUID: "b", Object: "5", Since: begun(3)},
		}
		for _, i := range rand.Perm(len(infos)) {
			o.hang(infos[i], release)
		}
		if got := o.InFlight(); !slices.Equal(got, infos) {
			t.Errorf("got %v", got)
		}
		for methods, want := range map[string]string{
			"GetPods": "1", "GetPod GetPods": "1 2 4", "GetPodStatus": "3 5", "WatchContainerEvents": "",
		} {
			if got := objects(o.InFlight(strings.Fields(methods)...)); got != want {
				t.Errorf("%s: got %q, not %q", methods, got, want)
			}
		}
		close(release)
		synctest.Wait()
		if got := o.InFlight(); got != nil {
			t.Errorf("in the end: %v", got)
		}
	})
}

// Calls may return in any order. The remaining calls stay in flight under their keys.
func TestCallsReturnInAnyOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		const n = 50
		name := func(i int) string { return fmt.Sprintf("%02d", i) }
		for i := range n {
			o.begin(name(i), calls.Info{Object: name(i), Since: begun(i)}, honours)
		}
		left := make(map[string]bool)
		for i := range n {
			left[name(i)] = true
		}
		for _, i := range rand.Perm(n) {
			o.Cancel(name(i), errDeadline)
			if got := o.only(t); got.key != name(i) {
				t.Fatalf("cancelled %s, %s returned", name(i), got.key)
			}
			delete(left, name(i))
			got := o.InFlight()
			if len(got) != len(left) {
				t.Fatalf("in flight: %v", got)
			}
			for _, info := range got {
				if !left[info.Object] {
					t.Fatalf("%s is in flight", info.Object)
				}
			}
		}
	})
}
