package cri_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

// misbehaviour contains the ways in which a faulty client may fail in a call.
var misbehaviour = map[string]func() error{
	"panic":                  func() error { panic("the client is broken") },
	"Goexit":                 func() error { runtime.Goexit(); return nil },
	"nil error, typed":       func() error { var err *statusError; return err },
	"panic with a bad value": func() error { panic(unprintable{}) },
}

// statusError is an error. Its methods panic if the pointer is nil.
type statusError struct{ status *status.Status }

func (e *statusError) Error() string              { return e.status.Message() }
func (e *statusError) GRPCStatus() *status.Status { return e.status }

// unprintable is a value that panics when it is printed.
type unprintable struct{}

func (unprintable) Error() string { panic(unprintable{}) }

// node returns a stub with one pod that consists of one sandbox and one container.
func node() *stub {
	return &stub{
		batch:      1,
		sandboxes:  []*runtimeapi.PodSandbox{sandbox("s", "uid")},
		containers: []*runtimeapi.Container{container("c", "uid")},
		sandboxStatus: func(_ context.Context, req *sandboxStatusRequest) (*sandboxStatusResponse, error) {
			return &sandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{Id: req.PodSandboxId}}, nil
		},
		containerStatus: func(_ context.Context, req *statusRequest) (*statusResponse, error) {
			return &statusResponse{Status: &runtimeapi.ContainerStatus{Id: req.ContainerId}}, nil
		},
	}
}

// outcome is the outcome of a call to the Runtime.
type outcome struct {
	err      error
	panicked any
	goexit   bool // true if the call ended the goroutine that made it
}

// outcomeOf makes a call to the Runtime in a new goroutine.
func outcomeOf(call func() error) outcome {
	done := make(chan outcome)
	go func() {
		o := outcome{goexit: true}
		defer func() {
			if p := recover(); p != nil {
				o = outcome{panicked: p}
			}
			done <- o
		}()
		o.err = call()
		o.goexit = false
	}()
	return <-done
}

