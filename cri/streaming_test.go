package cri_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg/cri"
)

var errUnimplemented = status.Error(codes.Unimplemented, "unknown service runtime.v1.RuntimeService")

// streamNode is a stub that records the list calls. It fails the calls that the test chooses.
type streamNode struct {
	*stub
	t       *testing.T
	clock   *clocktesting.FakePassiveClock
	runtime *cri.Runtime
	refuse  map[string]error // by method, the error that the call returns
	calls   []string         // the calls of the last list
}

func newStreamNode(t *testing.T, opts ...cri.Option) *streamNode {
	n := &streamNode{
		stub:   node(),
		t:      t,
		clock:  clocktesting.NewFakePassiveClock(time.Unix(1_000_000, 0)),
		refuse: map[string]error{},
	}
	n.hook = func(_ context.Context, method string) error {
		method, isAnswer := strings.CutSuffix(method, ".Recv")
		if !isAnswer && method != "Version" {
			n.calls = append(n.calls, method)
		}
		if strings.HasPrefix(method, "Stream") && !isAnswer {
			return nil // over gRPC, a refusal comes with the first Recv
		}
		return n.refuse[method]
	}
	n.runtime = newRuntime(n.stub, append(opts, cri.WithClock(n.clock), quiet)...)
	return n
}

// stops makes streaming lists fail with err. With nil, they work again.
func (n *streamNode) stops(err error) {
	n.refuse["StreamPodSandboxes"], n.refuse["StreamContainers"] = err, err
}

// The method named lists makes a full list, and returns the calls of this list.
func (n *streamNode) lists() (calls string, err error) {
	n.calls = nil
	pods, err := n.runtime.GetPods(n.t.Context(), true)
	if err == nil && len(pods) != 1 {
		n.t.Errorf("%d pods", len(pods))
	}
	return strings.Join(n.calls, " "), err
}

const (
	streamed = "StreamPodSandboxes StreamContainers"
	plain    = "ListPodSandbox ListContainers"
	fellBack = "StreamPodSandboxes " + plain
)

// expect makes a full list a second after the previous list, and checks its calls.
func (n *streamNode) expect(what, want string) {
	n.t.Helper()
	n.clock.SetTime(n.clock.Now().Add(time.Second))
	if got, err := n.lists(); err != nil || got != want {
		n.t.Errorf("%s: %s, %v; want %s", what, got, err, want)
	}
	wantLists := ", streaming lists"
	if want != streamed {
		wantLists = ", plain lists"
	}
	if got := n.runtime.DescribeRuntime(); !strings.HasSuffix(got, wantLists) {
		n.t.Errorf("%s: %q", what, got)
	}
}

// If streaming has worked before, an Unimplemented answer affects only one list. This list falls
// back to plain calls, and the next list is streamed.
func TestOneUnimplementedIsForOneList(t *testing.T) {
	n := newStreamNode(t)
	n.expect("first", streamed)
	n.stops(errUnimplemented)
	n.expect("refused", fellBack)
	n.stops(nil)
	n.expect("next", streamed)
	n.stops(errUnimplemented)
	n.expect("refused again", fellBack)
	n.stops(nil)
	n.expect("next again", streamed)
}

// If a runtime stops streaming lists for good, no list fails. Only a few lists still try streaming,
// which takes an additional call.
func TestUnimplementedForGood(t *testing.T) {
	n := newStreamNode(t)
	n.expect("first", streamed)
	n.stops(errUnimplemented)
	var tries []int // the indexes of the lists that tried streaming
	for i := range 3600 {
		n.clock.SetTime(n.clock.Now().Add(time.Second))
		switch got, err := n.lists(); {
		case err != nil:
			t.Fatal(err)
		case got == fellBack:
			tries = append(tries, i)
		case got != plain:
			t.Fatal(got)
		}
	}
	if len(tries) > 25 {
		t.Errorf("streaming was tried %d times in an hour: %v", len(tries), tries)
	}
	for i, at := range tries[1:] {
		if wait := at - tries[i]; wait > 300 || i > 0 && wait < min(300, 2*(tries[i]-tries[i-1])) {
			t.Errorf("not twice as long each time, up to 5 minutes: %v", tries)
			break
		}
	}
	n.stops(nil)
	for i := 0; ; i++ {
		n.clock.SetTime(n.clock.Now().Add(time.Second))
		got, err := n.lists()
		must(t, err)
		if got == streamed {
			break
		}
		if i > 300 {
			t.Fatal("streaming has not been tried again in 5 minutes")
		}
	}
	n.expect("after it works again", streamed)
}

