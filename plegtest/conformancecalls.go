package plegtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kubepleg/pleg"
)

// pollEvery is the time between two calls of CallsInFlight.
const pollEvery = time.Millisecond

// TestCallReporter tests the calls that rt reports as a [pleg.CallReporter]: while a container is
// stuck in the runtime, CallsInFlight must name the call, the container and its pod, and afterwards
// no longer. rt must list a pod with a container. The function stick makes the runtime leave the
// inspections of the container with the given ID unanswered. The function heal makes the runtime
// answer them. No other goroutine may call rt during the test.
//
// TestCallReporter returns nil, or an error like TestRuntime. It waits up to 5 s for a report.
func TestCallReporter(rt pleg.Runtime, stick func(containerID string) (heal func())) error {
	reporter, ok := rt.(pleg.CallReporter)
	if !ok {
		return fmt.Errorf("plegtest.TestCallReporter: %T is no pleg.CallReporter", rt)
	}
	t := newConformance(rt)
	pods := t.list(fullList, true).value
	i := slices.IndexFunc(pods, func(p *pleg.Pod) bool {
		return p != nil && len(p.Containers) > 0 && p.Containers[0] != nil
	})
	if i < 0 {
		return errors.Join(errors.New("plegtest.TestCallReporter: the runtime lists no container"), t.err("TestCallReporter"))
	}
	t.testStuckCall(reporter, pods[i], stick)
	return t.err("TestCallReporter")
}

// testStuckCall inspects a pod whose first container is stuck.
func (t *conformance) testStuckCall(reporter pleg.CallReporter, pod *pleg.Pod, stick func(string) func()) {
	const call, why = "CallsInFlight", "the health report names the stuck call and its container"
	id := pod.Containers[0].ID.ID
	began := t.clock.Now()
	heal := stick(id)
	inspected := make(chan struct{})
	go func() {
		defer close(inspected)
		ask(t, "GetPodStatus", func(ctx context.Context) (*pleg.PodStatus, error) { return t.rt.GetPodStatus(ctx, pod) })
	}()
	var calls []pleg.RuntimeCall
	named := func(c pleg.RuntimeCall) bool { return c.PodUID == pod.ID && c.ObjectID == id }
	for t.clock.Since(began) < cancelTimeout && !slices.ContainsFunc(calls, named) {
		t.clock.Sleep(pollEvery)
		calls, _ = reporter.CallsInFlight()
	}
	if i := slices.IndexFunc(calls, named); i < 0 {
		t.problem(call, fmt.Sprintf("the call for container %s of pod %q, which is stuck", id, pod.ID),
			fmt.Sprintf("%+v", calls), why)
	} else if c := calls[i]; c.Method == "" || c.Object == "" || c.Since.Before(began) || c.Since.After(t.clock.Now()) {
		t.problem(call, "the method and the object of a call, and when it began", fmt.Sprintf("%+v", c), why)
	}
	if !slices.IsSortedFunc(calls, func(a, b pleg.RuntimeCall) int { return a.Since.Compare(b.Since) }) {
		t.problem(call, "the oldest call first", fmt.Sprintf("%+v", calls), "the first one is named first")
	}
	healed := t.clock.Now()
	heal()
	<-inspected
	calls, answered := reporter.CallsInFlight()
	if slices.ContainsFunc(calls, named) {
		t.problem(call, "no call that has returned", fmt.Sprintf("%+v", calls), why)
	}
	if answered.Before(healed) {
		t.problem(call, fmt.Sprintf("an answer since %v", healed), fmt.Sprint(answered),
			"a runtime that answers nothing for ten seconds counts as frozen")
	}
}