// If a client panics, or ends the goroutine that calls it, the Runtime's method returns an error
// that names the call. No call stays in flight, and the next call works.
func TestClientMisbehaves(t *testing.T) {
	pod := &pleg.Pod{
		ID:         "uid",
		Sandboxes:  []*pleg.Container{{ID: pleg.ContainerID{ID: "s"}, State: pleg.ContainerStateRunning}},
		Containers: []*pleg.Container{{ID: pleg.ContainerID{ID: "c"}, State: pleg.ContainerStateRunning}},
	}
	getPods := func(ctx context.Context, r *cri.Runtime) error { _, err := r.GetPods(ctx, true); return err }
	getPod := func(ctx context.Context, r *cri.Runtime) error { _, err := r.GetPod(ctx, "uid"); return err }
	getPodStatus := func(ctx context.Context, r *cri.Runtime) error {
		_, err := r.GetPodStatus(ctx, pod)
		return err
	}
	watch := func(ctx context.Context, r *cri.Runtime) error {
		return r.WatchContainerEvents(ctx, func() {}, func(pleg.ContainerEvent) {})
	}
	for _, test := range []struct {
		name  string
		call  func(context.Context, *cri.Runtime) error
		at    string // the name of the client's call that fails
		nth   int32  // which of the calls with this name fails, from 1
		plain bool
		// ours is true if a goroutine of the Runtime calls the client.
		ours bool
	}{
		{name: "Version", call: getPods, at: "Version", nth: 1},
		{name: "StreamPodSandboxes", call: getPods, at: "StreamPodSandboxes", nth: 1},
		{name: "StreamPodSandboxes.Recv", call: getPods, at: "StreamPodSandboxes.Recv", nth: 1},
		{name: "StreamContainers", call: getPods, at: "StreamContainers", nth: 1},
		{name: "StreamContainers.Recv", call: getPods, at: "StreamContainers.Recv", nth: 2},
		{name: "ListPodSandbox", call: getPods, at: "ListPodSandbox", nth: 1, plain: true},
		{name: "ListContainers", call: getPods, at: "ListContainers", nth: 1, plain: true},
		{name: "ListPodSandbox of GetPod", call: getPod, at: "ListPodSandbox", nth: 1, ours: true},
		{name: "ListContainers of GetPod", call: getPod, at: "ListContainers", nth: 1, ours: true},
		{name: "PodSandboxStatus", call: getPodStatus, at: "PodSandboxStatus", nth: 1, ours: true},
		{name: "ContainerStatus", call: getPodStatus, at: "ContainerStatus", nth: 1, ours: true},
		{name: "GetContainerEvents", call: watch, at: "GetContainerEvents", nth: 1},
		{name: "GetContainerEvents.Recv", call: watch, at: "GetContainerEvents.Recv", nth: 1},
		{name: "Version beside the event stream", call: watch, at: "Version", nth: 2, ours: true},
	} {
		for how, misbehave := range misbehaviour {
			t.Run(test.name+"/"+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					client := node()
					var calls atomic.Int32
					client.hook = func(_ context.Context, method string) error {
						if method == test.at && calls.Add(1) == test.nth {
							return misbehave()
						}
						return nil
					}
					opts := []cri.Option{quiet}
					if test.plain {
						opts = append(opts, cri.WithPlainLists())
					}
					r := newRuntime(client, opts...)
					got := outcomeOf(func() error { return test.call(t.Context(), r) })
					method := strings.TrimSuffix(test.at, ".Recv")
					switch {
					case got.panicked != nil:
						t.Errorf("it panicked with a %T", got.panicked)
					case how == "Goexit" && !test.ours:
						// A client can always end its caller's goroutine.
						if !got.goexit {
							t.Errorf("%+v", got)
						}
					case got.err == nil || !strings.Contains(got.err.Error(), "cri: "+method):
						t.Errorf("the error does not name %s: %+v", method, got)
					case how == "panic" && !strings.Contains(got.err.Error(),
						"panic: the client is broken"):
						t.Errorf("the error does not say what happened: %v", got.err)
					}
					if left := inFlight(r); len(left) != 0 {
						t.Errorf("in flight: %+v", left)
					}
					ctx, cancel := context.WithCancel(t.Context())
					again := make(chan outcome, 1)
					go func() { again <- outcomeOf(func() error { return test.call(ctx, r) }) }()
					synctest.Wait()
					cancel() // ends the event stream
					if got := <-again; got.panicked != nil || got.goexit || got.err != nil &&
						!errors.Is(got.err, context.Canceled) {
						t.Errorf("the next call: %+v", got)
					}
				})
			})
		}
	}
}

// connected is called in a goroutine of the Runtime. If connected panics, the stream ends.
func TestConnectedPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRuntime(node())
		err := r.WatchContainerEvents(t.Context(), func() { panic("not ready") }, func(pleg.ContainerEvent) {})
		if err == nil || !strings.Contains(err.Error(), "panic: not ready") ||
			!strings.Contains(err.Error(), "GetContainerEvents") {
			t.Error(err)
		}
		if left := inFlight(r); len(left) != 0 {
			t.Errorf("in flight: %+v", left)
		}
	})
}

// If one of the two parallel calls of GetPod panics or ends its goroutine, the other call is
// cancelled.
func TestMisbehaviourCancelsTheOtherCalls(t *testing.T) {
	for how, misbehave := range misbehaviour {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := node()
				client.hook = func(ctx context.Context, method string) error {
					switch method {
					case "ListPodSandbox":
						<-ctx.Done()
						return status.FromContextError(ctx.Err()).Err()
					case "ListContainers":
						return misbehave()
					}
					return nil
				}
				r := newRuntime(client, cri.WithPlainLists(), quiet)
				_, err := r.GetPod(t.Context(), "uid")
				if err == nil || !strings.Contains(err.Error(), "ListContainers") {
					t.Error(err)
				}
			})
		})
	}
}