// If a runtime has never streamed a list, streaming is retried after five minutes, or at once when
// the version changes.
func TestRuntimeThatNeverStreamed(t *testing.T) {
	n := newStreamNode(t)
	n.stops(errUnimplemented)
	n.expect("first", fellBack)
	for range 298 {
		n.expect("for five minutes", plain)
	}
	n.clock.SetTime(n.clock.Now().Add(time.Second))
	n.expect("after five minutes", fellBack)
	n.expect("then", plain)

	n.version = "2.0"
	n.expect("before the adapter knows the new version", plain)
	reconnect(t, n.runtime)
	n.expect("another version", fellBack)
	n.expect("then", plain)

	n.version = "3.0"
	n.stops(nil)
	reconnect(t, n.runtime)
	n.expect("a version that streams", streamed)
	n.expect("then", streamed)
}

// If plain lists fail too, a refusal to stream does not count, and the next list tries streaming
// again. Plain lists fail while a runtime is starting, or if a list is too large.
func TestRefusalWhilePlainListsFail(t *testing.T) {
	for _, worked := range []bool{false, true} {
		for name, failure := range map[string]error{
			"starting":  errUnimplemented,
			"too large": status.Error(codes.ResourceExhausted, "message larger than max"),
		} {
			n := newStreamNode(t)
			if worked {
				n.expect("first", streamed)
			}
			n.stops(errUnimplemented)
			n.refuse["ListPodSandbox"] = failure
			for range 3 {
				n.clock.SetTime(n.clock.Now().Add(time.Second))
				if got, err := n.lists(); !errors.Is(err, failure) &&
					status.Code(err) != status.Code(failure) {
					t.Errorf("%s: %s, %v", name, got, err)
				}
			}
			n.stops(nil)
			n.expect(name, streamed)
		}
	}
	// The same is true if plain lists work for a while and then become too large.
	n := newStreamNode(t)
	n.stops(errUnimplemented)
	n.expect("first", fellBack)
	n.expect("second", plain)
	n.refuse["ListContainers"] = status.Error(codes.ResourceExhausted, "message larger than max")
	if _, err := n.lists(); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
	n.stops(nil)
	n.expect("after a plain list that was too large", streamed)
}

// If a runtime streams only one of the two lists, streaming is not tried at each list.
func TestRuntimeThatStreamsOneListOnly(t *testing.T) {
	n := newStreamNode(t)
	n.refuse["StreamContainers"] = errUnimplemented
	n.expect("first", "StreamPodSandboxes StreamContainers ListContainers")
	for range 250 {
		n.expect("then", plain)
	}
}

// If the clock is set back, streaming is retried at once.
func TestStreamingWhenTheClockIsSetBack(t *testing.T) {
	n := newStreamNode(t)
	n.stops(errUnimplemented)
	n.expect("first", fellBack)
	n.expect("second", plain)
	n.clock.SetTime(n.clock.Now().Add(-24 * time.Hour))
	n.expect("a day before", fellBack)
	n.expect("then", plain)
}

// If streaming fails with another error than Unimplemented, the list fails without plain calls.
func TestFailedStreamIsTriedAgain(t *testing.T) {
	n := newStreamNode(t)
	n.stops(status.Error(codes.Unavailable, "restarting"))
	for range 3 {
		if got, err := n.lists(); got != "StreamPodSandboxes" || status.Code(err) != codes.Unavailable {
			t.Errorf("%s, %v", got, err)
		}
	}
	n.stops(nil)
	n.expect("when it is back", streamed)
}

// With WithPlainLists, no list is streamed, even after a failure or a new version.
func TestPlainListsAreNeverStreamed(t *testing.T) {
	n := newStreamNode(t, cri.WithPlainLists())
	n.expect("first", plain)
	n.refuse["ListContainers"] = status.Error(codes.ResourceExhausted, "message larger than max")
	if _, err := n.lists(); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
	clear(n.refuse)
	n.version = "2.0"
	reconnect(t, n.runtime)
	n.clock.SetTime(n.clock.Now().Add(time.Hour))
	n.expect("an hour later", plain)
}
