package plegtest_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// reporter is a fake runtime that reports its inspections. Each field breaks it in one way.
type reporter struct {
	*plegtest.Runtime
	edit                   func(c *pleg.RuntimeCall)
	silent, keeps, unheard bool
	newestFirst            bool

	mu       sync.Mutex
	calls    []pleg.RuntimeCall
	answered time.Time
}

func (r *reporter) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	id := pod.Containers[0].ID.ID
	call := pleg.RuntimeCall{Method: "Inspect", PodUID: pod.ID, Object: "container " + id, ObjectID: id, Since: time.Now()}
	if r.edit != nil {
		r.edit(&call)
	}
	r.mu.Lock()
	if !r.silent {
		r.calls = append(r.calls, call)
	}
	if r.newestFirst {
		r.calls = append(r.calls, pleg.RuntimeCall{Method: "Version", Since: call.Since.Add(-time.Second)})
	}
	r.mu.Unlock()
	status, err := r.Runtime.GetPodStatus(ctx, pod)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.keeps {
		r.calls = nil
	}
	if !r.unheard {
		r.answered = time.Now()
	}
	return status, err
}

func (r *reporter) CallsInFlight() ([]pleg.RuntimeCall, time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls, r.answered
}

func TestTestCallReporter(t *testing.T) {
	for _, test := range []struct {
		name string
		rt   *reporter
		want string // a part of the error; empty for none
	}{
		{"good", &reporter{}, ""},
		{"reports no call", &reporter{silent: true}, "the call for container"},
		{"names no pod", &reporter{edit: func(c *pleg.RuntimeCall) { c.PodUID = "" }}, "the call for container"},
		{"names no container", &reporter{edit: func(c *pleg.RuntimeCall) { c.ObjectID = "" }}, "the call for container"},
		{"names no method", &reporter{edit: func(c *pleg.RuntimeCall) { c.Method = "" }}, "the method and the object"},
		{"has no time", &reporter{edit: func(c *pleg.RuntimeCall) { c.Since = time.Time{} }}, "when it began"},
		{"keeps a call", &reporter{keeps: true}, "no call that has returned"},
		{"has no answer", &reporter{unheard: true}, "an answer since"},
		{"newest first", &reporter{newestFirst: true}, "the oldest call first"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test.rt.Runtime = plegtest.NewRuntime()
				test.rt.SetPods(plegtest.NewPod("a", plegtest.Running("app")))
				err := plegtest.TestCallReporter(test.rt, func(string) func() {
					return test.rt.Block(plegtest.GetPodStatus, "a")
				})
				if err != nil != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
					t.Error(err)
				}
			})
		})
	}
	if err := plegtest.TestCallReporter(plegtest.NewRuntime(), nil); err == nil {
		t.Error("a runtime that reports no calls passes")
	}
	if err := plegtest.TestCallReporter(&reporter{Runtime: plegtest.NewRuntime()}, nil); err == nil {
		t.Error("a runtime without containers passes")
	}
}
